"""Recovery of a run: its checkpoints at several locations, and the search for the newest good one.

Checkpoints are written into scratch by the ranks, copied from there to a folder and to the store (`copies`), and some
become milestones of the artifact (`milestones`). Where the store is a local or shared folder, scratch lies in it and
there are no copies in `.resume`.

A run resumes from the newest step of which any location has a good copy: a damaged one is followed by the same step at
the next location, and only then by an older step. What is wrong with a location is a fault of the run
(`faults.jsonl`); the run goes on.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tasks.core.errors import InputError, SluiceError, SupersededError, TransientError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.trainer import checkpoint, milestones
from tasks.trainer.copies import CopyLocation
from tasks.trainer.faults import CHECKPOINT, Faults
from tasks.trainer.locations import Location, Milestones, Scratch
from tasks.trainer.metrics import FILE, proven_steps
from tasks.trainer.place_config import CheckpointLocations

log = logging.getLogger("sluice.train")

FOLDER = ".resume"
"""Of the copies in the artifact's folder; the commit of the artifact removes it."""


class Recovery:
    """The checkpoints of a run at all locations.

    Args:
        output: the artifact that the run writes.
        run: folder of the run.
        milestone_steps: steps that become part of the artifact, ascending; none for a canary.
        settings: of the locations.
    """

    def __init__(
        self, output: Output, run: Path, milestone_steps: Sequence[int], settings: CheckpointLocations | None = None
    ) -> None:
        self.output, self.run, self.milestone_steps = output, run, milestone_steps
        self.scratch, self.faults = Scratch(run), Faults(run)
        self.copies = _copies(output, run, settings or CheckpointLocations())
        self.locations: list[Location] = [self.scratch, *self.copies, Milestones(output, run)]
        self._failing: set[str] = set()

    def restore(self) -> None:
        """Brings the newest good checkpoint into scratch, if it is not there; removes the damaged ones on the way.

        Checkpoints of scratch whose steps are not all in the run's log are removed: the artifact must have a row for
        every step.

        Raises:
            SluiceError, OSError: the store cannot be read, or scratch cannot be written.
        """
        self._drop_unproven()
        steps = {location.name: self._listed(location) for location in self.locations}
        if not any(steps[location.name] for location in self.locations[1:]):
            return  # the ranks verify what is in scratch
        here = max(steps[self.scratch.name], default=0)
        newest = self._newest(steps)
        if newest is None:
            log.warning("[%s] no checkpoint can be used: the run begins at its first step", self.output.address)
            return
        step, name, lines = newest
        for file, content in lines.items():
            (self.run / file).write_bytes(content)
        if name != self.scratch.name:
            log.info("[%s] step %d fetched from %s: this machine has step %d", self.output.address, step, name, here)
        self._fetch_for_rollback(step, steps)

    def _fetch_for_rollback(self, newest: int, steps: dict[str, list[int]]) -> None:
        """Brings one more checkpoint into scratch, where a rollback from the first steps would find none."""
        milestone = max((step for step in self.milestone_steps if step <= newest), default=0)  # none goes behind it
        before = {name: [step for step in found if milestone <= step < newest] for name, found in steps.items()}
        if milestone < newest and not before[self.scratch.name]:
            self._newest(before)

    def _newest(self, steps: dict[str, list[int]]) -> tuple[int, str, dict[str, bytes]] | None:
        """Brings the newest good checkpoint of the given steps, by location, into scratch.

        Returns:
            its step, the name of its location, and what `Location.fetch` returned; None: there is none.
        """
        for step in sorted({step for found in steps.values() for step in found}, reverse=True):
            for location in self.locations:
                if step in steps[location.name] and (lines := self._fetched(location, step, steps)) is not None:
                    return step, location.name, lines
        return None

    def _listed(self, location: Location) -> list[int]:
        try:
            if isinstance(location, CopyLocation):
                location.drop_others()
            return location.steps()
        except (SluiceError, OSError) as error:
            self._unreadable(location, 0, error)
            return []

    def _fetched(self, location: Location, step: int, steps: dict[str, list[int]]) -> dict[str, bytes] | None:
        """Returns the lines of a checkpoint that is now in scratch and good, else None; drops one that is damaged.

        A location that does not answer is left out of `steps`.
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
            self._unreadable(location, step, error)
        return None

    def _unreadable(self, location: Location, step: int, error: Exception) -> None:
        if location.required:
            raise error
        self._report(step, f"checkpoints in {location.name} cannot be read: {error}")

    def _report(self, step: int, what: str) -> None:
        do = "look at the disk or the network of that location; the run goes on without it"
        self.run.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # a full disk: it is in the log
            self.faults.report(CHECKPOINT, step, what.rstrip("."), do)

    def _drop_unproven(self) -> None:
        proven = proven_steps(self.run / FILE)
        for step in [step for step in self.scratch.steps() if step > proven]:
            log.warning("[%s] step %d is not resumed from: the log has %d steps", self.output.address, step, proven)
            self.scratch.drop(step)

    def publish(self, until_step: int) -> None:
        """Commits the milestones up to `until_step`, whose files must exist.

        Raises:
            InputError: the checkpoint of a milestone does not verify.
            StoreError: the store cannot be used.
            SupersededError: another attempt has taken the run over.
            TransientError: the store does not answer, or steps are missing from the run's log.
        """
        self.output.check_fence()
        milestones.publish(self.output, self.run, self.milestone_steps, until_step)

    def keep_up(self, until_step: int) -> None:
        """Does `publish` and `push` during the run: a store that is unavailable for a while does not end it.

        Checkpoints are written beside the training: what is not on disk yet is left for the next call.

        Raises:
            SluiceError: as `publish`, where waiting does not help.
        """
        try:
            self.publish(min(until_step, max(self.scratch.steps(), default=0)))
        except (TransientError, OSError) as error:
            log.warning("[%s] milestones are late: %s", self.output.address, error)
        self.push()

    def push(self, last: bool = False) -> None:
        """Copies the newest checkpoint to every location that is due; their errors do not fail the run.

        Args:
            last: the run ends; every location is due.

        Raises:
            SupersededError: another attempt has taken the run over.
        """
        step = max(self.scratch.steps(), default=0)
        for location in self.copies:
            if step and location.due(step, last):
                self._push(location, step)

    def _push(self, location: CopyLocation, step: int) -> None:
        try:
            if self._late(step):  # a run that resumes after this step does not reach these milestones again
                self.publish(step)
            if location.store is not self.output.store or step not in self.milestone_steps:
                location.put(step, max((earlier for earlier in self.milestone_steps if earlier < step), default=0))
            location.prune()
        except SupersededError:
            raise
        except Exception as error:  # stores raise many kinds; the next checkpoint is tried again
            what = f"the checkpoint of step {step} is not in {location.name}: {error}"
            log.warning("[%s] %s", self.output.address, what)
            if location.name not in self._failing:
                self._report(step, what)
            self._failing.add(location.name)
            return
        if location.name in self._failing:
            what = f"checkpoints are copied to {location.name} again, from step {step} on"
            log.info("[%s] %s", self.output.address, what)
        self._failing.discard(location.name)

    def _late(self, step: int) -> bool:
        names = [checkpoint.name_of(milestone) for milestone in self.milestone_steps if milestone <= step]
        return any(name not in self.output.committed for name in names)

    def clear(self) -> None:
        """Removes the copies of a run that is done; those in the artifact's folder go with its commit."""
        for location in self.copies:
            if location.store is self.output.store:
                continue
            try:
                location.clear()
            except (SluiceError, OSError) as error:
                log.warning("[%s] copies are left in %s: %s", self.output.address, location.name, error)


def _copies(output: Output, run: Path, settings: CheckpointLocations) -> list[CopyLocation]:
    """Returns the locations with copies, nearest first."""
    found = []
    if (folder := settings.folder) is not None:
        # By the fingerprint, too: several stores may share the folder.
        below = f"{output.address.path}/{output.fingerprint[:16]}"
        found.append(
            CopyLocation(f"the folder {folder.path}", Store(folder.path), below, output, run, folder, required=False)
        )
    # Scratch inside the store survives the machine anyway.
    if not run.is_relative_to(output.store.root):
        below = f"{output.address.path}/{FOLDER}"
        found.append(CopyLocation("the store", output.store, below, output, run, settings.store, required=True))
    return found
