"""Reading order: splits the segments of a page into regions, each one column of lines.

Pure functions. A gutter is a strip that no line of a column enters. Lines across it (titles, wide figures) divide the
page into bands; in each band the left column is read before the right one. This is the recursive XY-cut (Nagy, Seth and
Viswanathan 1992) with the vertical cut first, which lines may cross. Tables have gutters, too, so both sides of a
gutter must consist of lines of text, not cells.
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


def regions(segments: Sequence[Segment], depth: int = 0) -> Iterator[list[Segment]]:
    """Yields the segments of each region, regions in reading order; every segment is in exactly one region."""
    gutter = None
    if depth < _DEPTH and 2 * _MIN_LINES <= len(segments) <= _MOST:
        gutter = _gutter(segments)
    if gutter is None:
        if segments:
            yield list(segments)
        return
    across = _spanning_segments(segments, gutter)
    spanning_ids = {id(segment) for segment in across}
    heights = [segment.middle for segment in across]
    bands: list[tuple[list[Segment], list[Segment]]] = [([], []) for _ in range(len(across) + 1)]
    for segment in segments:
        if id(segment) not in spanning_ids:
            left, right = bands[bisect_left(heights, segment.middle)]
            (left if segment.x1 <= (gutter[0] + gutter[1]) / 2 else right).append(segment)
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


def _spanning_segments(segments: Sequence[Segment], gutter: tuple[float, float]) -> list[Segment]:
    """Returns the segments that span both columns, from top to bottom.

    These are lines across the gutter, table rows across it, and the short last line of a paragraph whose other lines
    cross it.
    """
    across = {id(segment): segment for segment in segments if _crosses(segment, gutter)}
    rows = _rows(segments)
    for row in _table_rows(rows, gutter):
        across.update((id(segment), segment) for segment in row)
    for above, row in pairwise(rows):
        if len(row) == 1 and id(row[0]) not in across and all(id(segment) in across for segment in above):
            first = above[0]
            near = row[0].y0 - first.y1 < 0.4 * first.size and abs(row[0].size - first.size) < 0.3
            if near and abs(row[0].x0 - first.x0) < 0.2 * first.size:
                across[id(row[0])] = row[0]
    return sorted(across.values(), key=lambda segment: segment.middle)


def _rows(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Groups the segments by height, each row from left to right."""
    rows: list[list[Segment]] = []
    for segment in sorted(segments, key=lambda segment: (segment.middle, segment.x0)):
        if rows and segment.middle - rows[-1][0].middle < 0.3 * segment.size:
            rows[-1].append(segment)
        else:
            rows.append([segment])
    return [sorted(row, key=lambda segment: segment.x0) for row in rows]


def _table_rows(rows: Sequence[list[Segment]], gutter: tuple[float, float]) -> Iterator[list[Segment]]:
    """Yields rows of short cells across the gutter, if at least three are consecutive."""
    run: list[list[Segment]] = []
    for row in [*rows, []]:
        short = (
            len(row) >= _MIN_CELLS and all(len(segment.text) <= _MAX_CELL for segment in row) and _ink([row]) < _MAX_INK
        )
        if short and row[0].x0 < gutter[1] and row[-1].x1 > gutter[0]:
            run.append(row)
            continue
        if len(run) >= _MIN_LINES:
            yield from run
        run = []


def _ink(rows: Sequence[Sequence[Segment]]) -> float:
    """Returns the share of the width of rows filled by cells: 0.9 for columns of text, 0.3 to 0.6 for tables."""
    filled = sum(segment.x1 - segment.x0 for row in rows for segment in row)
    return filled / max(1.0, sum(row[-1].x1 - row[0].x0 for row in rows))


def _crosses(segment: Segment, gutter: tuple[float, float]) -> bool:
    slack = 0.25 * (gutter[1] - gutter[0])
    return segment.x0 < gutter[1] - slack and segment.x1 > gutter[0] + slack


def _gutter(segments: Sequence[Segment]) -> tuple[float, float] | None:
    """Returns left and right edge of the best gutter, or None."""
    size = median(segment.size for segment in segments)
    best, gutter = -1.0, None
    for start, end in _gaps(segments, _MIN_GUTTER * size):
        left = [segment for segment in segments if segment.x1 <= start + 0.1]
        right = [segment for segment in segments if segment.x0 >= end - 0.1]
        if len(left) < _MIN_LINES or len(right) < _MIN_LINES:
            continue
        beside = _count_beside_lines(segments, left, right)
        if beside > _MAX_BESIDE * len(segments) + 1 or not _are_columns(left, right):
            continue
        score = min(len(left), len(right)) - beside + (end - start) / size
        if score > best:
            best, gutter = score, (start, end)
    return gutter


def _count_beside_lines(segments: Sequence[Segment], left: Sequence[Segment], right: Sequence[Segment]) -> int:
    """Returns the number of segments across a gutter that are at the height of a column's line, unlike titles."""
    columns = {id(segment) for segment in (*left, *right)}
    heights = sorted(segment.middle for segment in (*left, *right))
    count = 0
    for segment in segments:
        if id(segment) not in columns:
            index = bisect_left(heights, segment.middle - 0.4 * segment.size)
            count += index < len(heights) and heights[index] < segment.middle + 0.4 * segment.size
    return count


def _gaps(segments: Sequence[Segment], width: float) -> list[tuple[float, float]]:
    """Returns vertical strips that few segments cross, for several allowed shares of crossing segments."""
    events: dict[float, int] = {}
    for segment in segments:
        events[segment.x0] = events.get(segment.x0, 0) + 1
        events[segment.x1] = events.get(segment.x1, 0) - 1
    edges = sorted(events)
    covers, count = [], 0
    for edge in edges:
        count += events[edge]
        covers.append(count)
    gaps: set[tuple[float, float]] = set()
    for allowed in (0.0, 0.02, 0.05, 0.1, 0.2, _MAX_CROSSING):
        start: float | None = None
        for edge, cover in zip(edges, covers, strict=True):
            if cover <= allowed * len(segments):
                start = edge if start is None else start
            elif start is not None:
                if edge - start >= width and start > edges[0]:
                    gaps.add((start, edge))
                start = None
    return sorted(gaps)


def _are_columns(left: Sequence[Segment], right: Sequence[Segment]) -> bool:
    """Returns whether both sides are columns of text next to each other."""
    top = max(min(segment.y0 for segment in side) for side in (left, right))
    bottom = min(max(segment.y1 for segment in side) for side in (left, right))
    beside = [[segment for segment in side if top <= segment.middle <= bottom] for side in (left, right)]
    if any(len(side) < _MIN_LINES for side in beside):
        return False
    lengths = [_mean_chars(side) for side in beside]
    rows = _rows([*beside[0], *beside[1]])
    cells = _rows_agree(*beside) and _ink([row for row in rows if len(row) > 1]) < _MIN_TEXT_INK
    return min(lengths) >= (_MIN_CHARS_OF_ROWS if cells else _MIN_CHARS)


def _mean_chars(side: Sequence[Segment]) -> float:
    """Returns the mean number of characters per line, weighted by that number, so that short lines count little."""
    counts = [len(count.text) for count in side]
    return sum(count * count for count in counts) / max(1, sum(counts))


def _rows_agree(left: Sequence[Segment], right: Sequence[Segment]) -> bool:
    """Returns whether most lines of the shorter side are at the height of a line of the other side."""
    fewer, more = sorted((left, right), key=len)
    heights = sorted(segment.middle for segment in more)
    agreeing = 0
    for segment in fewer:
        index = bisect_left(heights, segment.middle - 0.15 * segment.size)
        agreeing += index < len(heights) and heights[index] <= segment.middle + 0.15 * segment.size
    return agreeing > 0.7 * len(fewer)
