"""Tables of a page: which of them hold data, and their rows.

Reads the markup of a `table` element as the parser serializes it: every element is closed, every attribute is quoted.
Authors use tables for data and, on old pages, to arrange a page. A table of two rows and two columns holds data if they
are named or the cells are short, unless it has a table, a main heading, a form or mostly links inside.

Cells are placed as browsers place them (HTML Living Standard, section 4.9.12, "forming a table"), without its errors. A
cell that spans several rows is repeated in each of them, so that every row is complete; the other columns of a cell
that spans several columns are empty.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.formats.documents.structure import more_rows
from tasks.stages.extract.page_blocks import visible

_TAG = re.compile(r"<(/?)(table|caption|thead|tbody|tr|td|th)\b([^>\"]*+(?:\"[^\"]*+\"[^>\"]*+)*+)>")
_SPAN = re.compile(r'\s(col|row)span="\s*(\d{1,4})')
_LAYOUT = re.compile(r'\srole="(?:presentation|none|navigation)"')
_STEPS = re.compile(r'<a\b[^>]*\s(?:accesskey="|rel="(?:prev|next)")')  # links to the pages beside this one
_NOT_DATA = re.compile(r"<(?:form|h[12]|article|section|main|nav)\b")
_LINK = re.compile(r"<a\b[^>]*>(.*?)</a>", re.DOTALL)
_SOME_ROWS = 3
_MOST_SPANNED = 100
_MOST_CELLS = 200_000
_LONGEST, _LONGEST_NAMED = 80, 250
"""Largest mean number of characters of a data cell: in any table, and in one with a header or a caption."""
_MOST_LINKED, _MOST_LINKED_NAMED, _FEW_LINKED = 0.6, 0.9, 0.2
"""Largest share of characters in links, and the share below which a table surely is no menu."""


@dataclass(frozen=True)
class Table:
    """The data of a table.

    Attributes:
        rows: rows from top to bottom, each with the texts of its cells; "" for an empty one.
        header: whether the first row names the columns.
        is_clear: whether it surely holds data: it has a caption or cells that name a row or a column, or few links.
        caption: text of its caption, or "".
    """

    rows: tuple[tuple[str, ...], ...]
    header: bool
    is_clear: bool
    caption: str


@dataclass
class _Cell:
    text: str
    is_header: bool
    columns: int
    rows: int


def data_table(markup: str, most_rows: int | None = None) -> Table | None:
    """Returns the data of a table; None for a table that arranges a page.

    Args:
        markup: from the start tag of the `table` element to its end tag.
        most_rows: number of rows to return; a last row says how many others there are. None for all.
    """
    start = markup.find(">") + 1
    if _LAYOUT.search(markup, 0, start) or "<table" in markup[1:] or _NOT_DATA.search(markup) or _STEPS.search(markup):
        return None
    cells, caption, has_head = _cells(markup)
    named = has_head or bool(caption) or "<col" in markup
    linked = _linked_share(markup, cells)
    if not _holds_data(cells, linked, named=named):
        return None
    rows = _placed(cells[:most_rows])
    if not rows:
        return None
    if most_rows is not None and len(cells) > most_rows:
        rows += (more_rows(len(cells) - most_rows),)
    first = [cell for cell in cells[0] if cell.text]
    header = bool(first) and all(cell.is_header for cell in first)
    return Table(rows, header, named or (linked < _FEW_LINKED and len(rows) >= _SOME_ROWS), caption)


def _cells(markup: str) -> tuple[list[list[_Cell]], str, bool]:
    """Returns the cells of each row, the caption, and whether there is a header."""
    rows: list[list[_Cell]] = []
    caption, has_head = "", False
    opened: re.Match[str] | None = None
    for tag in _TAG.finditer(markup):
        closes, name = tag[1], tag[2]
        if name in ("td", "th", "caption"):
            if not closes:
                opened = tag
                continue
            if opened is None:
                continue
            text = visible(markup[opened.end() : tag.start()])
            if name == "caption":
                caption = text
            else:
                spans = {kind: min(int(number), _MOST_SPANNED) for kind, number in _SPAN.findall(opened[3])}
                cell = _Cell(text, name == "th", max(spans.get("col", 1), 1), max(spans.get("row", 1), 1))
                if not rows:
                    rows.append([])
                rows[-1].append(cell)
                has_head |= cell.is_header
            opened = None
        elif not closes:
            if name == "tr":
                rows.append([])
            has_head |= name == "thead"
    return [row for row in rows if row], caption, has_head


def _linked_share(markup: str, rows: list[list[_Cell]]) -> float:
    """Returns the share of the characters of all cells that are in links."""
    characters = sum(len(cell.text) for row in rows for cell in row)
    return sum(len(visible(link)) for link in _LINK.findall(markup)) / max(characters, 1)


def _holds_data(rows: list[list[_Cell]], linked: float, *, named: bool) -> bool:
    texts = [cell.text for row in rows for cell in row if cell.text]
    if not texts or len(rows) < 2:
        return False
    wide = sum(len(row) >= 2 for row in rows)
    if wide < 2 or 2 * wide < len(rows) or sum(map(len, rows)) > _MOST_CELLS:
        return False
    longest, most_linked = (_LONGEST_NAMED, _MOST_LINKED_NAMED) if named else (_LONGEST, _MOST_LINKED)
    return sum(map(len, texts)) <= longest * len(texts) and linked <= most_linked


def _placed(cells: list[list[_Cell]]) -> tuple[tuple[str, ...], ...]:
    """Returns the texts of the cells at their positions; rows without text are left out."""
    placed: list[tuple[str, ...]] = []
    number = 0
    reaching: dict[int, tuple[str, int]] = {}  # text and rows left of the cells that reach into the next row, by column
    for row in cells:
        texts = list(_row(row, reaching))
        number += len(texts)
        if number > _MOST_CELLS:
            return ()
        if any(texts):
            placed.append(tuple(texts))
    return tuple(placed)


def _row(row: list[_Cell], reaching: dict[int, tuple[str, int]]) -> Iterator[str]:
    column = 0
    for cell in row:
        while column in reaching:
            yield _reached(reaching, column)
            column += 1
        for number in range(cell.columns):
            text = "" if number else cell.text
            if cell.rows > 1:
                reaching[column] = (text, cell.rows)
                yield _reached(reaching, column)
            else:
                yield text
            column += 1
    while column in reaching:
        yield _reached(reaching, column)
        column += 1


def _reached(reaching: dict[int, tuple[str, int]], column: int) -> str:
    text, left = reaching[column]
    if left > 1:
        reaching[column] = (text, left - 1)
    else:
        del reaching[column]
    return text
