"""Loss guard: skips steps whose loss or gradient is not finite or whose loss is a spike, and searches the cause.

A spike is a loss more than 6 standard deviations above the mean of the last 128 finite losses, refused ones included,
with the rule and the numbers of OLMo-core's SkipStepOptimizer. So a new level of the loss is refused for four steps at
most: a fifth of equal height is within the bound, which these four have moved. SkipStep also refuses losses far below
the mean and outliers of the gradient norm; here a low loss is never refused, clipping bounds the norm, and the
distribution of norms is too heavy-tailed for the rule (6.6 deviations in a clean run).

Two exceptions. Where the data is planned to change (`TrainSpec.data_changes`), the window starts empty. A loss that
damaged weights cause does not enter the window, because it is no level of the data.

The decision is the same on every rank, because losses are summed over all ranks. The state is part of the checkpoint,
so a resumed run makes the same decisions as an uninterrupted one.

After several refused steps in a row, unless their data is the cause, the weights are assumed to be damaged by earlier
steps, as in PaLM (Chowdhery et al. 2022, arXiv 2204.02311, section 5.1): the run loads a checkpoint from before the
first refused step and passes over all steps from there to the last refused one. The ranges of these steps are part of
the state of later checkpoints.

Search. A refused step has not changed the weights, so the loss of each document of its batch is recomputed with the
same weights, with all other documents of its sequence blanked, and without a gradient. Documents whose loss is not
finite are suspected; then documents whose loss is an outlier among the documents of their source in the batch, in order
of their excess, until the rest of the batch is within the bound. They are withheld and the step is repeated without
them, unless they are more than a few (`LARGEST_SHARE`) or most of their source (`LEAST_SHARE`): a source that is harder
as a whole is no poison.

If nothing is withheld, the last batch that was trained is measured again: if its loss is refused now, the weights are
damaged; otherwise the data of the step is the cause.
"""

import math
import shutil
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Protocol

from tasks.core.errors import InputError
from tasks.formats.tokens.marks import Mark
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch, StepData
from tasks.trainer.data.withheld import Prober, SliceLoss, Withheld, slice_losses
from tasks.trainer.hooks import Cause, Gradient, Hook
from tasks.trainer.logs import POISON, Faults
from tasks.trainer.parallel.ranks import Ranks

WINDOW = 128
"""Number of losses that a loss is compared with."""
MIN_LOSSES = WINDOW // 2 - 1
"""Minimum number of them; with fewer, only values that are not finite are refused."""
DEVIATIONS = 6.0
ROUNDING = 1e-6
"""Relative difference of two losses that is rounding: the least deviation of losses that are all the same."""
ROLL_BACK_AFTER = 5
"""Refused steps in a row after which the run loads an earlier checkpoint, if possible (`may_roll_back_to`)."""
MAX_REFUSED = 10
"""Refused steps in a row that end the run."""
PASSED_OVER = "passed_over"
"""Skip reason of a step that is passed over after a rollback."""
MAX_ROLLBACKS = 3
StepRanges = list[tuple[int, int]]
"""Ranges of steps, [first, end)."""
LARGEST_SHARE = 0.1
"""Maximum share of the labels of a batch that a search withholds, unless it is a single document. Poison is rare: if
more of a batch is needed to explain its loss, the data is harder, and withholding it would change the mixture."""
REPEATED = 3
"""Minimum number of documents that show a pattern: of a source, or of a shard in different steps."""
LOOK_BACK = 200
"""Number of steps whose documents are counted, including the current one."""
LEAST_SHARE = 0.5
"""Share of the documents of a source in these steps from which no more of it are withheld; and share of the documents
of a shard from which the rest of the shard is withheld as well."""
PEERS = 5
"""Minimum number of slices of a source to compare with; with fewer, those of all sources are compared."""
PEER_STEPS = 16
"""Maximum number of later steps that are measured if a batch has fewer of a suspect's source."""
MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution, as a multiple of its median absolute deviation."""
_SEE = "see the documents in skipped.jsonl, and leave them or their source out"
_AGAIN = "no earlier checkpoint was good: train again with a lower optim.lr, or a smaller checkpoint_every"


class LossGuard:
    """Checks the losses of a run.

    Args:
        losses: the latest losses, oldest first.
        refused: number of consecutive refused steps; also an attribute.
        trained: the last step that was not refused, or None; also an attribute.
    """

    def __init__(self, losses: Sequence[float] = (), refused: int = 0, trained: int | None = None) -> None:
        self._losses = deque(losses, maxlen=WINDOW)
        self.refused, self.trained = refused, trained

    def restart(self) -> None:
        """Empties the window, before a step from which losses do not compare with earlier ones."""
        self._losses.clear()

    def refusal(self, step: int, loss: float, norm: float, cause: Cause | None = None) -> str | None:
        """Returns the reason to skip a step, or None; adds the loss to the window.

        Args:
            step: 0-based.
            loss: mean over the batch, nats per token.
            norm: of the gradient before clipping.
            cause: of a loss that is refused, if it was searched for.
        """
        reason = self.reason(loss, norm)
        self.refused = self.refused + 1 if reason else 0
        if not reason:
            self.trained = step
        if math.isfinite(loss) and not (cause and cause.of_weights):
            self._losses.append(loss)
        return reason

    def reason(self, loss: float, norm: float) -> str | None:
        """Returns the reason to skip a step, or None; arguments as for `refusal`."""
        if not math.isfinite(loss):
            return "loss_not_finite"
        if not math.isfinite(norm):
            return "gradient_not_finite"
        return "loss_spike" if loss > self.bound else None

    @property
    def mean(self) -> float:
        """Mean of the latest losses; 0 if there are none."""
        return fmean(self._losses) if self._losses else 0.0

    @property
    def bound(self) -> float:
        """The largest loss that is not a spike."""
        if len(self._losses) < MIN_LOSSES:
            return math.inf
        return self.mean + DEVIATIONS * max(stdev(self._losses), ROUNDING * abs(self.mean))

    def check_refused(self, step: int, reason: str, cause: Cause | None) -> None:
        """Raises InputError, with the cause of the last one, if too many steps in a row were refused.

        Args:
            step: the last one.
            reason: why it was refused.
            cause: of the refusal, if it was searched for.
        """
        if self.refused >= MAX_REFUSED:
            found = f": {cause.what}" if cause else ""
            raise InputError(
                f"{MAX_REFUSED} steps in a row were refused, up to step {step} ({reason}){found}",
                cause.do if cause else "see skipped.jsonl",
            )

    def state(self) -> dict[str, list[float] | int | None]:
        """Returns the constructor arguments of an equal guard."""
        return {"losses": list(self._losses), "refused": self.refused, "trained": self.trained}


class Loop(Protocol):
    """What the search reads of the training loop."""

    @property
    def guard(self) -> LossGuard:
        """The guard of the run."""

    @property
    def replica(self) -> Prober:
        """The model, which computes losses of documents."""

    @property
    def batches(self) -> StepData:
        """The batches of the run."""

    @property
    def ranks(self) -> Ranks:
        """The process group."""

    @property
    def run(self) -> TrainConfig:
        """The settings of the run."""

    @property
    def faults(self) -> Faults:
        """The reports of faults."""

    def gradient(self, parts: Mapping[int, Batch]) -> Gradient:
        """Returns loss and gradient of microbatches of this rank, reduced over all ranks."""


class PoisonSearch(Hook):
    """Finds the cause of a refused step, and withholds the documents that spoil it.

    Args:
        trainer: the loop.
        withheld: receives the poisoned documents.
    """

    def __init__(self, trainer: Loop, withheld: Withheld) -> None:
        self._trainer, self._withheld = trainer, withheld

    def after_backward(self, step: int, parts: Mapping[int, Batch], gradient: Gradient) -> Gradient:
        """Returns the gradient without the poisoned documents if it is acceptable, otherwise the original one."""
        trainer, guard = self._trainer, self._trainer.guard
        reason = guard.reason(gradient.loss, gradient.norm) if gradient.labels else None
        if not reason:
            return gradient
        slices = self._slice_losses(step, parts)
        suspects = find_suspects(slices, slices, guard.mean, guard.bound)
        suspects = find_suspects(slices, self._peers(step, slices, suspects), guard.mean, guard.bound)
        rows, marks = rows_of(suspects), self._withheld.marks
        doubt = doubt_about(suspects, slices) or doubt_about_sources(marks, rows, step, trainer.batches)
        if doubt:
            return gradient._replace(cause=self._cause(reason, doubt, rows))
        shards = shards_to_withhold(marks, rows, step, trainer.batches)
        self._withheld.withhold_poisoned(step, reason, rows, shards)
        rest = trainer.gradient(self._withheld.before_step(step, parts))
        refused, cause = guard.reason(rest.loss, rest.norm), None
        if refused:
            cause = self._cause(refused, "without the suspected documents the step is refused as well", rows)
            # A document whose own loss is not finite is poison also in a batch that is harder as a whole.
            is_poison = not any(math.isfinite(piece.loss) for piece in suspects)
            if not (is_poison and cause.of_data and refused == "loss_spike"):
                self._withheld.withdraw()
                return gradient._replace(cause=cause)
        trainer.faults.report(POISON, step, *poison_report(step, reason, rows, shards))
        return rest._replace(stop=gradient.stop or rest.stop, cause=cause)

    def _slice_losses(self, step: int, parts: Mapping[int, Batch] | None = None) -> list[SliceLoss]:
        """Returns the slices of a step with their losses; without withheld documents, as `parts` are."""
        trainer = self._trainer
        if parts is None:
            parts = self._withheld.before_step(step, trainer.batches.microbatches(step, trainer.replica.numbers))
        return slice_losses(trainer.replica, trainer.batches, trainer.ranks, step, parts)

    def _peers(self, step: int, slices: Sequence[SliceLoss], suspects: Sequence[SliceLoss]) -> Sequence[SliceLoss]:
        """Returns the slices of a step, and those of the next steps until each source of a suspect has enough."""
        peers, sources = list(slices), {piece.source for piece in suspects if math.isfinite(piece.loss)}
        for later in range(step + 1, min(step + 1 + PEER_STEPS, self._trainer.run.steps)):
            counts = Counter(piece.source for piece in peers)
            if all(counts[source] >= PEERS for source in sources):
                break
            peers += self._slice_losses(later)
        return peers

    def _cause(self, reason: str, doubt: str, rows: Mapping[str, Sequence[int]]) -> Cause:
        """Returns the cause of a refused step of which no document is withheld."""
        guard = self._trainer.guard
        if guard.trained is None:
            return Cause(f"{doubt}; no step was trained before", "see the initial weights", rows)
        last = guard.trained
        slices = self._slice_losses(last)
        labels = sum(piece.labels for piece in slices)
        loss = sum(piece.loss for piece in slices) / max(labels, 1)
        again = f"the batch of step {last}, which was trained, now has a loss of {loss:.4g}"
        if guard.reason(loss, 0.0):
            return Cause(f"{again}: the weights are damaged", _AGAIN, {}, of_weights=True)
        if rows or reason == "loss_spike":
            return Cause(
                f"{doubt}; {again}, so the weights are good and the data is the cause", _SEE, rows, of_data=True
            )
        return Cause(f"{doubt}; {again}", "lower optim.lr, or set precision to fp32", {})


def find_suspects(
    slices: Sequence[SliceLoss], peers: Sequence[SliceLoss], mean: float, bound: float
) -> list[SliceLoss]:
    """Returns the slices without which the loss of a batch is within the bound.

    If it is not within the bound without all suspected ones, only those whose loss is not finite are returned.

    A slice is suspected if its loss is not finite, or more than `DEVIATIONS` above the usual loss of its source, in
    standard deviations between slices of the source. So a source whose documents are all harder has no suspects.

    Args:
        slices: of the batch, with their losses.
        peers: slices to compare with: those of the batch, and more if a source has few of them.
        mean: mean loss of recent steps, in nats per label; ignored if the bound is infinite.
        bound: the largest mean loss of a batch that is not refused.

    >>> slices = [SliceLoss("web", "s", row, 50, 100.0 + row) for row in range(9)] + [SliceLoss("web", "s", 9, 10, 90)]
    >>> [piece.row for piece in find_suspects(slices, slices, 2.0, 2.2)]
    [9]
    """
    broken = [piece for piece in slices if not math.isfinite(piece.loss)]
    outliers = list[SliceLoss]()
    rest = [piece for piece in slices if math.isfinite(piece.loss) and piece.labels]
    measured = [piece for piece in peers if math.isfinite(piece.loss) and piece.labels]
    usual = {source: _usual(source, measured, mean) for source in {piece.source for piece in rest}}

    def excess(piece: SliceLoss) -> float:
        return piece.loss - usual[piece.source][0] * piece.labels

    rest.sort(key=excess)
    loss, labels = sum(piece.loss for piece in rest), sum(piece.labels for piece in rest)
    while rest and labels and loss / labels > bound:
        worst = rest.pop()
        if excess(worst) <= DEVIATIONS * usual[worst.source][1] * worst.labels:
            continue
        outliers.append(worst)
        loss, labels = loss - worst.loss, labels - worst.labels
    return [*broken, *outliers] if not labels or loss / labels <= bound else broken


def _usual(source: str, slices: Sequence[SliceLoss], mean: float) -> tuple[float, float]:
    """Returns the usual loss of a slice of a source, in nats per label, and its standard deviation; both are robust."""
    peers = [piece for piece in slices if piece.source == source]
    losses = [piece.loss / piece.labels for piece in (peers if len(peers) >= PEERS else slices)]
    level = max(mean, median(losses))
    spread = MAD_TO_DEVIATION * median(abs(loss - level) for loss in losses)
    return level, max(spread, ROUNDING * abs(level))


def rows_of(slices: Sequence[SliceLoss]) -> dict[str, list[int]]:
    """Returns the rows of documents by shard, ascending."""
    places = sorted({(piece.shard, piece.row) for piece in slices})
    return {shard: [row for _, row in rows] for shard, rows in groupby(places, key=lambda place: place[0])}


def doubt_about(suspects: Sequence[SliceLoss], slices: Sequence[SliceLoss]) -> str:
    """Returns why the suspects of a batch are not to be withheld; "" if they are.

    Args:
        suspects: some of the slices.
        slices: of the batch.
    """
    if not suspects:
        return "no document stands out among those of its source"
    share = sum(piece.labels for piece in suspects) / max(1, sum(piece.labels for piece in slices))
    documents = {(piece.shard, piece.row) for piece in suspects}
    if len(documents) > 1 and share > LARGEST_SHARE:
        return f"{len(documents)} documents are suspected, {share:.1%} of the batch: more than {LARGEST_SHARE:.0%}"
    return ""


def doubt_about_sources(marks: Sequence[Mark], rows: Mapping[str, Sequence[int]], step: int, batches: StepData) -> str:
    """Returns why documents are not to be withheld because of their sources; "" if they are.

    Args:
        marks: of the run so far.
        rows: rows of the suspected documents, by shard.
        step: 0-based.
        batches: the batches of the run.
    """
    suspected = _places(rows)
    if len(suspected) + sum(len(_places(mark.rows)) for mark in marks if mark.reason) < REPEATED:
        return ""  # without the documents of many steps, which take a second in a large run
    recent = _recent(step, batches)
    bad = _bad(marks, recent) | suspected
    for source in sorted({recent[place] for place in suspected}):
        if count := _most_of(source, recent, bad):
            return f'{count} of the documents of "{source}" in the last {LOOK_BACK} steps are suspected: half or more'
    return ""


def shards_to_withhold(
    marks: Sequence[Mark], rows: Mapping[str, Sequence[int]], step: int, batches: StepData
) -> tuple[str, ...]:
    """Returns the names of the shards to withhold completely, ascending.

    A search finds only the documents of one batch. If most of the recently read documents of a shard were poisoned, the
    rest of the shard is assumed to be poisoned as well, unless that would be most of a source, or more than
    `LARGEST_SHARE` of the documents.

    Args:
        marks: of the run so far.
        rows: rows of the documents that spoiled this step, by shard.
        step: 0-based.
        batches: the batches of the run.
    """
    before = [mark.rows for mark in marks if mark.reason]
    suspects = {shard for shard in rows if 1 + sum(shard in earlier for earlier in before) >= REPEATED}
    if not suspects:
        return ()
    recent = _recent(step, batches)
    bad = _bad(marks, recent) | _places(rows)
    withheld: list[str] = []
    for shard in sorted(suspects):
        of_shard = {place for place in recent if place[0] == shard}
        is_bad = len(bad & of_shard) >= LEAST_SHARE * len(of_shard)
        is_small = len((bad | of_shard) & recent.keys()) <= LARGEST_SHARE * len(recent)
        sources = {recent[place] for place in of_shard}
        if is_bad and is_small and not any(_most_of(source, recent, bad | of_shard) for source in sources):
            withheld.append(shard)
            bad |= of_shard
    return tuple(withheld)


def poison_report(
    step: int, reason: str, rows: Mapping[str, Sequence[int]], shards: Sequence[str] = ()
) -> tuple[str, str]:
    """Returns the description of a poisoned step, and the recommended action."""
    count = sum(map(len, rows.values()))
    places = ", ".join(f"{shard} row {', '.join(map(str, numbers))}" for shard, numbers in rows.items())
    whole = f"; and all of {', '.join(shards)}, whose documents have spoiled steps before" if shards else ""
    return (
        f"{reason}: {count} document{'s' * (count > 1)} blank from here on: {places}{whole}",
        f"see them with `trace step:{step}`; if they are of one shard or site, find out how they came in",
    )


_Place = tuple[str, int]
"""Shard and row of a document."""


def _recent(step: int, batches: StepData) -> dict[_Place, str]:
    """Returns the source of each document that was read in the last steps."""
    recent: dict[_Place, str] = {}
    for at in range(max(0, step + 1 - LOOK_BACK), step + 1):
        recent |= batches.documents(at)
    return recent


def _places(rows: Mapping[str, Sequence[int]]) -> set[_Place]:
    return {(shard, row) for shard, numbers in rows.items() for row in numbers}


def _bad(marks: Sequence[Mark], recent: Collection[_Place]) -> set[_Place]:
    """Returns the recent documents that earlier searches have withheld."""
    found = [mark for mark in marks if mark.reason]
    shards = {shard for mark in found for shard in mark.shards}
    rows = set[_Place]().union(*(_places(mark.rows) for mark in found))
    return {place for place in recent if place in rows or place[0] in shards}


def _most_of(source: str, recent: Mapping[_Place, str], bad: set[_Place]) -> str:
    """Returns "3 of 4" if at least half of the recent documents of a source are bad, and not only a few; else ""."""
    of_source = [place for place, name in recent.items() if name == source]
    count = len(bad.intersection(of_source))
    is_most = count >= REPEATED and count >= LEAST_SHARE * len(of_source)
    return f"{count} of {len(of_source)}" if is_most else ""


def may_roll_back_to(step: int, first_refused: int, committed: int, passed: Sequence[tuple[int, int]]) -> bool:
    """Returns whether the run may load the checkpoint of a step; never after too many rollbacks.

    Args:
        step: of the checkpoint.
        first_refused: the first of the refused steps.
        committed: the last milestone so far, which may be committed already and is not replaced; 0: none.
        passed: ranges that are passed over so far. Checkpoints within them, or at their ends, have weights that an
            earlier rollback loaded.
    """
    is_passed = any(first <= step <= end for first, end in passed)
    return len(passed) < MAX_ROLLBACKS and committed <= step < first_refused and not is_passed


def drop_after(root: Path, step: int) -> None:
    """Deletes the checkpoints after a step, so that a resumed run does not start from them."""
    for later in [later for later in checkpoint.steps_at(root) if later > step]:
        shutil.rmtree(root / checkpoint.name_of(later), ignore_errors=True)


def in_ranges(passed: Sequence[tuple[int, int]], step: int) -> bool:
    """Returns whether a step is in one of the ranges.

    >>> in_ranges([(3, 5)], 4), in_ranges([(3, 5)], 5)
    (True, False)
    """
    return any(first <= step < end for first, end in passed)
