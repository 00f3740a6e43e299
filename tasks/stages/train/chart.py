"""Line charts as inline SVG, for pages that load nothing."""

from collections.abc import Sequence
from html import escape

from markupsafe import Markup

WIDTH, HEIGHT = 640, 150
LEFT, BOTTOM, TOP = 70, 18, 6
BUCKETS = 300
"""Most points of a line are its least and its largest value in this many spans of steps, so that no spike is lost."""

Points = Sequence[tuple[int, float]]


def chart(title: str, points: Points, smooth: Points = ()) -> Markup:
    """Returns the chart of some values over their steps; of none, nothing.

    Args:
        title: name and unit of the values.
        points: (step, value), ascending by step; values are finite.
        smooth: a second line over it.
    """
    if not points:
        return Markup("")
    values = [value for _, value in points]
    low, high = min(values), max(values)
    first, last = points[0][0], points[-1][0]
    # A line of equal values lies in the middle.
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    box = (first, max(last, first + 1), low - margin, high + margin)
    lines = [f'<polyline class=raw points="{_path(thinned(points), box)}"/>']
    if smooth:
        lines.append(f'<polyline class=smooth points="{_path(thinned(smooth), box)}"/>')
    texts = [
        _text(LEFT - 5, _y(high, box) + 4, _number(high), "end"),
        _text(LEFT - 5, _y(low, box) + 4, _number(low), "end") if high > low else "",
        _text(LEFT, HEIGHT - 3, f"{first:,}", "start"),
        _text(WIDTH - 2, HEIGHT - 3, f"{last:,}", "end"),
    ]
    frame = f'<path class=axis d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH}"/>'
    return Markup(
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role=img '
        f'aria-label="{escape(title)} over steps">{frame}{"".join(lines)}{"".join(texts)}</svg></figure>'
    )


def thinned(points: Points) -> list[tuple[int, float]]:
    """Returns at most two points per span of steps, the least and the largest value, ascending by step.

    >>> len(thinned([(step, step % 7) for step in range(10_000)])) <= 2 * BUCKETS
    True
    """
    if len(points) <= 2 * BUCKETS:
        return list(points)
    kept = []
    for number in range(BUCKETS):
        span = points[number * len(points) // BUCKETS : (number + 1) * len(points) // BUCKETS]
        ends = {min(span, key=lambda point: point[1]), max(span, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def smoothed(points: Points) -> list[tuple[int, float]]:
    """Returns the exponential moving average of some values, over a fiftieth of them and ten at least.

    Corrected for its start at 0, as the moments of Adam (Kingma and Ba 2015).

    >>> smoothed([(0, 2.0), (1, 2.0)])
    [(0, 2.0), (1, 2.0)]
    """
    decay = 1 - 2 / (max(10, len(points) / 50) + 1)
    mean, weight, found = 0.0, 0.0, []
    for step, value in points:
        mean, weight = decay * mean + (1 - decay) * value, decay * weight + (1 - decay)
        found.append((step, mean / weight))
    return found


Box = tuple[int, int, float, float]


def _path(points: Points, box: Box) -> str:
    first, last, *_ = box
    scale = (WIDTH - LEFT) / (last - first)
    return " ".join(f"{LEFT + (step - first) * scale:.1f},{_y(value, box):.1f}" for step, value in points)


def _y(value: float, box: Box) -> float:
    *_, low, high = box
    return TOP + (HEIGHT - BOTTOM - TOP) * (high - value) / (high - low)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y:.0f}" text-anchor={anchor}>{escape(text)}</text>'
