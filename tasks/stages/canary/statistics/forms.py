"""Forms of the response: how the bits per byte (bpb) of one measured source depend on the mixture.

A form is fitted to the runs by penalized least squares of log(bpb), and then is a function of the mixture.

log-linear    bpb_m = c_m + exp(a_m + sum_j b_mj w_j)
              (Ye et al. 2024, "Data Mixing Laws", arXiv 2403.16952; with c_m = 0 as in Olmix, arXiv 2602.12237)
power         log bpb_m = a_m - alpha_m log(sum_j s_mj w_j + 0.001),  s_mm = 1
              a power law in the effective share of source m, where a token of source j is worth s_mj tokens of m
exposures     the power form over effective shares: a source that is read e > 1 times counts like
              1 + R_m (1 - exp(-(e - 1) / R_m)) times
              (Muennighoff et al. 2023, "Scaling Data-Constrained Language Models", arXiv 2305.16264, eq. 5)

All are convex in the weights: the exponential of a linear function, and a negative power of a positive combination of
concave functions. So a target with positive weights has one minimum.

Instead of names of sources, the features can be their content: w becomes `w @ content`, with the share of each topic or
language in each source.

Curves of many sources and folds are fitted at once: a batch has the runs in common, and each its own measurements and
weights, which are 0 for runs that are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_EPSILON = 1e-3
_USUAL_EXPONENT, _USUAL_WORTH, _USUAL_REPEATS = 0.1, 0.05, 4.0
_USUAL_WORTH_OF_CONTENT = 0.3
_PRIOR = 3e-3
"""Strength of the prior of the logarithms of the power form's parameters, in log(bpb) per factor of e: about the noise
of a run, so that measurements outweigh it."""
_LOW, _HIGH = -9.0, 3.0
"""Bounds of these logarithms: without, a flat response drives the exponent to 0 and a worth to infinity."""
_STEPS, _DAMPING = 60, 1e-3
_RIDGES = 10.0 ** np.arange(-6, 0)
"""Penalties of the log-linear form's slopes that are tried, per run."""
_FLOORS = (0.0, 0.5, 0.7, 0.8, 0.9)
"""Values of c that are tried, as shares of the lowest measurement; only 0 for at most two runs per feature."""


class Mixtures(NamedTuple):
    """Mixtures of n runs.

    Attributes:
        weights: share of each source, shape (n, sources).
        epochs: number of times that each source is read, shape (n, sources).
    """

    weights: Floats
    epochs: Floats


class Measured(NamedTuple):
    """What a batch of curves is fitted to.

    Attributes:
        mixtures: of the n runs.
        bpb: shape (batch, n).
        importance: weight of each run, shape (batch, n).
        content: share of each feature in each source, shape (sources, features).
        own: for each curve the number of the feature that is its source; None if there is none.
    """

    mixtures: Mixtures
    bpb: Floats
    importance: Floats
    content: Floats
    own: Sequence[int | None]


class Curves(Protocol):
    """A batch of fitted curves of one form.

    `parameters` has shape (batch, p). `gain` is their change with the errors of the runs in log(bpb), and with a
    standard normal deviation of each penalty: shape (batch, p, n + penalties).
    """

    @property
    def parameters(self) -> Floats: ...  # noqa: D102
    @property
    def gain(self) -> Floats: ...  # noqa: D102

    def log_bpb(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """Returns log(bpb), shape (..., batch, n), for parameters of shape (..., batch, p)."""
        ...

    def within(self, parameters: Floats) -> Floats:
        """Returns parameters of any shape, moved into their bounds."""
        ...


@dataclass(frozen=True)
class LogLinear:
    """Log-linear curves; the parameters are the level at `center` and a slope per feature."""

    floor: Floats
    center: Floats
    content: Floats
    parameters: Floats
    gain: Floats

    def log_bpb(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """See `Curves`."""
        centered = mixtures.weights @ self.content - self.center[:, None]
        linear = parameters[..., :1] + np.einsum("bnf,...bf->...bn", centered, parameters[..., 1:])
        values: Floats = np.log(self.floor[:, None] + np.exp(linear))
        return values

    def within(self, parameters: Floats) -> Floats:
        """See `Curves`; there are no bounds."""
        return parameters


def fit_log_linear(measured: Measured) -> LogLinear:
    """Fits log-linear curves, each with the floor and the ridge penalty of its smallest leave-one-out error."""
    features = measured.content.shape[1]
    floors = _FLOORS if measured.bpb.shape[1] > 2 * features else _FLOORS[:1]
    tried = [_ridge(measured, floor, ridge) for floor in floors for ridge in _RIDGES]
    errors = np.stack([error for error, _ in tried])
    best = errors.argmin(0)
    parts = [
        np.stack([getattr(tried[choice][1], name)[index] for index, choice in enumerate(best)])
        for name in ("floor", "center", "parameters", "gain")
    ]
    return LogLinear(parts[0], parts[1], measured.content, parts[2], parts[3])


def _ridge(measured: Measured, floor_share: float, penalty: float) -> tuple[Floats, LogLinear]:
    """Returns squared leave-one-out errors of log(bpb), shape (batch,), and the curves."""
    bpb, importance = measured.bpb, measured.importance
    floor = floor_share * np.where(importance > 0, bpb, np.inf).min(1)
    # An error of log(bpb) is 1 / scale times as large in y.
    above = np.maximum(bpb - floor[:, None], 1e-6)
    y, scale = np.log(above), above / bpb
    weight = importance * scale**2
    total = weight.sum(1)
    features = measured.mixtures.weights @ measured.content
    center = weight @ features / total[:, None]
    x, level = features - center[:, None], (weight * y).sum(1) / total
    x_turned = x.transpose(0, 2, 1)
    ridge = penalty * total
    inverse = np.linalg.inv(x_turned @ (weight[:, :, None] * x) + ridge[:, None, None] * np.eye(x.shape[2]))
    of_y = inverse @ (x_turned * weight[:, None])
    slopes = (of_y @ (y - level[:, None])[:, :, None])[:, :, 0]
    residual = y - level[:, None] - (x @ slopes[:, :, None])[:, :, 0]
    leverage = weight / total[:, None] + np.einsum("bnf,bfn->bn", x, of_y)
    error = (importance * (scale * residual / np.maximum(1 - leverage, 1e-3)) ** 2).sum(1)
    of_runs = np.concatenate([(weight / total[:, None])[:, None], of_y], axis=1) / scale[:, None]
    # The penalty is a prior of this variance: that of the errors over the penalty.
    spread = np.sqrt(error / importance.sum(1) * ridge)[:, None, None] * inverse
    of_penalties = np.concatenate([np.zeros_like(spread[:, :1]), spread], axis=1)
    parameters = np.concatenate([level[:, None], slopes], axis=1)
    return error, LogLinear(floor, center, measured.content, parameters, np.concatenate([of_runs, of_penalties], 2))


@dataclass(frozen=True)
class Power:
    """Power curves; with `repeats`, over effective shares.

    The parameters are the level and the logarithms of the exponent, of the worth of each feature (0 for the own one),
    and of R.
    """

    content: Floats
    repeats: bool
    parameters: Floats
    gain: Floats

    def log_bpb(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """See `Curves`."""
        share = (self._features(mixtures, parameters) @ np.exp(parameters[..., 2:-1, None]))[..., 0] + _EPSILON
        values: Floats = parameters[..., :1] - np.exp(parameters[..., 1:2]) * np.log(share)
        return values

    def within(self, parameters: Floats) -> Floats:
        """See `Curves`."""
        return np.concatenate([parameters[..., :1], np.clip(parameters[..., 1:], _LOW, _HIGH)], axis=-1)

    @property
    def worth(self) -> Floats:
        """Worth of each feature, shape (batch, features), in tokens of the own one."""
        return np.exp(self.parameters[:, 2:-1])

    def _features(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """Returns the effective shares of the features, shape (..., batch, n, features), or (n, features)."""
        if not self.repeats:
            return mixtures.weights @ self.content
        return effective(mixtures, np.exp(parameters[..., -1])[..., None, None]) @ self.content

    def slopes(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """Returns the derivatives of log(bpb) by the parameters, shape (batch, n, p)."""
        step = 1e-6
        features, worth = self._features(mixtures, parameters), np.exp(parameters[:, None, 2:-1])
        share = (features @ worth.transpose(0, 2, 1)) + _EPSILON
        exponent = np.exp(parameters[:, 1])[:, None, None]
        by_repeats = np.zeros_like(share)
        if self.repeats:
            ahead = self._features(mixtures, parameters + np.eye(parameters.shape[1])[-1] * step)
            by_repeats = -exponent * ((ahead - features) / step @ worth.transpose(0, 2, 1)) / share
        columns = [np.ones_like(share), -exponent * np.log(share), -exponent * features * worth / share, by_repeats]
        return np.concatenate(columns, axis=2)


def effective(mixtures: Mixtures, repeats: Floats | float) -> Floats:
    """Returns the share of each source in units of text that is read once, shape (..., n, sources).

    Args:
        mixtures: of n runs.
        repeats: R, the number of repetitions of a text in which their value falls to 1 / e; broadcast.
    """
    epochs = np.maximum(mixtures.epochs, 1)
    values: Floats = mixtures.weights * (1 - repeats * np.expm1((1 - epochs) / repeats)) / epochs
    return values


def fit_power(measured: Measured, *, repeats: bool = False) -> Power:
    """Fits power curves by penalized least squares (Levenberg-Marquardt); with `repeats`, over effective shares."""
    batch, features = len(measured.bpb), measured.content.shape[1]
    prior = np.full((batch, features + 3), np.log(_USUAL_WORTH))
    prior[:, 1], prior[:, -1] = np.log(_USUAL_EXPONENT), np.log(_USUAL_REPEATS)
    penalty = np.full_like(prior, _PRIOR)
    penalty[:, 0] = 0
    free = np.ones_like(prior)
    free[:, -1] = repeats
    for index, own in enumerate(measured.own):
        if own is None:
            prior[index, 2:-1] = np.log(_USUAL_WORTH_OF_CONTENT)
        else:
            prior[index, 2 + own], free[index, 2 + own] = 0.0, 0.0
    y = np.log(measured.bpb)
    prior[:, 0] = (measured.importance * y).sum(1) / measured.importance.sum(1)
    form = Power(measured.content, repeats, prior, np.empty((0, 0, 0)))
    parameters = _least_squares(form, measured, y, prior, penalty, free)
    normal, slopes = _normal(form, measured, parameters, penalty, free)
    inverse = np.linalg.inv(normal) * free[:, :, None] * free[:, None]
    of_runs = inverse @ (slopes * measured.importance[:, :, None]).transpose(0, 2, 1)
    return Power(
        measured.content, repeats, parameters, np.concatenate([of_runs, inverse * penalty[:, None] ** 2], axis=2)
    )


def _normal(
    form: Power, measured: Measured, parameters: Floats, penalty: Floats, free: Floats
) -> tuple[Floats, Floats]:
    """Returns the matrix of the normal equations, shape (batch, p, p), and the slopes of the free parameters."""
    slopes = form.slopes(measured.mixtures, parameters) * free[:, None]
    weighted = slopes * measured.importance[:, :, None]
    diagonal = penalty**2 + (free == 0)
    return slopes.transpose(0, 2, 1) @ weighted + diagonal[:, None] * np.eye(diagonal.shape[1]), slopes


def _least_squares(form: Power, measured: Measured, y: Floats, prior: Floats, penalty: Floats, free: Floats) -> Floats:
    """Returns the parameters of the smallest sum of squared errors and penalties, from the prior on."""

    def errors(parameters: Floats) -> tuple[Floats, Floats]:
        residual = y - form.log_bpb(measured.mixtures, parameters)
        away = penalty * (parameters - prior)
        return residual, (measured.importance * residual**2).sum(1) + (away**2).sum(1)

    parameters, damping = prior, np.full(len(y), _DAMPING)
    residual, cost = errors(parameters)
    for _ in range(_STEPS):
        normal, slopes = _normal(form, measured, parameters, penalty, free)
        downhill = ((measured.importance * residual)[:, None] @ slopes)[:, 0] - penalty**2 * (parameters - prior)
        diagonal = np.einsum("bpp->bp", normal)
        damped = normal + (damping[:, None] * diagonal)[:, None] * np.eye(diagonal.shape[1])
        step = np.linalg.solve(damped, (downhill * free)[:, :, None])[:, :, 0]
        tried = form.within(parameters + step)
        residual_there, cost_there = errors(tried)
        better = cost_there < cost
        done = np.abs(cost - cost_there) <= 1e-9 * cost
        parameters = np.where(better[:, None], tried, parameters)
        residual, cost = np.where(better[:, None], residual_there, residual), np.where(better, cost_there, cost)
        damping = np.where(better, damping / 5, damping * 5)
        if done.all():
            break
    return parameters
