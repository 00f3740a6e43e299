"""Tables of a page: which of them hold data, and their rows.

Reads the markup of a `table` element as the parser serializes it: every element is closed, every attribute is quoted.
Authors use tables for data and, on old pages, to arrange a page. A table of two rows and two columns holds data if they
are named or the cells are short, unless it has a table, a main heading, a form or mostly links inside.
"""

import re
from dataclasses import dataclass

from tasks.formats.documents.structure import more_rows
from tasks.formats.documents.table_cells import Cell, cell, placed
from tasks.stages.extract.page_blocks import visible

_TAG = re.compile(r"<(/?)(table|caption|thead|tbody|tr|td|th)\b([^>\"]*+(?:\"[^\"]*+\"[^>\"]*+)*+)>")
_LAYOUT = re.compile(r'\srole="(?:presentation|none|navigation)"')
_STEPS = re.compile(r'<a\b[^>]*\s(?:accesskey="|rel="(?:prev|next)")')  # links to the pages beside this one
_NOT_DATA = re.compile(r"<(?:form|h[12]|article|section|main|nav)\b")
_LINK = re.compile(r"<a\b[^>]*>(.*?)</a>", re.DOTALL)
_SOME_ROWS = 3
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


def data_table(markup: str, most_rows: int | None = None) -> Table | None:
    """Returns the data of a table; None for a table that arranges a page.

    Args:
        markup: from the start tag of the `table` element to its end tag.
        most_rows: number of rows to return; a last row says how many others there are. None for all.
    """
    start = markup.find(">") + 1
    if _LAYOUT.search(markup, 0, start) or "<table" in markup[1:] or _NOT_DATA.search(markup) or _STEPS.search(markup):
        return None
    rows_of_cells, caption, has_head = _cells(markup)
    filled = [row for row in rows_of_cells if row]
    named = has_head or bool(caption) or "<col" in markup
    linked = _linked_share(markup, filled)
    if not _holds_data(filled, linked, named=named):
        return None
    every = tuple(tuple(texts) for texts in placed(rows_of_cells, _MOST_CELLS) or () if any(texts))
    if not every:
        return None
    rows = every[:most_rows]
    if len(rows) < len(every):
        rows += (more_rows(len(every) - len(rows)),)
    first = [one for one in filled[0] if one.text]
    header = bool(first) and all(one.is_header for one in first)
    return Table(rows, header, named or (linked < _FEW_LINKED and len(rows) >= _SOME_ROWS), caption)


def _cells(markup: str) -> tuple[list[list[Cell]], str, bool]:
    """Returns the cells of each row, also of empty ones, the caption, and whether there is a header."""
    rows: list[list[Cell]] = []
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
                if not rows:
                    rows.append([])
                rows[-1].append(cell(name, opened[3], text))
                has_head |= name == "th"
            opened = None
        elif not closes:
            if name == "tr":
                rows.append([])
            has_head |= name == "thead"
    return rows, caption, has_head


def _linked_share(markup: str, rows: list[list[Cell]]) -> float:
    """Returns the share of the characters of all cells that are in links."""
    characters = sum(len(one.text) for row in rows for one in row)
    return sum(len(visible(link)) for link in _LINK.findall(markup)) / max(characters, 1)


def _holds_data(rows: list[list[Cell]], linked: float, *, named: bool) -> bool:
    texts = [one.text for row in rows for one in row if one.text]
    if not texts or len(rows) < 2:
        return False
    wide = sum(len(row) >= 2 for row in rows)
    if wide < 2 or 2 * wide < len(rows) or sum(map(len, rows)) > _MOST_CELLS:
        return False
    longest, most_linked = (_LONGEST_NAMED, _MOST_LINKED_NAMED) if named else (_LONGEST, _MOST_LINKED)
    return sum(map(len, texts)) <= longest * len(texts) and linked <= most_linked
