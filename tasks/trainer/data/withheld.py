"""Withheld documents: documents that are taken down are blank from a checkpoint on, poisoned ones immediately.

Reads `withhold.json` (`notice`); rank 0 writes `withheld.json` (`tasks.formats.tokens.marks`). A mark is part of the
state of every checkpoint from its step on, so that resumed runs and any number of ranks have the same batches.

A blank document keeps its positions: its tokens are replaced by end-of-text, and none of its tokens is a label.
Documents of a sequence do not attend to one another, so a blank document does not affect the model, and the rest of the
batch is unchanged.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.formats.tokens import marks
from tasks.formats.tokens.marks import Mark
from tasks.formats.tokens.plan import Slices
from tasks.trainer.data.batches import Batch, StepData
from tasks.trainer.data.notice import REQUEST
from tasks.trainer.hooks import Gradient, Hook
from tasks.trainer.logs import POISON
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.parallel.ranks import Ranks

if TYPE_CHECKING:
    from tasks.trainer.loop import Trainer

log = logging.getLogger(__name__)
NOTHING_LEFT = "withheld"
"""Skip reason of a step whose whole batch is withheld."""
LARGEST_SHARE = 0.5
"""Maximum share of the labels of a batch that a search may withhold."""
REPEATED = 3
"""Minimum number of steps that documents of a shard must have spoiled."""
LOOK_BACK = 200
"""Number of steps whose documents are counted, including the current one."""
LEAST_SHARE = 0.5
"""Minimum share of the shard's documents in these steps that must be poisoned."""


class Withheld(Hook):
    """The withheld documents of a run, on one rank.

    Args:
        out: folder of the run.
        ranks: the process group.
        batches: the batches of the run.
        steps: of the run.
        state: `state()` of the checkpoint that the run resumes from.
    """

    def __init__(
        self, out: Path, ranks: Ranks, batches: StepData, steps: int, state: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._out, self._ranks, self._batches, self._steps = out, ranks, batches, steps
        self._marks = [Mark.model_validate(mark) for mark in state]
        self._index()

    @property
    def marks(self) -> Sequence[Mark]:
        """The marks so far."""
        return self._marks

    def before_step(self, step: int, parts: Mapping[int, Batch]) -> Mapping[int, Batch]:
        """Returns the microbatches without the documents that are withheld."""
        if not self._marks:
            return parts
        return {number: self.blank(part, self._batches.slices_of(step, number)) for number, part in parts.items()}

    def before_checkpoint(self, step: int) -> None:
        """Reads the request on rank 0, and withholds its documents on all ranks from `step` on.

        The mark is part of the checkpoint, so a resumed run does not depend on the request.
        """
        if step == self._steps:
            return
        path = self._out / REQUEST
        text = path.read_text() if self._ranks.rank == 0 and path.exists() else "{}"
        request = json.loads(self._ranks.broadcast_text(text))
        # A takedown that is lifted during the run has no effect on it: batches with these documents were trained
        # already.
        withheld = _rows([mark for mark in self._marks if mark.takedowns])
        if all(withheld.get(shard, frozenset()).issuperset(rows) for shard, rows in request.get("rows", {}).items()):
            return
        self._add(Mark(step=step, **request))
        if self._ranks.rank == 0:
            count = sum(map(len, request["rows"].values()))
            log.info("from step %d on %d documents are withheld: %s", step, count, ", ".join(request["takedowns"]))

    def withhold_poisoned(
        self, step: int, reason: str, rows: Mapping[str, Sequence[int]], shards: tuple[str, ...] = ()
    ) -> None:
        """Withholds documents that spoil a step, from that step on; every rank calls this with equal arguments.

        Args:
            step: 0-based.
            reason: why the step was refused.
            rows: of the documents, by shard.
            shards: shards that are withheld completely.
        """
        documents = {shard: tuple(numbers) for shard, numbers in rows.items()}
        self._add(Mark(step=step, reason=reason, rows=documents, shards=shards))

    def withdraw(self) -> None:
        """Removes the newest mark; every rank calls this."""
        self._marks.pop()
        self._index()

    def _add(self, mark: Mark) -> None:
        self._marks.append(mark)
        self._index()

    def _index(self) -> None:
        self._rows = _rows(self._marks)
        self._shards = {shard for mark in self._marks for shard in mark.shards}
        self._write()

    def state(self) -> list[dict[str, Any]]:
        """Returns the marks for the state of a checkpoint."""
        return marks.plain(self._marks)

    def blank(self, batch: Batch, slices: Sequence[Slices]) -> Batch:
        """Returns a batch without the documents that are withheld.

        Args:
            batch: some sequences of a step.
            slices: of each of these sequences.
        """
        withheld = [self._withheld_slices(sequence) for sequence in slices]
        if not any(mask.any() for mask in withheld):
            return batch
        return blank_slices(batch, slices, withheld, self._batches.eos_id)

    def _withheld_slices(self, slices: Slices) -> NDArray[np.bool_]:
        """Returns which slices belong to withheld documents, shape (slices,)."""
        names = [(self._batches.file_names[shard], row) for shard, row in _places(slices)]
        return np.array([shard in self._shards or row in self._rows.get(shard, ()) for shard, row in names])

    def _write(self) -> None:
        """Writes the marks to the run's folder, replacing marks from after the checkpoint that the run resumed from."""
        path = self._out / marks.FILE
        if self._ranks.rank:
            return
        if not self._marks:
            path.unlink(missing_ok=True)
            return
        temporary = path.with_suffix(".aside")
        temporary.write_bytes(marks.to_json(self._marks))
        temporary.rename(path)


class PoisonSearch(Hook):
    """Finds and withholds the documents that spoil a step, and recomputes its gradient without them.

    A refused step has not changed the weights, so the loss of each document of its batch is recomputed with the same
    weights, with all other documents of its sequence blanked, and without a gradient. Documents whose loss is not
    finite are poisoned; then documents are removed in order of their excess over the mean loss until the rest of the
    batch is within the bound. If these are more than half of the batch, or the step is refused even without them, the
    cause is not the data but the weights or the hardware, and nothing is withheld.

    Args:
        trainer: the loop.
        withheld: receives the poisoned documents.
    """

    def __init__(self, trainer: "Trainer", withheld: Withheld) -> None:
        self._trainer, self._withheld = trainer, withheld

    def after_backward(self, step: int, parts: Mapping[int, Batch], gradient: Gradient) -> Gradient:
        """Returns the gradient without the poisoned documents if it is acceptable, otherwise the original gradient."""
        trainer, guard = self._trainer, self._trainer.guard
        reason = guard.reason(gradient.loss, gradient.norm) if gradient.labels else None
        if not reason:
            return gradient
        slices = slice_losses(trainer.replica, trainer.batches, trainer.ranks, step, parts)
        rows = find_poisoned(slices, guard.mean, guard.bound)
        if not rows:
            return gradient
        shards = shards_to_withhold(self._withheld.marks, rows, step, trainer.batches)
        self._withheld.withhold_poisoned(step, reason, rows, shards)
        rest = trainer.gradient(self._withheld.before_step(step, parts))
        if guard.reason(rest.loss, rest.norm):
            self._withheld.withdraw()
            return gradient
        trainer.faults.report(POISON, step, *poison_report(step, reason, rows, shards))
        return rest._replace(stop=gradient.stop or rest.stop)


class Prober(Protocol):
    """A model that can compute the loss of sequences, on a single rank or on ranks that share a sequence."""

    numbers: range

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns this rank's contribution to the summed loss of each part, shape (parts,), without gradients.

        All ranks call this with the same number of parts.
        """


@dataclass(frozen=True)
class SliceLoss:
    """A slice of a document in a batch: its number of labels and their summed loss in nats."""

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
    whole[1, at] = torch.tensor([float((part.labels >= 0).sum()) for part in isolated], dtype=torch.float64).to(
        ranks.device
    )
    ranks.sum([whole])
    # Each of the ranks that share a sequence has counted its labels.
    repeated = ranks.world // shares
    places = [
        (shard, row) for sequences in slices.values() for sequence in sequences for shard, row in _places(sequence)
    ]
    return [
        SliceLoss(batches.file_names[shard], row, int(labels) // repeated, loss)
        for (shard, row), loss, labels in zip(places, *whole.tolist(), strict=True)
    ]


def find_poisoned(slices: Sequence[SliceLoss], mean: float, bound: float) -> dict[str, list[int]]:
    """Returns the rows of the poisoned documents by shard, ascending; {} if documents are not the cause.

    Args:
        slices: of the batch, with their losses.
        mean: mean loss of recent steps, in nats per token; ignored if the bound is infinite.
        bound: the largest mean loss of a batch that is not refused.

    >>> slices = [SliceLoss("s", 1, 50, 100.0), SliceLoss("s", 4, 10, 90.0), SliceLoss("s", 2, 60, 120.0)]
    >>> find_poisoned(slices, 2.0, 2.2)
    {'s': [4]}
    """
    rest = [piece for piece in slices if np.isfinite(piece.loss)]
    poisoned = [piece for piece in slices if not np.isfinite(piece.loss)]
    rest.sort(key=lambda piece: piece.loss - mean * piece.labels)
    loss, labels = sum(piece.loss for piece in rest), sum(piece.labels for piece in rest)
    while rest and labels and loss / labels > bound:
        worst = rest.pop()
        poisoned.append(worst)
        loss, labels = loss - worst.loss, labels - worst.labels
    if sum(piece.labels for piece in poisoned) > LARGEST_SHARE * sum(piece.labels for piece in slices):
        return {}
    rows: dict[str, set[int]] = {}
    for piece in poisoned:
        rows.setdefault(piece.shard, set()).add(piece.row)
    return {shard: sorted(rows[shard]) for shard in sorted(rows)}


def shards_to_withhold(
    marks: Sequence[Mark], rows: Mapping[str, Sequence[int]], step: int, batches: StepData
) -> tuple[str, ...]:
    """Returns the names of the shards to withhold completely, ascending.

    A search finds only the documents of one batch. If most of the recently read documents of a shard were poisoned, the
    rest of the shard is assumed to be poisoned as well.

    Args:
        marks: of the run so far.
        rows: rows of the documents that spoiled this step, by shard.
        step: 0-based.
        batches: the batches of the run.
    """
    before = [mark.rows for mark in marks if mark.reason]
    suspects = {shard for shard in rows if 1 + sum(shard in rows_by_shard for rows_by_shard in before) >= REPEATED}
    if not suspects:
        return ()
    bad = {
        (shard, row) for rows_by_shard in (*before, rows) for shard, numbers in rows_by_shard.items() for row in numbers
    }
    documents = {place for at in range(max(0, step + 1 - LOOK_BACK), step + 1) for place in batches.documents(at)}
    recent = {shard: [place for place in documents if place[0] == shard] for shard in suspects}
    poisoned = [s for s, places in recent.items() if len(bad.intersection(places)) >= LEAST_SHARE * len(places)]
    return tuple(sorted(poisoned))


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


def blank_slices(batch: Batch, slices: Sequence[Slices], withheld: Sequence[NDArray[np.bool_]], eos_id: int) -> Batch:
    """Returns a batch with some slices blanked.

    Args:
        batch: some sequences.
        slices: of each of these sequences.
        withheld: which slices of each sequence to blank, bool of shape (slices,).
        eos_id: the end-of-text token.
    """
    hidden = np.zeros(batch.tokens.shape, dtype=bool)
    for row, (sequence, blank) in enumerate(zip(slices, withheld, strict=True)):
        covered = np.repeat(blank, sequence["length"])
        hidden[row, : len(covered)] = covered
        # The label of a position is the next token; after the last position, the last document continues.
        hidden[row, len(covered) :] = blank[-1]
    predicted = np.concatenate([hidden[:, 1:], hidden[:, -1:]], axis=1)
    tokens = batch.tokens.masked_fill(torch.from_numpy(hidden), eos_id)
    return replace(batch, tokens=tokens, labels=batch.labels.masked_fill(torch.from_numpy(predicted), IGNORED))


def _rows(marks: Sequence[Mark]) -> dict[str, frozenset[int]]:
    """Returns the rows of all marks, by shard."""
    rows: dict[str, frozenset[int]] = {}
    for mark in marks:
        for shard, numbers in mark.rows.items():
            rows[shard] = rows.get(shard, frozenset()).union(numbers)
    return rows


def _places(slices: Slices) -> list[tuple[int, int]]:
    return [(shard, row) for shard, row in slices[["shard", "row"]].tolist()]


def _isolated_slices(part: Batch, slices: Sequence[Slices], eos_id: int) -> Iterator[Batch]:
    """Yields for each slice its sequence with all other slices blanked."""
    for row, sequence_slices in enumerate(slices):
        tensors = (part.tokens, part.labels, part.documents)
        tokens, labels, documents = (tensor[row : row + 1].numpy() for tensor in tensors)
        sequence = Batch.of(tokens, labels, documents)
        for index in range(len(sequence_slices)):
            yield blank_slices(sequence, [sequence_slices], [np.arange(len(sequence_slices)) != index], eos_id)
