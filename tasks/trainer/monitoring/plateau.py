"""Whether the loss of a run has stopped falling, although its own history predicts a fall.

A healthy loss falls as a power law of the sum of the learning rates so far, tau (Tissue et al. 2024, arXiv 2408.11029,
without their term for the decay, which only adds to the fall). Over the logarithm of tau it is convex, and its slope
shrinks at most in proportion to 1 / tau. So the slope of the past tells how much the present one must be at least: the
loss is flat if its recent slope is significantly less than `FLAT` of that.

Both slopes are medians of pairwise slopes (Theil and Sen) over means of blocks, so that outliers do not matter. Their
errors are those of the slopes of parts of the past, so noise that lasts for a while counts, too. Where noise hides the
expected fall, the answer is no: a plateau is found when it has lasted for a sixteenth of the steps so far if the loss
falls fast, and for as many steps as there were before it if the fall is hardly visible. There is no answer

- in the first `LEAST` steps after the warm-up or after a planned change of the data;
- where the learning rate is below `LOW_RATE` of its peak, as at the end of a schedule, where a healthy loss flattens;
- in the decay of `wsd`, if nothing of the same data was trained before it: its own fall is no measure for its end.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FLAT = 0.5
"""Share of the least expected slope below which the recent slope is flat."""
CERTAIN = 5.0
"""Standard errors by which it must be below: the errors come from twelve parts, and a run is examined many times."""
VISIBLE = 3.0
"""Standard errors of the recent slope that the expected one must have: else the steps are too few to tell."""
WINDOWS = (1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2)
"""Lengths of the recent steps that are examined, as shares of the steps since the last change."""
LEAST = 2000
"""Minimum number of steps since the last change; half as many have to be before the recent ones."""
HISTORY = 2
"""The slope of the past is that of the steps from this part of their number on."""
LOW_RATE = 0.3
"""Share of the peak learning rate below which nothing is said."""
EVERY = 250
"""Steps between two examinations."""

_BLOCKS = 16
"""Blocks of steps between whose means slopes are taken."""
_PARTS = 12
"""Parts of the past whose slopes show the noise."""


@dataclass(frozen=True)
class Flat:
    """A plateau: the recent slope beside the least that is expected, in nats per token and 1,000 steps."""

    steps: int
    slope: float
    error: float
    expected: float

    def __str__(self) -> str:
        return (
            f"over the last {self.steps:,} steps the loss changed by {self.slope:+.4f} ± {self.error:.4f} per 1,000 "
            f"steps, where its history predicts {self.expected:+.4f} or less"
        )


def flat(losses: Floats, tau: Floats, history_until: int | None = None) -> Flat | None:
    """Returns the plateau at the end of the losses; None if there is none, or if noise hides it.

    Args:
        losses: of the steps since the last change, nats per token, float64 [n]; NaN for a skipped step.
        tau: sum of the learning rates up to and including each of them, float64 [n], in any unit; ascending.
        history_until: number of the losses from which the expected slope may be taken; None: all before the window.
    """
    known = ~np.isnan(losses)
    losses, x = losses[known], np.log(tau[known])
    count = len(losses)
    for share in WINDOWS if count >= LEAST else ():
        recent = int(count * share)
        until = count - recent if history_until is None else min(history_until, count - recent)
        if until < LEAST // 2:
            continue
        history, present = slice(until // HISTORY, until), slice(count - recent, count)
        noise = _noise(x[history], losses[history])
        slope, error = _slope(x[present], losses[present]), noise / _length(x[present])
        # Between the middles of both, a slope over log tau shrinks at most as 1 / tau.
        shrunk = math.exp(float(x[history].mean() - x[present].mean()))
        expected, expected_error = (
            shrunk * value for value in (_slope(x[history], losses[history]), noise / _length(x[history]))
        )
        beyond = slope - FLAT * expected > CERTAIN * math.hypot(error, FLAT * expected_error)
        if beyond and expected < -VISIBLE * error:
            thousand = 1000 * float(x[-1] - x[-recent]) / recent
            return Flat(recent, slope * thousand, error * thousand, expected * thousand)
    return None


def _slope(x: Floats, y: Floats) -> float:
    """Returns the median of the slopes between the means of blocks."""
    at, means = (np.array([block.mean() for block in np.array_split(values, _BLOCKS)]) for values in (x, y))
    first, second = np.triu_indices(_BLOCKS, 1)
    return float(np.median((means[second] - means[first]) / (at[second] - at[first])))


def _length(x: Floats) -> float:
    """Returns the root of the sum of squared deviations from the mean."""
    return float(np.sqrt(((x - x.mean()) ** 2).sum()))


def _noise(x: Floats, y: Floats) -> float:
    """Returns the standard deviation of white noise that would spread the slopes of parts of a curve as much.

    The curve is a parabola. Noise that lasts for some steps spreads slopes more than its own deviation says.
    """
    left = y - np.polyval(np.polyfit(x - x.mean(), y, 2), x - x.mean())
    parts = left[len(left) % _PARTS :].reshape(_PARTS, -1)
    at = np.arange(parts.shape[1]) - (parts.shape[1] - 1) / 2
    slopes = (parts - parts.mean(1, keepdims=True)) @ at / (at @ at)
    return float(np.sqrt((slopes**2).mean() * (at @ at)))


@dataclass
class PlateauWatch:
    """Follows the losses of a run step by step.

    Args:
        warmup: steps of the warm-up.
        decay_from: first step of the decay of `wsd`; None for another schedule.
        changes: steps from which the data is planned to differ.
    """

    warmup: int
    decay_from: int | None = None
    changes: Collection[int] = ()
    _tau: list[float] = field(default_factory=list)
    _losses: list[float] = field(default_factory=list)
    _first: int = 0
    _total: float = 0.0
    _peak: float = 0.0
    _level: float = -math.inf

    @property
    def falls(self) -> bool:
        """Whether the loss has fallen since the last plateau, by more than its noise."""
        tail = self._tail()
        return bool(tail.mean() + CERTAIN * tail.std() / math.sqrt(len(tail)) < self._level) if len(tail) else False

    def _tail(self) -> Floats:
        tail = np.array(self._losses[-LEAST // 4 :])
        known: Floats = tail[~np.isnan(tail)]
        return known

    def add(self, step: int, loss: float | None, rate: float) -> None:
        """Adds a step without an examination."""
        self._total += rate
        self._peak = max(self._peak, rate)
        if step < self.warmup:
            return
        if step in self.changes or not self._losses:
            self._losses, self._tau, self._first = [], [], step
        self._losses.append(math.nan if loss is None else loss)
        self._tau.append(self._total)

    def step(self, step: int, loss: float | None, rate: float) -> Flat | None:
        """Adds a step (0-based, ascending); returns the plateau if it is examined after it and there is one."""
        self.add(step, loss, rate)
        if (step + 1) % EVERY or rate < LOW_RATE * self._peak:
            return None
        until = None
        if self.decay_from is not None and step >= self.decay_from:
            until = max(0, self.decay_from - self._first)
        found = flat(np.array(self._losses), np.array(self._tau), until)
        if found and (self._level == -math.inf or self.falls):
            self._level = float(self._tail().mean())
        return found
