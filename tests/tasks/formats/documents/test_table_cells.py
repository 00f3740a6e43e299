"""Cells that span rows and columns, on pages and in answers of vision models alike."""

from collections.abc import Callable

import pytest

from tasks.formats.pdf.marked_page import blocks_of
from tasks.stages.extract.tables import data_table

Rows = tuple[tuple[str, ...], ...]


def of_page(rows: str) -> Rows:
    table = data_table(f"<table><tbody>{rows}</tbody></table>")
    assert table is not None
    return table.rows


def of_answer(rows: str) -> Rows:
    (table,) = blocks_of(f"<table>{rows}</table>", (0.0, 0.0, 1.0, 1.0))
    return table.rows


@pytest.mark.parametrize("read", [of_page, of_answer])
def test_a_cell_over_two_rows_is_in_the_next_row_also_if_that_is_short_or_empty(read: Callable[[str], Rows]) -> None:
    def full(*rows: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [tuple(text for text in row if text) for row in rows]

    short = "<tr><td>a</td><td>b</td><td rowspan='2'>X</td></tr><tr><td>c</td></tr><tr><td>d</td><td>e</td></tr>"
    found = read(short.replace("'", '"'))
    assert found[1][:3] == ("c", "", "X")
    assert full(*found) == [("a", "b", "X"), ("c", "X"), ("d", "e")]
    empty = (
        '<tr><td>a</td><td rowspan="2">X</td></tr><tr></tr><tr><td>c</td><td>k</td></tr><tr><td>d</td><td>l</td></tr>'
    )
    assert full(*read(empty)) == [("a", "X"), ("X",), ("c", "k"), ("d", "l")]
