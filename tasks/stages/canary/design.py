"""Design of experiments: which mixtures determine the response of the bits per byte best, within what is feasible.

Pure functions over arrays. A mixture is feasible if no source is read more often than the repetition cap allows, and
its Kullback-Leibler divergence from the natural mixture is bounded, as in Olmix (arXiv 2602.12237): far from it the
response is an extrapolation, and the large run would repeat small sources.

New mixtures are chosen among candidates one by one, each the one that increases the determinant of the information
matrix most (D-optimal, greedy). The matrix is that of a response linear in the weights and in their logarithms, which
has the curvature of every form that is fitted: linear terms alone would put all mixtures into the corners.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
