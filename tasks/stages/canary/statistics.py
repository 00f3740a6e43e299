"""Statistics of a cycle: a comparison of every arm with the current mixture, and a fit over all arms.

Pure functions over arrays.

Comparison. Every arm is trained with the same few seeds. Two or three seeds do not suffice to estimate a variance per
arm, but all arms together do: a seed shifts all arms equally (pairing), so after subtraction of the means of arms and
seeds, the residuals have a common variance s^2 with (arms - 1)(seeds - 1) degrees of freedom (two-way layout without
replication). The interval of an arm's mean paired difference is  mean +- c * sqrt(2 s^2 / seeds).

c is Dunnett's two-sided quantile (Dunnett 1955, "A multiple comparison procedure for comparing several treatments with
a control"), not Student's: the best of many arms is selected, and all share the current mixture as their control. The
probability that a cycle of equal arms promotes one of them is therefore at most (1 - confidence) / 2: 2.0 to 2.5 % of
2,000 simulated cycles of 2 to 16 arms. The disadvantage of the pooled variance is that the probability becomes 4 to 6 %
if one arm is three times as noisy as the others.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, least_squares, minimize
from scipy.special import ndtr
from scipy.stats import chi, spearmanr

Floats = NDArray[np.float64]

_NODES = 80
"""Points of each quadrature of `dunnett`."""

Curve = Callable[[Floats], Floats]
"""log(bpb) of one source, shape (n,), for weights of shape (n, sources)."""

_EPSILON = 1e-3
_USUAL_EXPONENT, _USUAL_WORTH = 0.1, 0.05

_PRIOR = 3e-3
"""Strength of the prior of the power form's parameters, in log(bpb) per factor of e: about the noise of a run, so
that measurements outweigh it."""

_RIDGE = 1e-4


@dataclass(frozen=True)
class Comparison:
    """Comparison of an arm with the current mixture. Differences are current minus arm: positive means better."""

    arm: str
    mean: float
    """Bits per byte of the target, mean over seeds."""
    difference: float
    interval: tuple[float, float]
    """Simultaneous interval of the difference, over all arms of the cycle."""
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
        target: weight in the target by source.
        confidence: simultaneous confidence of all intervals.
        guard_share: tolerated relative increase of a guarded source.
        guarded: the guarded sources.

    Returns:
        one comparison for each arm except the first, in the order of `arms`.
    """
    weights = np.array([target.get(source, 0.0) for source in sources])
    scores = bpb @ weights
    n_arms, n_seeds = scores.shape
    residual = scores - scores.mean(1, keepdims=True) - scores.mean(0, keepdims=True) + scores.mean()
    freedom = (n_arms - 1) * (n_seeds - 1)
    spread = float(np.sqrt((residual**2).sum() / freedom * 2 / n_seeds))
    reach = dunnett(n_arms - 1, freedom, confidence) * spread
    means = bpb.mean(1)
    comparisons = []
    for index in range(1, n_arms):
        difference = float((scores[0] - scores[index]).mean())
        worse = means[index] / means[0] - 1
        comparisons.append(
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
    return comparisons


def winner(comparisons: Sequence[Comparison]) -> Comparison | None:
    """Returns the best promotable arm; None if the current mixture is kept."""
    promotable = [comparison for comparison in comparisons if comparison.promotable]
    return min(promotable, key=lambda comparison: (comparison.mean, comparison.arm)) if promotable else None


@lru_cache(maxsize=256)
def dunnett(arms: int, freedom: int, confidence: float) -> float:
    """Returns c such that P(|T_1| <= c, ..., |T_arms| <= c) = confidence.

    T_i are Student variables with `freedom` degrees of freedom and mutual correlation 1/2, like the differences between
    `arms` equally large groups and one control. Computes Dunnett's integral by quadrature: over the control's mean
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
    rank_agreement: float | None

    def predict(self, weights: Floats) -> Floats:
        """Returns the target's bits per byte, shape (n,), for weights of shape (n, sources)."""
        values: Floats = np.exp(np.stack([curve(weights) for curve in self.curves], axis=1)) @ self.target
        return values

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
