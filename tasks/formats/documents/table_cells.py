"""Cells of tables in HTML at their rows and columns, for pages and for answers of vision models.

Cells are placed as browsers place them (HTML Living Standard, section 4.9.12, "forming a table"), without its errors. A
cell that spans several rows is repeated in each of them, so that every row is complete; the other columns of a cell
that spans several columns are empty.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_SPAN = re.compile(r"\s(col|row)span\s*+=\s*+[\"']?+\s*+(\d{1,4})", re.IGNORECASE)
_MOST_SPANNED = 100


class Cell(NamedTuple):
    """A cell as it stands in the source.

    Attributes:
        text: its text.
        is_header: whether it is a `th`.
        columns, rows: what it spans, 1 to 100.
    """

    text: str
    is_header: bool
    columns: int
    rows: int


def cell(name: str, attributes: str, text: str) -> Cell:
    """Returns the cell of an element.

    >>> cell("td", ' rowspan="2"', "X")
    Cell(text='X', is_header=False, columns=1, rows=2)
    """
    spans = {kind.lower(): max(1, min(int(number), _MOST_SPANNED)) for kind, number in _SPAN.findall(attributes)}
    return Cell(text, name == "th", spans.get("col", 1), spans.get("row", 1))


def placed(rows: Sequence[Sequence[Cell]], most: int) -> list[list[str]] | None:
    """Returns the texts of the cells of each row by column; None for more than `most` of them.

    Rows have different lengths. A row without cells is a row, too: it counts for the cells that span it.

    >>> placed([[cell("td", "", "a"), cell("td", " rowspan=2", "X")], [cell("td", "", "b")]], 9)
    [['a', 'X'], ['b', 'X']]
    """
    found: list[list[str]] = []
    reaching: dict[int, tuple[str, int]] = {}  # text and rows left of the cells that span this row, by column
    count = 0
    for row in rows:
        texts: list[str] = []
        left: dict[int, tuple[str, int]] = {}

        def add(text: str, rows_left: int, texts: list[str] = texts, left: dict[int, tuple[str, int]] = left) -> None:
            if rows_left > 1:
                left[len(texts)] = text, rows_left - 1
            texts.append(text)

        for one in row:
            while len(texts) in reaching:
                add(*reaching[len(texts)])
            add(one.text, one.rows)
            for _ in range(one.columns - 1):
                add("", one.rows)
            if count + len(texts) > most:
                return None
        for column in range(len(texts), max(reaching, default=-1) + 1):
            add(*reaching.get(column, ("", 1)))
        found.append(texts)
        count += len(texts)
        reaching = left
    return found if count <= most else None
