"""Kept cells of the tables of manuals."""

from pathlib import Path

import pytest

from benchmarks.manual_tables import MANUALS, Template, kept, kept_shares, read_manual_page, read_manuals

TEMPLATE = Template("content", frozenset(("navheader",)))
TABLE = (
    "<table><tr><th>Name</th><th>Size in bytes</th></tr><tr><td>small integer</td><td>two bytes each</td></tr></table>"
)
PAGE = (
    "<html><head><title>Types of numbers</title></head><body>"
    "<div class=navheader><table><tr><td>Prev</td><td>Next chapter is text</td></tr></table></div>"
    f"<table><tr><td>Outside of it</td><td>x</td></tr><tr><td>the content is</td><td>y</td></tr></table>"
    f"<div id=content><p>Name of each small integer type follows.</p>{TABLE}"
    "<table><tr><td>one row is no data</td><td>but layout</td></tr></table></div></body></html>"
)


def test_only_data_tables_of_the_content_have_cells() -> None:
    page = read_manual_page("manual", PAGE, TEMPLATE)
    cells = [" ".join(page.words[held.start : held.stop]) for held in page.cells]
    assert cells == ["Name", "Size in bytes", "small integer", "two bytes each"]
    assert [" ".join(page.words[held.start : held.stop]) for held in page.navigation] == [
        "Prev",
        "Next chapter is text",
    ]


def test_cells_are_kept_in_order_and_words_of_sentences_are_no_cells() -> None:
    page = read_manual_page("manual", PAGE, TEMPLATE)
    sentence = "Name of each small integer type follows."
    table = "| Name | Size in bytes |\n|---|---|\n| small integer | two bytes each |"
    assert kept(page, f"{sentence}\n\n{table}") == (4, 0)
    assert kept(page, f"{sentence} The Name is free.") == (0, 0)
    assert kept(page, f"Prev Next chapter is text\n{sentence}\nName\tSize in bytes") == (2, 2)
    found = kept_shares([page, page], [table, sentence])["manual"]
    assert (found["pages"], found["cells"], found["cells_kept"], found["navigation_kept"]) == (2, 8, 0.5, 0.0)


@pytest.mark.parametrize("name", ["postgresql-doc-15"])
def test_pages_with_tables_are_read_from_unpacked_packages(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name / "usr/share/doc"
    folder.mkdir(parents=True)
    for number in range(4):
        (folder / f"{number}.html").write_text(f"<body><p>{number}</p>{TABLE if number else ''}</body>")
    assert name in MANUALS
    assert [page.host for page in read_manuals(tmp_path, 2)] == [name] * 2
    assert len(read_manuals(tmp_path)) == 3
