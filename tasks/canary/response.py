"""How bits per byte respond to the mixture: a fit over all arms, as evidence beside the comparison.

Used by the stage decide. For each source, log(bpb) is a linear function of features of the weights, fitted by ridge
regression. Two maps of features are tried: the weights themselves (Ye et al. 2024, "Data Mixing Laws", arXiv
2403.16952: loss is exponential in the weights) and their logarithms (a power law in the tokens of a source). Map and
ridge strength are those of the least leave-one-out error, source by source; that error is exact and needs no refit.

The fit proposes a mixture; it does not promote one. Only an arm that was trained can be promoted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize  # type: ignore[import-untyped]
from scipy.stats import spearmanr  # type: ignore[import-untyped]

Floats = NDArray[np.float64]

_FLOOR = 0.01
"""Added to a weight before its logarithm: text of other sources teaches about that much of any source."""
_RIDGES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
MAPS: dict[str, Callable[[Floats], Floats]] = {
    "linear": lambda weights: weights,
    "logarithmic": lambda weights: np.log(weights + _FLOOR),
}


@dataclass(frozen=True)
class Line:
    """log(bpb) of one source as a linear function of features of the weights."""

    features: str
    ridge: float
    centre: Floats
    intercept: float
    slopes: Floats

    def predict(self, weights: Floats) -> Floats:
        """Returns bits per byte, shape (n,), for weights of shape (n, sources)."""
        values: Floats = np.exp(self.intercept + (MAPS[self.features](weights) - self.centre) @ self.slopes)
        return values


@dataclass(frozen=True)
class Response:
    """The fitted response of every source.

    `left_out` is the target predicted for each arm from all other arms, shape (arms,); `rank_agreement` its Spearman
    correlation with what was measured, None when it is not defined.
    """

    sources: tuple[str, ...]
    target: Floats
    lines: tuple[Line, ...]
    left_out: Floats
    rank_agreement: float | None

    def predict(self, weights: Floats) -> Floats:
        """Returns the target's bits per byte, shape (n,), for weights of shape (n, sources)."""
        values: Floats = np.stack([line.predict(weights) for line in self.lines], axis=1) @ self.target
        return values

    def best(self, most: Floats) -> Floats:
        """Returns the weights of the least predicted target, shape (sources,).

        Args:
            most: largest weight of each source, shape (sources,): what the repetition cap leaves.
        """
        count = len(self.sources)
        starts = np.random.default_rng(0).dirichlet(np.ones(count), 4096)
        starts = np.concatenate([starts[(starts <= most).all(1)], [np.minimum(most, 1) / np.minimum(most, 1).sum()]])
        starts = starts[np.argsort(self.predict(starts), kind="stable")[:4]]
        found = [
            minimize(
                lambda weights: float(self.predict(weights[None])[0]),
                start,
                bounds=[(0.0, min(1.0, limit)) for limit in most.tolist()],
                constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
                method="SLSQP",
            )
            for start in starts
        ]
        best = min(found, key=lambda result: float(result.fun))
        weights: Floats = np.clip(best.x, 0, None)
        weights /= weights.sum()
        return weights


def fit(weights: Floats, bpb: Floats, sources: Sequence[str], target: Mapping[str, float]) -> Response:
    """Fits the response.

    Args:
        weights: of each arm, shape (arms, sources), at least 3 arms.
        bpb: bits per byte of each arm, mean over seeds, shape (arms, sources).
        sources: names of the sources.
        target: source -> weight in the target.
    """
    goal = np.array([target.get(source, 0.0) for source in sources])
    fitted = [_line(weights, bpb[:, index]) for index in range(len(sources))]
    left_out = np.exp(np.stack([predicted for _, predicted in fitted], axis=1)) @ goal
    agreement = float(spearmanr(left_out, bpb @ goal).statistic)
    return Response(
        tuple(sources),
        goal,
        tuple(line for line, _ in fitted),
        left_out,
        agreement if np.isfinite(agreement) else None,
    )


def _line(weights: Floats, bpb: Floats) -> tuple[Line, Floats]:
    """Returns the best line for one source, and the logarithm it predicts for each arm from the others."""
    y = np.log(bpb)
    best: tuple[float, Line, Floats] | None = None
    for name, features in MAPS.items():
        x = features(weights)
        for ridge in _RIDGES:
            line, left_out = _ridge(x, y, name, ridge)
            error = float(((left_out - y) ** 2).mean())
            if best is None or error < best[0]:
                best = (error, line, left_out)
    assert best is not None
    return best[1], best[2]


def _ridge(x: Floats, y: Floats, name: str, ridge: float) -> tuple[Line, Floats]:
    """Ridge regression with a free intercept, and its leave-one-out predictions by the hat matrix."""
    arms, width = x.shape
    centre = x.mean(0)
    centred = x - centre
    solver = np.linalg.solve(centred.T @ centred + arms * ridge * np.eye(width), centred.T)
    slopes = solver @ (y - y.mean())
    hat = centred @ solver + 1 / arms
    fitted = y.mean() + centred @ slopes
    # Exact, because the centre's own dependence on the left-out arm is what 1 / arms in the hat matrix stands for.
    left_out = y - (y - fitted) / np.maximum(1 - np.diag(hat), 1e-9)
    return Line(name, ridge, centre, float(y.mean()), slopes), left_out
