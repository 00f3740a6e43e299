"""Withheld documents: documents that are taken down are blank from a checkpoint on, poisoned ones immediately.

Reads `withhold.json` (`notice`); rank 0 writes `withheld.json` (`tasks.formats.tokens.marks`). A mark is part of the
state of every checkpoint from its step on, so that resumed runs and any number of ranks have the same batches.

A blank document keeps its positions: its tokens are replaced by end-of-text, and none of its tokens is a label.
Documents of a sequence do not attend to one another, so a blank document does not affect the model, and the rest of the
batch is unchanged. In the same way the loss of a single document is measured (`slice_losses`).
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.formats.tokens import marks
from tasks.formats.tokens.marks import Mark
from tasks.formats.tokens.plan import Slices
from tasks.trainer.data.batches import Batch, StepData, with_learned
from tasks.trainer.data.notice import REQUEST
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replica import Replica

log = logging.getLogger(__name__)
NOTHING_LEFT = "withheld"
"""Skip reason of a step whose whole batch is withheld."""


class Withheld:
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

    def without(self, step: int, parts: Mapping[int, Batch]) -> Mapping[int, Batch]:
        """Returns microbatches of a step, by number, without the documents that are withheld."""
        if not self._marks:
            return parts
        return {number: self.blank(part, self._batches.slices_of(step, number)) for number, part in parts.items()}

    def read_request(self, step: int) -> None:
        """Reads the request on rank 0, and withholds its documents on all ranks from `step` on; before a checkpoint.

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


@dataclass(frozen=True)
class SliceLoss:
    """A slice of a document in a batch: its source, the terms of its loss (`Replica.terms`), and their sum in nats."""

    source: str
    shard: str
    row: int
    labels: int
    loss: float


def slice_losses(replica: Replica, batches: StepData, step: int, parts: Mapping[int, Batch]) -> list[SliceLoss]:
    """Returns the slices of a step's batch with their losses; the result is equal on all ranks.

    Args:
        replica: the model.
        batches: the batches of the run.
        step: 0-based.
        parts: this rank's microbatches of the step, without withheld documents.
    """
    count = batches.microbatch_count(step)
    own = [number for number in replica.numbers if number < count]
    slices = {number: batches.slices_of(step, number) for number in range(count)}
    sizes = {number: sum(map(len, sequences)) for number, sequences in slices.items()}
    isolated = [part for number in own for part in _isolated_slices(parts[number], slices[number], batches.eos_id)]
    shares = count // len(own)
    count_of_parts = max(sum(sizes[number] for number in range(first, count, shares)) for first in range(shares))
    losses = replica.probe([*isolated, *[isolated[0]] * (count_of_parts - len(isolated))])
    ranks = replica.ranks
    whole = torch.zeros((2, sum(sizes.values())), dtype=torch.float64, device=ranks.device)
    begins = {number: sum(sizes[before] for before in range(number)) for number in range(count)}
    at = [begins[number] + index for number in own for index in range(sizes[number])]
    whole[0, at] = torch.from_numpy(losses[: len(isolated)]).to(ranks.device)
    whole[1, at] = torch.tensor([float(replica.terms(part)) for part in isolated], dtype=torch.float64).to(ranks.device)
    ranks.sum([whole])
    # Each of the ranks that share a sequence has counted its labels.
    repeated = ranks.world // shares
    places = [
        (source, batches.file_names[shard], row)
        for number, sequences in slices.items()
        for (source, _), sequence in zip(batches.drawn(step, number), sequences, strict=True)
        for shard, row in _places(sequence)
    ]
    return [
        SliceLoss(source, shard, row, int(labels) // repeated, loss)
        for (source, shard, row), loss, labels in zip(places, *whole.tolist(), strict=True)
    ]


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
    blanked = replace(batch, tokens=tokens, labels=batch.labels.masked_fill(torch.from_numpy(predicted), IGNORED))
    return blanked if batch.bounds.learned is None else with_learned(blanked)


def _isolated_slices(part: Batch, slices: Sequence[Slices], eos_id: int) -> Iterator[Batch]:
    """Yields for each slice its sequence with all other slices blanked."""
    for row, sequence_slices in enumerate(slices):
        tensors = (part.tokens, part.labels, part.documents)
        tokens, labels, documents = (tensor[row : row + 1].numpy() for tensor in tensors)
        sequence = Batch.of(tokens, labels, documents)
        for index in range(len(sequence_slices)):
            yield blank_slices(sequence, [sequence_slices], [np.arange(len(sequence_slices)) != index], eos_id)


def _rows(marks: Sequence[Mark]) -> dict[str, frozenset[int]]:
    """Returns the rows of all marks, by shard."""
    rows: dict[str, frozenset[int]] = {}
    for mark in marks:
        for shard, numbers in mark.rows.items():
            rows[shard] = rows.get(shard, frozenset()).union(numbers)
    return rows


def _places(slices: Slices) -> list[tuple[int, int]]:
    """Returns the number of the shard and the row of each slice."""
    return [(shard, row) for shard, row in slices[["shard", "row"]].tolist()]
