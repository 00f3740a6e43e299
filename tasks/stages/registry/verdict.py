"""Decision whether a challenger is promoted: pure functions over the rows of a comparison.

The score is the mean difference over the tasks or, if none counts, of the held-out examples of a fine-tuning (the share
of preferences, or else their responses), or over the sources. Its whole interval must be above
0, and no guarded source or task may be below its tolerance with its whole interval. A task whose items are in the
challenger's training text does not count in the score but is guarded.

An interval over documents or items describes the difference between the two models, not the difference between two
trainings with other seeds. If a model has been trained with several seeds, the variance of its values over the seeds is
added, as that of a single training. If only one of the two models has several trainings, its variance is used for both.
Part of this variance is already in the interval over items, so the sum is conservative.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any

from tasks.core.config import nearest
from tasks.core.errors import InputError
from tasks.trainer.evaluation import paired
from tasks.trainer.evaluation.comparison import Comparison
from tasks.trainer.evaluation.paired import PairedDifference

Seeds = Mapping[tuple[str, str, str], Sequence[float]]
"""Values of a model by (kind, name, metric), one per training seed."""

UNITS = {"bpb": "bits per byte"}
_PLURALS = {"task": "tasks", "examples": "examples", "source": "sources"}


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison.

    Attributes:
        score: mean difference; positive if the challenger is better.
        of: "tasks", "examples" or "sources", over which the score is averaged.
        names: the rows that count.
        rows: all comparisons, with the variance over seeds in their differences.
        worse: names of the guarded rows that are significantly worse.
        seeds: number of trainings of challenger and champion behind the variance over seeds; 1 without others.
    """

    score: PairedDifference
    of: str
    names: tuple[str, ...]
    rows: tuple[Comparison, ...]
    worse: tuple[str, ...]
    seeds: tuple[int, int]
    confidence: float

    @property
    def better(self) -> bool:
        """Whether the interval of the score is above 0."""
        return self.score.interval(self.confidence)[0] > 0

    @property
    def promoted(self) -> bool:
        """Whether the challenger becomes champion."""
        return self.better and not self.worse

    @property
    def unit(self) -> str:
        """Unit of the score."""
        return UNITS.get(self.rows_that_count[0].metric, "of the items")

    @property
    def rows_that_count(self) -> list[Comparison]:
        """The rows that are averaged in the score."""
        return [row for row in self.rows if _PLURALS[row.kind] == self.of and row.name in self.names]


def judge(
    rows: Sequence[Comparison],
    read: Mapping[str, Mapping[str, Any] | None],
    seeds: tuple[Seeds, Seeds],
    confidence: float,
    guarded: Sequence[str] = (),
    guard_share: float = 0.0,
) -> Verdict:
    """Returns the verdict.

    Args:
        rows: the comparisons; the first model is the champion, the second the challenger.
        read: {items, documents} in the challenger's training data for each task; None if not checked.
        seeds: values over seeds of challenger and champion.
        confidence: confidence of all intervals.
        guarded: names that must not become worse; (): all.
        guard_share: tolerated loss of guarded rows, as a fraction of the champion's value.

    Raises:
        InputError: a guarded name was not compared.
    """
    check_names(guarded, [row.name for row in rows])
    counting = [row for row in rows if row.kind == "task" and not (read.get(row.name) or {}).get("items")]
    # The share of preferences is behind the bits of their answers, and has another unit.
    counting = counting or [row for row in rows if row.kind == "examples"][-1:]
    counting = counting or [row for row in rows if row.kind == "source"]
    of = _PLURALS[counting[0].kind]
    widened = tuple(replace(row, difference=_with_seeds(row.difference, [row], seeds)) for row in rows)
    score = _with_seeds(paired.mean([row.difference for row in counting]), counting, seeds)
    guarded_rows = [row for row in widened if not guarded or row.name in guarded]
    worse = [row.name for row in guarded_rows if row.difference.interval(confidence)[1] < -guard_share * abs(row.first)]
    counts = tuple(max((len(values) for values in of_model.values()), default=1) for of_model in seeds)
    names = tuple(row.name for row in counting)
    return Verdict(score, of, names, widened, tuple(worse), (counts[0], counts[1]), confidence)


def check_names(guarded: Sequence[str], names: Sequence[str]) -> None:
    """Raises InputError if a guarded name is not among the compared ones."""
    for name in guarded:
        if name not in names:
            cause = f'[promote] guarded: no source with held-out text and no task is called "{name}"'
            raise InputError(cause, nearest(name, names))


def _with_seeds(estimate: PairedDifference, rows: Sequence[Comparison], seeds: tuple[Seeds, Seeds]) -> PairedDifference:
    """Returns `estimate`, the mean difference over `rows`, with the variance over seeds added, if there is one."""
    variances = [entry for entry in (_variance(rows, values) for values in seeds) if entry]
    if len(variances) == 1:
        variances = [(2 * variances[0][0], variances[0][1])]
    return paired.widened(estimate, variances)


def _variance(rows: Sequence[Comparison], seeds: Seeds) -> tuple[float, float] | None:
    """Returns the variance over seeds of the mean over `rows`, and its degrees of freedom; None for fewer than two."""
    columns = [seeds.get((row.kind, row.name, row.metric), ()) for row in rows]
    if min(map(len, columns)) < 2:
        return None
    means = [fmean(values) for values in zip(*columns, strict=True)]
    return variance(means), len(means) - 1


def counted(of: str, names: Sequence[str]) -> str:
    """Returns the rows of a score as text: "3 tasks", or "the responses of held-out examples"."""
    return f"the {names[0]} of held-out examples" if of == "examples" else f"{len(names)} {of}"


def reason(verdict: Verdict, champion: str, challenger: str) -> str:
    """Returns the decision and its reason as a sentence without a final period."""
    low, high = verdict.score.interval(verdict.confidence)
    over = f"over {counted(verdict.of, verdict.names)}"
    by = f"{low:+.4f} to {high:+.4f} {verdict.unit} {over}, {verdict.confidence:.0%} sure"
    if verdict.promoted:
        return f"{challenger} becomes champion: better than {champion} by {by}"
    if verdict.better:
        return f"{champion} stays champion: {challenger} is better by {by}, but worse on {', '.join(verdict.worse)}"
    if math.isinf(high):
        return f"{champion} stays champion: too few documents or items to tell {challenger} from it"
    return f"{champion} stays champion: {challenger} is {'surely worse' if high < 0 else 'not surely better'}, {by}"
