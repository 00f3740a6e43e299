"""Contract of tasks.formats.pdf.marked_page: Markdown of a page becomes blocks, and no text hangs the reader."""

import time

import pytest

from tasks.formats.pdf.marked_page import blocks_of, text_of

BOX = (0.0, 0.0, 595.0, 842.0)


def read(text: str) -> list[tuple[str, str]]:
    return [(block.kind, "\n".join(block.lines)) for block in blocks_of(text, BOX)]


def test_headings_paragraphs_and_items_lose_their_marks_and_keep_their_words() -> None:
    text = (
        "## The **cold** _sea_ ##\n\nA ship of *nine* [men](https://a.example/x), 3 * 4 * 5, snake_case_name,\n"
        "`a_*b*` and 5\\% \\*.\n- one<sup>2</sup>\n- two\n  and on\n\n1. first\n\n***\n\n![a ship](ship.png)\n"
    )
    assert read(text) == [
        ("heading", "The cold sea"),
        ("paragraph", "A ship of nine men, 3 * 4 * 5, snake_case_name,\n`a_*b*` and 5\\% *."),
        ("item", "- one^{2}"),
        ("item", "- two\nand on"),
        ("item", "1. first"),
    ]
    levels = [(block.level, block.size) for block in blocks_of("# A\n## B\n### C", BOX)]
    assert [level for level, _ in levels] == [1, 2, 3]
    assert levels[0][1] > levels[1][1] > levels[2][1]


def test_a_sign_at_the_end_of_a_heading_is_kept_and_a_rule_ends_a_paragraph() -> None:
    text = "# Use of C#\n## The sea ##\n# ##\nThe first.\n***\nThe second."
    assert read(text) == [
        ("heading", "Use of C#"),
        ("heading", "The sea"),
        ("paragraph", "The first."),
        ("paragraph", "The second."),
    ]


def test_formulas_and_code_are_kept_as_they_are() -> None:
    formulas = "Since $a_1 * b_1 * c$ and \\(x_*y_*\\):\n$$\n\\frac{a_*}{b_*}\n= c\n$$\n\\[ x^2 \\]\n"
    text = formulas + "```python\nif a:\n    b = *c\n```"
    assert read(text) == [
        ("paragraph", "Since $a_1 * b_1 * c$ and \\(x_*y_*\\):"),
        ("formula", "$$\\frac{a_*}{b_*} = c$$"),
        ("formula", "$$x^2$$"),
        ("code", "if a:\n    b = *c"),
    ]


def test_a_formula_ends_at_its_mark_with_its_number() -> None:
    text = "$$a = b$$ (1)\nwhere b is the mass,\n$$\nc\n$$, and\n$$d$$ is a length.\n\n$$\n$$\n\\[1\\] A. Smith"
    assert read(text) == [
        ("formula", "$$a = b$$ (1)"),
        ("paragraph", "where b is the mass,"),
        ("formula", "$$c$$"),
        ("paragraph", ", and"),
        ("paragraph", "$$d$$ is a length."),
        ("paragraph", "[1] A. Smith"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "| Port | **Days** |\n| :-- | --: |\n| Vardo | 7 \\| 8 |\n| Oslo |",
        "<table><tr><th>Port</th><th>Days</th></tr>\n<tr><td>Vardo</td><td>7 | 8</td></tr>"
        "<tr><td colspan=99>Oslo</td></tr></table>",
    ],
    ids=["Markdown", "HTML"],
)
def test_tables_have_rows_of_one_width_and_a_head(text: str) -> None:
    (table,) = blocks_of(f"{text}\n\nAfter.", BOX)[:1]
    assert table.rows == (("Port", "Days"), ("Vardo", "7 | 8"), ("Oslo", ""))
    assert (table.kind, table.header_rows, table.box) == ("table", 1, BOX)


def test_a_table_in_html_has_the_cells_at_their_places_and_their_whole_text() -> None:
    rows = (
        "<tr><th>Port<th rowspan=2>Days</tr>\n\n<tr><td>Vardo<br/>(north)</td></tr>"
        "<tr><td colspan='2'>10<SUP>2</SUP> &amp;lt; x</td><td>y</td></tr>"
    )
    (table,) = blocks_of(f"<TABLE>{rows}</TABLE>", BOX)
    assert table.rows == (("Port", "Days", ""), ("Vardo (north)", "Days", ""), ("10^{2} &lt; x", "", "y"))
    assert table.lines == ("Port\tDays", "Vardo (north)\tDays", "10^{2} &lt; x\t\ty")


def test_text_around_a_table_in_html_is_kept() -> None:
    table = "<table><caption>Ports</caption><tr><td>Vardo</td></tr></table>"
    kept = [("paragraph", "Ports"), ("table", "Vardo")]
    assert read(f"Before\n{table} between {table}\nAfter") == [
        ("paragraph", "Before"),
        *kept,
        ("paragraph", "between"),
        *kept,
        ("paragraph", "After"),
    ]
    assert read(f"Before {table} between") == [("paragraph", "Before"), *kept, ("paragraph", "between")]
    assert read(f"<div>{table}</div>") == kept
    assert read(f"```\n<p>{table}\n```") == [("code", f"<p>{table}")]
    unfinished = "<table>\n<tr><td>Vardo</td></tr>\nNote\n\n# After\n\n<table><tr><td>Oslo"
    expected = [("table", "Vardo"), ("paragraph", "Note"), ("heading", "After"), ("table", "Oslo")]
    assert read(unfinished) == expected
    assert read(f"{unfinished}</td></tr></table>") == expected
    nested = "<table><tr><td>Vardo<table><tr><td>Oslo</td></tr></table></td></tr></table> End"
    assert read(nested) == [("table", "Vardo\nOslo"), ("paragraph", "End")]


def test_what_models_wrap_around_a_page_is_not_part_of_it() -> None:
    assert text_of("```markdown\n# A\n\ntext\n```") == "# A\n\ntext"
    assert text_of("---\nprimary_language: en\nis_table: False\n---\nThe text.") == "The text."
    assert text_of("A\n```\ncode\n```\n") == "A\n```\ncode\n```"


def test_unfinished_marks_lose_no_text() -> None:
    assert read("$$\na = b\n\nAfter") == [("formula", "$$a = b$$"), ("paragraph", "After")]
    assert read("```\na\n\nb") == [("code", "a\n\nb")]
    assert read("**bold and [link and $5 and `code") == [("paragraph", "**bold and [link and $5 and `code")]


def test_references_of_thousands_of_digits_are_one_unknown_character_everywhere() -> None:
    far = "&#" + "1" * 5_000 + ";"
    assert read(f"# A {far} &#65;\n\n{far} b\n\n| c | {far} |\n|---|---|\n| &#xe9; | &amp; |") == [
        ("heading", "A \ufffd A"),
        ("paragraph", "\ufffd b"),
        ("table", "c\t\ufffd\né\t&"),
    ]
    assert read(f"<table><tr><td>{far}</td></tr></table>") == [("table", "\ufffd")]


@pytest.mark.real_time
def test_the_time_of_reading_grows_with_the_length_only() -> None:
    def work(piece: str, length: int) -> float:
        begin = time.process_time()
        blocks_of(text_of(piece * (length // len(piece))), BOX)
        return time.process_time() - begin

    pieces = (
        "*",
        "**a",
        "_a ",
        "$",
        "$a",
        "$$",
        "\\(a",
        "`",
        "[a](",
        "![",
        "<table>",
        "<table>\n",
        "<table>\n\n",
        "<table></table>",
        "<table><tr><td colspan=99 rowspan=99>a",
        "<td ",
        "$$a$$ b",
        "$$\na$$b\n",
        "|-",
        "| a\n|-|\n",
        "a|b\n",
        "- ",
    )
    for piece in (*pieces, "#", "```\n", "<b ", "&a", "---\na:\n", "\\[\n", "<!--", "<sup>"):
        short = max(0.1, work(piece, 12_500))
        assert any(work(piece, 50_000) < 8 * short for _ in range(3)), piece
