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
    assert sorted(levels, key=lambda one: -one[1]) == levels


def test_formulas_and_code_are_kept_as_they_are() -> None:
    formulas = "Since $a_1 * b_1 * c$ and \\(x_*y_*\\):\n$$\n\\frac{a_*}{b_*}\n= c\n$$\n\\[ x^2 \\]\n"
    text = formulas + "```python\nif a:\n    b = *c\n```"
    assert read(text) == [
        ("paragraph", "Since $a_1 * b_1 * c$ and \\(x_*y_*\\):"),
        ("formula", "$$\\frac{a_*}{b_*} = c$$"),
        ("formula", "$$x^2$$"),
        ("code", "if a:\n    b = *c"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "| Port | **Days** |\n| :-- | --: |\n| Vardo | 7 \\| 8 |\n| Oslo |",
        "<table><tr><th>Port</th><th>Days</th></tr>\n<tr><td>Vardo</td><td>7 | 8</td></tr>"
        "<tr><td colspan=2>Oslo</td></tr></table>",
    ],
    ids=["Markdown", "HTML"],
)
def test_tables_have_rows_of_one_width_and_a_head(text: str) -> None:
    (table,) = blocks_of(f"{text}\n\nAfter.", BOX)[:1]
    assert table.rows == (("Port", "Days"), ("Vardo", "7 | 8"), ("Oslo", ""))
    assert (table.kind, table.header_rows, table.box) == ("table", 1, BOX)


def test_what_models_wrap_around_a_page_is_not_part_of_it() -> None:
    assert text_of("```markdown\n# A\n\ntext\n```") == "# A\n\ntext"
    assert text_of("---\nprimary_language: en\nis_table: False\n---\nThe text.") == "The text."
    assert text_of("A\n```\ncode\n```\n") == "A\n```\ncode\n```"


def test_unfinished_marks_lose_no_text() -> None:
    assert read("$$\na = b\n\nAfter") == [("formula", "$$a = b$$"), ("paragraph", "After")]
    assert read("```\na\n\nb") == [("code", "a\n\nb")]
    assert read("**bold and [link and $5 and `code") == [("paragraph", "**bold and [link and $5 and `code")]


def test_the_time_of_reading_grows_with_the_length_only() -> None:
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
        "<td ",
        "|-",
        "| a\n|-|\n",
        "a|b\n",
        "- ",
    )
    for piece in (*pieces, "#", "```\n", "<b ", "&a", "---\na:\n", "\\[\n", "<!--", "<sup>"):
        start = time.process_time()
        text = text_of(piece * (50_000 // len(piece)))
        blocks_of(text, BOX)
        assert time.process_time() - start < 1.5, piece
