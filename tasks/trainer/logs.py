"""Logs of a run: files of JSON lines in its folder, for steps, skipped steps, faults and starts.

`metrics.jsonl` has one line per step: step (0-based), loss (nats per token, null if the step was skipped), lr,
grad_norm and tokens (trained on so far), and fields that depend on the clock and the machine: tokens_per_s, step_s,
data_wait (share of the step), memory_gib, and on a GPU mfu and gpu/... (see `telemetry`). A step after which held-out
text was measured also has bpb and bpb/<source> (null if not finite), and heldout_s. The last step of a canary also has
bpb/<task>/<metric> of the tasks that it scores.

`skipped.jsonl` has one line per skipped step: reason, loss, gradient norm and the document slices of its batch; if the
loss was refused, also the cause as far as it was found, and suspected, the rows of documents by shard that were
suspected and are not withheld.
`layers.jsonl` has a line per step after which figures of the layers were taken: step and `layers`, see `layer_figures`.
`starts.jsonl` has one line per start of the ranks, including restarts after a crash. Rank 0 writes these files; rank 0,
the agent and the stage append to `faults.jsonl`.
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
LAYERS = "layers.jsonl"
DETERMINISTIC = ("step", "loss", "lr", "grad_norm", "tokens")
"""Fields that are equal when a run is repeated; other fields depend on the clock or the machine, and may be missing."""
Z_LOSS = "z_loss"
"""Field with the mean z-loss of a step, in nats per token; only of runs that have it."""
BPB = "bpb"
"""Field with the mean over sources of held-out text; the field `bpb/<source>` has the value of a source."""
_TAIL_BYTES = 1 << 16
"""More than the size of two lines."""
log = logging.getLogger(__name__)
FAULTS = "faults.jsonl"
POISON, ROLLBACK, CORRUPTION, SLOW_RANK = "poison", "rollback", "corruption", "slow_rank"
CHECKPOINT, PREEMPTION = "checkpoint", "preemption"
FAULT_KINDS = (POISON, ROLLBACK, CORRUPTION, SLOW_RANK, CHECKPOINT, PREEMPTION)
STARTS = "starts.jsonl"


class StepLog:
    """A file with one line per step; on opening, lines of a killed run from `first_step` on are removed."""

    def __init__(self, path: Path, first_step: int) -> None:
        lines = [line for line in read_metrics(path) if line["step"] < first_step]
        temporary = path.with_suffix(".aside")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
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
    """The step logs that rank 0 writes."""

    metrics: StepLog
    skipped: StepLog
    layers: StepLog

    @classmethod
    def at(cls, folder: Path, first_step: int) -> "Logs":
        """Opens the files in `folder`, which is created if needed, to continue with `first_step`."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(*(StepLog(folder / name, first_step) for name in (METRICS, SKIPPED, LAYERS)))

    def sync(self) -> None:
        """Syncs the files: a checkpoint must not be newer than the lines of its steps."""
        for log_file in (self.metrics, self.skipped, self.layers):
            log_file.sync()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a log, without an incomplete last line; [] if the file does not exist."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def repeated(line: Mapping[str, Any]) -> list[str]:
    """Returns the names of the reproducible fields of a line: `DETERMINISTIC`, z-loss, and those of held-out text.

    >>> repeated({"step": 1, "loss": 2.0, "lr": 0.1, "grad_norm": 1.0, "tokens": 9, "step_s": 0.2, "bpb/web": 1.5})
    ['step', 'loss', 'lr', 'grad_norm', 'tokens', 'bpb/web']
    """
    return [*DETERMINISTIC, *(name for name in line if name == Z_LOSS or name.partition("/")[0] == BPB)]


def proven_steps(path: Path) -> int:
    """Returns the number of steps from 0 on that a log contains once and in order, before the first gap."""
    steps = [line["step"] for line in read_metrics(path)]
    return next((at for at, step in enumerate(steps) if step != at), len(steps))


def last_step(path: Path) -> int:
    """Returns the newest step of a log, reading only its end; 0 if there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0


class MetricsTail:
    """Follows a growing metrics file, which a restart may replace by a shorter one."""

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
    """Reports the faults of a run: poisoned documents, corrupt or slow ranks, and so on.

    Each fault is a line {kind, step, what, do} of `faults.jsonl` and a warning in the process's log. A fault that
    recurs when a restart repeats a step is recorded once.

    Args:
        out: folder of the run.
        writes: whether this process writes. All ranks observe the same faults, and only rank 0 writes them.
    """

    def __init__(self, out: Path, writes: bool = True) -> None:
        self._path, self._writes = out / FAULTS, writes
        self._recorded = {(line["kind"], line["step"], line["what"]) for line in read_metrics(self._path)}

    def damaged(self, step: int, error: Exception) -> None:
        """Records a checkpoint that cannot be used."""
        self.location(step, f"the checkpoint of step {step} cannot be used: {error}")

    def location(self, step: int, what: str) -> None:
        """Records a problem with a checkpoint location, or with a checkpoint in it."""
        do = "check the disk or the network of that location; the run continues without it"
        self.report(CHECKPOINT, step, what.rstrip("."), do)

    def report(self, kind: str, step: int, what: str, do: str) -> None:
        """Records a fault.

        Args:
            kind: one of FAULT_KINDS.
            step: 0-based; for a checkpoint, the number of steps before it.
            what: the observation, with ranks or documents; without a final period.
            do: the recommended action; without a final period.
        """
        if not self._writes or (kind, step, what) in self._recorded:
            return
        log.warning("%s at step %d: %s", kind, step, what)
        self._recorded.add((kind, step, what))
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind, "step": step, "what": what, "do": do}) + "\n")


def write_start(folder: Path, line: dict[str, Any]) -> None:
    """Appends a line to `starts.jsonl` in a run's folder.

    A line has step (the first that is trained), at (UTC), host, ranks, device, peak_flops (dense bf16 FLOP/s of one
    device; null if unknown), flops_per_token (at the sequence length), tokens_per_step, parameters (of the model) and
    layout (fields that differ from the defaults; null if every rank has the whole model).
    """
    with (folder / STARTS).open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of `starts.jsonl` in a run's folder, oldest first; [] if there is none."""
    return read_metrics(folder / STARTS)
