"""Copies of checkpoints, made beside the run, in a folder that outlives the machine or in the store of the artifacts.

A copy is `<location>/step-<n>-<attempt>/` (the checkpoint's files, and the lines of the steps since the last milestone)
and then its commit marker `<location>/step-<n>.json`: {fingerprint, folder, first, sha256 of the files with lines}. A
folder without a marker does not exist. The lines of earlier steps are those of the milestones in the artifact.
"""

import json
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.core.digest import sha256_of
from tasks.core.errors import InputError, SluiceError, StoreError, TransientError
from tasks.core.stage import Output
from tasks.core.store import AlreadyPublished, Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.locations import FOLDERS, committed, committed_lines, install, lines_of
from tasks.trainer.place import CopyPolicy

FOLDER = "copying"
STUCK_S = 600.0
"""Seconds after which a copy that goes on is a fault."""


class CopyLocation:
    """Copies of checkpoints in a folder or in the store of the artifacts.

    Args:
        name: for messages.
        store: has the copies.
        folder: theirs, relative to the store.
        output: the artifact that the run writes.
        run: folder of the run.
        settings: how often, and how many.
        required: see `Location`.
    """

    def __init__(
        self, name: str, store: Store, folder: str, output: Output, run: Path, settings: CopyPolicy, required: bool
    ) -> None:
        self.name, self.store, self.folder, self.required = name, store, folder, required
        self.output, self.run, self.settings = output, run, settings
        self.newest = 0

    def steps(self) -> list[int]:
        """See `Location`."""
        self._check_mounted()
        names = (path[len(self.folder) + 1 :] for path in self.store.list(self.folder))
        matches = (checkpoint.NAME.fullmatch(name.removesuffix(".json")) for name in names if name.endswith(".json"))
        return sorted(int(match[1]) for match in matches if match)

    def drop_others(self) -> None:
        """Removes the copies of another run at the same address."""
        for step in self.steps():
            with suppress(InputError, FileNotFoundError):
                if self._marker(step)["fingerprint"] != self.output.fingerprint:
                    self.drop(step)

    def fetch(self, step: int) -> dict[str, bytes]:
        """See `Location`."""
        marker = self._marker(step)
        first = marker["first"]
        if first and checkpoint.name_of(first) not in committed(self.output):
            raise InputError(
                f"{self.store.url(marker['folder'])} needs the milestone of step {first}, which is missing"
            )
        lines = committed_lines(self.output, first)
        for file, value in marker["sha256"].items():
            found = self.store.read(f"{marker['folder']}/{file}")
            if sha256_of(found) != value:
                raise InputError(f"{marker['folder']}/{file} does not have the sha256 its marker states", "delete it")
            lines[file] += found
        install(self.store, marker["folder"], self.run, step, lines)
        return lines

    def due(self, step: int, last: bool) -> bool:
        """Whether the checkpoint of a step is to be copied; `last`: the run ends."""
        return step > self.newest and (last or step - self.newest >= self.settings.every or not self.newest)

    def put(self, step: int, first: int, here: Path) -> None:
        """Copies a checkpoint and the lines of its steps, and commits the copy.

        Args:
            step: of the checkpoint.
            first: the milestone before it; the copy has the lines of the steps from there on.
            here: folder of the checkpoint.

        Raises:
            SupersededError: another attempt has taken the run over.
            InputError: the checkpoint does not verify.
            SluiceError, OSError: the location cannot be written.
        """
        self._check_mounted()
        name = checkpoint.name_of(step)
        folder = f"{self.folder}/{name}-{self.output.attempt}"
        try:
            sums = self._write(step, folder, first, here)
        except BaseException:
            with suppress(SluiceError, OSError):  # a full disk must not stay full of half a checkpoint
                self.store.remove(folder)
            raise
        with suppress(TransientError):  # of the artifact's store, which may be another one
            self.output.check_fence()
        marker = {"fingerprint": self.output.fingerprint, "folder": folder, "first": first, "sha256": sums}
        try:
            self.store.publish(self._path(step), json.dumps(marker).encode())
        except AlreadyPublished:  # another attempt at the same run: its bytes are equal
            self.store.remove(folder)
        self.newest = step

    def prune(self) -> None:
        """Removes copies that are not kept, and unfinished ones that are as old; raises SluiceError."""
        steps = self.steps()
        gone = checkpoint.superfluous(steps, self.settings.keep, self.settings.keep_every)
        for step in gone:
            self.drop(step)
        kept = set(steps) - set(gone)
        for name, step in self._folders():
            if step not in kept and step < max(kept, default=0):
                self.store.remove(f"{self.folder}/{name}")

    def drop(self, step: int) -> None:
        """See `Location`. The marker goes first: what is left of a drop that was interrupted does not count."""
        self.store.remove(self._path(step))
        for name, other in self._folders():
            if other == step:
                self.store.remove(f"{self.folder}/{name}")

    def clear(self) -> None:
        """Removes all copies; raises SluiceError."""
        self.store.remove(self.folder)

    def _write(self, step: int, folder: str, first: int, here: Path) -> dict[str, str]:
        """Writes all files but the marker; returns the sha256 of those with lines."""
        checkpoint.verify(here)
        for file in checkpoint.read_state(here)[1]:
            with self.store.write(f"{folder}/{file}") as target, (here / file).open("rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)
        sums = {}
        for file in FOLDERS:
            lines = lines_of(self.run, file, first, step)
            with self.store.write(f"{folder}/{file}") as target:
                target.write(lines)
            sums[file] = sha256_of(lines)
        return sums

    def _folders(self) -> list[tuple[str, int]]:
        """Returns name and step of every folder with a copy's files, finished or not."""
        below = (path[len(self.folder) + 1 :] for path in self.store.list(self.folder, unfinished=True))
        names = sorted({name.split("/")[0] for name in below if "/" in name})
        matches = ((name, checkpoint.NAME.match(name)) for name in names)
        return [(name, int(match[1])) for name, match in matches if match]

    def _marker(self, step: int) -> dict[str, Any]:
        try:
            marker = json.loads(self.store.read(self._path(step)))
            if not {"fingerprint", "folder", "first", "sha256"} <= marker.keys():
                raise ValueError("keys are missing")
        except (ValueError, AttributeError) as error:
            raise InputError(f"{self.store.url(self._path(step))} is no marker of a copy ({error})") from error
        return dict(marker)

    def _path(self, step: int) -> str:
        return f"{self.folder}/{checkpoint.name_of(step)}.json"

    def _check_mounted(self) -> None:
        # A missing mount would otherwise fill the disk below it; the store of the artifacts makes its folder itself.
        if not self.required and self.store.is_local and not Path(self.store.root).is_dir():
            raise StoreError(f"the folder {self.store.root} does not exist", "mount or make it")


class Copier:
    """Copies checkpoints to one location beside the run: a thread that makes one copy at a time.

    A file system that does not answer blocks its own thread alone. The thread reads links to the checkpoint's files in
    `copying/<location>/` of the run's folder, because the ranks remove the checkpoint when it is no longer among the
    newest.

    Args:
        location: where they are made.
        run: folder of the run.
        number: of the location among those of the run.
    """

    def __init__(self, location: CopyLocation, run: Path, number: int) -> None:
        self.location, self._run = location, run
        self._links = run / FOLDER / str(number)
        self._thread: threading.Thread | None = None
        self._step, self._since = 0, 0.0
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a copy is being made."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, step: int, first: int) -> None:
        """Begins to copy a checkpoint of scratch; arguments as for `CopyLocation.put`. Not while it is busy."""
        self._step, self._since, self._error = step, time.monotonic(), None
        self._thread = threading.Thread(target=self._work, args=(step, first), name="copy", daemon=True)
        try:
            shutil.rmtree(self._links, ignore_errors=True)
            here = self._run / "checkpoints" / checkpoint.name_of(step)
            shutil.copytree(here, self._links / here.name, copy_function=os.link)
        except OSError as error:
            self._error = error
            return
        self._thread.start()

    def wait(self, seconds: float | None) -> None:
        """Waits for the copy that is being made, at most so many seconds; None: without limit."""
        if self.busy and self._thread:
            self._thread.join(seconds)

    def result(self) -> tuple[int, BaseException | None] | None:
        """Returns step and error of the copy that has ended or takes too long, once; None: there is no news."""
        if self._thread is None:
            return None
        step = self._step
        if self.busy:
            taken = time.monotonic() - self._since
            if taken < STUCK_S:
                return None
            self._since = float("inf")
            return step, TransientError(f"the copy goes on since {taken:.0f} s", "look whether it answers")
        self._thread = None
        return step, self._error

    def _work(self, step: int, first: int) -> None:
        try:
            self.location.put(step, first, self._links / checkpoint.name_of(step))
            self.location.prune()
        except BaseException as error:  # raised or reported by the thread that asks for the result
            self._error = error
        shutil.rmtree(self._links, ignore_errors=True)
