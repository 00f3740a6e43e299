"""Faults of a run: poisoned documents, rolled-back steps, corrupt ranks, slow ranks.

Rank 0 appends each to `faults.jsonl` in the run's folder as {kind, step, what, do} and to the log. A fault that a
restart meets again when it repeats a step is one line.
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.trainer.metrics import read_metrics

if TYPE_CHECKING:  # imports torch
    from tasks.trainer.ranks import Ranks

log = logging.getLogger(__name__)

FILE = "faults.jsonl"
POISON, ROLLBACK, CORRUPTION, SLOW_RANK = "poison", "rollback", "corruption", "slow_rank"
KINDS = (POISON, ROLLBACK, CORRUPTION, SLOW_RANK)


class Faults:
    """The faults of a run, on one rank; only rank 0 writes.

    Args:
        out: folder of the run.
        ranks: the process group.
    """

    def __init__(self, out: Path, ranks: "Ranks") -> None:
        self._path, self._writes = out / FILE, ranks.rank == 0
        self._known = {(line["kind"], line["step"], line["what"]) for line in read_metrics(self._path)}

    def report(self, kind: str, step: int, what: str, do: str) -> None:
        """Records a fault.

        Args:
            kind: one of KINDS.
            step: 0-based.
            what: what was seen, naming ranks or documents; without a full stop.
            do: what a person should do; without a full stop.
        """
        if not self._writes or (kind, step, what) in self._known:
            return
        log.warning("%s at step %d: %s", kind, step, what)
        self._known.add((kind, step, what))
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, "step": step, "what": what, "do": do}) + "\n")
