"""Design of experiments: which mixtures determine the response of the bits per byte best, within what is feasible.

Pure functions over arrays. A mixture is feasible if no source is read more often than the repetition cap allows, and
its Kullback-Leibler divergence from the natural mixture is bounded, as in Olmix (arXiv 2602.12237): far from it the
response is an extrapolation, and the large run would repeat small sources.

New mixtures are chosen among candidates one by one, each the one that increases the determinant of the information
matrix most (D-optimal, greedy). The matrix is that of a response linear in the weights and in their logarithms, which
has the curvature of every form that is fitted: linear terms alone would put all mixtures into the corners.

After a source is added to a corpus, the sources of the finished cycle keep their ratios: together they count as one
source, a group, whose share is varied with those of the new sources (mixture reuse, Olmix).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.formats.tokens.mixture import GRID, grid_weights
from tasks.stages.canary import CanaryConfig

Floats = NDArray[np.float64]

_LEVEL = 0.03
"""Added to weights before the logarithm: below about this share, a source has little of its own text in a small run."""
_PRIOR = 1e-3
"""Information of the prior, so that the determinant exists with fewer mixtures than terms."""


@dataclass(frozen=True)
class Region:
    """The feasible mixtures.

    Attributes:
        natural: the natural mixture, shape (sources,), all above 0.
        upper: upper bound of each weight, shape (sources,).
        max_kl: upper bound of the divergence from the natural mixture, in nats.
    """

    natural: Floats
    upper: Floats
    max_kl: float

    def divergence(self, weights: Floats) -> Floats:
        """Returns the Kullback-Leibler divergence of weights (n, sources) from the natural mixture, shape (n,)."""
        ratio = np.where(weights > 0, weights / self.natural, 1.0)
        return np.asarray((weights * np.log(ratio)).sum(1))

    def contains(self, weights: Floats) -> NDArray[np.bool_]:
        """Returns which weights (n, sources) are feasible, shape (n,)."""
        return np.asarray((weights <= self.upper + 1e-9).all(1) & (self.divergence(weights) <= self.max_kl + 1e-9))

    def nearest(self, weights: Floats) -> Floats:
        """Returns the feasible mixture closest to `weights`, shape (sources,), on the line to the natural mixture."""
        low, high = 0.0, 1.0  # shares of the natural mixture; the divergence is convex on the line
        if self.contains(weights[None])[0]:
            return weights
        for _ in range(40):
            middle = (low + high) / 2
            fits = self.contains((middle * self.natural + (1 - middle) * weights)[None])[0]
            low, high = (low, middle) if fits else (middle, high)
        return np.asarray(high * self.natural + (1 - high) * weights)


@dataclass(frozen=True)
class Space:
    """The mixtures among which a cycle looks for the best: shares of groups of sources.

    Attributes:
        sources: names, sorted.
        group: number of the group of each source; without kept ratios, every source is a group.
        ratios: share of each source in its group, shape (sources,).
        region: feasible shares of the groups.
        epochs: number of times that a run of one group alone reads it, shape (groups,).
    """

    sources: tuple[str, ...]
    group: tuple[int, ...]
    ratios: Floats
    region: Region
    epochs: Floats

    @classmethod
    def of(cls, config: CanaryConfig, sequences: Mapping[str, int], kept: Mapping[str, float]) -> "Space":
        """Returns the mixtures of sources with these numbers of sequences.

        Args:
            config: settings of the cycle.
            sequences: by source, all above 0.
            kept: ratios of the sources that form one group; {}: none do.
        """
        sources = tuple(sorted(sequences))
        alone = [source for source in sources if source not in kept]
        numbers = {source: index + bool(kept) for index, source in enumerate(alone)}
        group = tuple(numbers.get(source, 0) for source in sources)
        ratios = np.array([kept.get(source, 1.0) for source in sources])
        counts = np.array([sequences[source] for source in sources], dtype=np.float64)
        epochs = config.steps * config.batch_size / counts
        groups = max(group) + 1
        upper = np.ones(groups)
        # A weight that is rounded to the grid must not exceed the cap.
        np.minimum.at(upper, list(group), config.repetition_cap / np.maximum(epochs * ratios, 1e-12) - 1 / GRID)
        natural = _sums(group, counts) / counts.sum()
        return cls(sources, group, ratios, Region(natural, upper, config.max_kl), _sums(group, epochs * ratios))

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each group: that of its source, or of all of them."""
        groups: dict[int, list[str]] = {}
        for source, number in zip(self.sources, self.group, strict=True):
            groups.setdefault(number, []).append(source)
        return tuple(" + ".join(groups[number]) for number in sorted(groups))

    def shares(self, weights: Mapping[str, float]) -> Floats:
        """Returns the share of each group in a mixture, shape (groups,)."""
        return _sums(self.group, np.array([weights.get(source, 0.0) for source in self.sources]))

    def mixture(self, shares: Floats) -> dict[str, float]:
        """Returns the mixture with these shares of the groups."""
        weights = shares[list(self.group)] * self.ratios
        return grid_weights(dict(zip(self.sources, weights.tolist(), strict=True)))


def _sums(group: tuple[int, ...], values: Floats) -> Floats:
    """Returns the sum of the values of each group."""
    return np.bincount(group, values).astype(np.float64)


def candidates(region: Region, center: Floats, spread: tuple[float, float], count: int, seed: int) -> Floats:
    """Returns feasible mixtures around `center`, shape (at most count, sources), with three decimals.

    Dirichlet distributions with log-uniform concentrations, as in RegMix (Liu et al. 2024, arXiv 2407.01492).
    """
    rng = np.random.default_rng(seed)
    low, high = np.log(spread)
    concentration = np.exp(rng.uniform(low, high, count)) * len(center)
    gammas = rng.standard_gamma(np.maximum(concentration[:, None] * center, 1e-3))
    totals = gammas.sum(1, keepdims=True)
    drawn = np.round(gammas[totals[:, 0] > 0] / totals[totals[:, 0] > 0], 3)
    drawn /= drawn.sum(1, keepdims=True)
    kept: Floats = drawn[region.contains(drawn)]
    return kept


def features(weights: Floats) -> Floats:
    """Returns the terms of the response, shape (n, 2 * sources), for weights of shape (n, sources)."""
    return np.concatenate([weights, np.log(weights + _LEVEL)], axis=1)


def d_optimal(candidates: Floats, existing: Floats, count: int) -> list[int]:
    """Returns the numbers of the candidates that determine the response best, in the order of their choice.

    Args:
        candidates: mixtures to choose from, shape (n, sources).
        existing: mixtures that have been measured, shape (m, sources).
        count: how many to choose; fewer if there are fewer candidates.
    """
    both = features(np.concatenate([existing, candidates]))
    scale = both.std(0)
    terms = (both - both.mean(0)) / np.where(scale > 0, scale, 1.0)
    terms = np.concatenate([np.ones((len(terms), 1)), terms], axis=1)
    measured, rows = terms[: len(existing)], terms[len(existing) :]
    inverse = np.linalg.inv(measured.T @ measured + _PRIOR * np.eye(terms.shape[1]))
    chosen: list[int] = []
    for _ in range(min(count, len(rows))):
        gains = np.einsum("nf,fg,ng->n", rows, inverse, rows)
        gains[chosen] = -1.0
        # Rounded: machines differ in the last bits of a sum, and equal gains must not be ordered by them.
        best = int(np.round(gains, 9).argmax())
        chosen.append(best)
        step = inverse @ rows[best]
        inverse = inverse - np.outer(step, step) / (1 + rows[best] @ step)
    return chosen
