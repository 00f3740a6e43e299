"""Withheld documents: taken down before or during a run and blank from a checkpoint on, or poisoned and blank at once.

Reads `withhold.json` (`notice`); rank 0 writes `withheld.json` (`tasks.formats.tokens.marks`). A mark is part of the
state of every checkpoint from its step on, so a resumed run and any number of ranks see the same batches.

A blank document keeps its place: its tokens are end-of-text, and no label is one of its tokens. Documents of a sequence
do not attend to one another, so nothing of it reaches the model, and nothing else of the batch changes.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.formats.tokens import marks
from tasks.formats.tokens.marks import Mark
from tasks.formats.tokens.plan import Slices
from tasks.trainer.data.batches import Batch, Named
from tasks.trainer.data.notice import REQUEST
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.parallel.ranks import Ranks

log = logging.getLogger(__name__)

REASON = "withheld"
"""Why a step is skipped whose batch has no other document."""


class Withheld:
    """The marks of a run, on one rank.

    Args:
        out: folder of the run.
        ranks: the process group.
        state: `state()` of the checkpoint that the run resumes from.
    """

    def __init__(self, out: Path, ranks: Ranks, state: Sequence[Mapping[str, Any]] = ()) -> None:
        self._out, self._ranks = out, ranks
        self._marks = [Mark.model_validate(mark) for mark in state]
        self._index()

    def __bool__(self) -> bool:
        return bool(self._marks)

    @property
    def marks(self) -> Sequence[Mark]:
        """The marks so far."""
        return self._marks

    def look(self, step: int) -> None:
        """Reads the request on rank 0, and withholds its documents on all ranks from `step` on."""
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

    def blank(self, batch: Batch, slices: Sequence[Slices], plan: Named, eos_id: int) -> Batch:
        """Returns a batch without the documents that are withheld.

        Args:
            batch: some sequences of a step.
            slices: of each of these sequences.
            plan: where the slices are from.
            eos_id: the end-of-text token.
        """
        gone = [self._gone(found, plan) for found in slices]
        return hide(batch, slices, gone, eos_id) if any(found.any() for found in gone) else batch

    def _gone(self, slices: Slices, plan: Named) -> NDArray[np.bool_]:
        """Returns which slices are of withheld documents, shape (slices,)."""
        places = slices[["shard", "row"]].tolist()
        names = [(plan.shards[shard], row) for shard, row in places]
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
