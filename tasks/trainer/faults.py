"""Faults of a run: poisoned documents, rolled-back steps, corrupt or slow ranks, checkpoints, preemptions.

Each is a line of `faults.jsonl` in the run's folder, {kind, step, what, do}, and of the log. A fault that a restart
meets again when it repeats a step is one line. Several processes append: rank 0, the agent, and the stage.
"""

import json
import logging
from pathlib import Path

from tasks.trainer.logs import read_metrics

log = logging.getLogger(__name__)

FAULTS = "faults.jsonl"
POISON, ROLLBACK, CORRUPTION, SLOW_RANK = "poison", "rollback", "corruption", "slow_rank"
CHECKPOINT, PREEMPTION = "checkpoint", "preemption"
FAULT_KINDS = (POISON, ROLLBACK, CORRUPTION, SLOW_RANK, CHECKPOINT, PREEMPTION)


class Faults:
    """The faults of a run, as one process reports them.

    Args:
        out: folder of the run.
        writes: whether this process writes; of the ranks, which all see the same, rank 0 alone does.
    """

    def __init__(self, out: Path, writes: bool = True) -> None:
        self._path, self._writes = out / FAULTS, writes
        self._known = {(line["kind"], line["step"], line["what"]) for line in read_metrics(self._path)}

    def damaged(self, step: int, error: Exception) -> None:
        """Records a checkpoint that cannot be used."""
        self.location(step, f"the checkpoint of step {step} cannot be used: {error}")

    def location(self, step: int, what: str) -> None:
        """Records what is wrong with a location of checkpoints, or with one in it."""
        do = "look at the disk or the network of that location; the run goes on without it"
        self.report(CHECKPOINT, step, what.rstrip("."), do)

    def report(self, kind: str, step: int, what: str, do: str) -> None:
        """Records a fault.

        Args:
            kind: one of KINDS.
            step: 0-based; of a checkpoint the number of steps that it is after.
            what: what was seen, naming ranks or documents; without a full stop.
            do: what a person should do; without a full stop.
        """
        if not self._writes or (kind, step, what) in self._known:
            return
        log.warning("%s at step %d: %s", kind, step, what)
        self._known.add((kind, step, what))
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, "step": step, "what": what, "do": do}) + "\n")
