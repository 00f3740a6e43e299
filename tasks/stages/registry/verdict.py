"""Whether a challenger is promoted: pure functions over what was compared.

The score is the mean difference over the tasks or, where none counts, over the sources. It must be above 0 with its
whole interval, and no guarded source or task may be below what is tolerated with its whole interval. A task whose items
stand in text that the challenger has learned from does not count in the score; it is guarded all the same.

An interval over documents or items says how the two models differ, and not how two trainings would that differ in
nothing but their seeds. Where a model has been trained with several seeds, the variance of its values over them is
added: that of the one training that is compared. Where only one of the two has such trainings, its variance stands for
both. Part of it is in the interval over items already, so the sum is on the safe side.
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
"""Values of a model by (kind, name, metric), one for each seed that it was trained with."""

UNITS = {"bpb": "bits per byte"}


@dataclass(frozen=True)
class Verdict:
    """Result of a comparison.

    Attributes:
        score: how much better the challenger is.
        of: "tasks" or "sources": what the score is a mean over.
        names: which of them count.
        rows: all that was compared, with the seeds in their differences.
        worse: names of the guarded ones that are surely worse.
        seeds: trainings of challenger and champion that the variance over seeds is from; 1 where there is no other.
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
        """The rows that the score is the mean of."""
        return [row for row in self.rows if f"{row.kind}s" == self.of and row.name in self.names]


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
        rows: what was compared; the first model is the champion, the second the challenger.
        read: for each task {items, documents} that the challenger has learned from; None where it was not looked for.
        seeds: of challenger and champion.
        confidence: of all intervals.
        guarded: names that must not become worse; (): all.
        guard_share: tolerated loss of these, as a share of the champion's value.

    Raises:
        InputError: a guarded name was not compared.
    """
    check_names(guarded, [row.name for row in rows])
    counting = [row for row in rows if row.kind == "task" and not (read.get(row.name) or {}).get("items")]
    of, counting = ("tasks", counting) if counting else ("sources", [row for row in rows if row.kind == "source"])
    wide = tuple(replace(row, difference=_with_seeds(row.difference, [row], seeds)) for row in rows)
    score = _with_seeds(paired.mean([row.difference for row in counting]), counting, seeds)
    watched = [row for row in wide if not guarded or row.name in guarded]
    worse = [row.name for row in watched if row.difference.interval(confidence)[1] < -guard_share * abs(row.first)]
    counts = tuple(max((len(values) for values in one.values()), default=1) for one in seeds)
    names = tuple(row.name for row in counting)
    return Verdict(score, of, names, wide, tuple(worse), (counts[0], counts[1]), confidence)


def check_names(guarded: Sequence[str], known: Sequence[str]) -> None:
    """Raises InputError where a guarded name is none of those that are compared."""
    for name in guarded:
        if name not in known:
            cause = f'[promote] guarded: no source with held-out text and no task is called "{name}"'
            raise InputError(cause, nearest(name, known))


def _with_seeds(estimate: PairedDifference, rows: Sequence[Comparison], seeds: tuple[Seeds, Seeds]) -> PairedDifference:
    """Returns the difference of the mean over `rows` with the variance over seeds added, where there is one."""
    found = [one for one in (_variance(rows, values) for values in seeds) if one]
    if len(found) == 1:
        found = [(2 * found[0][0], found[0][1])]
    return paired.widened(estimate, found)


def _variance(rows: Sequence[Comparison], seeds: Seeds) -> tuple[float, float] | None:
    """Returns variance over seeds of the mean over `rows`, and its degrees of freedom; None without two seeds."""
    columns = [seeds.get((row.kind, row.name, row.metric), ()) for row in rows]
    if min(map(len, columns)) < 2:
        return None
    means = [fmean(values) for values in zip(*columns, strict=True)]
    return variance(means), len(means) - 1


def reason(verdict: Verdict, champion: str, challenger: str) -> str:
    """Returns the decision and its reason in one sentence, without full stop."""
    low, high = verdict.score.interval(verdict.confidence)
    over = f"over {len(verdict.names)} {verdict.of}"
    by = f"{low:+.4f} to {high:+.4f} {verdict.unit} {over}, {verdict.confidence:.0%} sure"
    if verdict.promoted:
        return f"{challenger} becomes champion: better than {champion} by {by}"
    if verdict.better:
        return f"{champion} stays champion: {challenger} is better by {by}, but worse on {', '.join(verdict.worse)}"
    if math.isinf(high):
        return f"{champion} stays champion: too few documents or items to tell {challenger} from it"
    return f"{champion} stays champion: {challenger} is not surely better, {by}"
