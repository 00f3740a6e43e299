"""Statistics of a cycle: choice of a finalist, its comparison with the current mixture, and which sources have a vote.

Pure functions over arrays.

Finalist. Every arm is trained once per screening seed, and the arm with the lowest mean is the finalist, if it is lower
than that of the current mixture. Means of the screening give no interval: the lowest of many is low by chance, and two
or three runs do not estimate the noise of an arm. Pooling the noise of all arms does not hold: repeats at ten mixtures
of a public swarm had standard deviations 25 times apart, and with an arm or the current mixture that noisy, intervals
with a pooled variance promote one of several equal arms in up to 26 % of simulated cycles.

Confirmation. Finalist and current mixture are trained again with fresh seeds, the same ones for both. The paired
differences are independent of the screening, and all have the same variance, whatever the noise of the two arms. So the
interval is Student's, with one degree of freedom less than seeds, and needs no correction for the number of arms: the
probability that a cycle of equal arms promotes one is at most (1 - confidence) / 2. `python -m benchmarks.canaries`
simulates both rules, and prints their power.

Signal and noise. A source votes in the target only if its bits per byte tell mixtures apart: the variance between the
arms' means, beyond what noise adds to it, over the variance between repeats (runs that differ only in their seeds or
their data). Few repeats do not determine that ratio, so a source loses its vote only if the upper limit of its interval
is below the floor (Heineman et al. 2025, "Signal and Noise", arXiv 2508.13144). Tasks are noisier: of the metrics of a
task that with the largest ratio is used, and the task votes only if the ratio itself is not below the floor.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri, stdtrit

from tasks.stages.canary.decision import Signal

Floats = NDArray[np.float64]

_SIGNAL_CONFIDENCE = 0.9


def finalist(scores: Floats, excluded: Collection[int] = ()) -> int | None:
    """Returns the arm with the lowest mean score; None if no arm is lower than the current mixture.

    Args:
        scores: bits per byte of the target, shape (arms, seeds); arm 0 is the current mixture.
        excluded: numbers of the arms that cannot be promoted.
    """
    means = scores.mean(1)
    lower = [arm for arm in range(1, len(means)) if arm not in excluded and means[arm] < means[0]]
    return min(lower, key=lambda arm: (means[arm], arm), default=None)


def confirm(differences: Floats, confidence: float) -> tuple[float, float]:
    """Returns Student's interval of the mean of paired differences.

    Args:
        differences: score of the current mixture minus that of the finalist by seed, shape (seeds,), at least 2.
        confidence: of the two-sided interval.
    """
    n = len(differences)
    reach = float(stdtrit(n - 1, (1 + confidence) / 2)) * float(differences.std(ddof=1)) / np.sqrt(n)
    middle = float(differences.mean())
    return middle - float(reach), middle + float(reach)


def signals(bpb: Floats, again: Floats, floor: float, *, surely: bool = True) -> list[Signal]:
    """Returns signal and noise of each source, by a one-way analysis of variance.

    Args:
        bpb: bits per byte, shape (arms, seeds, sources); arm 0 is the current mixture.
        again: that of the current mixture with other data, shape (seeds, sources).
        floor: of the ratio; with 0, or fewer than two arms, all sources vote.
        surely: whether only a ratio that is surely below the floor costs the vote, not one that merely is.
    """
    arms, seeds, sources = bpb.shape
    # Seeds are common to all arms: what remains beside the effects of arm and seed is noise.
    residual = bpb - bpb.mean(1, keepdims=True) - bpb.mean(0, keepdims=True) + bpb.mean((0, 1))
    freedom = seeds + (arms - 1) * (seeds - 1)
    within = (((bpb[0] - again) ** 2).sum(0) / 2 + (residual**2).sum((0, 1))) / freedom
    between = bpb.mean(1).var(0, ddof=1) if arms > 1 else np.zeros(sources)
    lowest = float(fdtri(arms - 1, freedom, 1 - _SIGNAL_CONFIDENCE)) if arms > 1 else 1.0
    found = []
    for source in range(sources):
        total, noise = float(between[source]), float(within[source])
        ratio = max(0.0, total / noise - 1 / seeds) if noise else None
        upper = max(0.0, (total * seeds / noise / lowest - 1) / seeds) if noise else None
        limit = upper if surely else ratio
        votes = arms < 2 or not floor or (total > 0 if limit is None else limit >= floor)
        found.append(Signal(between=total**0.5, noise=noise**0.5, ratio=ratio, upper=upper, votes=votes))
    return found


def regressions(
    bpb: Floats, current: Floats, sources: Sequence[str], guarded: Collection[str], guard_share: float
) -> dict[str, float]:
    """Returns the relative increase in bits per byte of each guarded source that exceeds `guard_share`.

    Args:
        bpb: bits per byte of an arm, mean over seeds, shape (sources,).
        current: the same of the current mixture.
        sources: names of the sources.
        guarded: names of the guarded sources.
        guard_share: the tolerated increase.
    """
    shares = zip(sources, (bpb / current - 1).tolist(), strict=True)
    return {source: share for source, share in shares if source in guarded and share > guard_share}
