"""Histograms with a limit, drawn as SVG without a script; `static/limits.js` moves the limit with a slider."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

BINS = 50
SIDES = {"least": "at least", "most": "at most", "below": "below"}
"""Words before a limit, by its side."""
_HEIGHT = 60
_SPREAD = 50
"""Values whose 99th percentile is this many times their median or their limit get a logarithmic axis."""


@dataclass(frozen=True)
class Histogram:
    """Numbers of documents by value, in BINS intervals of equal width.

    Attributes:
        counts: documents of each interval; those beyond the ends are in the first and the last one.
        low: value at the left end.
        high: value at the right end.
        log: whether the intervals have equal width as logarithms of value + 1.
    """

    counts: tuple[int, ...]
    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: NDArray[np.float64], bounds: Sequence[float]) -> "Histogram":
        """Returns the histogram of values, NaN left out, from their 1st to their 99th percentile and around limits.

        Args:
            values: the values, shape (n,).
            bounds: limits, which are inside the ends.
        """
        real = values[~np.isnan(values)].astype(np.float64)
        finite = real[np.isfinite(real)]
        low, middle, high = np.percentile(finite, [1, 50, 99]) if len(finite) else (0.0, 0.0, 1.0)
        positive = bool(len(finite)) and finite.min() >= 0
        least = min([bound for bound in bounds if bound > 0], default=high)
        log = positive and high > max(_SPREAD * min(max(middle, 1.0), least), _SPREAD)
        low, high = float(min(low, *bounds, high)), float(max(high, *bounds, low))
        if positive and low < (high - low) / 2:
            low = 0.0
        if high <= low:
            high = low + 1.0
        if any(bound == high for bound in bounds) and not (positive and high == 1.0):
            high += (high - low) / 10
        return cls((), low, high, log).count(real)

    def count(self, values: NDArray[np.float64]) -> "Histogram":
        """Returns the histogram of other values with the same ends."""
        places = np.clip(self.places(values[~np.isnan(values)]) * BINS, 0, BINS - 1).astype(np.int64)
        return replace(self, counts=tuple(np.bincount(places, minlength=BINS).tolist()))

    def places(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns where values are between the ends, 0 to 1, shape (n,); outside of them for others."""
        low, high = self.low, self.high
        if self.log:
            values, low, high = np.log1p(np.maximum(values, 0)), math.log1p(low), math.log1p(high)
        return np.asarray((np.nan_to_num(values, posinf=high, neginf=low) - low) / (high - low))

    def place(self, value: float) -> float:
        """Returns where a value is between the ends, 0 to 1."""
        return float(np.clip(self.places(np.array([value], np.float64))[0], 0, 1))

    def drawn(self, bound: float | None, asked: float | None, side: str) -> Markup:
        """Returns the histogram as SVG.

        Args:
            bound: the limit of the version; None for none.
            asked: the limit that is tried; None for none.
            side: "least", "most" or "below".
        """
        most = math.sqrt(max(*self.counts, 1))
        at = None if asked is None else self.place(asked) * BINS
        bars = []
        for number, count in enumerate(self.counts):
            height = _HEIGHT * math.sqrt(count) / most
            gone = at is not None and (number + 0.5 < at if side == "least" else number + 0.5 > at)
            kind = "gone" if gone else "stays"
            box = f'x="{number}" y="{_HEIGHT - height:.1f}" width="0.9" height="{height:.1f}"'
            bars.append(f'<rect class="{kind}" {box} data-count="{count}"/>')
        lines = [
            f'<line class="{kind}" x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="{_HEIGHT}"/>'
            for kind, x in (("own", None if bound is None else self.place(bound) * BINS), ("asked", at))
            if x is not None
        ]
        label = f"{sum(self.counts):,} documents by value from {figure(self.low)} to {figure(self.high)}"
        if asked is not None:
            label += f"; the limit is {figure(asked)}, at {self.place(asked):.0%} of the width"
        return Markup(
            '<svg class="histogram" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        ).format(BINS, _HEIGHT, label, Markup("".join([*bars, *lines])))


def figure(value: float) -> str:
    """Formats a value with three digits after the point, or without them if it is large.

    >>> figure(0.12345), figure(3.0), figure(12345.6)
    ('0.123', '3', '12,346')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"
