"""Withheld documents: those that were taken down before or during a run, blank from a checkpoint on.

Reads `withhold.json` (`notice`); rank 0 writes `withheld.json` (`tasks.formats.tokens.marks`). A mark is part of the
state of every checkpoint from its step on, so a resumed run and any number of ranks see the same batches.

A blank document keeps its place: its tokens are end-of-text, and no label is one of its tokens. Documents of a sequence
do not attend to one another, so nothing of it reaches the model, and nothing else of the batch changes.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.formats.tokens import marks
from tasks.formats.tokens.marks import Mark
from tasks.formats.tokens.plan import Slice
from tasks.trainer.batches import Batch
from tasks.trainer.loss import IGNORED
from tasks.trainer.notice import REQUEST
from tasks.trainer.ranks import Ranks

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
        self._rows = _rows(self._marks)
        self._write()

    def __bool__(self) -> bool:
        return bool(self._rows)

    def look(self, step: int) -> None:
        """Reads the request on rank 0, and withholds its documents on all ranks from `step` on."""
        path = self._out / REQUEST
        text = path.read_text() if self._ranks.rank == 0 and path.exists() else "{}"
        request = json.loads(self._ranks.broadcast_text(text))
        if not request or request["rows"] == (self._marks[-1].model_dump(mode="json")["rows"] if self._marks else {}):
            return
        self._marks.append(Mark(step=step, **request))
        self._rows = _rows(self._marks)
        self._write()
        if self._ranks.rank == 0:
            count = sum(map(len, request["rows"].values()))
            log.info("from step %d on %d documents are withheld: %s", step, count, ", ".join(request["takedowns"]))

    def state(self) -> list[dict[str, Any]]:
        """Returns the marks for the state of a checkpoint; empty while there is none."""
        return marks.plain(self._marks)

    def blank(self, batch: Batch, slices: Sequence[Sequence[Slice]], eos_id: int) -> Batch:
        """Returns a batch without the documents that are withheld.

        Args:
            batch: of a step.
            slices: of each of its sequences.
            eos_id: the end-of-text token.
        """
        gone = [[piece.row in self._rows.get(piece.shard, ()) for piece in pieces] for pieces in slices]
        if not any(map(any, gone)):
            return batch
        lengths = [[piece.length for piece in pieces] for pieces in slices]
        hidden = torch.from_numpy(np.stack([np.repeat(*pair) for pair in zip(gone, lengths, strict=True)]))
        # The label of a position is the token behind it; behind the last one the last document goes on.
        predicted = torch.cat([hidden[:, 1:], hidden[:, -1:]], dim=1)
        tokens = batch.tokens.masked_fill(hidden, eos_id)
        return Batch(tokens, batch.labels.masked_fill(predicted, IGNORED), batch.documents)

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


def _rows(found: Sequence[Mark]) -> dict[str, frozenset[int]]:
    """Returns the rows of all marks by shard."""
    rows: dict[str, frozenset[int]] = {}
    for mark in found:
        for shard, several in mark.rows.items():
            rows[shard] = rows.get(shard, frozenset()).union(several)
    return rows
