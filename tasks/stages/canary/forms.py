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
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Floats = NDArray[np.float64]

_EPSILON = 1e-3
_USUAL_EXPONENT, _USUAL_WORTH, _USUAL_REPEATS = 0.1, 0.05, 4.0
_USUAL_WORTH_OF_CONTENT = 0.3
_PRIOR = 3e-3
"""Strength of the prior of the logarithms of the power form's parameters, in log(bpb) per factor of e: about the noise
of a run, so that measurements outweigh it."""
_LOW, _HIGH = -9.0, 3.0
"""Bounds of these logarithms: without, a flat response drives the exponent to 0 and a worth to infinity."""
_RIDGES = 10.0 ** np.arange(-7, 0)
"""Penalties of the log-linear form's slopes that are tried, per run."""
_FLOORS = (0.0, 0.5, 0.7, 0.8, 0.9)
"""Values of c that are tried, as shares of the lowest measurement."""


class Mixtures(NamedTuple):
    """Mixtures of n runs.

    Attributes:
        weights: share of each source, shape (n, sources).
        epochs: number of times that each source is read, shape (n, sources).
    """

    weights: Floats
    epochs: Floats

    def rows(self, which: NDArray[np.generic]) -> "Mixtures":
        """Returns some of the runs."""
        return Mixtures(self.weights[which], self.epochs[which])


class Curve(Protocol):
    """A fitted form.

    `parameters` has shape (p,). `gain` is their change with the errors of the runs in log(bpb), and with a standard
    normal deviation of each penalty: shape (p, n + penalties). `floor` is a lower bound of bpb.
    """

    @property
    def parameters(self) -> Floats: ...  # noqa: D102
    @property
    def gain(self) -> Floats: ...  # noqa: D102

    def __call__(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """Returns log(bpb) of shape (draws, n), for parameters of shape (draws, p)."""
        ...

    def within(self, parameters: Floats) -> Floats:
        """Returns parameters of any shape, moved into their bounds."""
        ...


@dataclass(frozen=True)
class LogLinear:
    """The log-linear form; `parameters` are the level at `center` and a slope per feature."""

    floor: float
    center: Floats
    content: Floats
    parameters: Floats
    gain: Floats

    def __call__(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """See `Curve`."""
        centered = mixtures.weights @ self.content - self.center
        values: Floats = np.log(self.floor + np.exp(parameters[:, :1] + parameters[:, 1:] @ centered.T))
        return values

    def within(self, parameters: Floats) -> Floats:
        """See `Curve`; there are no bounds."""
        return parameters


def fit_log_linear(mixtures: Mixtures, bpb: Floats, importance: Floats, content: Floats) -> LogLinear:
    """Fits the log-linear form with the floor and the ridge penalty of the smallest leave-one-out error.

    Args:
        mixtures: of the n runs.
        bpb: of one measured source, shape (n,).
        importance: weight of each run, shape (n,).
        content: share of each feature in each source, shape (sources, features).
    """
    features = mixtures.weights @ content
    best: tuple[float, LogLinear] | None = None
    for floor in np.array(_FLOORS) * bpb.min():
        # An error of log(bpb) is 1 / scale times as large in y.
        y, scale = np.log(bpb - floor), (bpb - floor) / bpb
        weight = importance * scale**2
        total, center = weight.sum(), weight @ features / weight.sum()
        x, level = features - center, weight @ y / total
        values, vectors = np.linalg.eigh(x.T @ (weight[:, None] * x))
        for ridge in _RIDGES * total:
            inverse = vectors / (np.maximum(values, 0) + ridge) @ vectors.T
            slopes = inverse @ (x.T @ (weight * (y - level)))
            leverage = weight * (1 / total + np.einsum("nf,fg,ng->n", x, inverse, x))
            left_out = scale * (y - level - x @ slopes) / np.maximum(1 - leverage, 1e-3)
            error = float(importance @ left_out**2)
            if best is None or error < best[0]:
                of_runs = np.vstack([np.ones(len(y)) / total, inverse @ x.T]) * (importance * scale)
                spread = np.sqrt(error / importance.sum() * ridge)
                of_penalties = np.vstack([np.zeros((1, len(slopes))), inverse * spread])
                parameters = np.concatenate([[level], slopes])
                gain = np.hstack([of_runs, of_penalties])
                best = (error, LogLinear(float(floor), center, content, parameters, gain))
    assert best is not None
    return best[1]


@dataclass(frozen=True)
class Power:
    """The power form; with `repeats`, over effective shares.

    `parameters` are the level and the logarithms of the exponent, of the worth of each feature except `own`, whose
    worth is 1, and with `repeats` of R.
    """

    own: int | None
    content: Floats
    repeats: bool
    parameters: Floats
    gain: Floats

    def __call__(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """See `Curve`."""
        share = self._features(mixtures, parameters) @ self.worth(parameters)[:, :, None]
        values: Floats = parameters[:, :1] - np.exp(parameters[:, 1:2]) * np.log(share[:, :, 0] + _EPSILON)
        return values

    def within(self, parameters: Floats) -> Floats:
        """See `Curve`."""
        return np.concatenate([parameters[..., :1], np.clip(parameters[..., 1:], _LOW, _HIGH)], axis=-1)

    def worth(self, parameters: Floats) -> Floats:
        """Returns the worth of each feature, shape (draws, features)."""
        end = parameters.shape[1] - self.repeats
        worth = np.exp(parameters[:, 2:end])
        return worth if self.own is None else np.insert(worth, self.own, 1.0, axis=1)

    def _features(self, mixtures: Mixtures, parameters: Floats) -> Floats:
        """Returns the effective shares of the features, shape (draws or 1, n, features)."""
        if not self.repeats:
            return (mixtures.weights @ self.content)[None]
        return effective(mixtures, np.exp(parameters[:, -1])[:, None, None]) @ self.content

    def slopes(self, mixtures: Mixtures) -> Floats:
        """Returns the derivatives of log(bpb) by the parameters, shape (n, p)."""
        one = self.parameters[None]
        features, worth, exponent = self._features(mixtures, one)[0], self.worth(one)[0], np.exp(self.parameters[1])
        share = features @ worth + _EPSILON
        by_worth = -exponent * features * worth / share[:, None]
        if self.own is not None:
            by_worth = np.delete(by_worth, self.own, axis=1)
        columns = [np.ones((len(share), 1)), -exponent * np.log(share)[:, None], by_worth]
        if self.repeats:
            step = 1e-6
            ahead = effective(mixtures, np.exp(self.parameters[-1] + step)) @ self.content
            columns.append((-exponent * ((ahead - features) @ worth) / step / share)[:, None])
        return np.hstack(columns)


def effective(mixtures: Mixtures, repeats: Floats | float) -> Floats:
    """Returns the share of each source in units of text that is read once, shape (..., n, sources).

    Args:
        mixtures: of n runs.
        repeats: R, the number of repetitions of text in which their value falls to 1 / e; broadcast.
    """
    more = np.maximum(mixtures.epochs - 1, 0)
    worth = np.minimum(mixtures.epochs, 1) + repeats * -np.expm1(-more / repeats)
    values: Floats = mixtures.weights * worth / np.maximum(mixtures.epochs, 1e-12)
    return values


def fit_power(
    mixtures: Mixtures, bpb: Floats, importance: Floats, content: Floats, own: int | None, *, repeats: bool = False
) -> Power:
    """Fits the power form by penalized least squares.

    Args:
        mixtures: of the n runs.
        bpb: of one measured source, shape (n,).
        importance: weight of each run, shape (n,).
        content: share of each feature in each source, shape (sources, features).
        own: number of the feature that is the measured source; None if there is none.
        repeats: over effective shares.
    """
    y, root = np.log(bpb), np.sqrt(importance)
    usual = [_USUAL_WORTH_OF_CONTENT if own is None else _USUAL_WORTH] * (content.shape[1] - (own is not None))
    prior = np.log([_USUAL_EXPONENT, *usual, *([_USUAL_REPEATS] if repeats else [])])
    penalties = _PRIOR * np.eye(len(prior) + 1)[1:]

    def at(parameters: Floats) -> Power:
        return Power(own, content, repeats, parameters, np.empty((0, 0)))

    def errors(parameters: Floats) -> Floats:
        return np.concatenate(
            [root * (at(parameters)(mixtures, parameters[None])[0] - y), penalties @ parameters - _PRIOR * prior]
        )

    def slopes(parameters: Floats) -> Floats:
        return np.vstack([root[:, None] * at(parameters).slopes(mixtures), penalties])

    start = np.concatenate([[y.mean()], prior])
    low, high = np.full(len(start), _LOW), np.full(len(start), _HIGH)
    low[0], high[0] = -np.inf, np.inf
    parameters = least_squares(errors, start, slopes, bounds=(low, high), max_nfev=100).x
    inverse = np.linalg.pinv(slopes(parameters))
    gain = np.hstack([inverse[:, : len(y)] * root, inverse[:, len(y) :] * _PRIOR])
    return Power(own, content, repeats, parameters, gain)
