"""Locations of a run's checkpoints: scratch, and the milestones of the artifact; copies are in `copies`.

The stage restores from a `Location`: it lists the steps of its checkpoints, and fetches one into scratch, verified,
with the log lines of the steps up to it. The ranks find files that are not on a disk (`disks`) in a `Source`, which is
a location in a store. Milestones are checkpoints that are committed to the artifact during the run.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks.core.artifact import PartRecord
from tasks.core.digest import sha256_of, sha256_of_file
from tasks.core.errors import InputError, TransientError
from tasks.core.part import PARTS
from tasks.core.stage import Output, Part
from tasks.core.store import Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.logs import LAYERS, METRICS, SKIPPED, repeated

FOLDERS = {METRICS: "steps", SKIPPED: "skipped", LAYERS: "layers"}
"""Folder in the artifact for each log file of the run."""
MERGED = "merged"
"""Folder in the run's folder of a whole checkpoint that is made from shards."""


class Location(Protocol):
    """A location of a run's checkpoints."""

    name: str
    """Name for messages."""
    required: bool
    """Whether a run cannot start while this location is unavailable."""

    def steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, ascending, without verifying them; raises SluiceError."""

    def fetch(self, step: int) -> dict[str, bytes]:
        """Copies a checkpoint into scratch, and verifies it there.

        Returns:
            The log lines of the steps before it, by log file; {} if scratch has them already.

        Raises:
            InputError, FileNotFoundError: it is damaged or incomplete.
            SluiceError, OSError: the location cannot be read.
        """

    def drop(self, step: int) -> None:
        """Removes a damaged or superfluous checkpoint; raises SluiceError."""


class Source(Protocol):
    """Committed checkpoints in a store."""

    store: Store
    required: bool
    """Whether a run cannot start while the store is unavailable."""

    def steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, ascending, without verifying them; raises SluiceError."""

    def folder_of(self, step: int) -> str:
        """Returns the folder with the files of a committed checkpoint, relative to the store; raises SluiceError."""


class Scratch:
    """The local folder of the run, to which the ranks write; with `spread`, it may have only some files of each."""

    name, required = "scratch", True

    def __init__(self, run: Path, *, spread: bool = False) -> None:
        self.root, self.spread = run / "checkpoints", spread

    def steps(self) -> list[int]:
        """See `Location`."""
        return checkpoint.steps_at(self.root)

    def fetch(self, step: int) -> dict[str, bytes]:
        """See `Location`."""
        here = self.root / checkpoint.name_of(step)
        if self.spread:  # each node verifies its own files (`disks`)
            checkpoint.read_state(here)
        else:
            checkpoint.verify(here)
        return {}

    def drop(self, step: int) -> None:
        """See `Location`."""
        shutil.rmtree(self.root / checkpoint.name_of(step), ignore_errors=True)


class CopySource:
    """Copies of checkpoints in a folder of a store; a copy is committed by its marker (`copies`)."""

    def __init__(self, store: Store, folder: str, *, required: bool) -> None:
        self.store, self.folder, self.required = store, folder, required

    def steps(self) -> list[int]:
        """See `Source`."""
        return sorted(_steps_in(self.store, self.folder))

    def folder_of(self, step: int) -> str:
        """See `Source`."""
        return str(self.marker(step)["folder"])

    def marker(self, step: int) -> dict[str, Any]:
        """Returns the marker of a copy: fingerprint, folder, first and sha256; raises InputError if it is malformed."""
        path = self.marker_path(step)
        try:
            marker = json.loads(self.store.read(path))
            if not {"fingerprint", "folder", "first", "sha256"} <= marker.keys():
                raise ValueError("keys are missing")
        except (ValueError, AttributeError) as error:
            raise InputError(f"{self.store.url(path)} is not the marker of a copy ({error})") from error
        return dict(marker)

    def marker_path(self, step: int) -> str:
        """Returns the path of the marker of a copy."""
        return f"{self.folder}/{checkpoint.name_of(step)}.json"


class MilestoneSource:
    """The milestones of an artifact, whose folder in the store is given."""

    required = True

    def __init__(self, store: Store, artifact: str) -> None:
        self.store, self.artifact = store, artifact

    def steps(self) -> list[int]:
        """See `Source`."""
        return sorted(_steps_in(self.store, f"{self.artifact}/{PARTS}"))

    def folder_of(self, step: int) -> str:
        """See `Source`."""
        return f"{self.artifact}/checkpoints/{checkpoint.name_of(step)}"


class Milestones(MilestoneSource):
    """The milestones committed to the artifact; removed only if the run goes back (`Recovery.go_back`)."""

    name = "the artifact"

    def __init__(self, output: Output, run: Path) -> None:
        super().__init__(output.store, output.address.path)
        self.output, self.run = output, run

    def steps(self) -> list[int]:
        """See `Location`; without a request to the store."""
        return [int(name[-8:]) for name in committed(self.output)]

    def fetch(self, step: int) -> dict[str, bytes]:
        """See `Location`."""
        lines = committed_lines(self.output, step)
        install(self.store, self.folder_of(step), self.run, step, lines)
        return lines

    def drop(self, step: int) -> None:
        """Does nothing: a damaged milestone is not replaced."""

    def withdraw_after(self, step: int) -> None:
        """Removes the records of the milestones after a step, and of parts from the end of the run.

        Their files are written again by the run, or removed by the commit; raises SluiceError.
        """
        parts = self.output.committed
        names = [name for name in parts if not checkpoint.NAME.fullmatch(name) or int(name[-8:]) > step]
        self.output.store.remove_files([f"{self.output.address.path}/{PARTS}/{name}.json" for name in names])
        self.output.leave_out(names)


def publish_milestone(output: Output, run: Path, first: int, step: int, folder: Path) -> None:
    """Commits a milestone.

    A milestone is one part: the checkpoint `checkpoints/step-<n>/`, always whole, and the log lines since the previous
    milestone, `steps/step-<n>.jsonl`, `skipped/step-<n>.jsonl` and, if there are any, `layers/step-<n>.jsonl`, without
    fields that depend on the clock.

    Args:
        output: the artifact.
        run: folder of the run.
        first: the previous milestone, or 0.
        step: of the milestone.
        folder: the checkpoint, with all its files.

    Raises:
        InputError: the checkpoint does not verify.
        TransientError: steps before it are missing from the log.
    """
    name, read = checkpoint.name_of(step), RunLines(run)
    with output.part(name, conserved=False) as part:
        _write_files(part, run, name, folder)
        for source_name, target in FOLDERS.items():
            lines = read.between(source_name, first, step)
            if lines or source_name != LAYERS:
                part.write(f"{target}/{name}.jsonl", lines, rows=lines.count(b"\n"))
    shutil.rmtree(run / MERGED, ignore_errors=True)


def publish_best(output: Output, run: Path, step: int, folder: Path) -> None:
    """Commits the best checkpoint as the part `best`, if it is no milestone; it has the files of one, and no lines.

    Raises:
        InputError: the checkpoint does not verify.
    """
    with output.part(checkpoint.BEST, conserved=False) as part:
        _write_files(part, run, checkpoint.name_of(step), folder)
    shutil.rmtree(run / MERGED, ignore_errors=True)


def _write_files(part: Part, run: Path, name: str, folder: Path) -> None:
    """Writes a checkpoint into a part, whole."""
    if checkpoint.is_whole(folder):
        checkpoint.verify(folder)
    else:
        folder = checkpoint.merge(folder, run / MERGED)
    for path in sorted(folder.iterdir()):
        with part.file(f"checkpoints/{name}/{path.name}") as file, path.open("rb") as source:
            shutil.copyfileobj(source, file, 1 << 20)


def check_milestones(output: Output, milestones: Sequence[int]) -> None:
    """Checks that every committed milestone has one row per step.

    Raises:
        InputError: a milestone lacks rows; it cannot be recreated while later ones exist.
    """
    for first, step in zip((0, *milestones), milestones, strict=False):
        name = checkpoint.name_of(step)
        rows = {entry.path: entry.rows for entry in output.committed[name].files}[f"{FOLDERS[METRICS]}/{name}.jsonl"]
        if rows != step - first:
            raise InputError(
                f"{output.address}: {name} was committed with {rows} rows for {step - first} steps",
                "delete the artifact's folder and train again",
            )


def committed(output: Output) -> list[str]:
    """Returns the names of the milestones that are committed, ascending."""
    return sorted(name for name in output.committed if checkpoint.NAME.fullmatch(name))


def committed_lines(output: Output, until: int) -> dict[str, bytes]:
    """Returns the log lines up to a milestone of a run's own artifact; see `lines_until`."""
    return lines_until(output.store, output.address.path, output.committed, until)


def lines_until(store: Store, artifact: str, records: Mapping[str, PartRecord], until: int) -> dict[str, bytes]:
    """Returns the verified log lines up to a milestone, by log file; empty if `until` is 0.

    Args:
        store: store of the artifact.
        artifact: its folder.
        records: its parts by name.
        until: completed steps of the milestone.

    Raises:
        InputError: a file does not have the SHA-256 of its record.
    """
    lines, last = dict.fromkeys(FOLDERS, b""), checkpoint.name_of(until)
    for name in sorted(name for name in records if checkpoint.NAME.fullmatch(name) and name <= last):
        sums = {entry.path: entry.sha256 for entry in records[name].files}
        for file, folder in FOLDERS.items():
            path = f"{folder}/{name}.jsonl"
            if path not in sums:
                continue  # no figures of layers
            content = store.read(f"{artifact}/{path}")
            if sha256_of(content) != sums[path]:
                raise InputError(f"{store.url(artifact)}/{path} does not have the sha256 of its record", "train again")
            lines[file] += content
    return lines


def install(store: Store, folder: str, run: Path, step: int, lines: dict[str, bytes], *, files: bool = True) -> None:
    """Copies a checkpoint from a store into scratch, after checking that `lines` covers all steps; verifies it there.

    Without `files`, copies only `state.json`; the ranks fetch the rest.

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
    for file in checkpoint.read_state(temporary)[1].keys() - {checkpoint.STATE} if files else ():
        with store.open(f"{folder}/{file}") as source, (temporary / file).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    if checkpoint.verify(temporary, spread=not files)["step"] != step:
        raise InputError(f"{store.url(folder)} is a checkpoint of another step", "delete the copy")
    shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)
    temporary.rename(run / "checkpoints" / name)


def fetch_file(store: Store, folder: str, file: str, sha256: str, target: Path) -> None:
    """Copies a file of a checkpoint to `target`, which appears only after its SHA-256 is verified.

    Raises:
        FileNotFoundError, InputError: it is missing or damaged.
        SluiceError, OSError: the store cannot be read, or `target` not written.
    """
    unfinished = target.with_name(f".{target.name}")
    with store.open(f"{folder}/{file}") as source, unfinished.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
    if sha256_of_file(unfinished) != sha256:
        unfinished.unlink()
        raise InputError(f"{store.url(folder)}/{file} does not have the sha256 its checkpoint states", "delete it")
    unfinished.rename(target)


def _steps_in(store: Store, folder: str) -> list[int]:
    names = (path[len(folder) + 1 :].removesuffix(".json") for path in store.list(folder) if path.endswith(".json"))
    return [int(match[1]) for match in map(checkpoint.NAME.fullmatch, names) if match]


class RunLines:
    """The lines of a run's logs by step; each line is read once, as long as the logs only grow.

    Args:
        run: folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._read = {name: _ReadLines() for name in FOLDERS}

    def between(self, name: str, first: int, until: int) -> bytes:
        """Returns the lines of a log for the steps from `first` up to `until` (exclusive).

        They have no clock-dependent fields. The lines of earlier steps are forgotten.

        Raises:
            TransientError: steps are missing or occur twice; the next start resumes before them.
        """
        path, read = self._run / name, self._read[name]
        if first < read.first or not read.go_on(path, first, name == METRICS):
            read = self._read[name] = _ReadLines()
            read.go_on(path, first, name == METRICS)
        if name == METRICS:
            check_rows([step for step, _ in read.lines if step < until], first, until, str(path))
        return b"".join(line for step, line in read.lines if step < until)


class _ReadLines:
    """The lines of one log as far as they were read: those from step `first` on, with their steps."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, bytes]] = []
        self.first = 0
        self._end, self._last = 0, b""

    def go_on(self, path: Path, first: int, is_metrics: bool) -> bool:
        """Reads the whole lines since the last call, and forgets those of the steps before `first`.

        Returns:
            False if the log is another one than at the last call.
        """
        if first > self.first:
            self.first, self.lines = first, [line for line in self.lines if line[0] >= first]
        if not path.exists():
            return not self._end
        with path.open("rb") as file:
            file.seek(self._end - len(self._last))
            # A start rewrites the log. The last line has times, so it is at the same place in the same log only.
            if file.read(len(self._last)) != self._last:
                return False
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._end, self._last = self._end + len(line), line
                row = json.loads(line)
                if row["step"] >= self.first:
                    kept = {key: row[key] for key in repeated(row)} if is_metrics else row
                    self.lines.append((row["step"], json.dumps(kept).encode() + b"\n"))
        return True


def check_rows(steps: Sequence[int], first: int, until: int, where: str) -> None:
    """Raises TransientError unless `steps` are exactly the steps from `first` up to `until`, in order."""
    if list(steps) != list(range(first, until)):
        raise TransientError(
            f"{where}: {len(steps)} rows with {len(set(steps))} of the {until - first} steps from {first} on",
            "run it again: it resumes from the newest checkpoint that has all its steps",
        )
