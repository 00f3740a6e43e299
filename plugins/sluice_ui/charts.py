"""Charts as figures for Plotly: JSON of `data` and `layout`, without colors, which `static/charts.js` adds.

The scripts come from the installed package plotly; the package itself is not imported.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST_POINTS = 600
"""Points of a curve; a longer series is thinned, keeping first and last."""

Interval = Sequence[float | None]
"""Both ends of an interval; both None if there is none, or it is infinite."""

_AXIS_PX, _ROW_PX = 70, 36
"""Height of a chart of rows: its axis, and each row."""


def script() -> Path:
    """Returns the path of Plotly's script in its package."""
    found = find_spec("plotly")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "package_data" / "plotly.min.js"


def funnel(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a Sankey diagram from sources to the step at which documents are dropped, or to "kept".

    Args:
        rows: {source, step, documents}.
    """
    flows: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["source"], row["step"]
        flows[key] = flows.get(key, 0) + row["documents"]
    sources = sorted({source for source, _ in flows})
    steps = list(dict.fromkeys(row["step"] for row in rows))
    names = [*sources, *steps]
    roles = ["accent"] * len(sources) + ["good" if step == "kept" else "bad" for step in steps]
    links = [
        (sources.index(source), len(sources) + steps.index(step), count) for (source, step), count in flows.items()
    ]
    trace = {
        "type": "sankey",
        "node": {"label": names, "roles": roles, "pad": 14, "thickness": 14},
        "link": {
            "source": [source for source, _, _ in links],
            "target": [target for _, target, _ in links],
            "value": [count for _, _, count in links],
            "roles": [roles[target] for _, target, _ in links],
        },
    }
    return _figure([trace], {"margin": {"l": 8, "r": 8, "t": 8, "b": 8}})


def curve(x: Sequence[float], y: Sequence[float | None], x_title: str, y_title: str) -> str:
    """Returns a line."""
    stride = max(1, -(-len(x) // MOST_POINTS))
    points = [*range(0, len(x), stride)]
    if x and points[-1] != len(x) - 1:
        points.append(len(x) - 1)
    trace = {"type": "scatter", "mode": "lines", "x": [x[at] for at in points], "y": [y[at] for at in points]}
    return _figure([trace], {"xaxis": {"title": {"text": x_title}}, "yaxis": {"title": {"text": y_title}}})


def differences(points: Sequence[tuple[str, float, Interval]], title: str) -> str:
    """Returns named points with their intervals, one under another; a point whose ends are None has none."""
    names, values, ends = zip(*points, strict=True) if points else ((), (), ())
    trace = {
        "type": "scatter",
        "mode": "markers",
        "marker": {"size": 9},
        "x": list(values),
        "y": list(names),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [0.0 if high is None else high - value for value, (_, high) in zip(values, ends, strict=True)],
            "arrayminus": [0.0 if low is None else value - low for value, (low, _) in zip(values, ends, strict=True)],
        },
    }
    layout = {
        "height": _AXIS_PX + _ROW_PX * len(names),
        "xaxis": {"title": {"text": title}, "zeroline": True, "rangemode": "tozero"},
        "yaxis": {"automargin": True, "autorange": "reversed"},
    }
    return _figure([trace], layout)


def interval(ends: Interval, digits: int = 4, otherwise: str = "not known") -> str:
    """Returns an interval as text, or `otherwise` without one."""
    low, high = ends
    return otherwise if low is None or high is None else f"{low:.{digits}f} .. {high:.{digits}f}"


def bars(names: Sequence[str], values: Sequence[float], title: str) -> str:
    """Returns horizontal bars, the first on top."""
    trace = {"type": "bar", "orientation": "h", "x": list(values), "y": list(names)}
    height = _AXIS_PX + _ROW_PX * len(names)
    axes = {"xaxis": {"title": {"text": title}}, "yaxis": {"automargin": True, "autorange": "reversed"}}
    layout = {"height": height, **axes}
    return _figure([trace], layout)


def lines(series: Sequence[tuple[str, ArrayLike, ArrayLike]], x_title: str, y_title: str, log: bool = False) -> str:
    """Returns named lines with a legend; of a long line the lowest and highest values are kept, so no peak is lost.

    Args:
        series: name, x and y of each line; y may be NaN, which is a gap.
        x_title: title of the axis.
        y_title: title of the axis.
        log: whether the y axis is logarithmic.
    """
    data = []
    for name, x, y in series:
        xs, ys = _peaks(np.asarray(x, np.float64), np.asarray(y, np.float64))
        values = [None if np.isnan(value) else float(value) for value in ys]
        data.append({"type": "scatter", "mode": "lines", "name": name, "x": xs.tolist(), "y": values})
    axis = {"title": {"text": y_title}, **({"type": "log"} if log else {})}
    shown = {"showlegend": len(data) > 1, "legend": {"orientation": "h", "y": 1.12}}
    return _figure(data, {"xaxis": {"title": {"text": x_title}}, "yaxis": axis, **shown})


def groups(series: Sequence[tuple[str, Sequence[str], Sequence[float]]], y_title: str) -> str:
    """Returns stacked bars with a legend: name, names on the x axis, and values of each series."""
    data = [{"type": "bar", "name": name, "x": list(x), "y": list(y)} for name, x, y in series]
    layout = {"barmode": "stack", "xaxis": {"type": "category"}, "yaxis": {"title": {"text": y_title}}}
    return _figure(data, {**layout, "showlegend": True, "legend": {"orientation": "h", "y": 1.12}})


def _peaks(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns at most MOST_POINTS points: of each span of the line its lowest and its highest, in the order of x."""
    spans = MOST_POINTS // 2
    if len(x) <= MOST_POINTS:
        return x, y
    edges = np.linspace(0, len(x), spans + 1).astype(int)
    at: list[int] = []
    for first, end in pairwise(edges.tolist()):
        part = y[first:end]
        if np.isnan(part).all():
            at.append(int(first))
        else:
            at += sorted({int(first + np.nanargmin(part)), int(first + np.nanargmax(part))})
    return x[at], y[at]


def _figure(data: list[dict[str, Any]], layout: dict[str, Any]) -> str:
    return json.dumps({"data": data, "layout": {"showlegend": False, **layout}})
