"""Logs of a run: JSON lines in its folder, of steps, skipped steps, faults and starts, also read while they grow.

`metrics.jsonl` has one object per line: step (0-based, as the order counts), loss (nats per token, null if the step was
skipped), lr, grad_norm, tokens (trained on so far), and others that depend on clock and machine: tokens_per_s, step_s,
data_wait (share of the step), memory_gib, and on a GPU mfu and gpu/... (see `telemetry`). A step after which held-out
text was measured has bpb and bpb/<source>, too (null where not finite), and heldout_s.

`skipped.jsonl` has a line for every step that was not taken: reason, loss, gradient norm and the document slices of its
batch. `starts.jsonl` has one for each start of the ranks, also those after a crash. Rank 0 writes these; `faults.jsonl`
is appended to by rank 0, the agent and the stage.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
SKIPPED = "skipped.jsonl"
DETERMINISTIC = ("step", "loss", "lr", "grad_norm", "tokens")
"""Fields that are equal when a run is repeated; the others depend on the clock or the machine, and may be
missing."""
_HELDOUT = "bpb"
_TAIL_BYTES = 1 << 16
"""More than two lines take."""
log = logging.getLogger(__name__)
FAULTS = "faults.jsonl"
POISON, ROLLBACK, CORRUPTION, SLOW_RANK = "poison", "rollback", "corruption", "slow_rank"
CHECKPOINT, PREEMPTION = "checkpoint", "preemption"
FAULT_KINDS = (POISON, ROLLBACK, CORRUPTION, SLOW_RANK, CHECKPOINT, PREEMPTION)
STARTS = "starts.jsonl"


class StepLog:
    """A file with one line per step, from which the steps from `first_step` on, left by a killed run, are dropped."""

    def __init__(self, path: Path, first_step: int) -> None:
        kept = [line for line in read_metrics(path) if line["step"] < first_step]
        temporary = path.with_suffix(".aside")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        temporary.rename(path)
        self._file = path.open("a")

    def write(self, values: dict[str, Any]) -> None:
        """Appends and flushes one line, so that it survives a kill of this process."""
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Syncs the file to disk."""
        os.fsync(self._file.fileno())


@dataclass(frozen=True)
class Logs:
    """The two step logs that rank 0 writes."""

    metrics: StepLog
    skipped: StepLog

    @classmethod
    def at(cls, folder: Path, first_step: int) -> "Logs":
        """Opens both files in `folder`, to continue with `first_step`."""
        return cls(StepLog(folder / METRICS, first_step), StepLog(folder / SKIPPED, first_step))

    def sync(self) -> None:
        """Syncs both: a checkpoint must not be newer than the metrics of its steps."""
        self.metrics.sync()
        self.skipped.sync()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the whole lines of a file of steps; an incomplete last line is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def repeated(line: Mapping[str, Any]) -> list[str]:
    """Returns the fields of a line that are equal when a run is repeated: `DETERMINISTIC`, and those of held-out text.

    >>> repeated({"step": 1, "loss": 2.0, "lr": 0.1, "grad_norm": 1.0, "tokens": 9, "step_s": 0.2, "bpb/web": 1.5})
    ['step', 'loss', 'lr', 'grad_norm', 'tokens', 'bpb/web']
    """
    return [*DETERMINISTIC, *(name for name in line if name.partition("/")[0] == _HELDOUT)]


def proven_steps(path: Path) -> int:
    """Returns how many steps from 0 on a file of steps has, each once and in order, before the first gap."""
    steps = [line["step"] for line in read_metrics(path)]
    return next((at for at, step in enumerate(steps) if step != at), len(steps))


def last_step(path: Path) -> int:
    """Returns the newest step of a file of steps, by its last lines alone; 0 where there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0


class MetricsTail:
    """Reads a metrics file that grows, and that a restart may replace by a shorter one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._offset, self._next_step = 0, 0, 0

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """Yields the lines written since the last call; a step that a restart repeats is yielded once."""
        try:
            file = self.path.open()
        except FileNotFoundError:
            return
        with file:
            if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                self._inode, self._offset = inode, 0
            file.seek(self._offset)
            while (line := file.readline()).endswith("\n"):
                self._offset = file.tell()
                values = json.loads(line)
                if values["step"] >= self._next_step:
                    self._next_step = values["step"] + 1
                    yield values


class Faults:
    """The faults of a run, as one process reports them: poisoned documents, corrupt or slow ranks, ...

    Each is a line of `faults.jsonl`, {kind, step, what, do}, and of the process's log. A fault that a restart meets
    again when it repeats a step is one line.

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


def write_start(folder: Path, line: dict[str, Any]) -> None:
    """Appends a line to the file in a run's folder.

    A line has step (the first that is trained), at (UTC), host, ranks, device, peak_flops (dense bf16 FLOP/s of one
    device; null where it is not known), flops_per_token (at the sequence length), tokens_per_step, parameters (of the
    model) and layout (what of it is no default; null where every rank has the whole model).
    """
    with (folder / STARTS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of the file in a run's folder, oldest first; [] where there is none."""
    return read_metrics(folder / STARTS)
