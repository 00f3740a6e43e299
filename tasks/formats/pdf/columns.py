"""Reading order: the segments of a page as regions, each one column of lines, in the order in which they are read.

Pure functions. A gutter is a strip that no line of a column enters; lines across it (titles, wide figures) divide the
page into bands, in each of which the left column is read before the right one. This is the recursive XY-cut (Nagy, Seth
and Viswanathan 1992) with the vertical cut first, which may be crossed. Rows of tables have gutters, too: what lies on
both sides of one must be lines of text and not cells.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from tasks.formats.pdf.segments import Segment

_MIN_LINES = 3
_MIN_GUTTER = 0.6
_MAX_CROSSING = 0.4
_MIN_CHARS = 12
_MIN_CHARS_OF_ROWS = 22
_MIN_CELLS = 3
_MAX_CELL = 30
_MAX_BESIDE = 0.08
_MAX_INK = 0.7
_MIN_TEXT_INK = 0.75
_DEPTH = 4
_MOST = 20_000


def regions(found: Sequence[Segment], depth: int = 0) -> Iterator[list[Segment]]:
    """Yields the segments region by region in reading order; all of them, each once."""
    gutter = None
    if depth < _DEPTH and 2 * _MIN_LINES <= len(found) <= _MOST:
        gutter = _gutter(found)
    if gutter is None:
        if found:
            yield list(found)
        return
    across = _across(found, gutter)
    names = {id(one) for one in across}
    heights = [one.middle for one in across]
    bands: list[tuple[list[Segment], list[Segment]]] = [([], []) for _ in range(len(across) + 1)]
    for one in found:
        if id(one) not in names:
            left, right = bands[bisect_left(heights, one.middle)]
            (left if one.x1 <= (gutter[0] + gutter[1]) / 2 else right).append(one)
    spanning: list[Segment] = []
    for number, (left, right) in enumerate(bands):
        if left or right:
            yield from regions(spanning, depth + 1)
            yield from regions(left, depth + 1)
            yield from regions(right, depth + 1)
            spanning = []
        if number < len(across):
            spanning.append(across[number])
    yield from regions(spanning, depth + 1)


def _across(found: Sequence[Segment], gutter: tuple[float, float]) -> list[Segment]:
    """Returns what belongs to both columns, from top to bottom.

    Lines across the gutter, rows of tables across it, and the short last line of a paragraph whose other lines cross.
    """
    across = {id(one): one for one in found if _crosses(one, gutter)}
    rows = _rows(found)
    for row in _table_rows(rows, gutter):
        across.update((id(one), one) for one in row)
    for above, row in pairwise(rows):
        if len(row) == 1 and id(row[0]) not in across and all(id(one) in across for one in above):
            first = above[0]
            near = row[0].y0 - first.y1 < 0.4 * first.size and abs(row[0].size - first.size) < 0.3
            if near and abs(row[0].x0 - first.x0) < 0.2 * first.size:
                across[id(row[0])] = row[0]
    return sorted(across.values(), key=lambda one: one.middle)


def _rows(found: Sequence[Segment]) -> list[list[Segment]]:
    """Returns the segments by height, each row from left to right."""
    rows: list[list[Segment]] = []
    for one in sorted(found, key=lambda one: (one.middle, one.x0)):
        if rows and one.middle - rows[-1][0].middle < 0.3 * one.size:
            rows[-1].append(one)
        else:
            rows.append([one])
    return [sorted(row, key=lambda one: one.x0) for row in rows]


def _table_rows(rows: Sequence[list[Segment]], gutter: tuple[float, float]) -> Iterator[list[Segment]]:
    """Yields the rows of short cells across the gutter where at least three follow one another."""
    run: list[list[Segment]] = []
    for row in [*rows, []]:
        short = len(row) >= _MIN_CELLS and all(len(one.text) <= _MAX_CELL for one in row) and _ink([row]) < _MAX_INK
        if short and row[0].x0 < gutter[1] and row[-1].x1 > gutter[0]:
            run.append(row)
            continue
        if len(run) >= _MIN_LINES:
            yield from run
        run = []


def _ink(rows: Sequence[Sequence[Segment]]) -> float:
    """Returns the share of the width of rows that their cells fill: 0.9 for columns of text, 0.3 to 0.6 for tables."""
    filled = sum(one.x1 - one.x0 for row in rows for one in row)
    return filled / max(1.0, sum(row[-1].x1 - row[0].x0 for row in rows))


def _crosses(one: Segment, gutter: tuple[float, float]) -> bool:
    slack = 0.25 * (gutter[1] - gutter[0])
    return one.x0 < gutter[1] - slack and one.x1 > gutter[0] + slack


def _gutter(found: Sequence[Segment]) -> tuple[float, float] | None:
    """Returns the best gutter, left and right end, or None."""
    size = median(one.size for one in found)
    best, gutter = -1.0, None
    for start, end in _gaps(found, _MIN_GUTTER * size):
        left = [one for one in found if one.x1 <= start + 0.1]
        right = [one for one in found if one.x0 >= end - 0.1]
        if len(left) < _MIN_LINES or len(right) < _MIN_LINES:
            continue
        beside = _beside_lines(found, left, right)
        if beside > _MAX_BESIDE * len(found) + 1 or not _are_columns(left, right):
            continue
        score = min(len(left), len(right)) - beside + (end - start) / size
        if score > best:
            best, gutter = score, (start, end)
    return gutter


def _beside_lines(found: Sequence[Segment], left: Sequence[Segment], right: Sequence[Segment]) -> int:
    """Returns how many of the segments across a gutter stand beside lines of a column, where a title has none."""
    columns = {id(one) for one in (*left, *right)}
    heights = sorted(one.middle for one in (*left, *right))
    count = 0
    for one in found:
        if id(one) not in columns:
            at = bisect_left(heights, one.middle - 0.4 * one.size)
            count += at < len(heights) and heights[at] < one.middle + 0.4 * one.size
    return count


def _gaps(found: Sequence[Segment], width: float) -> list[tuple[float, float]]:
    """Returns strips that few segments cross: for no crossing ones and for some, the widest places."""
    events: dict[float, int] = {}
    for one in found:
        events[one.x0] = events.get(one.x0, 0) + 1
        events[one.x1] = events.get(one.x1, 0) - 1
    edges = sorted(events)
    covers, count = [], 0
    for edge in edges:
        count += events[edge]
        covers.append(count)
    gaps: set[tuple[float, float]] = set()
    for allowed in (0.0, 0.02, 0.05, 0.1, 0.2, _MAX_CROSSING):
        start: float | None = None
        for edge, cover in zip(edges, covers, strict=True):
            if cover <= allowed * len(found):
                start = edge if start is None else start
            elif start is not None:
                if edge - start >= width and start > edges[0]:
                    gaps.add((start, edge))
                start = None
    return sorted(gaps)


def _are_columns(left: Sequence[Segment], right: Sequence[Segment]) -> bool:
    """Returns whether both sides are lines of text beside each other."""
    top = max(min(one.y0 for one in side) for side in (left, right))
    bottom = min(max(one.y1 for one in side) for side in (left, right))
    beside = [[one for one in side if top <= one.middle <= bottom] for side in (left, right)]
    if any(len(side) < _MIN_LINES for side in beside):
        return False
    lengths = [_mean_chars(side) for side in beside]
    rows = _rows([*beside[0], *beside[1]])
    cells = _rows_agree(*beside) and _ink([row for row in rows if len(row) > 1]) < _MIN_TEXT_INK
    return min(lengths) >= (_MIN_CHARS_OF_ROWS if cells else _MIN_CHARS)


def _mean_chars(side: Sequence[Segment]) -> float:
    """Returns characters per line, weighted by itself, so that a few short lines or pieces count little."""
    counts = [len(one.text) for one in side]
    return sum(one * one for one in counts) / max(1, sum(counts))


def _rows_agree(left: Sequence[Segment], right: Sequence[Segment]) -> bool:
    """Returns whether most lines of the shorter side stand at the height of one of the other side."""
    fewer, more = sorted((left, right), key=len)
    heights = sorted(one.middle for one in more)
    agreeing = 0
    for one in fewer:
        at = bisect_left(heights, one.middle - 0.15 * one.size)
        agreeing += at < len(heights) and heights[at] <= one.middle + 0.15 * one.size
    return agreeing > 0.7 * len(fewer)
