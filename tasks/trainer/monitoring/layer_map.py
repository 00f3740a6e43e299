"""Maps of the figures of layers over steps, as SVG without a script: a row per layer, a column per measured step.

The shade of a cell is its value between the smallest and the largest of the map, for norms and sizes by its logarithm.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

MAPS: Mapping[str, str] = {
    "ratio": "Update / weight",
    "grad": "Gradient norm before clipping",
    "rms": "Residual stream behind the layer, RMS",
    "max": "Residual stream behind the layer, largest size",
    "inner_max": "Inner values of feed-forward, largest size",
    "inner_zeros": "Inner values of feed-forward near zero, share",
}
"""Figure of `layer_figures` -> title of its map."""

MOST_COLUMNS = 80
"""Columns of a map; of more steps they are evenly chosen, with the first and the last."""

_SHADES = 9
_LEFT, _TOP, _CELL, _BOTTOM = 64, 4, 12, 18
_WIDTH = 640


def maps(lines: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Returns the maps of the lines of `layers.jsonl`; [] if there are none."""
    if not lines:
        return []
    chosen = sorted({round(at) for at in _spaced(len(lines), MOST_COLUMNS)})
    columns = [lines[at] for at in chosen]
    drawn = (_map(columns, figure, title) for figure, title in MAPS.items())
    return [one for one in drawn if one]


def _spaced(count: int, most: int) -> list[float]:
    points = min(count, most)
    return [at * (count - 1) / max(1, points - 1) for at in range(points)]


def _map(columns: Sequence[Mapping[str, Any]], figure: str, title: str) -> Markup:
    """Returns the map of one figure; empty if no layer has it."""
    names = [name for name in columns[-1]["layers"] if figure in columns[-1]["layers"][name]]
    cells = {
        (column, row): value
        for column, line in enumerate(columns)
        for row, name in enumerate(names)
        if (value := line["layers"].get(name, {}).get(figure)) is not None
    }
    if not cells:
        return Markup("")
    low, high = min(cells.values()), max(cells.values())
    wide = (_WIDTH - _LEFT) / len(columns)
    paths: defaultdict[int, list[str]] = defaultdict(list)
    for (column, row), value in cells.items():
        shade = round(_place(value, low, high, figure) * (_SHADES - 1))
        paths[shade].append(f"M{_LEFT + column * wide:.1f} {_TOP + row * _CELL}h{wide:.1f}v{_CELL}h-{wide:.1f}z")
    height = _TOP + len(names) * _CELL + _BOTTOM
    shades = [
        f'<path class="heat" fill-opacity="{0.06 + 0.94 * shade / (_SHADES - 1):.2f}" d="{"".join(parts)}"/>'
        for shade, parts in sorted(paths.items())
    ]
    every = max(1, len(names) // 16)
    labels = [
        _text(_LEFT - 5, _TOP + row * _CELL + 10, name, "end") for row, name in enumerate(names) if row % every == 0
    ]
    ends = [
        _text(_LEFT, height - 4, f"{columns[0]['step']:,}", "start"),
        _text(_WIDTH, height - 4, f"{columns[-1]['step']:,}", "end"),
    ]
    label = f"{title}, by layer over steps, from {low:.3g} (pale) to {high:.3g} (full)"
    return Markup(
        '<figure class="heatmap"><figcaption>{}</figcaption>'
        '<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg></figure>'
    ).format(label, _WIDTH, height, label, Markup("").join([*map(Markup, shades), *labels, *ends]))


def _place(value: float, low: float, high: float, figure: str) -> float:
    """Returns where a value is between two others, 0 to 1."""
    if figure != "inner_zeros" and low > 0:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low) if high > low else 0.5


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
