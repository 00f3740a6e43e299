"""Copies of checkpoints in a folder that outlives the machine, or in the artifact store, made in background threads.

A copy is a folder `<location>/step-<n>-<attempt>/` (the checkpoint's files, and the log lines of the steps since the
last milestone) and a commit marker `<location>/step-<n>.json`, written last: {fingerprint, folder, first, sha256 of the
log files}. A folder without a marker is ignored. The lines of earlier steps are in the milestones of the artifact.
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
"""Seconds after which an unfinished copy is reported as a fault."""


class CopyLocation:
    """Copies of checkpoints in a folder or in the artifact store.

    Args:
        name: name for messages.
        store: the store that contains the copies.
        folder: folder of the copies, relative to the store.
        output: the artifact that the run writes.
        run: folder of the run.
        settings: how often to copy, and how many copies to keep.
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
            content = self.store.read(f"{marker['folder']}/{file}")
            if sha256_of(content) != value:
                raise InputError(f"{marker['folder']}/{file} does not have the sha256 its marker states", "delete it")
            lines[file] += content
        install(self.store, marker["folder"], self.run, step, lines)
        return lines

    def due(self, step: int, last: bool) -> bool:
        """Returns whether the checkpoint of a step is due for copying; `last`: the run ends."""
        return step > self.newest and (last or step - self.newest >= self.settings.every or not self.newest)

    def put(self, step: int, first: int, here: Path) -> None:
        """Copies a checkpoint and the lines of its steps, and commits the copy.

        Args:
            step: of the checkpoint.
            first: the previous milestone; the copy contains the log lines from there on.
            here: folder of the checkpoint.

        Raises:
            SupersededError: a later attempt has taken over the run.
            InputError: the checkpoint does not verify.
            SluiceError, OSError: the location cannot be written.
        """
        self._check_mounted()
        name = checkpoint.name_of(step)
        folder = f"{self.folder}/{name}-{self.output.attempt}"
        try:
            sums = self._write(step, folder, first, here)
        except BaseException:
            with suppress(SluiceError, OSError):  # do not leave half a checkpoint on a full disk
                self.store.remove(folder)
            raise
        with suppress(TransientError):  # of the artifact store, which can be another store
            self.output.check_fence()
        marker = {"fingerprint": self.output.fingerprint, "folder": folder, "first": first, "sha256": sums}
        try:
            self.store.publish(self._path(step), json.dumps(marker).encode())
        except AlreadyPublished:  # by another attempt at the same run, with the same bytes
            self.store.remove(folder)
        self.newest = step

    def prune(self) -> None:
        """Removes superfluous copies, and unfinished copies older than the newest one; raises SluiceError."""
        steps = self.steps()
        superfluous = checkpoint.superfluous(steps, self.settings.keep, self.settings.keep_every)
        for step in superfluous:
            self.drop(step)
        remaining = set(steps) - set(superfluous)
        for name, step in self._folders():
            if step not in remaining and step < max(remaining, default=0):
                self.store.remove(f"{self.folder}/{name}")

    def drop(self, step: int) -> None:
        """See `Location`. Removes the marker first, so that an interrupted removal leaves no valid copy."""
        self.store.remove(self._path(step))
        for name, other in self._folders():
            if other == step:
                self.store.remove(f"{self.folder}/{name}")

    def clear(self) -> None:
        """Removes all copies; raises SluiceError."""
        self.store.remove(self.folder)

    def _write(self, step: int, folder: str, first: int, here: Path) -> dict[str, str]:
        """Writes all files except the marker; returns the SHA-256 of the log files."""
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
        """Returns name and step of every folder of a copy, finished or not."""
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
            raise InputError(f"{self.store.url(self._path(step))} is not the marker of a copy ({error})") from error
        return dict(marker)

    def _path(self, step: int) -> str:
        return f"{self.folder}/{checkpoint.name_of(step)}.json"

    def _check_mounted(self) -> None:
        # With a missing mount, the copies would fill the disk below it. The artifact store creates its own folder.
        if not self.required and self.store.is_local and not Path(self.store.root).is_dir():
            raise StoreError(f"the folder {self.store.root} does not exist", "mount or create it")


class Copier:
    """Copies checkpoints to one location in a background thread, one at a time.

    Each location has its own thread, so a file system that hangs blocks only its own copies. The thread reads hard
    links to the checkpoint's files in `copying/<location>/` of the run's folder, because the ranks delete old
    checkpoints.

    Args:
        location: target of the copies.
        run: folder of the run.
        number: index of the location.
    """

    def __init__(self, location: CopyLocation, run: Path, number: int) -> None:
        self.location, self._run = location, run
        self._links = run / FOLDER / str(number)
        self._thread: threading.Thread | None = None
        self._step, self._since = 0, 0.0
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a copy is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, step: int, first: int) -> None:
        """Starts to copy a checkpoint of scratch; arguments as for `CopyLocation.put`. Not to be called while busy."""
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
        """Waits for the copy in progress, with a timeout in seconds; None: without limit."""
        if self.busy and self._thread:
            self._thread.join(seconds)

    def result(self) -> tuple[int, BaseException | None] | None:
        """Returns step and error of a copy that has ended or takes too long, once per copy; None if there is none."""
        if self._thread is None:
            return None
        step = self._step
        if self.busy:
            elapsed = time.monotonic() - self._since
            if elapsed < STUCK_S:
                return None
            self._since = float("inf")
            return step, TransientError(
                f"the copy has not ended after {elapsed:.0f} s", "check whether the location responds"
            )
        self._thread = None
        return step, self._error

    def _work(self, step: int, first: int) -> None:
        try:
            self.location.put(step, first, self._links / checkpoint.name_of(step))
            self.location.prune()
        except BaseException as error:  # reported or raised by the thread that reads the result
            self._error = error
        shutil.rmtree(self._links, ignore_errors=True)
