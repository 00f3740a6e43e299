"""Search for the documents that spoil a step which the loss guard refuses.

A refused step has not changed the weights, so the loss of each document of its batch is recomputed with the same
weights, with all other documents of its sequence blanked, and without a gradient. Documents whose loss is not finite
are suspected; then documents whose loss is an outlier among the documents of their source in the batch, in order of
their excess, until the rest of the batch is within the bound. They are withheld and the step is repeated without them,
unless they are more than a few (`LARGEST_SHARE`) or most of their source (`LEAST_SHARE`): a source that is harder as a
whole is no poison.

If nothing is withheld, the last batch that was trained is measured again: if its loss is refused now, the weights are
damaged; otherwise the data of the step is the cause.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from statistics import median

from tasks.formats.tokens.marks import Mark
from tasks.trainer.data.batches import Batch, StepData
from tasks.trainer.data.withheld import SliceLoss, slice_losses
from tasks.trainer.gradient import Cause, Gradient, GradientComputer
from tasks.trainer.integrity.corruption import Integrity
from tasks.trainer.integrity.guard import DEVIATIONS, ROUNDING, LossGuard
from tasks.trainer.logs import POISON, Faults

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


class PoisonSearch:
    """Finds the cause of a refused step, and withholds the documents that spoil it.

    Args:
        integrity: computes the gradients.
        guard: of the run.
        computer: its withheld documents receive the poisoned ones.
        steps: of the run.
        faults: of the run.
    """

    def __init__(
        self, integrity: Integrity, guard: LossGuard, computer: GradientComputer, steps: int, faults: Faults
    ) -> None:
        self._integrity, self._guard, self._computer = integrity, guard, computer
        self._withheld, self._batches, self._steps, self._faults = computer.withheld, computer.batches, steps, faults

    def gradient(self, step: int, parts: Mapping[int, Batch]) -> Gradient:
        """Returns the gradient of a step, without poisoned documents if it is acceptable then.

        Args:
            step: 0-based.
            parts: this rank's microbatches by number, without withheld documents.

        Raises:
            TransientError: silent corruption was detected on a rank.
        """
        guard, gradient = self._guard, self._integrity.gradient(step, parts)
        reason = guard.reason(gradient)
        if not reason:
            return gradient
        slices = slice_losses(self._computer.replica, self._batches, step, parts)
        suspects = find_suspects(slices, slices, guard.mean, guard.bound)
        suspects = find_suspects(slices, self._peers(step, slices, suspects), guard.mean, guard.bound)
        rows, marks = rows_of(suspects), self._withheld.marks
        doubt = doubt_about(suspects, slices) or doubt_about_sources(marks, rows, step, self._batches)
        if doubt:
            return gradient._replace(cause=self._cause(reason, doubt, rows))
        shards = shards_to_withhold(marks, rows, step, self._batches)
        self._withheld.withhold_poisoned(step, reason, rows, shards)
        rest = self._integrity.gradient(step, self._withheld.without(step, parts))
        refused, cause = guard.reason(rest), None
        if refused:
            cause = self._cause(refused, "without the suspected documents the step is refused as well", rows)
            # A document whose own loss is not finite is poison also in a batch that is harder as a whole.
            is_poison = not any(math.isfinite(piece.loss) for piece in suspects)
            if not (is_poison and cause.of_data and refused == "loss_spike"):
                self._withheld.withdraw()
                return gradient._replace(cause=cause)
        self._faults.report(POISON, step, *poison_report(step, reason, rows, shards))
        return rest._replace(stop=gradient.stop or rest.stop, cause=cause)

    def _slice_losses(self, step: int) -> list[SliceLoss]:
        """Returns the slices of a step with their losses, without withheld documents."""
        return slice_losses(self._computer.replica, self._batches, step, self._computer.parts(step))

    def _peers(self, step: int, slices: Sequence[SliceLoss], suspects: Sequence[SliceLoss]) -> Sequence[SliceLoss]:
        """Returns the slices of a step, and those of the next steps until each source of a suspect has enough."""
        peers, sources = list(slices), {piece.source for piece in suspects if math.isfinite(piece.loss)}
        for later in range(step + 1, min(step + 1 + PEER_STEPS, self._steps)):
            counts = Counter(piece.source for piece in peers)
            if all(counts[source] >= PEERS for source in sources):
                break
            peers += self._slice_losses(later)
        return peers

    def _cause(self, reason: str, doubt: str, rows: Mapping[str, Sequence[int]]) -> Cause:
        """Returns the cause of a refused step of which no document is withheld."""
        guard = self._guard
        if guard.trained is None:
            return Cause(f"{doubt}; no step was trained before", "see the initial weights", rows)
        last = guard.trained
        slices = self._slice_losses(last)
        labels = sum(piece.labels for piece in slices)
        loss = sum(piece.loss for piece in slices) / max(labels, 1)
        again = f"the batch of step {last}, which was trained, now has a loss of {loss:.4g}"
        if guard.reason(Gradient(loss, 0.0, max(labels, 1), False)):
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
