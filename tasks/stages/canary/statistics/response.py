"""Response of the target to the mixture: fitted to runs, judged on runs that it has not seen, minimized over mixtures.

`fit` fits every form (see `forms`) to each measured source, and keeps the form whose out-of-fold predictions of the
target have the highest rank correlation with the measurements. Folds are groups of mixtures: all runs of a mixture, of
any seed or cycle, are left out together. The correlation is an estimate for new mixtures like those of the runs. The
mixture that a fit likes best is a worse case: it is chosen for its prediction, so its error is on the optimistic side.
`optimism` states that error: the mean of real minus predicted bits per byte in the fifth of the mixtures that the
out-of-fold predictions put first.

Runs of earlier cycles, of other sizes or lengths, are evidence too. Each cycle has an offset and a slope between its
log(bpb) and that of the common curve, for each measured source, and each run a weight (`importance`). If the sources
have changed, the features are their content: topics, languages or clusters, which both cycles share.

`samples` draws responses that the runs do not rule out, for the probability that one mixture beats another.
Out-of-fold residuals, with signs drawn by mixture (wild bootstrap, Wu 1986), and a draw from the penalties move the
parameters along the linearized fit. They hold what noise and misfit do to the parameters, and the correlation of
measured sources in a run; offsets of cycles, which move all mixtures alike, are not drawn.

The fit proposes a mixture; it does not promote one. Only an arm that was trained can be promoted.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import spearmanr

from tasks.stages.canary.statistics.forms import Curves, Floats, Measured, Mixtures, Power, fit_log_linear, fit_power

Integers = NDArray[np.int64]

FORMS = ("log-linear", "power", "exposures")

_FOLDS = 10
TIE = 0.01
"""Difference of rank correlations below which the form with the smaller squared error is kept."""
_ROUNDS = 5
"""Rounds in which curves and the offsets and slopes of cycles are fitted in turn."""
_SLOPE_PRIOR = 1e-4
"""Noise of 0.3 % of a run, over a standard deviation of 0.3 of slopes around 1; squared."""
_SLOPES = (0.2, 5.0)
_CANDIDATES = 4096


def decision_accuracy(predicted: Floats, measured: Floats) -> float:
    """Returns the share of pairs that both arguments order alike, 0 to 1; a tie counts as half.

    The figure of DataDecide (Magnusson et al. 2025, arXiv 2504.11393).

    >>> decision_accuracy(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])) == 2 / 3
    True
    """
    first, second = np.triu_indices(len(measured), 1)
    signs = np.sign(predicted[first] - predicted[second]) * np.sign(measured[first] - measured[second])
    return float((signs + 1).mean() / 2)


def rank_agreement(predicted: Floats, measured: Floats) -> float | None:
    """Returns Spearman's correlation; None if it is undefined, because one argument does not vary."""
    varies = min(np.ptp(predicted), np.ptp(measured)) > 0
    return float(spearmanr(predicted, measured).statistic) if varies else None


@dataclass(frozen=True)
class _Runs:
    """Measurements of n runs; see `fit`. `cycles` are numbers from 0, and `groups` the number of each run's mixture.

    `log_bpb` is 0 where `known` is false: a run that did not measure a source says nothing about it.
    """

    mixtures: Mixtures
    log_bpb: Floats
    known: NDArray[np.bool_]
    importance: Floats
    content: Floats
    own: tuple[int | None, ...]
    cycles: Integers
    groups: Integers


@dataclass(frozen=True)
class _Fitted:
    """A batch of curves, and the offset and slope of each cycle, shape (batch, cycles)."""

    curves: Curves
    offsets: Floats
    slopes: Floats

    def log_bpb(self, mixtures: Mixtures, cycles: Integers, parameters: Floats | None = None) -> Floats:
        """Returns log(bpb), shape (..., batch, n), of mixtures in their cycles; without parameters, the fitted ones."""
        shared = self.curves.log_bpb(mixtures, self.curves.parameters if parameters is None else parameters)
        values: Floats = self.offsets[:, cycles] + self.slopes[:, cycles] * shared
        return values


@dataclass(frozen=True)
class Judgement:
    """Out-of-fold predictions of a form.

    Attributes:
        predicted: target of each run, predicted from the other mixtures, shape (n,).
        measured: target of each run, shape (n,); NaN if the run did not measure all of it.
        rank_agreement: Spearman's correlation of the two over the mixtures of the current cycle; None if undefined.
        accuracy: share of pairs of these mixtures that are ordered as measured.
        optimism: mean of measured minus predicted target in the fifth of these mixtures that is predicted to be best.
        error: root of the mean squared difference over these mixtures, in bits per byte.
        residuals: log(bpb) measured minus predicted, in units of the curve, shape (measured sources, n).
    """

    predicted: Floats
    measured: Floats
    rank_agreement: float | None
    accuracy: float
    optimism: float
    error: float
    residuals: Floats


@dataclass(frozen=True)
class Response:
    """The fitted response of the target.

    Attributes:
        form: of `FORMS`.
        target: weight of each measured source in the target, shape (measured,).
        judgements: of every form that was tried.
        fitted: curves of the measured sources.
        groups: number of the mixture of each run, shape (n,).
        epochs: number of times that a run reads each source with weight 1, shape (sources,). Weights of fewer sources,
            the first ones, are completed with 0.
    """

    form: str
    target: Floats
    judgements: dict[str, Judgement]
    fitted: _Fitted
    groups: Integers
    epochs: Floats

    @property
    def judgement(self) -> Judgement:
        """That of the form."""
        return self.judgements[self.form]

    def predict(self, weights: Floats) -> Floats:
        """Returns the target's bits per byte, shape (n,), for weights of shape (n, sources)."""
        return self._target(weights, None)

    def predict_sources(self, weights: Floats) -> Floats:
        """Returns the bits per byte of each measured source, shape (n, measured), for weights of shape (n, sources)."""
        return self._sources(weights, None).T

    def samples(self, weights: Floats, draws: int, rng: np.random.Generator) -> Floats:
        """Returns the target's bits per byte in drawn responses, shape (draws, n); see the module.

        Args:
            weights: shape (n, sources).
            draws: number of responses.
            rng: source of the draws; equal states give equal samples.
        """
        curves, residuals = self.fitted.curves, self.judgement.residuals
        signs = rng.normal(size=(draws, int(self.groups.max()) + 1))[:, self.groups]
        penalties = rng.normal(size=(draws, len(residuals), curves.gain.shape[2] - residuals.shape[1]))
        errors = np.concatenate([signs[:, None] * residuals, penalties], axis=2)
        drawn = curves.parameters + np.einsum("bpe,dbe->dbp", curves.gain, errors)
        return self._target(weights, curves.within(drawn))

    def _target(self, weights: Floats, parameters: Floats | None) -> Floats:
        values: Floats = np.einsum("m,...mn->...n", self.target, self._sources(weights, parameters))
        return values

    def _sources(self, weights: Floats, parameters: Floats | None) -> Floats:
        """Returns bits per byte, shape (..., measured, n)."""
        current = np.full(len(weights), self.fitted.offsets.shape[1] - 1)
        weights = np.pad(weights, ((0, 0), (0, len(self.epochs) - weights.shape[1])))
        values: Floats = np.exp(self.fitted.log_bpb(Mixtures(weights, weights * self.epochs), current, parameters))
        return values

    def best(self, lower: Floats, upper: Floats) -> Floats:
        """Returns the weights that minimize the predicted target, shape (sources,).

        Args:
            lower: lower bound of each source's weight, shape (sources,).
            upper: upper bound.

        Raises:
            ValueError: no mixture is within the bounds.
        """
        lower, upper = np.clip(lower, 0, 1), np.clip(upper, 0, 1)
        room = 1 - lower.sum()
        if (lower > upper).any() or room < -1e-9 or upper.sum() < 1 - 1e-9:
            raise ValueError(
                f"no mixture has weights within the bounds: the lower ones sum to {lower.sum():g}, the upper ones to "
                f"{upper.sum():g}"
            )
        inside = lower + (upper - lower) * room / max((upper - lower).sum(), 1e-12)
        drawn = lower + room * np.random.default_rng(0).dirichlet(np.ones(len(lower)), _CANDIDATES)
        starts = np.concatenate([[inside], drawn[(drawn <= upper).all(1)]])
        start = starts[int(np.argmin(self.predict(starts)))]
        # Convex in the weights, so one start suffices.
        found = minimize(
            lambda weights: float(self.predict(weights[None])[0]),
            start,
            bounds=list(zip(lower.tolist(), upper.tolist(), strict=True)),
            constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-9, "maxiter": 200},
        )
        weights = np.clip(found.x, lower, upper)
        best: Floats = weights / weights.sum()
        return best

    @property
    def worth(self) -> Floats | None:
        """Worth of a token of each feature to each measured source, in tokens of its own: shape (measured, features).

        None in the log-linear form.
        """
        return self.fitted.curves.worth if isinstance(self.fitted.curves, Power) else None


def fit(
    weights: Floats,
    bpb: Floats,
    target: Floats,
    *,
    own: Sequence[int | None] | None = None,
    epochs: Floats | None = None,
    content: Floats | None = None,
    cycles: Integers | None = None,
    importance: Floats | None = None,
    forms: Collection[str] = FORMS,
) -> Response:
    """Fits the response of the target to the mixture of n runs, and chooses its form.

    Args:
        weights: of the sources, shape (n, sources); at least 3 different mixtures.
        bpb: bits per byte of the held-out text of each measured source, shape (n, measured); NaN where a run of an
            earlier cycle did not measure it.
        target: weight of each measured source in the target, shape (measured,).
        own: number of the feature that is each measured source, None for one that is none of them; without `own`, the
            measured sources are the sources, in their order, or no feature if there is `content`.
        epochs: number of times that a run would read each source with weight 1, shape (sources,), or (n, sources) if
            the cycles differ; predictions are for the last row. None: no text is repeated.
        content: share of each feature in each source, shape (sources, features); None: the sources are the features.
        cycles: number of the cycle of each run, shape (n,): runs of one size and length. The largest is the current
            one, for which is predicted.
        importance: weight of each run in the fit, shape (n,); None: equal.
        forms: the forms to choose from.
    """
    count = weights.shape[1]
    if own is None:
        own = range(count) if content is None and bpb.shape[1] == count else [None] * bpb.shape[1]
    full = np.broadcast_to(np.zeros(count) if epochs is None else epochs, weights.shape)
    known, content = np.isfinite(bpb.T), np.eye(count) if content is None else content
    runs = _Runs(
        Mixtures(weights, weights * full),
        np.log(np.where(known, bpb.T, 1.0)),
        known,
        np.ones(len(bpb)) if importance is None else importance,
        content,
        tuple(own),
        np.zeros(len(bpb), np.int64) if cycles is None else np.unique(cycles, return_inverse=True)[1],
        np.unique(np.round(weights @ content, 6), axis=0, return_inverse=True)[1].reshape(-1),
    )
    judgements = {form: _judge(form, runs, target) for form in FORMS if form in forms}
    form = list(judgements)[preferred(list(judgements.values()))]
    return Response(form, target, judgements, _fit_form(form, runs, runs.importance[None]), runs.groups, full[-1])


def preferred(judgements: Sequence[Judgement]) -> int:
    """Returns the number of that with the highest rank correlation; of those within `TIE`, with the smallest error."""
    ranks = [-1.0 if one.rank_agreement is None else one.rank_agreement for one in judgements]
    close = [number for number, rank in enumerate(ranks) if rank >= max(ranks) - TIE]
    return min(close, key=lambda number: judgements[number].error)


def _judge(form: str, runs: _Runs, target: Floats) -> Judgement:
    """Returns the judgement of a form: every fold of mixtures is predicted by a fit to the others."""
    count, measured = int(runs.groups.max()) + 1, len(runs.log_bpb)
    fold = (np.random.default_rng(0).permutation(count) % min(count, _FOLDS))[runs.groups]
    fitted = _fit_form(form, runs, runs.importance * (fold != np.arange(fold.max() + 1)[:, None]))
    by_fold = fitted.log_bpb(runs.mixtures, runs.cycles).reshape(-1, measured, len(fold))
    slopes = fitted.slopes[:, runs.cycles].reshape(by_fold.shape)
    predicted, slope = (values[fold, :, np.arange(len(fold))].T for values in (by_fold, slopes))
    whole = runs.known[target > 0].all(0)
    targets = target @ np.exp(predicted), np.where(whole, target @ np.exp(runs.log_bpb), np.nan)
    current = runs.cycles == runs.cycles.max()
    ours, real = (_by_mixture(values[current], runs.groups[current]) for values in targets)
    first = np.argsort(ours, kind="stable")[: -(-len(ours) // 5)]
    return Judgement(
        predicted=targets[0],
        measured=targets[1],
        rank_agreement=rank_agreement(ours, real),
        accuracy=decision_accuracy(ours, real),
        optimism=float((real - ours)[first].mean()),
        error=float(np.sqrt(((real - ours) ** 2).mean())),
        residuals=np.where(runs.known, runs.log_bpb - predicted, 0.0) / slope,
    )


def _by_mixture(values: Floats, groups: Integers) -> Floats:
    """Returns the mean of each mixture."""
    _, numbers, counts = np.unique(groups, return_inverse=True, return_counts=True)
    means: Floats = np.bincount(numbers, values) / counts
    return means


def _fit_form(form: str, runs: _Runs, importance: Floats) -> _Fitted:
    """Fits curves, and offsets and slopes of the cycles, in turn; the cycle with the most weight is the curves' own.

    Args:
        form: of `FORMS`.
        runs: all runs.
        importance: of the runs in each fold, shape (folds, n). The batch has all measured sources of the first fold,
            then those of the second, and so on.
    """
    measured = len(runs.log_bpb)
    y = np.tile(runs.log_bpb, (len(importance), 1))
    weight = np.repeat(importance, measured, axis=0) * np.tile(runs.known, (len(importance), 1))
    own, count = runs.own * len(importance), int(runs.cycles.max()) + 1
    offsets, slopes = np.zeros((len(y), count)), np.ones((len(y), count))
    first = int(np.argmax(np.bincount(runs.cycles, runs.importance)))
    curves = _fit_curves(form, Measured(runs.mixtures, np.exp(y), weight, runs.content, own))
    for _ in range(_ROUNDS if count > 1 else 0):
        shared = curves.log_bpb(runs.mixtures, curves.parameters)
        for cycle in set(range(count)) - {first}:
            offsets[:, cycle], slopes[:, cycle] = _line(shared, y, weight * (runs.cycles == cycle))
        slope = slopes[:, runs.cycles]
        aligned = np.exp((y - offsets[:, runs.cycles]) / slope)
        curves = _fit_curves(form, Measured(runs.mixtures, aligned, weight * slope**2, runs.content, own))
    return _Fitted(curves, offsets, slopes)


def _fit_curves(form: str, measured: Measured) -> Curves:
    return fit_log_linear(measured) if form == "log-linear" else fit_power(measured, repeats=form == "exposures")


def _line(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Returns offset and slope of y over x, shape (batch,); the slope is held at 1 where x hardly varies."""
    total = np.maximum(weight.sum(1), 1e-12)
    mean_x, mean_y = (weight * x).sum(1) / total, (weight * y).sum(1) / total
    away = x - mean_x[:, None]
    both = (weight * away * (y - mean_y[:, None])).sum(1) + _SLOPE_PRIOR
    slope = np.clip(both / ((weight * away**2).sum(1) + _SLOPE_PRIOR), *_SLOPES)
    return mean_y - slope * mean_x, slope
