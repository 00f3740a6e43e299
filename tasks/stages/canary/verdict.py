"""The statistics of a cycle: which arm is better than the current mixture, and how sure that is.

Pure functions over arrays, so that they can be simulated.

Every arm is trained with the same few seeds. Two or three seeds cannot give an arm a variance of its own, but all arms
together can: a seed moves all arms alike (that is what pairing is for), so after taking out the means of arms and of
seeds, what is left is noise of one size, with (arms - 1)(seeds - 1) degrees of freedom (two-way layout without
replication). The interval of an arm's mean paired difference is  mean +- c * sqrt(2 s^2 / seeds).

c is Dunnett's two-sided quantile (Dunnett 1955, "A multiple comparison procedure for comparing several treatments with
a control"), not Student's: the best of many arms is looked at, and all share the current mixture as their control. So
the chance that a cycle of arms that are all equal promotes any of them is at most (1 - confidence) / 2: 2.0 to 2.5 % of
2,000 simulated cycles of 2 to 16 arms. The price of pooling: where one arm is three times as noisy as the others, that
becomes 4 to 6 %.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import chi

_NODES = 80


@dataclass(frozen=True)
class Comparison:
    """One arm against the current mixture. Differences are current minus arm: above 0 the arm is better."""

    arm: str
    mean: float
    """Bits per byte of the target, mean over seeds."""
    difference: float
    interval: tuple[float, float]
    """Simultaneous interval of the difference, over all arms of the cycle."""
    regressions: dict[str, float]
    """Guarded sources that got worse by more than the guard allows -> share by which they did."""

    @property
    def better(self) -> bool:
        """Whether the interval lies above 0."""
        return self.interval[0] > 0

    @property
    def promotable(self) -> bool:
        """Whether the arm is surely better and no guarded source pays for it."""
        return self.better and not self.regressions


def compare(
    bpb: NDArray[np.float64],
    arms: Sequence[str],
    sources: Sequence[str],
    target: Mapping[str, float],
    confidence: float,
    guard_share: float,
    guarded: Sequence[str],
) -> list[Comparison]:
    """Compares every arm with the first one, the current mixture.

    Args:
        bpb: bits per byte, shape (arms, seeds, sources), at least 2 arms and 2 seeds.
        arms: names of the arms.
        sources: names of the sources.
        target: source -> weight in the target.
        confidence: of all intervals together.
        guard_share: share by which a guarded source may get worse.
        guarded: sources that are guarded.

    Returns:
        One comparison for each arm but the first, in the order of `arms`.
    """
    weights = np.array([target.get(source, 0.0) for source in sources])
    scores = bpb @ weights
    n_arms, n_seeds = scores.shape
    residual = scores - scores.mean(1, keepdims=True) - scores.mean(0, keepdims=True) + scores.mean()
    freedom = (n_arms - 1) * (n_seeds - 1)
    spread = float(np.sqrt((residual**2).sum() / freedom * 2 / n_seeds))
    reach = dunnett(n_arms - 1, freedom, confidence) * spread
    means = bpb.mean(1)
    found = []
    for index in range(1, n_arms):
        difference = float((scores[0] - scores[index]).mean())
        worse = means[index] / means[0] - 1
        found.append(
            Comparison(
                arm=arms[index],
                mean=float(scores[index].mean()),
                difference=difference,
                interval=(difference - reach, difference + reach),
                regressions={
                    source: float(share)
                    for source, share in zip(sources, worse, strict=True)
                    if source in guarded and share > guard_share
                },
            )
        )
    return found


def winner(comparisons: Sequence[Comparison]) -> Comparison | None:
    """Returns the best arm that may be promoted; None when the current mixture stays."""
    able = [one for one in comparisons if one.promotable]
    return min(able, key=lambda one: (one.mean, one.arm)) if able else None


@lru_cache(maxsize=256)
def dunnett(arms: int, freedom: int, confidence: float) -> float:
    """Returns c such that P(|T_1| <= c, ..., |T_arms| <= c) = confidence.

    T_i are Student variables with `freedom` degrees of freedom and mutual correlation 1/2, as the differences of
    `arms` equally large groups to one control are. Dunnett's integral by quadrature: over the control's mean
    (Gauss-Hermite) and over the estimate of the standard deviation (Gauss-Legendre in its quantiles).

    >>> round(dunnett(1, 10, 0.95), 3)  # one arm: Student's t
    2.228
    >>> round(dunnett(3, 12, 0.95), 2)  # Dunnett's table II (1964)
    2.68
    """
    z, z_weight = np.polynomial.hermite_e.hermegauss(_NODES)
    z_weight = z_weight / np.sqrt(2 * np.pi)
    q, q_weight = np.polynomial.legendre.leggauss(_NODES)
    scale = chi.ppf((q + 1) / 2, freedom) / np.sqrt(freedom)

    def coverage(c: float) -> float:
        reach = np.sqrt(2) * c * scale[:, None]
        inside = (ndtr(reach + z) - ndtr(-reach + z)) ** arms
        return float((q_weight / 2) @ inside @ z_weight)

    return float(brentq(lambda c: coverage(c) - confidence, 0.1, 1e4, xtol=1e-10))
