"""A layered drawing of an acyclic graph: nodes in rows, every edge downward (Sugiyama, Tagawa and Toda 1981).

An edge over several rows passes through a narrow place in each of them, so that it does not run over a box. All edges
of one node share these places: they leave it as one trunk. Rows are sorted by the mean place of their neighbors, and
x coordinates are moved toward them as far as the neighbors in the row allow. Same graph, same drawing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

WIDTH, HEIGHT = 168.0, 44.0
"""Size of a box, in units of the drawing."""

_GAP, _ROW, _PASSAGE, _SWEEPS = 22.0, 86.0, 14.0, 12

Place = tuple[str, int]
"""A node and a row: the node itself, or the passage of its edges through a later row."""


@dataclass(frozen=True)
class Drawing:
    """Positions of boxes and edges, in units of the drawing.

    Attributes:
        size: width and height.
        boxes: left and top of the box of each node.
        edges: SVG path of each edge, from the bottom of its source to the top of its target.
    """

    size: tuple[float, float]
    boxes: Mapping[str, tuple[float, float]]
    edges: Mapping[tuple[str, str], str]


def draw(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> Drawing:
    """Lays out a graph.

    Args:
        nodes: names, sources before targets.
        edges: (source, target); those that do not point forward in `nodes` are left out.
    """
    order = {name: at for at, name in enumerate(nodes)}
    forward = sorted(
        {(a, b) for a, b in edges if order[a] < order[b]}, key=lambda edge: (order[edge[0]], order[edge[1]])
    )
    rows_of = _rows(nodes, forward)
    last = {name: max((rows_of[b] for a, b in forward if a == name), default=rows_of[name]) for name in nodes}
    rows: list[list[Place]] = [[] for _ in range(max(rows_of.values(), default=-1) + 1)]
    for name in nodes:
        for row in range(rows_of[name], max(last[name], rows_of[name] + 1)):
            rows[row].append((name, row))
    above: dict[Place, list[Place]] = defaultdict(list)
    for a, b in forward:
        above[b, rows_of[b]].append((a, rows_of[b] - 1))
    for places in rows:
        for name, at in places:
            if at > rows_of[name]:
                above[name, at].append((name, at - 1))
    below: dict[Place, list[Place]] = defaultdict(list)
    for place, parents in above.items():
        for parent in parents:
            below[parent].append(place)
    widths = {place: WIDTH if rows_of[place[0]] == place[1] else _PASSAGE for places in rows for place in places}
    _sort(rows, above, below)
    centers = _centers(rows, widths, above, below)
    left = min((centers[place] - widths[place] / 2 for place in centers), default=0.0)
    right = max((centers[place] + widths[place] / 2 for place in centers), default=0.0)
    centers = {place: center - left for place, center in centers.items()}
    boxes = {name: (centers[name, row] - WIDTH / 2, row * _ROW) for name, row in rows_of.items()}
    paths = {(a, b): _path(a, rows_of[a], b, rows_of[b], centers) for a, b in forward}
    return Drawing((right - left, max(len(rows) - 1, 0) * _ROW + HEIGHT), boxes, paths)


def _rows(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Returns the row of each node: below all its sources, sources just above their first target."""
    rows = dict.fromkeys(nodes, 0)
    for name in nodes:
        rows[name] = max((rows[a] + 1 for a, b in edges if b == name), default=0)
    for name in reversed(nodes):
        if not any(b == name for _, b in edges):
            rows[name] = min((rows[b] - 1 for a, b in edges if a == name), default=rows[name])
    return rows


def _sort(rows: list[list[Place]], above: Mapping[Place, list[Place]], below: Mapping[Place, list[Place]]) -> None:
    """Sorts each row by the mean position of its neighbors in the row before, downward and upward in turn."""
    for sweep in range(_SWEEPS):
        neighbors = above if sweep % 2 == 0 else below
        ordered = rows if sweep % 2 == 0 else rows[::-1]
        positions = {place: at / max(len(row) - 1, 1) for row in rows for at, place in enumerate(row)}
        for row in ordered:
            row.sort(key=lambda place: _mean(place, neighbors, positions))
            positions.update({place: at / max(len(row) - 1, 1) for at, place in enumerate(row)})


def _centers(
    rows: list[list[Place]], widths: Mapping[Place, float], above: Mapping[Place, list[Place]],
    below: Mapping[Place, list[Place]],
) -> dict[Place, float]:  # fmt: skip
    """Returns the center of each place, in the order of its row and without overlaps."""
    centers: dict[Place, float] = {}
    for row in rows:
        at = 0.0
        for place in row:
            centers[place] = at + widths[place] / 2
            at += widths[place] + _GAP
        for place in row:
            centers[place] -= at / 2
    for sweep in range(_SWEEPS):
        neighbors = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            _spread(row, [_mean(place, neighbors, centers) for place in row], widths, centers)
    return centers


def _spread(row: list[Place], wanted: list[float], widths: Mapping[Place, float], centers: dict[Place, float]) -> None:
    """Places a row at the least squared distance from the wanted centers, in order (pool adjacent violators)."""
    offsets, at = [], 0.0
    for before, place in zip([None, *row], row, strict=False):
        at += 0.0 if before is None else (widths[before] + widths[place]) / 2 + _GAP
        offsets.append(at)
    blocks: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            before_mean, before_count = blocks.pop()
            mean = (mean * count + before_mean * before_count) / (count + before_count)
            count += before_count
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    centers.update({place: mean + offset for place, mean, offset in zip(row, means, offsets, strict=True)})


def _mean(place: Place, neighbors: Mapping[Place, list[Place]], values: Mapping[Place, float]) -> float:
    of = neighbors.get(place)
    return fmean(values[one] for one in of) if of else values[place]


def _path(a: str, first: int, b: str, last: int, centers: Mapping[Place, float]) -> str:
    """Returns the path of an edge: a curve between two rows, a straight line through the height of a row."""
    x, y = centers[a, first], first * _ROW + HEIGHT
    path = f"M{x:.1f} {y:.1f}"
    for row in range(first + 1, last + 1):
        x_next, y_next = (centers[b, row] if row == last else centers[a, row]), row * _ROW
        middle = (y + y_next) / 2
        path += f"C{x:.1f} {middle:.1f} {x_next:.1f} {middle:.1f} {x_next:.1f} {y_next:.1f}"
        x, y = x_next, y_next + HEIGHT
        path += "" if row == last else f"V{y:.1f}"
    return path
