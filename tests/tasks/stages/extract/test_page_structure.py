"""Contract of the structure of a page: data tables as wholes, code with its layout, lists, terms, and two forms."""

import time
from pathlib import Path

import numpy as np
import pytest
from resiliparse.parse.html import HTMLTree

from benchmarks.extraction import read_segments
from tasks.formats.documents.structure import Block, markdown, plain, without_marks
from tasks.stages.extract.blocks import add_formulas, all_blocks, blocks_of_text
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page
from tasks.stages.extract.page_blocks import read_blocks
from tasks.stages.extract.page_structure import NEVER, units, whole
from tasks.stages.extract.tables import data_table

STORY = "".join(
    f"<p>On day {n} the harbour was quiet, and the boats lay still until the wind came up from the south.</p>"
    for n in range(8)
)
MASSES = "<table><tr><th>Part</th><th>Mass</th></tr><tr><td>Hinge</td><td>3 kg</td></tr></table>"


def blocks_of(page: str) -> list[Block]:
    return all_blocks(HTMLTree.parse(page))


def rows_of(table: str) -> tuple[tuple[str, ...], ...] | None:
    page = read_blocks(HTMLTree.parse(table))
    assert page is not None
    found = data_table(page.source[page.source.index("<table") : page.source.rindex("</table>") + 8])
    return found and found.rows


def test_blocks_of_each_kind() -> None:
    page = (
        "<h2>Doors</h2><p>They open.</p><ul><li>pull<ol start=3><li>hard<li>slowly</ol><li><p>turn</p><p>twice</p></ul>"
        "<blockquote><p>No.</p></blockquote><dl><dt>hinge<dd>what it hangs on</dl><figure>"
        f"<figcaption>A door</figcaption></figure>{MASSES}<pre><code>def f():\n\n\n    return 1</code></pre>"
        "<p>$$F = ma$$</p>"
    )
    assert [(block.kind, block.text, block.level, block.number) for block in blocks_of(page)] == [
        ("heading", "Doors", 2, None),
        ("paragraph", "They open.", 0, None),
        ("item", "pull", 0, None),
        ("item", "hard", 1, 3),
        ("item", "slowly", 1, 4),
        ("item", "turn", 0, None),
        ("paragraph", "twice", 0, None),
        ("quote", "No.", 0, None),
        ("term", "hinge", 0, None),
        ("definition", "what it hangs on", 0, None),
        ("caption", "A door", 0, None),
        ("table", "", 0, None),
        ("code", "def f():\n\n\n    return 1", 0, None),
        ("formula", "$$F = ma$$", 0, None),
    ]
    assert blocks_of(page)[11].rows == (("Part", "Mass"), ("Hinge", "3 kg"))


def test_an_empty_first_row_is_no_header_and_cells_are_clean() -> None:
    table = "<table><tr><td><td><tr><td>a\u200b<td>e\u0301<tr><td>c<td>d</table>"
    (block,) = blocks_of(table)
    assert not block.header
    assert plain([block]) == "a\té\nc\td"


def test_a_formula_in_a_dropped_table_does_not_bring_it_back() -> None:
    page = read_blocks(
        HTMLTree.parse("<p>one</p><table><tr><th>$$a$$<th>Mass<tr><td>1<td>2</table><p>$$b$$</p><p>two</p>")
    )
    assert page is not None
    mask = np.array([True, False, False, False, False, False, True])
    add_formulas(page, units(page), mask)
    assert mask.tolist() == [True, False, False, False, False, True, True]


def test_cells_that_span_rows_and_columns_are_placed_and_empty_cells_are_kept() -> None:
    table = (
        "<table><caption>C</caption><tr><th>a<th>b<th>c<tr><td rowspan=2>x<td><td>1<tr><td>2<td>3"
        "<tr><td colspan=2>y<td>4</table>"
    )
    assert rows_of(table) == (("a", "b", "c"), ("x", "", "1"), ("x", "2", "3"), ("y", "", "4"))


@pytest.mark.parametrize(
    ("table", "is_data"),
    [
        ("<tr><td>a<td>1<tr><td>b<td>2", True),
        ("<tr><td>a<td>b", False),  # one row
        ("<tr><td>a<tr><td>b<tr><td>c", False),  # one column
        ("<tr><td><table><tr><td>a<td>b<tr><td>c<td>d</table><td>e<tr><td>f<td>g", False),
        (f"<tr><td>menu<td>{STORY}<tr><td>left<td>{STORY}", False),  # arranges a page
        ("<tr><td><a href=x>a</a><td><a href=x>b</a><tr><td><a href=x>c</a><td><a href=x>d</a>", False),
        ("<tr><td><form>x</form><td>a<tr><td>b<td>c", False),
        ("<thead><tr><td>a<td>1<tbody><tr><td><a href=x>b</a><td>2", True),
    ],
)
def test_tables_of_data_are_told_from_tables_that_arrange_a_page(table: str, is_data: bool) -> None:
    if "<table>" in table:
        assert rows_of(f"<table>{table}</table>") is None
    else:
        assert (rows_of(f"<table>{table}</table>") is not None) == is_data


def test_a_table_is_main_text_as_a_whole_or_not_at_all() -> None:
    page = read_blocks(HTMLTree.parse(f"<p>one</p>{MASSES}<dl><dt>hinge<dd>it hangs</dl>"))
    assert page is not None
    words = np.ones(len(page), np.float32)
    kept = whole(page, units(page), np.array([-1, 3, -1, NEVER, -1, -1, 1.0]), words)
    assert kept.tolist() == [False, True, True, True, True, True, True]  # and the term of a kept definition
    dropped = whole(page, units(page), np.array([1, -3, 1, NEVER, -1, 1, -1.0]), words)
    assert dropped.tolist() == [True, False, False, False, False, True, False]


def test_long_tables_are_cut_with_a_note() -> None:
    table = "<table><tr><th>n<th>n²" + "".join(f"<tr><td>{n}<td>{n * n}" for n in range(2_000)) + "</table>"
    text = read_page(f"<body><article>{STORY}{table}{STORY}</article>", ExtractConfig(max_table_rows=11)).text
    assert "9\t81\n(1,990 more rows)" in text


@pytest.mark.parametrize("extractor", ["blocks", "resiliparse", "visible"])
def test_markdown_has_the_structure_of_the_page_with_every_extractor(extractor: str) -> None:
    code = "<pre class='brush: python'>def f():\n    return 1</pre>"
    page = f"<body><article><h1>Doors</h1>{STORY}<h2>Masses</h2>{MASSES}{STORY}{code}{STORY}</article></body>"
    text = read_page(page, ExtractConfig.model_validate({"extractor": extractor, "text": "markdown"})).text
    assert "# Doors\n\nOn day 0" in text
    assert "## Masses\n\n| Part | Mass |\n| --- | --- |\n| Hinge | 3 kg |\n\nOn day 0" in text
    assert "```python\ndef f():\n    return 1\n```" in text


def test_without_its_marks_the_markdown_of_real_pages_is_their_plain_text(shared_data: Path) -> None:
    pages = read_segments(shared_data / "extraction_segments")[::15]
    marked = ExtractConfig(text="markdown")
    plains, markdowns = ([read_page(page.html, config).text for page in pages] for config in (ExtractConfig(), marked))
    # A paragraph that begins like an item ("5. May") loses a mark of its own.
    assert sum(map(str.__eq__, map(without_marks, markdowns), plains)) >= 0.85 * len(pages)
    assert sum(map(str.__ne__, markdowns, plains)) >= len(pages) / 2


def test_a_text_that_is_not_of_the_page_selects_no_blocks() -> None:
    tree = HTMLTree.parse(f"<article>{STORY}</article>")
    assert blocks_of_text(tree, "Another text, which the page does not have. " * 9) == []
    assert len(blocks_of_text(tree, plain(all_blocks(tree)))) == 8


def test_hostile_tables_are_read_in_linear_time() -> None:
    cells = "<tr>" + "<td rowspan=9999 colspan=9999>x" * 2_000
    for page in (
        "<table>" + cells * 9,
        "<table><tr><td>" * 3_000,
        "<table>" + "<tr><td>a<td>b" * 30_000,
        "<ul><li>x" * 1_900,
    ):
        start = time.process_time()
        assert isinstance(markdown(blocks_of(page)), str)
        assert time.process_time() - start < 5
