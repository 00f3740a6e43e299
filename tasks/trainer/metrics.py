"""Numbers of every step: rank 0 appends them to a file, the stage follows that file.

`metrics.jsonl` holds one object a line: step (0-based, as the order counts), loss (nats per token, null if the step was
skipped), lr, grad_norm, tokens (trained on so far), and three that depend on the clock: tokens_per_s, step_s, data_wait
(share of the step). `skipped.jsonl` has a line for every step that was not taken: reason, loss, gradient norm and the
document slices of its batch.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "metrics.jsonl"
SKIPPED = "skipped.jsonl"
DETERMINISTIC = ("step", "loss", "lr", "grad_norm", "tokens")
"""What a run and its repetition agree on; the rest depends on the clock."""


class StepLog:
    """A file with one line per step, from which the steps from `first_step` on, left by a killed run, are dropped."""

    def __init__(self, path: Path, first_step: int) -> None:
        kept = [line for line in read_metrics(path) if line["step"] < first_step]
        aside = path.with_suffix(".aside")
        aside.write_text("".join(json.dumps(line) + "\n" for line in kept))
        aside.rename(path)
        self._file = path.open("a")

    def write(self, values: dict[str, Any]) -> None:
        """Appends one line and hands it to the operating system, so that a kill of this process does not lose it."""
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Makes what was written durable."""
        os.fsync(self._file.fileno())


@dataclass(frozen=True)
class Logs:
    """What rank 0 writes down of the steps."""

    metrics: StepLog
    skipped: StepLog

    @classmethod
    def at(cls, folder: Path, first_step: int) -> "Logs":
        """Opens both files in `folder`, to go on with `first_step`."""
        return cls(StepLog(folder / FILE, first_step), StepLog(folder / SKIPPED, first_step))

    def sync(self) -> None:
        """Makes both durable: a checkpoint must not be newer than the numbers that led to it."""
        self.metrics.sync()
        self.skipped.sync()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the whole lines of a file of steps; a last line that was cut off by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def proven_steps(path: Path) -> int:
    """Returns how many steps from 0 on a file of steps holds, each once and in order, before the first that breaks."""
    steps = [line["step"] for line in read_metrics(path)]
    return next((at for at, step in enumerate(steps) if step != at), len(steps))


class MetricsTail:
    """Follows a metrics file that grows, and that a restart may replace by a shorter one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._offset, self._next_step = 0, 0, 0

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """Yields the lines written since the last call; a step that a restart repeats comes once."""
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
