"""Recovery of a run: its checkpoints at several locations, and the search for the newest valid one.

The ranks write checkpoints to scratch; from there they are copied to a folder and to the store (`copies`), and some
become milestones of the artifact (`locations`). The best one (`tasks.trainer.best`) becomes a part of it at the end. If
the store is a local or shared folder, it contains scratch, and there are no copies in `.resume`.

A run resumes from the newest step that is valid at any location: after a damaged checkpoint, the same step is tried at
the next location, and only then an older step. A checkpoint is valid only if the best one up to it, which its state
names, is there as well; so that one is copied first. Problems of a location are recorded as faults of the run
(`faults.jsonl`); the run continues.

On several nodes, a checkpoint can be spread over their disks. Node 0 then restores its own files, or `state.json` and
the log lines of a copy; the ranks choose a step that all of them can read, and fetch the files (`disks`). Copies and
milestones are committed when the files of all nodes are in the store (`copies`).
"""

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.core.errors import InputError, SluiceError, StoppedError, SupersededError, TransientError
from tasks.core.stage import Output
from tasks.trainer.best import End
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.copies import (
    PATIENCE_S,
    WAIT_S,
    Copier,
    CopyLocation,
    OtherNodesLate,
    copy_locations,
    hand_over_milestones,
    specs_of,
)
from tasks.trainer.checkpoints.fork import Fork
from tasks.trainer.checkpoints.locations import Location, Milestones, Scratch, publish_best, publish_milestone
from tasks.trainer.config import CopySpec, ForkSpec
from tasks.trainer.logs import METRICS, ROLLBACK, Faults, proven_steps
from tasks.trainer.place import CheckpointLocations

log = logging.getLogger("sluice.train")

COLLECTED = "collected"
"""Folder in the run's folder of a milestone whose files are fetched from other nodes."""
TICK_S = 2.0
"""Seconds between two looks at the files of other nodes."""
LOST_WAIT_S = 5.0
"""Seconds that a failed run waits for the copies of other nodes, which may be lost."""


class Recovery:
    """The checkpoints of a run at all locations.

    Args:
        output: the artifact that the run writes.
        run: folder of the run.
        milestone_steps: steps that become part of the artifact, ascending; none for a canary.
        settings: settings of the locations.
        nodes: number of nodes of the run.
        fork: the checkpoint of another run from which this one goes on.
    """

    def __init__(
        self,
        output: Output,
        run: Path,
        milestone_steps: Sequence[int],
        settings: CheckpointLocations | None = None,
        nodes: int = 1,
        fork: ForkSpec | None = None,
    ) -> None:
        self.output, self.run, self.milestone_steps, self.nodes = output, run, milestone_steps, nodes
        self.scratch, self.faults = Scratch(run, spread=nodes > 1), Faults(run)
        copies = copy_locations(output, run, settings or CheckpointLocations(), nodes)
        self.copiers = [Copier(location, run, number) for number, location in enumerate(copies)]
        self.milestones = Milestones(output, run)
        self.locations: list[Location] = [self.scratch, *copies, self.milestones]
        self.fork = fork
        self.locations += [Fork(fork, run)] if fork else []
        self._failing: set[str] = set()
        self._ticked = time.monotonic()
        hand_over_milestones(self.run, self.copiers, self._uncommitted(max(milestone_steps, default=0)))

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
        newest = self._newest(steps, steps)
        if newest is None:
            if self.fork:
                cause = f"the checkpoint of step {self.fork.step:,} of {self.fork.run.artifact} cannot be used"
                raise InputError(f"[train.fork]: {cause}", "restore its files, or name another step")
            if any(steps.values()):
                log.warning("[%s] no checkpoint can be used: the run starts at its first step", self.output.address)
            return
        step, name, lines = newest
        for file, content in lines.items():
            (self.run / file).write_bytes(content)
        if name != self.scratch.name:
            log.info("[%s] step %d fetched from %s: this machine has step %d", self.output.address, step, name, here)
        self._fetch_for_rollback(step, steps)

    def go_back(self, step: int) -> None:
        """Makes the checkpoint of a step the newest one: removes later ones at all locations, also milestones.

        Reports what is abandoned as a fault of the run.

        Raises:
            InputError: there is no such checkpoint, or it is damaged; later ones are still there.
            SluiceError, OSError: a location cannot be read or written. It would have later checkpoints.
        """
        self._drop_unproven()
        steps = {location.name: location.steps() for location in self.locations}
        existing = sorted({one for of_location in steps.values() for one in of_location})
        found = self._fetch_any(step, steps)
        if found is None or not self._has_best(step, steps):
            what = "cannot be used" if step in existing else "does not exist"
            others = ", ".join(f"{one:,}" for one in existing if one != step)
            raise InputError(
                f"[train] resume_from: {self.output.address}: the checkpoint of step {step:,} {what}",
                f"name one of {others}" if others else "the run has no other checkpoint: leave it out",
            )
        for location in self.locations:
            for later in [one for one in steps[location.name] if one > step]:
                location.drop(later)
        self.milestones.withdraw_after(step)
        abandoned = ", ".join(f"{one:,}" for one in existing if one > step) or "none"
        logged = max(proven_steps(self.run / METRICS), *existing)
        for file, content in found[1].items():
            (self.run / file).write_bytes(content)
        what = f"back to step {step} on request: steps {step} to {logged - 1} and checkpoints {abandoned} are abandoned"
        remedy = "nothing; charts in MLflow show both values of a repeated step"
        self.faults.report(ROLLBACK, step, what if logged > step else f"back to step {step} on request", remedy)

    def _fetch_for_rollback(self, newest: int, steps: dict[str, list[int]]) -> None:
        """Copies one older checkpoint into scratch, if a rollback soon after the restart would otherwise find none."""
        # Rollbacks do not go back beyond a milestone.
        milestone = max((step for step in self.milestone_steps if step <= newest), default=0)
        before = {
            name: [step for step in of_location if milestone <= step < newest] for name, of_location in steps.items()
        }
        if milestone < newest and not before[self.scratch.name]:
            self._newest(before, steps)

    def _newest(
        self, wanted: Mapping[str, list[int]], steps: dict[str, list[int]]
    ) -> tuple[int, str, dict[str, bytes]] | None:
        """Copies the newest valid checkpoint of the wanted steps, of all `steps` by location, into scratch.

        Returns:
            Its step, the name of its location, and the result of `Location.fetch`; None if there is none.
        """
        for step in sorted({step for of_location in wanted.values() for step in of_location}, reverse=True):
            if found := self._fetch_any(step, steps):
                if self._has_best(step, steps):
                    return step, *found
                self.scratch.drop(step)
        return None

    def _has_best(self, step: int, steps: dict[str, list[int]]) -> bool:
        """Copies the best checkpoint up to one in scratch, into scratch; returns False if there is none."""
        best = checkpoint.best_for(self.scratch.root / checkpoint.name_of(step))
        if best in (0, step) or (self.fork and step <= self.fork.step):
            return True
        if self._fetch_any(best, steps):
            return True
        self._report(step, f"the checkpoint of step {step} needs that of step {best}, the best one, which is nowhere")
        return False

    def _fetch_any(self, step: int, steps: dict[str, list[int]]) -> tuple[str, dict[str, bytes]] | None:
        """Copies a checkpoint into scratch from the first location with a valid one; returns its name and the lines."""
        for location in self.locations:
            if step in steps[location.name] and (lines := self._try_fetch(location, step, steps)) is not None:
                return location.name, lines
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

    def publish(self, until_step: int, wait_s: float = 0.0, best: int = 0) -> None:
        """Commits the milestones up to `until_step`, whose files must exist.

        Args:
            until_step: number of steps that the run has saved.
            wait_s: seconds to wait for the files of other nodes.
            best: step of the best checkpoint at the end, which is committed unless it is a milestone; 0: none.

        Raises:
            OtherNodesLate: the files of other nodes are not in the store yet.
            InputError: the checkpoint of a milestone does not verify.
            StoreError: the store cannot be used.
            SupersededError: a later attempt has taken over the run.
            TransientError: the store does not answer, or steps are missing from the run's log.
        """
        self.output.check_fence()
        deadline = time.monotonic() + wait_s
        while True:
            try:
                for step in self._uncommitted(until_step):
                    first = max((earlier for earlier in self.milestone_steps if earlier < step), default=0)
                    publish_milestone(self.output, self.run, first, step, self._complete(step))
                    shutil.rmtree(self.run / COLLECTED, ignore_errors=True)
                if best and best not in self.milestone_steps and checkpoint.BEST not in self.output.committed:
                    publish_best(self.output, self.run, best, self._complete(best))
                    shutil.rmtree(self.run / COLLECTED, ignore_errors=True)
                return
            except OtherNodesLate:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)

    def publish_end(self, end: End) -> None:
        """Commits the last checkpoint and the best one of a complete run.

        Raises:
            SluiceError: as `publish`.
        """
        earlier = (step for step in self.milestone_steps if step < end.steps)
        self.milestone_steps = (*earlier, end.steps) if self.milestone_steps else ()
        self.publish(end.steps, wait_s=PATIENCE_S, best=end.best["step"] if end.best else 0)

    def _complete(self, step: int) -> Path:
        """Returns a folder with all files of a checkpoint in scratch; those of other nodes are fetched."""
        here, target = self.run / "checkpoints" / checkpoint.name_of(step), self.run / COLLECTED
        if self.nodes == 1 or not checkpoint.missing(here):
            return here
        for location in (copier.location for copier in self.copiers if copier.location.required):
            location.collect(here, target / here.name)
            return target / here.name
        raise InputError(
            f"{here} lacks files of other nodes, and there is no store that they share",
            "set [place] store to a remote store or a shared folder",
        )

    def _uncommitted(self, until_step: int) -> list[int]:
        steps = [step for step in self.milestone_steps if step <= until_step]
        return [step for step in steps if checkpoint.name_of(step) not in self.output.committed]

    def keep_up(self, until_step: int) -> None:
        """Commits milestones and starts copies during the run; temporary outages do not stop the run.

        Checkpoints are written in the background; those that are not on disk yet are handled by the next call.

        Raises:
            SluiceError: as `publish`, for permanent errors.
        """
        try:
            self.publish(min(until_step, max(self.scratch.steps(), default=0)))
        except OtherNodesLate:
            pass  # the next call tries again
        except (TransientError, OSError) as error:
            log.warning("[%s] milestones are late: %s", self.output.address, error)
        self._copy(last=False)

    def tick(self) -> None:
        """Calls `keep_up` every `TICK_S` seconds if there are other nodes; their files can arrive at any time.

        Raises:
            SluiceError: as `publish`, for permanent errors.
        """
        if self.nodes > 1 and time.monotonic() - self._ticked > TICK_S:
            self._ticked = time.monotonic()
            self.keep_up(max(self.scratch.steps(), default=0))

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Context manager for a training. On failure, usually SIGTERM, copies the last checkpoint for another machine.

        A superseded attempt copies nothing, and removes its folder.
        """
        try:
            yield
        except SupersededError:
            shutil.rmtree(self.run, ignore_errors=True)
            raise
        except BaseException as error:
            stopped = isinstance(error, StoppedError | KeyboardInterrupt | SystemExit)
            for copier in self.copiers:
                copier.location.patience_s = WAIT_S if stopped else LOST_WAIT_S
            self.push()
            raise

    def push(self) -> None:
        """Copies the newest checkpoint to every location, and waits. Errors do not fail the run.

        Raises:
            SupersededError: a later attempt has taken over the run.
        """
        self.wait()
        self._copy(last=True)
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
        newest = max(self.scratch.steps(), default=0)
        for copier in self.copiers:
            self._handle_result(copier)
            step = self._next(copier, newest, last)
            if not step or copier.busy:
                continue
            first = max((earlier for earlier in self.milestone_steps if earlier < step), default=0)
            try:
                # A run that resumes from this copy does not repeat earlier milestones.
                if self._uncommitted(step):
                    self.publish(step)
            except (SupersededError, OtherNodesLate) as error:
                if isinstance(error, SupersededError):
                    raise
                continue
            except Exception as error:  # stores raise many types; the next checkpoint is tried again
                self._report_failed_copy(copier.location, step, error)
                continue
            # In the store, a milestone is part of the artifact already.
            if not copier.location.required or step not in self.milestone_steps:
                copier.start(step, first)

    def _next(self, copier: Copier, newest: int, last: bool) -> int:
        """Returns the step of the checkpoint to copy next to a location; 0 if none is due.

        The ranks decide which spread checkpoints are copied during the run.
        """
        for step in self.milestone_steps:
            if copier.location.required and checkpoint.name_of(step) in self.output.committed:
                copier.drop(step)
        if not last and (step := copier.handed_over):
            return step
        if not newest or not copier.location.due(newest, last):
            return 0
        if self.nodes > 1:
            return newest if last or self._is_complete(newest) else 0
        best = checkpoint.best_for(self.scratch.root / checkpoint.name_of(newest))
        return newest if not best or self._has_copy(copier.location, best) else best

    def _has_copy(self, location: CopyLocation, step: int) -> bool:
        try:
            return checkpoint.name_of(step) in self.output.committed or step in location.steps()
        except (SluiceError, OSError):  # the copy of the newest one reports it
            return True

    def _is_complete(self, step: int) -> bool:
        try:
            return not checkpoint.missing(self.run / "checkpoints" / checkpoint.name_of(step))
        except InputError:  # the ranks have just removed it
            return False

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

    def copy_specs(self) -> tuple[CopySpec, ...]:
        """Returns the locations for the ranks of a run on several nodes; () on a single node."""
        return specs_of([copier.location for copier in self.copiers]) if self.nodes > 1 else ()
