"""Locations of a run's checkpoints: scratch, and the milestones of the artifact; copies are in `copies`.

One interface for all: which steps a location has, and fetching one of them into scratch, verified, with the log of the
steps up to it.
"""

import json
import shutil
from pathlib import Path
from typing import Protocol

from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.logs import METRICS
from tasks.trainer.milestones import FOLDERS


class Location(Protocol):
    """Where checkpoints of a run are looked for."""

    name: str
    """For messages."""
    required: bool
    """Whether a run cannot begin while this location does not answer."""

    def steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, ascending, without verifying them; raises SluiceError."""

    def fetch(self, step: int) -> dict[str, bytes]:
        """Brings a checkpoint into scratch, and verifies it there.

        Returns:
            the lines of the steps before it, by file of the run; {} where scratch has them.

        Raises:
            InputError, FileNotFoundError: it is damaged or incomplete.
            SluiceError, OSError: the location cannot be read.
        """

    def drop(self, step: int) -> None:
        """Removes a checkpoint that is damaged or not kept any more; raises SluiceError."""


class Scratch:
    """The run's own folder, which the ranks write."""

    name, required = "scratch", True

    def __init__(self, run: Path) -> None:
        self.root = run / "checkpoints"

    def steps(self) -> list[int]:
        """See `Location`."""
        return checkpoint.steps_at(self.root)

    def fetch(self, step: int) -> dict[str, bytes]:
        """See `Location`."""
        checkpoint.verify(self.root / checkpoint.name_of(step))
        return {}

    def drop(self, step: int) -> None:
        """See `Location`."""
        shutil.rmtree(self.root / checkpoint.name_of(step), ignore_errors=True)


class Milestones:
    """The milestones that are committed to the artifact; they are never removed."""

    name, required = "the artifact", True

    def __init__(self, output: Output, run: Path) -> None:
        self.output, self.run = output, run

    def steps(self) -> list[int]:
        """See `Location`."""
        return [int(name[-8:]) for name in committed(self.output)]

    def fetch(self, step: int) -> dict[str, bytes]:
        """See `Location`."""
        folder = f"{self.output.address.path}/checkpoints/{checkpoint.name_of(step)}"
        lines = committed_lines(self.output, step)
        install(self.output.store, folder, self.run, step, lines)
        return lines

    def drop(self, step: int) -> None:
        """Does nothing: what is committed stays, and cannot be made again."""


def committed(output: Output) -> list[str]:
    """Returns the names of the milestones that are committed, ascending."""
    return sorted(name for name in output.committed if checkpoint.NAME.fullmatch(name))


def committed_lines(output: Output, until: int) -> dict[str, bytes]:
    """Returns the lines of the steps up to a milestone, by file of the run, verified; empty ones up to 0.

    Raises:
        InputError: a file does not have the sha256 of its record.
    """
    lines = dict.fromkeys(FOLDERS, b"")
    for name in [name for name in committed(output) if name <= checkpoint.name_of(until)]:
        sums = {entry.path: entry.sha256 for entry in output.committed[name].files}
        for file, folder in FOLDERS.items():
            path = f"{folder}/{name}.jsonl"
            found = output.store.read(f"{output.address.path}/{path}")
            if sha256_of(found) != sums[path]:
                raise InputError(f"{output.address}: {path} does not have the sha256 of its record", "train again")
            lines[file] += found
    return lines


def install(store: Store, folder: str, run: Path, step: int, lines: dict[str, bytes]) -> None:
    """Copies a checkpoint from a folder of a store into scratch; verifies it there, and that it has lines of all steps.

    Raises:
        InputError, FileNotFoundError, SluiceError: as `Location.fetch`.
    """
    name = checkpoint.name_of(step)
    steps = [json.loads(line)["step"] for line in lines[METRICS].splitlines()]
    if steps != list(range(step)):
        raise InputError(f"{store.url(folder)} has lines of {len(steps)} steps for {step}", "delete the copy")
    temporary = run / "checkpoints" / f".{name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    (temporary / checkpoint.STATE).write_bytes(store.read(f"{folder}/{checkpoint.STATE}"))
    for file in checkpoint.read_state(temporary)[1].keys() - {checkpoint.STATE}:
        with store.open(f"{folder}/{file}") as source, (temporary / file).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    if checkpoint.verify(temporary)["step"] != step:
        raise InputError(f"{store.url(folder)} is a checkpoint of another step", "delete the copy")
    shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)
    temporary.rename(run / "checkpoints" / name)
