"""Ruled tables of a page: grids of lines, and rows between horizontal rules.

Pure functions over segments and rulings (thin boxes, in points, in the orientation of the segments). A ruled table is
replaced by one segment with its rows, so that the reading order and the paragraphs around it are found as without it.
Work is limited by `_MOST_RULINGS`: a page with more has drawings.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tasks.formats.documents.layout import Box
from tasks.formats.pdf.lines import Line, lines
from tasks.formats.pdf.segments import Segment, Table
from tasks.formats.pdf.tables import ordered, rows_of

_MOST_RULINGS = 200
"""Maximum number of merged rulings of a page, of each direction, with which tables are looked for."""
THIN = 2.0
"""Maximum thickness of a ruling in points."""
_TOUCH = 2.5
"""Distance at which two rulings meet, and at which two parts of a ruling are one."""
_LEAST = 8.0
"""Minimum length of a ruling."""
_SAME_EXTENT = 4.0
_FILLED = 0.3
"""Minimum share of cells with text."""
_LONGEST_CELL = 250
"""Maximum mean number of characters of a cell: boxes around columns of text are longer."""
_MOST_CELLS = 20_000
_FEW_BANDS = 3


class _Ruling(NamedTuple):
    """A horizontal (vertical) ruling: its y (x), and where it starts and ends."""

    at: float
    start: float
    end: float


def with_tables(segments: Sequence[Segment], rulings: Sequence[Box]) -> list[Segment]:
    """Returns the segments of a page, with each ruled table as one segment."""
    across, down = _merged(rulings)
    if len(across) < 2 or max(len(across), len(down)) > _MOST_RULINGS:
        return list(segments)
    remaining = list(segments)
    for found in (_grids(across, down), _ruled_rows(across)):
        for box, bands, columns in found:
            remaining = _replaced(remaining, box, bands, columns)
    return remaining


def dividers(rulings: Sequence[Box]) -> list[tuple[float, float, float]]:
    """Returns the vertical rulings as (x, top, bottom), by x; none if there are more than `_MOST_RULINGS`."""
    down = _merged(rulings)[1]
    return [(ruling.at, ruling.start, ruling.end) for ruling in down] if len(down) <= _MOST_RULINGS else []


def _merged(rulings: Sequence[Box]) -> tuple[list[_Ruling], list[_Ruling]]:
    across = [_Ruling((y0 + y1) / 2, x0, x1) for x0, y0, x1, y1 in rulings if y1 - y0 <= THIN < x1 - x0]
    down = [_Ruling((x0 + x1) / 2, y0, y1) for x0, y0, x1, y1 in rulings if x1 - x0 <= THIN < y1 - y0]
    return _joined(across), _joined(down)


def _joined(rulings: Sequence[_Ruling]) -> list[_Ruling]:
    """Joins rulings on one line that touch, such as the borders of adjacent cells; returns them by place."""
    result: list[_Ruling] = []
    tracks: list[list[_Ruling]] = []
    for ruling in sorted(rulings):
        if tracks and ruling.at - tracks[-1][0].at <= THIN:
            tracks[-1].append(ruling)
        else:
            tracks.append([ruling])
    for track in tracks:
        parts = sorted(track, key=lambda ruling: ruling.start)
        now = parts[0]
        for part in parts[1:]:
            if part.start <= now.end + _TOUCH:
                now = _Ruling(now.at, now.start, max(now.end, part.end))
            else:
                result.append(now)
                now = part
        result.append(now)
    return sorted(ruling for ruling in result if ruling.end - ruling.start >= _LEAST)


class _Column(NamedTuple):
    """Edges of columns, and the rulings that divide cells: horizontal and vertical ones."""

    edges: tuple[float, ...]
    across: tuple[_Ruling, ...]
    down: tuple[_Ruling, ...]


_Found = Iterator[tuple[Box, list[float], _Column | None]]
"""Box of a table, heights of the rulings between its bands of rows, and its columns if rulings tell them."""


def _grids(across: Sequence[_Ruling], down: Sequence[_Ruling]) -> _Found:
    """Yields the groups of crossing rulings that form at least two rows and two columns."""
    for group_across, group_down in _groups(across, down):
        top = min(ruling.start for ruling in group_down)
        bottom = max(ruling.end for ruling in group_down)
        left = min(ruling.start for ruling in group_across)
        right = max(ruling.end for ruling in group_across)
        heights = _distinct([top, bottom, *(ruling.at for ruling in group_across)])
        edges = _distinct([left, right, *(ruling.at for ruling in group_down)])
        if len(edges) >= 3 and len(heights) >= 3 and (len(edges) - 1) * (len(heights) - 1) <= _MOST_CELLS:
            box = (left, min(top, heights[0]), right, max(bottom, heights[-1]))
            yield box, heights, _Column(tuple(edges), tuple(group_across), tuple(group_down))


def _groups(across: Sequence[_Ruling], down: Sequence[_Ruling]) -> Iterator[tuple[list[_Ruling], list[_Ruling]]]:
    """Yields the connected groups of horizontal and vertical rulings that meet."""
    parents = list(range(len(across) + len(down)))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    for index, ruling in enumerate(across):
        for other, crossing in enumerate(down, len(across)):
            meets = ruling.start - _TOUCH <= crossing.at <= ruling.end + _TOUCH
            if meets and crossing.start - _TOUCH <= ruling.at <= crossing.end + _TOUCH:
                parents[root(other)] = root(index)
    groups: dict[int, tuple[list[_Ruling], list[_Ruling]]] = {}
    for at in range(len(parents)):
        group = groups.setdefault(root(at), ([], []))
        group[at >= len(across)].append(across[at] if at < len(across) else down[at - len(across)])
    yield from (group for group in groups.values() if group[0] and group[1])


def _distinct(places: Sequence[float]) -> list[float]:
    """Returns the places in order, those that touch once."""
    result: list[float] = []
    for place in sorted(places):
        if not result or place - result[-1] > _TOUCH:
            result.append(place)
    return result


def _ruled_rows(across: Sequence[_Ruling]) -> _Found:
    """Yields the groups of three or more horizontal rules of the same extent, which have rows between them."""
    groups: list[list[_Ruling]] = []
    for ruling in across:
        group = next((one for one in groups if _same_extent(one[0], ruling)), None)
        if group is None:
            groups.append([ruling])
        else:
            group.append(ruling)
    for group in groups:
        if len(group) >= 3:
            heights = _distinct([ruling.at for ruling in group])
            yield (group[0].start, heights[0], group[0].end, heights[-1]), heights, None


def _same_extent(one: _Ruling, other: _Ruling) -> bool:
    return abs(one.start - other.start) < _SAME_EXTENT and abs(one.end - other.end) < _SAME_EXTENT


def _replaced(segments: list[Segment], box: Box, heights: list[float], columns: _Column | None) -> list[Segment]:
    """Returns the segments with those in a box as a table, or unchanged if they are none."""
    inside = [segment for segment in segments if _is_inside(segment, box)]
    bands: list[list[Segment]] = [[] for _ in range(len(heights) + 1)]
    for segment in inside:
        bands[bisect_left(heights, segment.middle)].append(segment)
    bands = bands[1:-1]
    if columns is not None:
        made = [(_grid(bands, heights, columns), [segment for band in bands for segment in band])]
    else:
        made = list(_tables_between_rules(bands))
    for table, of_table in made:
        if table is not None and _is_table(table):
            removed = {id(segment) for segment in of_table}
            segments = [segment for segment in segments if id(segment) not in removed]
            segments.append(_placeholder(table, of_table))
    return segments


def _is_inside(segment: Segment, box: Box) -> bool:
    middle = (segment.x0 + segment.x1) / 2
    return segment.table is None and box[1] <= segment.middle <= box[3] and box[0] <= middle <= box[2]


def _is_table(table: Table) -> bool:
    cells = [cell for row in table.rows for cell in row]
    filled = [cell for cell in cells if cell]
    columns = sum(any(column) for column in zip(*table.rows, strict=True))
    if len(table.rows) < 2 or columns < 2 or len(filled) < _FILLED * len(cells):
        return False
    return sum(map(len, filled)) <= _LONGEST_CELL * len(filled)


def _placeholder(table: Table, segments: Sequence[Segment]) -> Segment:
    longest = max(segments, key=lambda segment: len(segment.text))
    return Segment(
        "\n".join(table.lines),
        min(segment.x0 for segment in segments),
        min(segment.y0 for segment in segments),
        max(segment.x1 for segment in segments),
        max(segment.y1 for segment in segments),
        longest.size,
        longest.weight,
        table=table,
    )


def _grid(bands: Sequence[Sequence[Segment]], heights: Sequence[float], columns: _Column) -> Table | None:
    """Returns the table of a grid: a text over several cells without rulings between them is in the first one.

    The lines of a band are rows of their own if they have numbers below numbers, or, where rulings separate little more
    than the head from the rest, if the first word of a cell's line would have fitted on the line before.
    """
    rows: list[list[str]] = []
    first_rows: list[int] = []
    header = 0
    splits = len(bands) <= _FEW_BANDS
    for number, band in enumerate(bands):
        of_band = lines(band)
        first_rows.append(len(rows))
        rows.append([""] * (len(columns.edges) - 1))
        for index, line in enumerate(of_band):
            if index and _is_new_row(of_band[index - 1], line, columns.edges, by_words=splits):
                rows.append([""] * (len(columns.edges) - 1))
            for cell in line.cells:
                band_of, column = _owner(number, _column(cell, columns.edges), heights, columns)
                row = rows[-1] if band_of == number else rows[first_rows[band_of]]
                row[column] = ordered(row[column], cell.text)
        if number == 0 and len(bands) > 1:
            header = len(rows)
    rows = [row for row in rows if any(row)]
    return Table(tuple(map(tuple, rows)), min(header, len(rows))) if rows else None


def _column(cell: Segment, edges: Sequence[float]) -> int:
    """Returns the column in which a cell's text begins."""
    start = min(cell.x0 + 1.0, (cell.x0 + cell.x1) / 2)
    return min(max(bisect_right(edges, start) - 1, 0), len(edges) - 2)


def _is_new_row(before: Line, line: Line, edges: Sequence[float], *, by_words: bool) -> bool:
    """Returns whether a line within a band is a row of its own, and not the rest of the row before."""
    above = {_column(cell, edges): cell for cell in before.cells}
    pairs = [(above[column], cell, column) for cell in line.cells if (column := _column(cell, edges)) in above]
    if sum(_is_number(old.text) and _is_number(new.text) for old, new, _ in pairs) > (0 if by_words else 1):
        return True
    return by_words and any(_has_room(old, new, edges[column + 1]) for old, new, column in pairs)


def _is_number(text: str) -> bool:
    return sum(letter.isdigit() for letter in text) * 2 >= len(text)


def _has_room(before: Segment, cell: Segment, right: float) -> bool:
    """Returns whether the first word of a cell's line would have fitted on the line before, with room to spare."""
    word = (len(cell.text.split(" ", 1)[0]) + 1) * (cell.x1 - cell.x0) / max(1, len(cell.text))
    return right - before.x1 - word > 2 * before.size


def _owner(row: int, column: int, heights: Sequence[float], columns: _Column) -> tuple[int, int]:
    """Returns the first cell of the cells that no ruling separates from this one."""
    middle = (heights[row] + heights[row + 1]) / 2
    while column > 0 and not _divides(columns.down, columns.edges[column], middle):
        column -= 1
    center = (columns.edges[column] + columns.edges[column + 1]) / 2
    while row > 0 and not _divides(columns.across, heights[row], center):
        row -= 1
    return row, column


def _divides(rulings: Sequence[_Ruling], at: float, place: float) -> bool:
    first = bisect_left(rulings, (at - _TOUCH, -1e9, -1e9))
    for ruling in rulings[first:]:
        if ruling.at > at + _TOUCH:
            return False
        if ruling.start - _TOUCH <= place <= ruling.end + _TOUCH:
            return True
    return False


def _tables_between_rules(bands: Sequence[Sequence[Segment]]) -> Iterator[tuple[Table | None, list[Segment]]]:
    """Yields the tables of consecutive bands whose lines mostly have several cells; the first band is the head."""
    run: list[list[Line]] = []
    kept: list[Segment] = []
    for band in [*bands, ()]:
        of_band = lines(band)
        several = sum(len(line.cells) > 1 for line in of_band)
        if of_band and 2 * several >= len(of_band):
            run.append(of_band)
            kept += band
            continue
        if len(run) > 1:
            yield _between_rules(run), kept
        run, kept = [], []


def _between_rules(run: Sequence[Sequence[Line]]) -> Table:
    head = run[0] if len(run[0]) <= _FEW_BANDS else ()
    body = [line for band in run[1 if head else 0 :] for line in band]
    rows = rows_of(body)
    head_rows = rows_of([*head, *body], edges_of=body)[: -len(rows)] if head else ()
    return Table((*head_rows, *rows), len(head_rows))
