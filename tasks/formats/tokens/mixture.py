"""Mixtures: the share of each source in every batch, with optional other shares for the last steps (anneal).

Imports only pydantic. Weights are rounded to multiples of 1/100,000, which makes the order of sequences exactly
periodic and its counts exact for any number of steps. A share differs from the configured one by at most 0.000005;
artifacts record the rounded weights.
"""

import math
from collections.abc import Collection, Iterable, Mapping

from pydantic import Field, field_validator

from tasks.core.config import Config, nearest
from tasks.core.errors import RecipeError

GRID = 100_000
"""Number of parts of a whole; a weight is an integer number of parts."""
TOLERANCE = 1e-6
"""Maximum deviation of the sum of the weights from 1."""


class Mixture(Config):
    """Shares of the sources, which sum to 1."""

    weights: dict[str, float] = Field(min_length=1)
    """Source -> share of the sequences of every batch, 0 .. 1."""

    @field_validator("weights")
    @classmethod
    def _whole(cls, weights: dict[str, float]) -> dict[str, float]:
        check_weights(weights)
        return weights

    def over(self, available: Iterable[str], where: str = "the mixture") -> "Mixture":
        """Returns this mixture if all its sources are available.

        Raises:
            RecipeError: a source is not available; the message names the closest available one.
        """
        sources = sorted(available)
        for source in sorted(self.weights):
            if source not in sources:
                raise RecipeError(f'{where}: no source is called "{source}"', nearest(source, sources))
        return self


class Anneal(Config):
    """The second stage of a run: other weights from a step on."""

    from_step: int = Field(ge=1)
    """First step of the stage; steps count from 0."""
    weights: dict[str, float] = Field(min_length=1)
    """Source -> share of the sequences of every batch of the stage; sums to 1."""


def check_weights(weights: Mapping[str, float]) -> None:
    """Raises ValueError, with a remedy, unless the weights are shares that sum to 1."""
    for source, weight in weights.items():
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f'the weight of "{source}" is {weight}: a share is between 0 and 1')
    total = math.fsum(weights.values())
    if abs(total - 1) > TOLERANCE:
        raise ValueError(f"the weights sum to {total:.6g}, not to 1: {_remedy(weights, total)}")


def _remedy(weights: Mapping[str, float], total: float) -> str:
    if total <= 0:
        return "give at least one source a weight above 0"
    scaled = ", ".join(f"{source} = {share / GRID:g}" for source, share in _apportion(weights).items())
    return f"divide each by {total:.6g}, which gives {scaled}"


def resolve(weights: Mapping[str, float]) -> dict[str, int]:
    """Returns each source's weight in parts of 1/100,000, sorted by source; they sum to exactly 100,000.

    Uses the largest remainder method (Hamilton): every share is rounded down, and the remaining parts are added to the
    largest remainders, in alphabetical order on a tie. A weight above 0 gets at least one part.

    Raises:
        ValueError: the weights do not sum to 1.
    """
    check_weights(weights)
    return _apportion(weights)


def _apportion(amounts: Mapping[str, float], whole: int = GRID) -> dict[str, int]:
    """Divides `whole` parts in proportion to amounts of any positive sum, such as token counts; see `resolve`."""
    total = math.fsum(amounts.values())
    if total <= 0:
        raise ValueError("no source has an amount above 0")
    if sum(value > 0 for value in amounts.values()) > whole:
        raise ValueError(f"{len(amounts)} sources do not fit into {whole} parts of 1/{GRID}")
    exact = {source: amounts[source] / total * whole for source in sorted(amounts)}
    # 1e-6 of a part absorbs rounding errors of decimal fractions: 0.29 x 100,000 is 28999.999999999996.
    parts = {source: max(math.floor(value + 1e-6), int(value > 0)) for source, value in exact.items()}
    left = whole - sum(parts.values())
    by_remainder = sorted(parts, key=lambda source: (parts[source] - exact[source], source))
    for source in by_remainder[: max(left, 0)]:
        parts[source] += 1
    while left < 0:  # tiny weights were raised to one part; the excess is taken from the largest weights
        largest = max(parts, key=lambda source: (parts[source], source))
        taken = min(-left, parts[largest] - 1)
        parts[largest] -= taken
        left += taken
    return parts


def grid_weights(amounts: Mapping[str, float]) -> dict[str, float]:
    """Returns amounts of any positive sum as weights that are multiples of 1/100,000, sorted by source.

    >>> grid_weights({"web": 3, "books": 1})
    {'books': 0.25, 'web': 0.75}
    """
    return {source: parts / GRID for source, parts in _apportion(amounts).items()}


def replay_weights(
    weights: Mapping[str, float], sequences: Mapping[str, int], old: Collection[str], share: float
) -> dict[str, float]:
    """Returns weights in which the old sources have `share` in total and the others the rest.

    Within each of the two groups, sources keep the ratio of their weights; a group without any weight is weighted by
    number of sequences.

    Args:
        weights: original shares of the sources.
        sequences: number of sequences of every source.
        old: the old sources; a proper subset of all.
        share: share of the old sources, 0 < share < 1.

    >>> replay_weights({"may": 0.5, "june": 0.5}, {"april": 30, "may": 30, "june": 30}, ["april"], 0.2)
    {'april': 0.2, 'june': 0.4, 'may': 0.4}
    """
    of_old = round(share * GRID)
    mixed: dict[str, int] = {}
    for names, whole in (
        ([source for source in sequences if source in old], of_old),
        ([source for source in sequences if source not in old], GRID - of_old),
    ):
        amounts = {source: weights.get(source, 0.0) for source in names}
        mixed |= _apportion(amounts if any(amounts.values()) else {s: float(sequences[s]) for s in names}, whole)
    return {source: mixed[source] / GRID for source in sorted(mixed)}


def repetitions(weights: Mapping[str, float], sequences: Mapping[str, int], samples: int) -> dict[str, float]:
    """Returns the number of epochs of each source in `samples` sequences; inf for an empty source."""
    return {
        source: samples * weight / sequences[source] if sequences.get(source) else math.inf
        for source, weight in sorted(weights.items())
        if weight > 0
    }
