"""Copies of checkpoints in a folder that outlives the machine, or in the artifact store, made in background threads.

A copy is a folder `<location>/step-<n>-<attempt>/` (the checkpoint's files, and the log lines of the steps since the
last milestone) and a commit marker `<location>/step-<n>.json`, written last: {fingerprint, folder, first, sha256 of the
log files, and best, the step of the best checkpoint up to it, if there is one}. A folder without a marker is ignored.
The lines of earlier steps are in the milestones of the artifact.

A spread checkpoint is copied by all nodes into one folder, whose name all derive from its `state.json`. Every node
copies the files on its disk, and node 0 writes the marker when all files are there.

The ranks hand spread checkpoints over to the stage on their node: the first rank of each disk links the files of a
checkpoint in the run's folder, so that they outlive the checkpoint, and the stage removes the links when it has copied
them: `copying/<index of the location>/step-<n>/`. Node 0 copies by `recovery`, the others by `NodeCopies`.
"""

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.core.digest import sha256_of, sha256_of_file
from tasks.core.errors import InputError, SluiceError, StoreError, TransientError
from tasks.core.stage import Output
from tasks.core.store import AlreadyPublished, Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.locations import (
    FOLDERS,
    CopySource,
    RunLines,
    committed,
    committed_lines,
    fetch_file,
    install,
)
from tasks.trainer.config import CopySpec
from tasks.trainer.place import CheckpointLocations, CopyPolicy

log = logging.getLogger("sluice.train")

_LINKS = "copying"


def hand_over(run: Path, location: int, here: Path) -> Path:
    """Links the folder of a checkpoint for a location, in place of an earlier link; returns the folder of the links."""
    links = links_of(run, location)
    unfinished, final = links / f".{here.name}", links / here.name
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(here, unfinished, copy_function=os.link)
    shutil.rmtree(final, ignore_errors=True)
    return unfinished.rename(final)


def handed_over(run: Path, location: int) -> list[int]:
    """Returns the steps whose files the stage on this node has yet to copy to a location, ascending."""
    return checkpoint.steps_at(links_of(run, location))


def links_of(run: Path, location: int) -> Path:
    """Returns the folder with the links for a location."""
    return run / _LINKS / str(location)


def clear_links(run: Path) -> None:
    """Removes the links of an earlier start."""
    shutil.rmtree(run / _LINKS, ignore_errors=True)


FOLDER = ".resume"
"""Folder of the copies in the artifact's folder; it is removed when the artifact is committed."""
WAIT_S = 60.0
"""Seconds that a run waits at its end for copies in locations other than the store, and for those of other nodes."""
PATIENCE_S = 600.0
"""Seconds that node 0 waits for the files of other nodes, from the end of its own copy."""
POLL_S = 0.5
AGAIN_S = 10.0
"""Seconds after which a node copies its files again after a failure."""
STUCK_S = 600.0
"""Seconds after which an unfinished copy is reported as a fault."""


class OtherNodesLate(TransientError):
    """Files of other nodes have not been copied yet."""


class CopyLocation(CopySource):
    """Copies of checkpoints in a folder or in the artifact store.

    Args:
        name: name for messages.
        store: the store that contains the copies.
        folder: folder of the copies, relative to the store.
        output: the artifact that the run writes.
        run: folder of the run.
        settings: how often to copy, and how many copies to keep.
        required: see `Location`.
        nodes: number of nodes of the run. On several, the ranks fetch the files of a checkpoint.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        folder: str,
        output: Output,
        run: Path,
        settings: CopyPolicy,
        required: bool,
        nodes: int = 1,
    ) -> None:
        super().__init__(store, folder, required=required)
        self.name, self.output, self.run, self.settings = name, output, run, settings
        self.newest, self.patience_s, self.nodes = 0, PATIENCE_S, nodes
        self._lines = RunLines(run)

    def steps(self) -> list[int]:
        """See `Location`."""
        self._check_mounted()
        return super().steps()

    def drop_others(self) -> None:
        """Removes the copies of another run at the same address."""
        for step in self.steps():
            with suppress(InputError, FileNotFoundError):
                if self.marker(step)["fingerprint"] != self.output.fingerprint:
                    self.drop(step)

    def fetch(self, step: int) -> dict[str, bytes]:
        """See `Location`."""
        marker = self.marker(step)
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
        install(self.store, marker["folder"], self.run, step, lines, files=self.nodes == 1)
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
        is_spread = bool(checkpoint.missing(here))
        folder = self.folder_for(here) if is_spread else f"{self.folder}/{here.name}-{self.output.attempt}"
        try:
            self.put_files(here, folder)
            sums = self._write_lines(step, folder, first)
            if is_spread:
                self._await_others(here, folder)
        except BaseException:
            if not is_spread:
                with suppress(SluiceError, OSError):  # do not leave half a checkpoint on a full disk
                    self.store.remove(folder)
            raise
        with suppress(TransientError):  # of the artifact store, which can be another store
            self.output.check_fence()
        marker = {"fingerprint": self.output.fingerprint, "folder": folder, "first": first, "sha256": sums}
        marker |= {checkpoint.BEST: best} if (best := checkpoint.best_for(here)) else {}
        try:
            self.store.publish(self.marker_path(step), json.dumps(marker).encode())
        except AlreadyPublished:  # by another attempt at the same run
            if self.folder_of(step) != folder:
                self.store.remove(folder)
        self.newest = step

    def folder_for(self, here: Path) -> str:
        """Returns the folder of the copy of a spread checkpoint, the same on all of its disks."""
        return f"{self.folder}/{here.name}-{sha256_of_file(here / checkpoint.STATE)[:16]}"

    def put_files(self, here: Path, folder: str) -> None:
        """Verifies the files of a checkpoint that are on this disk, and copies those that `folder` does not have.

        Raises:
            InputError: the checkpoint does not verify.
            SluiceError, OSError: the location cannot be written.
        """
        self._check_mounted()
        checkpoint.verify(here, spread=True)
        there = self._files_in(folder)
        for file in sorted(checkpoint.read_state(here)[1].keys() - there):
            if (here / file).exists():
                with self.store.write(f"{folder}/{file}") as target, (here / file).open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)

    def collect(self, here: Path, target: Path) -> None:
        """Makes a complete checkpoint of a spread one: links to the files on this disk, and copies of the others.

        Args:
            here: folder of the checkpoint on this disk.
            target: folder to create.

        Raises:
            OtherNodesLate: another node has not copied its files to this location yet.
            InputError: a file is damaged.
            SluiceError, OSError: the location cannot be read, or `target` not written.
        """
        folder, sums = self.folder_for(here), checkpoint.read_state(here)[1]
        if late := sorted(sums.keys() - self._files_in(folder) - {path.name for path in here.iterdir()}):
            raise OtherNodesLate(f"{late[0]} of {here.name} is not in {self.name}", "see the logs of the other nodes")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(here, target, copy_function=os.link)
        for file in checkpoint.missing(target):
            fetch_file(self.store, folder, file, sums[file], target / file)

    def _files_in(self, folder: str) -> set[str]:
        return {path[len(folder) + 1 :] for path in self.store.list(folder)}

    def _await_others(self, here: Path, folder: str) -> None:
        """Waits until all files of a checkpoint are in the location; raises OtherNodesLate after `patience_s`."""
        started, files = time.monotonic(), checkpoint.read_state(here)[1].keys()
        while late := files - self._files_in(folder):
            if time.monotonic() - started > self.patience_s:
                raise OtherNodesLate(f"another node has not copied {min(late)}", "see the logs of the other nodes")
            with suppress(TransientError):
                self.output.check_fence()
            time.sleep(POLL_S)

    def prune(self) -> None:
        """Removes superfluous copies, and unfinished copies older than the newest one; raises SluiceError."""
        steps = self.steps()
        superfluous = checkpoint.superfluous(steps, self.settings.keep, self.settings.keep_every)
        best = {self.marker(step).get(checkpoint.BEST) for step in steps if step not in superfluous}
        superfluous = [step for step in superfluous if step not in best]
        for step in superfluous:
            self.drop(step)
        remaining = set(steps) - set(superfluous)
        for name, step in self._folders():
            if step not in remaining and step < max(remaining, default=0):
                self.store.remove(f"{self.folder}/{name}")

    def drop(self, step: int) -> None:
        """See `Location`. Removes the marker first, so that an interrupted removal leaves no valid copy."""
        self.store.remove(self.marker_path(step))
        for name, other in self._folders():
            if other == step:
                self.store.remove(f"{self.folder}/{name}")

    def clear(self) -> None:
        """Removes all copies; raises SluiceError."""
        self.store.remove(self.folder)

    def _write_lines(self, step: int, folder: str, first: int) -> dict[str, str]:
        """Writes the log lines of the steps since `first`; returns the SHA-256 of their files."""
        sums = {}
        for file in FOLDERS:
            lines = self._lines.between(file, first, step)
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

    def _check_mounted(self) -> None:
        # With a missing mount, the copies would fill the disk below it. The artifact store creates its own folder.
        if not self.required and self.store.is_local and not Path(self.store.root).is_dir():
            raise StoreError(f"the folder {self.store.root} does not exist", "mount or create it")


class Copier:
    """Copies checkpoints to one location in a background thread, one at a time.

    Each location has its own thread, so a file system that hangs blocks only its own copies. The thread reads hard
    links to the checkpoint's files (`hand_over`), because the ranks delete old checkpoints.

    Args:
        location: target of the copies.
        run: folder of the run.
        number: index of the location.
        commits: whether this is node 0, which commits the copies; False: copies only the files on this disk.
    """

    def __init__(self, location: CopyLocation, run: Path, number: int, *, commits: bool = True) -> None:
        self.location, self._run, self._number, self._commits = location, run, number, commits
        self._thread: threading.Thread | None = None
        self._step, self._since, self._not_before = 0, 0.0, 0.0
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a copy is in progress."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def handed_over(self) -> int:
        """The oldest step that the ranks have handed over; 0 if there is none, or if its copy failed just now."""
        steps = handed_over(self._run, self._number)
        return steps[0] if steps and time.monotonic() >= self._not_before else 0

    @property
    def pending(self) -> bool:
        """Whether the ranks have handed over a checkpoint that is not copied yet."""
        return bool(handed_over(self._run, self._number))

    def start(self, step: int, first: int = 0) -> None:
        """Starts to copy a checkpoint that was handed over, or else one of scratch. Not to be called while busy.

        Args:
            step: of the checkpoint.
            first: as for `CopyLocation.put`.
        """
        self._step, self._since, self._error = step, time.monotonic(), None
        self._thread = threading.Thread(target=self._work, args=(step, first), name="copy", daemon=True)
        try:
            if step not in handed_over(self._run, self._number):
                hand_over(self._run, self._number, self._run / "checkpoints" / checkpoint.name_of(step))
        except OSError as error:
            self._error = error
            return
        self._thread.start()

    def drop(self, step: int) -> None:
        """Removes the links to a checkpoint that need not be copied."""
        shutil.rmtree(links_of(self._run, self._number) / checkpoint.name_of(step), ignore_errors=True)

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
        here = links_of(self._run, self._number) / checkpoint.name_of(step)
        try:
            if self._commits:
                self.location.put(step, first, here)
                self.location.prune()
            else:
                self.location.put_files(here, self.location.folder_for(here))
        except BaseException as error:  # reported or raised by the thread that reads the result
            self._error = error
            if not self._commits:
                self._not_before = time.monotonic() + AGAIN_S
                return
        self.drop(step)


class NodeCopies:
    """The checkpoints of a node other than 0, which adds the files of its ranks; node 0 commits (`recovery`).

    Args:
        output: the artifact of the run, to which this node does not write.
        run: folder of the run on this node (`take_folder`).
        nodes: number of nodes.
        milestone_steps: steps that become part of the artifact, ascending.
        settings: settings of the locations.
    """

    def __init__(
        self,
        output: Output,
        run: Path,
        nodes: int,
        milestone_steps: Sequence[int],
        settings: CheckpointLocations,
    ) -> None:
        self.output, self.run = output, run
        locations = copy_locations(output, self.run, settings, nodes)
        self.specs = specs_of(locations)
        self._copiers = [Copier(location, self.run, number, commits=False) for number, location in enumerate(locations)]
        missing = [step for step in milestone_steps if checkpoint.name_of(step) not in output.committed]
        hand_over_milestones(self.run, self._copiers, missing)

    def keep_up(self) -> None:
        """Starts the copies that the ranks have handed over; failures are logged, and repeated later."""
        for copier in self._copiers:
            self._log_failure(copier)
            if not copier.busy and (step := copier.handed_over):
                copier.start(step)

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Context manager for a training: at its end copies what is left, on failure also the last checkpoint.

        Raises:
            TransientError: at the regular end, files could not be copied.
        """
        try:
            yield
        except BaseException:
            self._push()
            raise
        self._finish()
        shutil.rmtree(self.run, ignore_errors=True)

    def _push(self) -> None:
        """Copies the files of the newest checkpoint to all locations; waits at most `WAIT_S` for each."""
        step = max(checkpoint.steps_at(self.run / "checkpoints"), default=0)
        for copier in self._copiers:
            copier.wait(WAIT_S)
            self._log_failure(copier)
            if step and not copier.busy:
                copier.start(step)
        for copier in self._copiers:
            copier.wait(WAIT_S)
            self._log_failure(copier)

    def _finish(self) -> None:
        """Copies what is left for the artifact; what is left for other locations is not needed any more."""
        deadline = time.monotonic() + PATIENCE_S
        for copier in self._copiers:
            while copier.location.required and (copier.busy or copier.pending):
                if time.monotonic() > deadline:
                    raise TransientError("files of milestones are not in the store", "see the log of this node")
                self.keep_up()
                copier.wait(1.0)

    def _log_failure(self, copier: Copier) -> None:
        step, error = copier.result() or (0, None)
        if error is None:
            return
        if not isinstance(error, SluiceError | OSError):
            raise error
        where = copier.location.name
        log.warning("[%s] files of step %d are not in %s: %s", self.output.address, step, where, error)


def specs_of(locations: Sequence[CopyLocation]) -> tuple[CopySpec, ...]:
    """Returns the description of locations for the ranks."""
    return tuple(
        CopySpec(
            store=location.store.root,
            folder=location.folder,
            every=location.settings.every,
            required=location.required,
        )
        for location in locations
    )


def hand_over_milestones(run: Path, copiers: Sequence[Copier], steps: Sequence[int]) -> None:
    """Hands over the files of spread milestones that an earlier start has not copied; removes its other links.

    Also those of best checkpoints, since it is not known whether they are copied.
    """
    clear_links(run)
    root = run / "checkpoints"
    best = {checkpoint.best_for(root / checkpoint.name_of(step)) for step in checkpoint.steps_at(root)}
    for step in sorted({*steps, *best} - {0}):
        here = root / checkpoint.name_of(step)
        with suppress(InputError):  # there is none, or it is damaged
            if checkpoint.missing(here):
                for number, copier in enumerate(copiers):
                    if copier.location.required:
                        hand_over(run, number, here)


def copy_locations(output: Output, run: Path, settings: CheckpointLocations, nodes: int) -> list[CopyLocation]:
    """Returns the locations with copies, nearest first."""
    locations = []
    if (folder := settings.folder) is not None:
        # The path contains the fingerprint, because several stores can share the folder.
        below, name = f"{output.address.path}/{output.fingerprint[:16]}", f"the folder {folder.path}"
        locations.append(CopyLocation(name, Store(folder.path), below, output, run, folder, False, nodes))
    # Scratch inside the store outlives the machine anyway.
    if not run.is_relative_to(output.store.root):
        below, name = f"{output.address.path}/{FOLDER}", "the store"
        locations.append(CopyLocation(name, output.store, below, output, run, settings.store, True, nodes))
    return locations
