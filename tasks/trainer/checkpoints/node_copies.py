"""Checkpoints on a node other than 0: its scratch folder, and the copies of its files to the locations of the run.

Node 0 commits the copies and the milestones (`recovery`); this node only adds the files of its ranks.
"""

import logging
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tasks.core.errors import SluiceError, TransientError
from tasks.core.stage import Output
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.copies import PATIENCE_S, Copier
from tasks.trainer.checkpoints.fence import take_over
from tasks.trainer.checkpoints.recovery import WAIT_S, copy_locations, hand_over_milestones, specs_of
from tasks.trainer.place import CheckpointLocations

log = logging.getLogger("sluice.train")


def take_folder(output: Output, node: int) -> Path:
    """Returns a new folder for the run on a node, from 1, with the files of the most advanced earlier start."""
    prefix = f"node-{node:05d}-"
    run = Path(output.scratch) / f"{prefix}{secrets.token_hex(4)}"
    # A process of an earlier start that still runs cannot write to a folder with another name.
    earlier = run.parent.glob(f"{prefix}*")
    take_over(sorted(earlier, key=lambda path: checkpoint.steps_at(path / "checkpoints")), run)
    run.mkdir(parents=True, exist_ok=True)
    return run


class NodeCopies:
    """The checkpoints of one node.

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
