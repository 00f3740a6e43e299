"""The response fitted to the runs of this cycle and those of earlier ones (`evidence`), if these improve it.

Each earlier cycle has sources of its own, so its weights are columns of their own in the fit, and all cycles share the
features of these columns. There are two kinds of features. Names: a source is the same if it has the same name.
Content: shares of the labels of documents (language, tier, topic: the columns of `[encode] columns`) in the tokens of a
source, so that a renamed, divided or changed source is still known by what it contains. Whether earlier runs are used,
and by which features, is decided as the form is: by the rank correlation on left-out mixtures of this cycle. So earlier
runs cannot make the estimate of this cycle worse than it is without them.

The backtest is the fit to the cycles before this one alone: how it ranks the arms that this cycle then measured, and
the regret, by how much the arm that it puts first is worse than the lowest, in bits per byte.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag

from tasks.stages.canary.decision import Backtest, Tried
from tasks.stages.canary.evidence import EarlierCycle
from tasks.stages.canary.statistics.forms import Floats
from tasks.stages.canary.statistics.response import Response, decision_accuracy, fit, preferred, rank_agreement

NAMES, CONTENT, ALONE = "names", "content", "alone"

_Tried = tuple[str, Response, tuple[str, ...]]


@dataclass(frozen=True)
class Runs:
    """The runs of one cycle.

    Attributes:
        columns: of the weights: the sources of each, with their ratios.
        epochs: number of times that a run reads each column with weight 1, shape (columns,).
        content: share of each label in each source.
        shares: weights, shape (n, columns).
        bpb: bits per byte of the measured sources, shape (n, measured); NaN where a source was not measured.
        importance: weight of each run, shape (n,).
    """

    columns: Sequence[Mapping[str, float]]
    epochs: Floats
    content: Mapping[str, Mapping[str, float]]
    shares: Floats
    bpb: Floats
    importance: Floats

    @classmethod
    def of(cls, cycle: EarlierCycle, measured: Sequence[str]) -> "Runs":
        """Returns the runs of an earlier cycle."""
        sources = sorted(cycle["epochs"])
        runs = cycle["runs"]
        return cls(
            columns=[{source: 1.0} for source in sources],
            epochs=np.array([cycle["epochs"][source] for source in sources]),
            content=cycle["content"],
            shares=np.array([[run["weights"].get(source, 0.0) for source in sources] for run in runs]),
            bpb=np.array([[run["bpb"].get(source, np.nan) for source in measured] for run in runs]),
            importance=np.array([cycle["importance"] * run["seeds"] for run in runs]),
        )

    def features(self, kind: str) -> list[dict[str, float]]:
        """Returns the features of each column by name: of the names of its sources, or of their content."""
        found = []
        for column in self.columns:
            sums: dict[str, float] = defaultdict(float)
            for source, ratio in column.items():
                for name, share in ({source: 1.0} if kind == NAMES else self.content[source]).items():
                    sums[name] += ratio * share
            found.append(dict(sums))
        return found

    @property
    def has_content(self) -> bool:
        """Whether the content of every source is recorded."""
        return all(source in self.content for column in self.columns for source in column)


@dataclass(frozen=True)
class Fitted:
    """A response, and the evidence that it is fitted to.

    Attributes:
        response: for the columns of this cycle.
        features: names of its features; () for the columns themselves.
        used: `ALONE`, `NAMES` or `CONTENT`.
        tried: rank correlation and error on left-out mixtures by these.
        earlier_arms: arms of earlier cycles in the fit.
    """

    response: Response
    features: tuple[str, ...]
    used: str
    tried: dict[str, Tried]
    earlier_arms: int


def with_evidence(
    alone: Response,
    current: Runs,
    earlier: Sequence[EarlierCycle],
    goal: Floats,
    measured: Sequence[str],
    forms: Sequence[str],
) -> Fitted:
    """Returns the response that ranks left-out mixtures of this cycle best: without or with the earlier cycles.

    Args:
        alone: the response fitted to this cycle.
        current: its runs.
        earlier: the registered cycles.
        goal: weight of each measured source in the target, shape (measured,).
        measured: names of the measured sources.
        forms: the forms to choose from.
    """
    found = [(ALONE, alone, ()), *_fits(current, earlier, goal, measured, forms, with_current=True)]
    used, response, features = _best(found)
    tried = {
        kind: Tried(rank_agreement=_rounded(one.judgement.rank_agreement), error=round(one.judgement.error, 6))
        for kind, one, _ in found
    }
    return Fitted(response, features, used, tried, 0 if used == ALONE else len(response.groups) - len(current.shares))


def backtest(
    current: Runs, earlier: Sequence[EarlierCycle], goal: Floats, measured: Sequence[str], forms: Sequence[str]
) -> Backtest | None:
    """Returns how the fit to the earlier cycles alone ranks the arms of this one; None without such a fit.

    Args:
        current: one run for each arm.
        earlier: the registered cycles.
        goal: weight of each measured source in the target, shape (measured,); sources that the last earlier
            cycle has not measured are left out.
        measured: names of the measured sources.
        forms: the forms to choose from.
    """
    if not earlier or len(current.shares) < 3:
        return None
    runs = [Runs.of(cycle, measured) for cycle in earlier]
    known = np.flatnonzero(np.isfinite(runs[-1].bpb).all(0)).tolist()
    rest = goal[known]
    if not rest.sum():
        return None
    rest, names = rest / rest.sum(), [measured[index] for index in known]
    this = replace(current, bpb=current.bpb[:, known])
    found = list(_fits(this, earlier, rest, names, forms, with_current=False))
    if not found:
        return None
    used, response, _ = _best(found)
    predicted, real = response.predict(this.shares), this.bpb @ rest
    return Backtest(
        arms=len(real),
        runs=sum(len(one.shares) for one in runs),
        features=used,
        form=response.form,
        rank_agreement=_rounded(rank_agreement(predicted, real)),
        accuracy=round(decision_accuracy(predicted, real), 4),
        regret=round(float(real[int(predicted.argmin())] - real.min()), 6),
    )


def _fits(
    current: Runs,
    earlier: Sequence[EarlierCycle],
    goal: Floats,
    measured: Sequence[str],
    forms: Sequence[str],
    *,
    with_current: bool,
) -> Iterator[_Tried]:
    """Yields the fit to the earlier cycles, and this one, by each kind of features that distinguishes the columns."""
    runs = [one for cycle in earlier if np.isfinite((one := Runs.of(cycle, measured)).bpb).any()]
    for kind in (NAMES, CONTENT):
        usable = [one for one in runs if kind == NAMES or one.has_content]
        if not usable or (kind == CONTENT and not current.has_content):
            continue
        rows = [*usable, current] if with_current else usable
        if sum(len(np.unique(np.round(one.shares, 6), axis=0)) for one in rows) < 3:
            continue
        by_column = [features for one in (current, *usable) for features in one.features(kind)]
        names = sorted({name for features in by_column for name in features})
        content = np.array([[features.get(name, 0.0) for name in names] for features in by_column])
        if np.ptp(content, axis=0).max() < 1e-3:
            continue
        own = [names.index(source) if kind == NAMES and source in names else None for source in measured]
        yield kind, _fit(current, usable, content, own, goal, forms, with_current=with_current), tuple(names)


def _fit(
    current: Runs,
    earlier: Sequence[Runs],
    content: Floats,
    own: Sequence[int | None],
    goal: Floats,
    forms: Sequence[str],
    *,
    with_current: bool,
) -> Response:
    """Fits the runs of all cycles; the columns of this cycle come first, its runs last."""
    columns = [current, *earlier]
    rows = [*earlier, current] if with_current else earlier
    weights = np.roll(block_diag(*(one.shares for one in columns)), -len(current.shares), axis=0)
    counts = [len(one.shares) for one in rows]
    return fit(
        weights[: sum(counts)],
        np.concatenate([one.bpb for one in rows]),
        goal,
        own=own,
        epochs=np.concatenate([one.epochs for one in columns]),
        content=content,
        cycles=np.repeat(np.arange(len(rows)), counts),
        importance=np.concatenate([one.importance for one in rows]),
        forms=forms,
    )


def _best(found: Sequence[_Tried]) -> _Tried:
    return found[preferred([one.judgement for _, one, _ in found])]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
