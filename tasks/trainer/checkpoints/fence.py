"""Fencing token: decides which of several attempts at one artifact may write, by an epoch number in the store.

An attempt takes the next epoch when it starts: it creates `.epochs/<number>.json` (attempt and host) exclusively in the
artifact's folder. The highest number is valid. An earlier attempt that is still running where it cannot be ended (its
node's kubelet does not respond) reads that within `CHECK_S` and before every commit, and ends. It could still be
suspended between the check and the write; so each epoch has a run folder of its own below the scratch folder,
`epoch-<number>`, and a later attempt takes over the earlier one's folder by renaming it. The records are removed when
the artifact is committed.
"""

import json
import logging
import shutil
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tasks.core.artifact import ArtifactId
from tasks.core.errors import SupersededError, TransientError
from tasks.core.stage import Output
from tasks.core.store import AlreadyPublished, Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.logs import METRICS, proven_steps

log = logging.getLogger("sluice.train")

FOLDER = ".epochs"
_STARTED = "%Y-%m-%d %H:%M:%S UTC"
CHECK_S = 10.0
"""Seconds between two checks for a later attempt, in addition to the check before each commit."""


class Fence:
    """The epoch of this attempt, taken on construction.

    Args:
        output: the artifact; from now on its parts and its record are committed under this epoch only.

    Attributes:
        epoch: the number.
        run: folder of the run on this machine; may not exist before `inherit`.
    """

    def __init__(self, output: Output) -> None:
        self.output = output
        self.folder = f"{output.address.path}/{FOLDER}"
        self.epoch = self._take()
        self.run = Path(output.scratch) / f"epoch-{self.epoch:06d}"
        self._checked = time.monotonic()
        output.fence = self.check

    def check(self) -> None:
        """Returns if this attempt may write.

        Raises:
            SupersededError: a later attempt has started, or has committed the artifact meanwhile.
            TransientError: the store does not answer.
        """
        epochs = self._epochs()
        newest = max(epochs, default=0)
        record = json.loads(self.output.store.read(epochs[newest])) if newest else {}
        if record.get("attempt") == self.output.attempt:
            return
        by = f"attempt {newest} on {record['host']}, started {record['started']}," if record else "another attempt"
        raise SupersededError(
            f"{self.output.address}: {by} has taken over from attempt {self.epoch}, which must not write any more",
            "leave it to that one, or end it before you start another",
        )

    def check_now_and_then(self) -> None:
        """Does `check` at most once in `CHECK_S`; a store that does not answer is ignored.

        Raises:
            SupersededError: as `check`.
        """
        if time.monotonic() - self._checked < CHECK_S:
            return
        self._checked = time.monotonic()
        with suppress(TransientError):
            self.check()

    def inherit(self) -> None:
        """Takes over the run folder of the earlier attempt on this machine that got furthest; removes the others."""
        earlier = [path for path in self.run.parent.glob("epoch-*") if path.name < self.run.name]
        furthest = max(earlier, key=lambda path: (usable_step(path), path.name), default=None)
        for path in earlier:
            if path == furthest:
                path.rename(self.run)
            else:
                shutil.rmtree(path, ignore_errors=True)

    def leave(self) -> None:
        """Removes the run folder of an attempt that must not write any more."""
        shutil.rmtree(self.run, ignore_errors=True)

    def _take(self) -> int:
        here = {"host": socket.gethostname(), "started": f"{datetime.now(UTC):{_STARTED}}"}
        record = json.dumps({"attempt": self.output.attempt, **here}).encode()
        epoch = max(self._epochs(), default=0) + 1
        while True:
            with suppress(AlreadyPublished):
                self.output.store.publish(f"{self.folder}/{epoch:06d}.json", record)
                log.info("[%s] this is attempt %d", self.output.address, epoch)
                return epoch
            epoch += 1

    def _epochs(self) -> dict[int, str]:
        """Returns the path of each record by its number."""
        paths = self.output.store.list(self.folder)
        return {int(path[-11:-5]): path for path in paths if path.endswith(".json")}


def first_attempt(store: Store, address: ArtifactId) -> datetime | None:
    """Returns when the first attempt at an unfinished artifact started; None where there was none."""
    paths = sorted(path for path in store.list(f"{address.path}/{FOLDER}") if path.endswith(".json"))
    if not paths:
        return None
    return datetime.strptime(json.loads(store.read(paths[0]))["started"], _STARTED).replace(tzinfo=UTC)


def usable_step(run: Path) -> int:
    """Returns the newest step under `run` that has a checkpoint and all its steps in the log; 0: none has."""
    proven = proven_steps(run / METRICS)
    return max((step for step in checkpoint.steps_at(run / "checkpoints") if step <= proven), default=0)
