"""Statistics of a cycle: choice of a finalist, its comparison with the current mixture, and a fit over all arms.

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
is below the floor (Heineman et al. 2025, "Signal and Noise", arXiv 2508.13144).

Response of bits per byte to the mixture. Two forms are fitted to each source, and the one with the smaller
leave-one-out error is kept:

    power        log(bpb_i) = a_i - alpha_i log(sum_j s_ij w_j + 0.001),  s_ii = 1
                 a power law in the effective share of source i, where one token of source j counts as s_ij of source i
    exponential  log(bpb_i) = a_i + sum_j b_ij w_j, by ridge regression
                 (Ye et al. 2024, "Data Mixing Laws", arXiv 2403.16952)

With 16 arms of three sources, two seeds and noise of 0.2 %, the power form proposes a mixture within L1 0.10 of a
planted optimum in 30 of 30 simulated cycles. Ridge regression on the logarithms of the weights had a median of 0.16: it
cannot express that sources substitute for one another.

The fit proposes a mixture; it does not promote one. Only an arm that was trained can be promoted.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, minimize
from scipy.special import fdtri, stdtrit
from scipy.stats import spearmanr

Floats = NDArray[np.float64]

Curve = Callable[[Floats], Floats]
"""log(bpb) of one source, shape (n,), for weights of shape (n, sources)."""

_SIGNAL_CONFIDENCE = 0.9
_EPSILON = 1e-3
_USUAL_EXPONENT, _USUAL_WORTH = 0.1, 0.05

_PRIOR = 3e-3
"""Strength of the prior of the power form's parameters, in log(bpb) per factor of e: about the noise of a run, so
that measurements outweigh it."""

_RIDGE = 1e-4


@dataclass(frozen=True)
class Comparison:
    """Comparison of an arm with the current mixture. Differences are current minus arm: positive means better."""

    difference: float
    """Bits per byte of the target, mean over seeds."""
    interval: tuple[float, float]
    """Interval of the difference."""
    regressions: dict[str, float]
    """Relative increase in bits per byte of the guarded sources that exceed `guard_share`."""

    @property
    def better(self) -> bool:
        """Whether the interval is above 0."""
        return self.interval[0] > 0

    @property
    def promotable(self) -> bool:
        """Whether the arm is significantly better and no guarded source regresses."""
        return self.better and not self.regressions


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


@dataclass(frozen=True)
class Signal:
    """How well the held-out text of one source tells mixtures apart.

    Attributes:
        between: standard deviation of the arms' means, bits per byte.
        noise: standard deviation of one run among repeats, bits per byte.
        ratio: signal-to-noise ratio: variance between the arms beyond the noise, over that of the noise; None if the
            noise is 0.
        upper: upper limit of the ratio (90 % one-sided); None if the noise is 0.
        votes: whether the source votes in the target.
    """

    between: float
    noise: float
    ratio: float | None
    upper: float | None
    votes: bool


def signals(bpb: Floats, again: Floats, floor: float) -> list[Signal]:
    """Returns signal and noise of each source, by a one-way analysis of variance.

    Args:
        bpb: bits per byte, shape (arms, seeds, sources); arm 0 is the current mixture.
        again: that of the current mixture with other data, shape (seeds, sources).
        floor: of the ratio; with 0, or fewer than two arms, all sources vote.
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
        votes = arms < 2 or not floor or (total > 0 if upper is None else upper >= floor)
        found.append(Signal(total**0.5, noise**0.5, ratio, upper, votes))
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


@dataclass(frozen=True)
class Response:
    """The fitted response of every source.

    `left_out` is the target predicted for each arm from all other arms, shape (arms,); `rank_agreement` its Spearman
    correlation with the measurements, None if it is not defined; `worth[i][j]` the worth of a token of source j to
    source i in the power form, None for a source whose form is exponential.
    """

    sources: tuple[str, ...]
    target: Floats
    curves: tuple[Curve, ...]
    forms: tuple[str, ...]
    worth: tuple[Floats | None, ...]
    left_out: Floats
    measured: Floats
    rank_agreement: float | None

    def predict(self, weights: Floats) -> Floats:
        """Returns the target's bits per byte, shape (n,), for weights of shape (n, sources)."""
        values: Floats = np.exp(np.stack([curve(weights) for curve in self.curves], axis=1)) @ self.target
        return values

    def predict_sources(self, weights: Floats) -> Floats:
        """Returns the bits per byte of each source, shape (n, sources), for weights of shape (n, sources)."""
        return np.asarray(np.exp(np.stack([curve(weights) for curve in self.curves], axis=1)))

    def samples(self, weights: Floats, draws: int, rng: np.random.Generator) -> Floats:
        """Returns draws of the target's bits per byte, shape (draws, n), for weights of shape (n, sources)."""
        error = float((self.left_out - self.predict(self.measured)).std())
        return np.asarray(self.predict(weights) + rng.normal(0, error, (draws, len(weights))))

    def best(self, limits: Floats) -> Floats:
        """Returns the weights that minimize the predicted target, shape (sources,).

        Args:
            limits: upper bound of each source's weight, shape (sources,); the sum is at least 1.
        """
        count = len(self.sources)
        starts = np.random.default_rng(0).dirichlet(np.ones(count), 4096)
        starts = np.concatenate([starts[(starts <= limits).all(1)], [limits / limits.sum()]])
        starts = starts[np.argsort(self.predict(starts), kind="stable")[:4]]
        optima = [
            minimize(
                lambda weights: float(self.predict(weights[None])[0]),
                start,
                bounds=[(0.0, min(1.0, limit)) for limit in limits.tolist()],
                constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
                method="SLSQP",
            )
            for start in starts
        ]
        best = min(optima, key=lambda result: float(result.fun))
        weights: Floats = np.clip(best.x, 0, None)
        weights /= weights.sum()
        return weights


def fit(weights: Floats, bpb: Floats, sources: Sequence[str], target: Mapping[str, float]) -> Response:
    """Fits the response of the bits per byte to the mixture.

    Args:
        weights: weights of the arms, shape (arms, sources), at least 3 arms.
        bpb: bits per byte of each arm, mean over seeds, shape (arms, sources).
        sources: names of the sources.
        target: source -> weight in the target.
    """
    goal = np.array([target.get(source, 0.0) for source in sources])
    choices = [_choose(weights, np.log(bpb[:, own]), own) for own in range(len(sources))]
    left_out = np.exp(np.stack([choice.left_out for choice in choices], axis=1)) @ goal
    agreement = float(spearmanr(left_out, bpb @ goal).statistic)
    return Response(
        sources=tuple(sources),
        target=goal,
        curves=tuple(choice.curve for choice in choices),
        forms=tuple(choice.form for choice in choices),
        worth=tuple(choice.curve.worth if isinstance(choice.curve, Power) else None for choice in choices),
        left_out=left_out,
        measured=weights,
        rank_agreement=agreement if np.isfinite(agreement) else None,
    )


@dataclass(frozen=True)
class _Choice:
    form: str
    curve: Curve
    left_out: Floats


def _choose(weights: Floats, y: Floats, own: int) -> _Choice:
    """Returns the form with the smallest leave-one-out error."""
    best: tuple[float, _Choice] | None = None
    for name, fitter in (("power", fit_power), ("exponential", fit_exponential)):
        left_out = np.empty_like(y)
        for arm in range(len(y)):
            rest = np.arange(len(y)) != arm
            left_out[arm] = fitter(weights[rest], y[rest], own)(weights[arm : arm + 1])[0]
        error = float(((left_out - y) ** 2).mean())
        if best is None or error < best[0]:
            best = (error, _Choice(name, fitter(weights, y, own), left_out))
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Power:
    """The power form of one source; `worth` has shape (sources,), 1 for the source itself."""

    level: float
    exponent: float
    worth: Floats

    def __call__(self, weights: Floats) -> Floats:
        """See `Curve`."""
        values: Floats = self.level - self.exponent * np.log(weights @ self.worth + _EPSILON)
        return values


def fit_power(weights: Floats, y: Floats, own: int) -> Power:
    """Fits the power form to log(bpb) of source number `own` by penalized least squares."""
    count = weights.shape[1]
    others = [index for index in range(count) if index != own]
    prior = np.log([_USUAL_EXPONENT, *([_USUAL_WORTH] * len(others))])

    def curve(parameters: Floats) -> Power:
        worth = np.ones(count)
        worth[others] = np.exp(parameters[2:])
        return Power(float(parameters[0]), float(np.exp(parameters[1])), worth)

    def errors(parameters: Floats) -> Floats:
        return np.concatenate([curve(parameters)(weights) - y, _PRIOR * (parameters[1:] - prior)])

    start = np.concatenate([[y.mean()], prior])
    # Without bounds, a flat response drives the exponent to 0 and a worth to infinity.
    low, high = np.full(len(start), -9.0), np.full(len(start), 3.0)
    low[0], high[0] = -np.inf, np.inf
    return curve(least_squares(errors, start, bounds=(low, high), max_nfev=50).x)


@dataclass(frozen=True)
class Exponential:
    """The exponential form of one source: a level at the mean of the arms, and a slope per source."""

    level: float
    center: Floats
    slopes: Floats

    def __call__(self, weights: Floats) -> Floats:
        """See `Curve`."""
        values: Floats = self.level + (weights - self.center) @ self.slopes
        return values


def fit_exponential(weights: Floats, y: Floats, own: int) -> Exponential:
    """Fits the exponential form by ridge regression with a free level; the source `own` has a slope like the others."""
    arms, count = weights.shape
    center = weights.mean(0)
    centered = weights - center
    slopes = np.linalg.solve(centered.T @ centered + arms * _RIDGE * np.eye(count), centered.T @ (y - y.mean()))
    return Exponential(float(y.mean()), center, slopes)
