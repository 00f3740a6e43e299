"""Search for the cause of a refused step: documents that spoil its batch, damaged weights, or harder data.

A refused step has not changed the weights, so the loss of each document of its batch is recomputed with the same
weights, with all other documents of its sequence blanked, and without a gradient. Documents whose loss is not finite
are suspected; then documents whose loss is an outlier among the documents of their source in the batch, in order of
their excess, until the rest of the batch is within the bound. They are withheld and the step is repeated without them,
unless they are more than a few (`LARGEST_SHARE`) or most of their source (`LEAST_SHARE`): a source that is harder as a
whole is no poison.

If nothing is withheld, the last batch that was trained is measured again: if its loss is refused now, the weights are
damaged; otherwise the data of the step is the cause.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.formats.tokens.marks import Mark
from tasks.formats.tokens.plan import Slices
from tasks.trainer.data.batches import Batch, StepData
from tasks.trainer.data.withheld import Withheld, blank_slices, places_of
from tasks.trainer.hooks import Cause, Gradient, Hook
from tasks.trainer.integrity.guard import DEVIATIONS, ROUNDING
from tasks.trainer.logs import POISON
from tasks.trainer.parallel.ranks import Ranks

if TYPE_CHECKING:
    from tasks.trainer.loop import Trainer

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


class PoisonSearch(Hook):
    """Finds the cause of a refused step, and withholds the documents that spoil it.

    Args:
        trainer: the loop.
        withheld: receives the poisoned documents.
    """

    def __init__(self, trainer: "Trainer", withheld: Withheld) -> None:
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
            is_poison = not any(np.isfinite(piece.loss) for piece in suspects)
            if not (is_poison and cause.of_data and refused == "loss_spike"):
                self._withheld.withdraw()
                return gradient._replace(cause=cause)
        trainer.faults.report(POISON, step, *poison_report(step, reason, rows, shards))
        return rest._replace(stop=gradient.stop or rest.stop, cause=cause)

    def _slice_losses(self, step: int, parts: Mapping[int, Batch] | None = None) -> list["SliceLoss"]:
        """Returns the slices of a step with their losses; without withheld documents, as `parts` are."""
        trainer = self._trainer
        if parts is None:
            parts = self._withheld.before_step(step, trainer.batches.microbatches(step, trainer.replica.numbers))
        return slice_losses(trainer.replica, trainer.batches, trainer.ranks, step, parts)

    def _peers(
        self, step: int, slices: Sequence["SliceLoss"], suspects: Sequence["SliceLoss"]
    ) -> Sequence["SliceLoss"]:
        """Returns the slices of a step, and those of the next steps until each source of a suspect has enough."""
        peers, sources = list(slices), {piece.source for piece in suspects if np.isfinite(piece.loss)}
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


class Prober(Protocol):
    """A model that can compute the loss of sequences, on a single rank or on ranks that share a sequence."""

    numbers: range

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns this rank's contribution to the summed loss of each part, shape (parts,), without gradients.

        All ranks call this with the same number of parts.
        """

    def terms(self, part: Batch) -> int:
        """Returns the number of terms in the loss of a whole part on the CPU: labels, or pairs of preferences."""


@dataclass(frozen=True)
class SliceLoss:
    """A slice of a document in a batch: its source, the terms of its loss (`Prober.terms`), and their sum in nats."""

    source: str
    shard: str
    row: int
    labels: int
    loss: float


def slice_losses(
    prober: Prober, batches: StepData, ranks: Ranks, step: int, parts: Mapping[int, Batch]
) -> list[SliceLoss]:
    """Returns the slices of a step's batch with their losses; the result is equal on all ranks.

    Args:
        prober: the model.
        batches: the batches of the run.
        ranks: the process group.
        step: 0-based.
        parts: this rank's microbatches of the step, without withheld documents.
    """
    count = batches.batch_size // batches.microbatch
    slices = {number: batches.slices_of(step, number) for number in range(count)}
    sizes = {number: sum(map(len, sequences)) for number, sequences in slices.items()}
    isolated = [
        part for number in prober.numbers for part in _isolated_slices(parts[number], slices[number], batches.eos_id)
    ]
    shares = count // len(prober.numbers)
    count_of_parts = max(sum(sizes[number] for number in range(first, count, shares)) for first in range(shares))
    losses = prober.probe([*isolated, *[isolated[0]] * (count_of_parts - len(isolated))])
    whole = torch.zeros((2, sum(sizes.values())), dtype=torch.float64, device=ranks.device)
    begins = {number: sum(sizes[before] for before in range(number)) for number in range(count)}
    at = [begins[number] + index for number in prober.numbers for index in range(sizes[number])]
    whole[0, at] = torch.from_numpy(losses[: len(isolated)]).to(ranks.device)
    whole[1, at] = torch.tensor([float(prober.terms(part)) for part in isolated], dtype=torch.float64).to(ranks.device)
    ranks.sum([whole])
    # Each of the ranks that share a sequence has counted its labels.
    repeated = ranks.world // shares
    places = [
        (source, batches.file_names[shard], row)
        for number, sequences in slices.items()
        for source, sequence in zip(batches.sources_of(step, number), sequences, strict=True)
        for shard, row in places_of(sequence)
    ]
    return [
        SliceLoss(source, shard, row, int(labels) // repeated, loss)
        for (source, shard, row), loss, labels in zip(places, *whole.tolist(), strict=True)
    ]


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
    broken = [piece for piece in slices if not np.isfinite(piece.loss)]
    outliers = list[SliceLoss]()
    rest = [piece for piece in slices if np.isfinite(piece.loss) and piece.labels]
    measured = [piece for piece in peers if np.isfinite(piece.loss) and piece.labels]
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
    recent, suspected = _recent(step, batches), _places(rows)
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


def _isolated_slices(part: Batch, slices: Sequence[Slices], eos_id: int) -> Iterator[Batch]:
    """Yields for each slice its sequence with all other slices blanked."""
    for row, sequence_slices in enumerate(slices):
        tensors = (part.tokens, part.labels, part.documents)
        tokens, labels, documents = (tensor[row : row + 1].numpy() for tensor in tensors)
        sequence = Batch.of(tokens, labels, documents)
        for index in range(len(sequence_slices)):
            yield blank_slices(sequence, [sequence_slices], [np.arange(len(sequence_slices)) != index], eos_id)
