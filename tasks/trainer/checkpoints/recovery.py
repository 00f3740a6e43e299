"""Recovery of a run: its checkpoints at several locations, and the search for the newest valid one.

The ranks write checkpoints to scratch; from there they are copied to a folder and to the store (`copies`), and some
become milestones of the artifact (`locations`). If the store is a local or shared folder, it contains scratch, and
there are no copies in `.resume`.

A run resumes from the newest step that is valid at any location: after a damaged checkpoint, the same step is tried at
the next location, and only then an older step. Problems of a location are recorded as faults of the run
(`faults.jsonl`); the run continues.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.core.errors import InputError, SluiceError, SupersededError, TransientError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.copies import Copier, CopyLocation
from tasks.trainer.checkpoints.fence import Fence
from tasks.trainer.checkpoints.locations import Location, Milestones, Scratch, publish_milestones
from tasks.trainer.logs import METRICS, Faults, proven_steps
from tasks.trainer.place import CheckpointLocations

log = logging.getLogger("sluice.train")

FOLDER = ".resume"
"""Folder of the copies in the artifact's folder; it is removed when the artifact is committed."""
WAIT_S = 60.0
"""Seconds that a run waits at its end for copies in locations other than the store."""


class Recovery:
    """The checkpoints of a run at all locations.

    Args:
        output: the artifact that the run writes.
        run: folder of the run.
        milestone_steps: steps that become part of the artifact, ascending; none for a canary.
        settings: settings of the locations.
    """

    def __init__(
        self, output: Output, run: Path, milestone_steps: Sequence[int], settings: CheckpointLocations | None = None
    ) -> None:
        self.output, self.run, self.milestone_steps = output, run, milestone_steps
        self.scratch, self.faults = Scratch(run), Faults(run)
        copies = _copies(output, run, settings or CheckpointLocations())
        self.copiers = [Copier(location, run, number) for number, location in enumerate(copies)]
        self.locations: list[Location] = [self.scratch, *copies, Milestones(output, run)]
        self._failing: set[str] = set()

    def restore(self) -> None:
        """Copies the newest valid checkpoint into scratch, if it is not there; removes damaged ones found on the way.

        Removes checkpoints from scratch whose steps are not all in the run's log, because the artifact must have a row
        for every step.

        Raises:
            SluiceError, OSError: the store cannot be read, or scratch cannot be written.
        """
        self._drop_unproven()
        steps = {location.name: self._listed(location) for location in self.locations}
        here = max(steps[self.scratch.name], default=0)
        newest = self._newest(steps)
        if newest is None:
            if any(steps.values()):
                log.warning("[%s] no checkpoint can be used: the run starts at its first step", self.output.address)
            return
        step, name, lines = newest
        for file, content in lines.items():
            (self.run / file).write_bytes(content)
        if name != self.scratch.name:
            log.info("[%s] step %d fetched from %s: this machine has step %d", self.output.address, step, name, here)
        self._fetch_for_rollback(step, steps)

    def _fetch_for_rollback(self, newest: int, steps: dict[str, list[int]]) -> None:
        """Copies one older checkpoint into scratch, if a rollback soon after the restart would otherwise find none."""
        # Rollbacks do not go back beyond a milestone.
        milestone = max((step for step in self.milestone_steps if step <= newest), default=0)
        before = {
            name: [step for step in of_location if milestone <= step < newest] for name, of_location in steps.items()
        }
        if milestone < newest and not before[self.scratch.name]:
            self._newest(before)

    def _newest(self, steps: dict[str, list[int]]) -> tuple[int, str, dict[str, bytes]] | None:
        """Copies the newest valid checkpoint of the given steps, by location, into scratch.

        Returns:
            Its step, the name of its location, and the result of `Location.fetch`; None if there is none.
        """
        for step in sorted({step for of_location in steps.values() for step in of_location}, reverse=True):
            for location in self.locations:
                if step in steps[location.name] and (lines := self._try_fetch(location, step, steps)) is not None:
                    return step, location.name, lines
        return None

    def _listed(self, location: Location) -> list[int]:
        try:
            if isinstance(location, CopyLocation):
                location.drop_others()
            return location.steps()
        except (SluiceError, OSError) as error:
            self._handle_unreadable(location, 0, error)
            return []

    def _try_fetch(self, location: Location, step: int, steps: dict[str, list[int]]) -> dict[str, bytes] | None:
        """Fetches a checkpoint and returns its lines; returns None if that fails, and removes a damaged checkpoint.

        The steps of a location that does not respond are removed from `steps`.
        """
        try:
            return location.fetch(step)
        except (FileNotFoundError, InputError) as error:
            self._report(step, f"the checkpoint of step {step} in {location.name} cannot be used: {error}")
            try:
                location.drop(step)
            except (SluiceError, OSError) as other:
                log.warning("[%s] it cannot be removed: %s", self.output.address, other)
        except (SluiceError, OSError) as error:
            steps[location.name] = []
            self._handle_unreadable(location, step, error)
        return None

    def _handle_unreadable(self, location: Location, step: int, error: Exception) -> None:
        if location.required:
            raise error
        self._report(step, f"checkpoints in {location.name} cannot be read: {error}")

    def _report(self, step: int, what: str) -> None:
        self.run.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # on a full disk, the problem is only in the log
            self.faults.location(step, what)

    def _drop_unproven(self) -> None:
        proven = proven_steps(self.run / METRICS)
        for step in [step for step in self.scratch.steps() if step > proven]:
            log.warning("[%s] step %d is not resumed from: the log has %d steps", self.output.address, step, proven)
            self.scratch.drop(step)

    def publish(self, until_step: int) -> None:
        """Commits the milestones up to `until_step`, whose files must exist.

        Raises:
            InputError: the checkpoint of a milestone does not verify.
            StoreError: the store cannot be used.
            SupersededError: a later attempt has taken over the run.
            TransientError: the store does not answer, or steps are missing from the run's log.
        """
        self.output.check_fence()
        publish_milestones(self.output, self.run, self.milestone_steps, until_step)

    def keep_up(self, until_step: int) -> None:
        """Commits milestones and starts copies during the run; temporary outages do not stop the run.

        Checkpoints are written in the background; those that are not on disk yet are handled by the next call.

        Raises:
            SluiceError: as `publish`, for permanent errors.
        """
        try:
            self.publish(min(until_step, max(self.scratch.steps(), default=0)))
        except (TransientError, OSError) as error:
            log.warning("[%s] milestones are late: %s", self.output.address, error)
        self._copy(last=False)

    @contextmanager
    def guarding(self, fence: Fence) -> Iterator[None]:
        """Context manager for a training. On failure, usually SIGTERM, copies the last checkpoint for another machine.

        A superseded attempt copies nothing, and removes its folder.
        """
        try:
            yield
        except SupersededError:
            fence.leave()
            raise
        except BaseException:
            self.push(last=True)
            raise

    def push(self, last: bool = False) -> None:
        """Copies the newest checkpoint to every location that is due, and waits. Errors do not fail the run.

        Args:
            last: the run ends; every location is due.

        Raises:
            SupersededError: a later attempt has taken over the run.
        """
        self.wait()
        self._copy(last)
        self.wait()

    def wait(self) -> None:
        """Waits for copies in progress: without limit for copies in the store, up to `WAIT_S` for others.

        Raises:
            SupersededError: a later attempt has taken over the run.
        """
        deadline = time.monotonic() + WAIT_S
        for copier in self.copiers:
            copier.wait(None if copier.location.required else max(0.0, deadline - time.monotonic()))
            self._handle_result(copier)

    def _copy(self, last: bool) -> None:
        step = max(self.scratch.steps(), default=0)
        first = max((earlier for earlier in self.milestone_steps if earlier < step), default=0)
        for copier in self.copiers:
            self._handle_result(copier)
            if not step or copier.busy or not copier.location.due(step, last):
                continue
            try:
                # A run that resumes from this copy does not repeat earlier milestones.
                if self._has_uncommitted_milestones(step):
                    self.publish(step)
            except SupersededError:
                raise
            except Exception as error:  # stores raise many types; the next checkpoint is tried again
                self._report_failed_copy(copier.location, step, error)
                continue
            # In the store, a milestone is part of the artifact already.
            if not copier.location.required or step not in self.milestone_steps:
                copier.start(step, first)

    def _handle_result(self, copier: Copier) -> None:
        """Handles the result of a copy."""
        if (result := copier.result()) is None:
            return
        (step, error), location = result, copier.location
        if isinstance(error, SupersededError):
            raise error
        if error is not None:
            self._report_failed_copy(location, step, error)
        elif location.name in self._failing:
            self._failing.discard(location.name)
            log.info("[%s] %s has copies again, from step %d on", self.output.address, location.name, step)

    def _report_failed_copy(self, location: CopyLocation, step: int, error: BaseException) -> None:
        message = f"the checkpoint of step {step} is not in {location.name}: {error}"
        if location.name in self._failing:
            log.warning("[%s] %s", self.output.address, message)
        else:
            self._report(step, message)
        self._failing.add(location.name)

    def _has_uncommitted_milestones(self, step: int) -> bool:
        names = [checkpoint.name_of(milestone) for milestone in self.milestone_steps if milestone <= step]
        return any(name not in self.output.committed for name in names)

    def clear(self) -> None:
        """Removes the copies of a completed run; those in the artifact's folder are removed by its commit.

        Raises:
            SupersededError: a later attempt has taken over the run.
        """
        self.wait()
        for copier in self.copiers:
            if copier.location.required:
                continue
            try:
                if copier.busy:
                    raise TransientError("a copy is still in progress", "check whether the location responds")
                copier.location.clear()
            except (SluiceError, OSError) as error:
                log.warning("[%s] copies are left in %s: %s", self.output.address, copier.location.name, error)


def _copies(output: Output, run: Path, settings: CheckpointLocations) -> list[CopyLocation]:
    """Returns the locations with copies, nearest first."""
    locations = []
    if (folder := settings.folder) is not None:
        # The path contains the fingerprint, because several stores can share the folder.
        below = f"{output.address.path}/{output.fingerprint[:16]}"
        locations.append(
            CopyLocation(f"the folder {folder.path}", Store(folder.path), below, output, run, folder, required=False)
        )
    # Scratch inside the store outlives the machine anyway.
    if not run.is_relative_to(output.store.root):
        below = f"{output.address.path}/{FOLDER}"
        locations.append(CopyLocation("the store", output.store, below, output, run, settings.store, required=True))
    return locations
