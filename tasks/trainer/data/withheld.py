"""Withheld documents: taken down before or during a run and blank from a checkpoint on, or poisoned and blank at once.

Reads `withhold.json` (`notice`); rank 0 writes `withheld.json` (`tasks.formats.tokens.marks`). A mark is part of the
state of every checkpoint from its step on, so a resumed run and any number of ranks see the same batches.

A blank document keeps its place: its tokens are end-of-text, and no label is one of its tokens. Documents of a sequence
do not attend to one another, so nothing of it reaches the model, and nothing else of the batch changes.
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
"""Why a step is skipped whose batch has no other document."""
LARGEST_SHARE = 0.5
"""Share of the labels of a batch that may be found guilty."""
REPEATED = 3
"""Steps that documents of a shard must have spoilt."""
LOOK_BACK = 200
"""Steps whose documents are counted, the present one included."""
LEAST_SHARE = 0.5
"""Share of the shard's documents in these steps that must have been found."""


class Withheld(Hook):
    """The marks of a run, on one rank: which documents are blank.

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

        The mark is in the state of the checkpoint, so a resumed run does not look again.
        """
        if step == self._steps:
            return
        path = self._out / REQUEST
        text = path.read_text() if self._ranks.rank == 0 and path.exists() else "{}"
        request = json.loads(self._ranks.broadcast_text(text))
        # What is lifted while the run goes on stays blank: its order of batches has passed these documents by.
        known = _rows([mark for mark in self._marks if mark.takedowns])
        if all(known.get(shard, frozenset()).issuperset(rows) for shard, rows in request.get("rows", {}).items()):
            return
        self._add(Mark(step=step, **request))
        if self._ranks.rank == 0:
            count = sum(map(len, request["rows"].values()))
            log.info("from step %d on %d documents are withheld: %s", step, count, ", ".join(request["takedowns"]))

    def poisoned(self, step: int, reason: str, rows: Mapping[str, Sequence[int]], shards: tuple[str, ...] = ()) -> None:
        """Withholds documents that have spoilt a step from that step on; every rank calls this with equal arguments.

        Args:
            step: 0-based.
            reason: why the step was refused.
            rows: of the documents, by shard.
            shards: those that are withheld as a whole.
        """
        found = {shard: tuple(several) for shard, several in rows.items()}
        self._add(Mark(step=step, reason=reason, rows=found, shards=shards))

    def withdraw(self) -> None:
        """Takes the newest mark back; every rank calls this."""
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
        """Returns the marks for the state of a checkpoint; empty while there is none."""
        return marks.plain(self._marks)

    def blank(self, batch: Batch, slices: Sequence[Slices]) -> Batch:
        """Returns a batch without the documents that are withheld.

        Args:
            batch: some sequences of a step.
            slices: of each of these sequences.
        """
        gone = [self._gone(found) for found in slices]
        return hide(batch, slices, gone, self._batches.eos_id) if any(found.any() for found in gone) else batch

    def _gone(self, slices: Slices) -> NDArray[np.bool_]:
        """Returns which slices are of withheld documents, shape (slices,)."""
        names = [(self._batches.plan.shards[shard], row) for shard, row in _places(slices)]
        return np.array([shard in self._shards or row in self._rows.get(shard, ()) for shard, row in names])

    def _write(self) -> None:
        """Writes the marks of the run so far; removes those of a run that went further than its checkpoint."""
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
    """Withholds the documents that spoil a step, and has its gradient computed without them.

    A refused step has not changed the weights, so the loss of each document of its batch is computed again with them,
    without any other document in its sequence, and without a gradient. Guilty is what is not finite, and then, from the
    largest excess over the mean loss down, what must go for the rest of the batch to be within the bound. Where that is
    more than half of the batch, or the step is bad without them too, it is not the documents: the weights are, or the
    hardware.

    Args:
        trainer: the loop.
        withheld: gets what is found.
    """

    def __init__(self, trainer: "Trainer", withheld: Withheld) -> None:
        self._trainer, self._withheld = trainer, withheld

    def after_backward(self, step: int, parts: Mapping[int, Batch], found: Gradient) -> Gradient:
        """Returns the gradient without the guilty documents, where it is not refused any more."""
        trainer, guard = self._trainer, self._trainer.guard
        reason = guard.reason(found.loss, found.norm) if found.labels else None
        if not reason:
            return found
        slices = slices_with_losses(trainer.replica, trainer.batches, trainer.ranks, step, parts)
        rows = guilty(slices, guard.mean, guard.bound)
        if not rows:
            return found
        shards = spoilt_shards(self._withheld.marks, rows, step, trainer.batches)
        self._withheld.poisoned(step, reason, rows, shards)
        rest = trainer.gradient(self._withheld.before_step(step, parts))
        if guard.reason(rest.loss, rest.norm):
            self._withheld.withdraw()
            return found
        trainer.faults.report(POISON, step, *described(step, reason, rows, shards))
        return rest._replace(stop=found.stop or rest.stop)


class Prober(Protocol):
    """A model that can compute the loss of some sequences on one rank of several that share a sequence, or alone."""

    numbers: range

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns the summed loss of each part as far as it is this rank's to count, shape (parts,), without gradients.

        All ranks call this with equally many parts.
        """


@dataclass(frozen=True)
class SliceLoss:
    """A slice of a document in a batch."""

    shard: str
    row: int
    labels: int
    loss: float


def slices_with_losses(
    prober: Prober, batches: StepData, ranks: Ranks, step: int, parts: Mapping[int, Batch]
) -> list[SliceLoss]:
    """Returns the slices of a step's batch with their losses, equal on all ranks.

    Args:
        prober: the model.
        batches: the batches of the run.
        ranks: the process group.
        step: 0-based.
        parts: this rank's microbatches of the step, without withheld documents.
    """
    count = batches.batch_size // batches.microbatch
    slices = {number: batches.slices_of(step, number) for number in range(count)}
    sizes = {number: sum(map(len, several)) for number, several in slices.items()}
    mine = [part for number in prober.numbers for part in _alone(parts[number], slices[number], batches.eos_id)]
    shares = count // len(prober.numbers)
    most = max(sum(sizes[number] for number in range(first, count, shares)) for first in range(shares))
    losses = prober.probe([*mine, *[mine[0]] * (most - len(mine))])
    whole = torch.zeros((2, sum(sizes.values())), dtype=torch.float64, device=ranks.device)
    begins = {number: sum(sizes[before] for before in range(number)) for number in range(count)}
    at = [begins[number] + index for number in prober.numbers for index in range(sizes[number])]
    whole[0, at] = torch.from_numpy(losses[: len(mine)]).to(ranks.device)
    whole[1, at] = torch.tensor([float((part.labels >= 0).sum()) for part in mine], dtype=torch.float64).to(
        ranks.device
    )
    ranks.sum([whole])
    # Ranks that share a sequence count its labels once each.
    repeated = ranks.world // shares
    places = [(shard, row) for several in slices.values() for one in several for shard, row in _places(one)]
    return [
        SliceLoss(batches.plan.shards[shard], row, int(labels) // repeated, loss)
        for (shard, row), loss, labels in zip(places, *whole.tolist(), strict=True)
    ]


def guilty(slices: Sequence[SliceLoss], mean: float, bound: float) -> dict[str, list[int]]:
    """Returns the ascending rows of the guilty documents by shard; {} where it is not the documents.

    Args:
        slices: of the batch, with their losses.
        mean: loss of the steps before, nats per token; any number where the bound is infinite.
        bound: the largest mean loss of a batch that is not refused.

    >>> slices = [SliceLoss("s", 1, 50, 100.0), SliceLoss("s", 4, 10, 90.0), SliceLoss("s", 2, 60, 120.0)]
    >>> guilty(slices, 2.0, 2.2)
    {'s': [4]}
    """
    left = [one for one in slices if np.isfinite(one.loss)]
    found = [one for one in slices if not np.isfinite(one.loss)]
    left.sort(key=lambda one: one.loss - mean * one.labels)
    loss, labels = sum(one.loss for one in left), sum(one.labels for one in left)
    while left and labels and loss / labels > bound:
        worst = left.pop()
        found.append(worst)
        loss, labels = loss - worst.loss, labels - worst.labels
    if sum(one.labels for one in found) > LARGEST_SHARE * sum(one.labels for one in slices):
        return {}
    rows: dict[str, set[int]] = {}
    for one in found:
        rows.setdefault(one.shard, set()).add(one.row)
    return {shard: sorted(rows[shard]) for shard in sorted(rows)}


def spoilt_shards(
    marks: Sequence[Mark], rows: Mapping[str, Sequence[int]], step: int, batches: StepData
) -> tuple[str, ...]:
    """Returns the names of the shards, ascending, that are spoilt as a whole; a function of its arguments.

    A search per refused step finds the documents of one batch. Where most of what a shard has given lately was found,
    the rest of it is taken to be no better, and all of it is withheld.

    Args:
        marks: of the run so far.
        rows: what has spoilt this step: rows by shard.
        step: 0-based.
        batches: the batches of the run.
    """
    before = [mark.rows for mark in marks if mark.reason]
    suspects = {shard for shard in rows if 1 + sum(shard in found for found in before) >= REPEATED}
    if not suspects:
        return ()
    bad = {(shard, row) for found in (*before, rows) for shard, several in found.items() for row in several}
    read = {place for at in range(max(0, step + 1 - LOOK_BACK), step + 1) for place in batches.documents(at)}
    mine = {shard: [place for place in read if place[0] == shard] for shard in suspects}
    return tuple(sorted(s for s, of in mine.items() if len(bad.intersection(of)) >= LEAST_SHARE * len(of)))


def described(step: int, reason: str, rows: Mapping[str, Sequence[int]], shards: Sequence[str] = ()) -> tuple[str, str]:
    """Returns what was found, and what to do about it."""
    count = sum(map(len, rows.values()))
    places = ", ".join(f"{shard} row {', '.join(map(str, found))}" for shard, found in rows.items())
    whole = f"; and all of {', '.join(shards)}, whose documents have spoilt steps before" if shards else ""
    return (
        f"{reason}: {count} document{'s' * (count > 1)} blank from here on: {places}{whole}",
        f"see them with `trace step:{step}`; if they are of one shard or site, find out how they came in",
    )


def hide(batch: Batch, slices: Sequence[Slices], gone: Sequence[NDArray[np.bool_]], eos_id: int) -> Batch:
    """Returns a batch in which some slices are blank.

    Args:
        batch: some sequences.
        slices: of each of these sequences.
        gone: which slices of each sequence, shape (slices,).
        eos_id: the end-of-text token.
    """
    hidden = np.zeros(batch.tokens.shape, dtype=bool)
    for row, (found, withheld) in enumerate(zip(slices, gone, strict=True)):
        over = np.repeat(withheld, found["length"])
        hidden[row, : len(over)] = over
        # The label of a position is the token behind it; behind the last one the last document goes on.
        hidden[row, len(over) :] = withheld[-1]
    predicted = np.concatenate([hidden[:, 1:], hidden[:, -1:]], axis=1)
    tokens = batch.tokens.masked_fill(torch.from_numpy(hidden), eos_id)
    return replace(batch, tokens=tokens, labels=batch.labels.masked_fill(torch.from_numpy(predicted), IGNORED))


def _rows(found: Sequence[Mark]) -> dict[str, frozenset[int]]:
    """Returns the rows of all marks by shard."""
    rows: dict[str, frozenset[int]] = {}
    for mark in found:
        for shard, several in mark.rows.items():
            rows[shard] = rows.get(shard, frozenset()).union(several)
    return rows


def _places(slices: Slices) -> list[tuple[int, int]]:
    return [(shard, row) for shard, row in slices[["shard", "row"]].tolist()]


def _alone(part: Batch, slices: Sequence[Slices], eos_id: int) -> Iterator[Batch]:
    """Yields for each slice its sequence without all other slices."""
    for row, found in enumerate(slices):
        tensors = (part.tokens, part.labels, part.documents)
        tokens, labels, documents = (tensor[row : row + 1].numpy() for tensor in tensors)
        sequence = Batch.of(tokens, labels, documents)
        for index in range(len(found)):
            yield hide(sequence, [found], [np.arange(len(found)) != index], eos_id)
