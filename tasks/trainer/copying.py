"""Copies a run's checkpoints beside the run: a thread per location, which makes one copy at a time.

A file system that does not answer blocks its own thread alone. Reads links to the checkpoint's files in
`copying/<location>/` of the run's folder, because the ranks remove the checkpoint itself when it is no longer among the
newest.
"""

import os
import shutil
import threading
import time
from pathlib import Path

from tasks.core.errors import TransientError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.copies import CopyLocation

FOLDER = "copying"
STUCK_S = 600.0
"""Seconds after which a copy that goes on is a fault."""


class Copier:
    """The copies of one location.

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
