"""Fencing token: an epoch number in the store determines which of several attempts at an artifact may write.

An attempt takes the next epoch when it starts: it exclusively creates `.epochs/<number>.json` (attempt and host) in the
artifact's folder. The highest number is valid. An earlier attempt that is still running, for example because its node's
kubelet does not respond, reads the newer epoch within `CHECK_S` and before every commit, and exits. It could be
suspended between the check and the write; so each epoch has its own run folder `epoch-<number>` below the scratch
folder, and a later attempt takes over an earlier folder by renaming it. An attempt that has gone back to an earlier
checkpoint on request creates `.returns/<number>.json` (fingerprint, request, step). The records are removed when the
artifact is committed.
"""

import json
import logging
import secrets
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.core.artifact import ArtifactId
from tasks.core.errors import SupersededError, TransientError
from tasks.core.stage import Output
from tasks.core.store import AlreadyPublished, Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.logs import METRICS, proven_steps

log = logging.getLogger("sluice.train")

FOLDER, RETURNS = ".epochs", ".returns"
_STARTED = "%Y-%m-%d %H:%M:%S UTC"
CHECK_S = 10.0
"""Seconds between two checks for a later attempt, in addition to the check before each commit."""


class Fence:
    """The epoch of this attempt, taken on construction.

    Args:
        output: the artifact; from now on, its parts and its record are committed only under this epoch.

    Attributes:
        epoch: the number.
        run: folder of the run on this machine; it need not exist before `inherit`.
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
            SupersededError: a later attempt has started, or has committed the artifact.
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
            "leave the run to that attempt, or stop it before starting another",
        )

    def check_now_and_then(self) -> None:
        """Calls `check` at most once every `CHECK_S` seconds; ignores a store that does not answer.

        Raises:
            SupersededError: as `check`.
        """
        if time.monotonic() - self._checked < CHECK_S:
            return
        self._checked = time.monotonic()
        with suppress(TransientError):
            self.check()

    def inherit(self) -> None:
        """Takes over the most advanced run folder of earlier attempts on this machine, and removes the others.

        A folder of an attempt before one that has gone back loses the checkpoints that this one has abandoned.
        """
        earlier = [path for path in self.run.parent.glob("epoch-*") if path.name < self.run.name]
        returns = self._returns()
        for path in earlier:
            later = [record["step"] for epoch, record in returns.items() if epoch > int(path.name[-6:])]
            if later:
                checkpoint.drop_after(path / "checkpoints", min(later))
        take_over(sorted(earlier, key=lambda path: (usable_step(path), path.name)), self.run)

    def has_returned(self, request: str) -> bool:
        """Whether this attempt or an earlier one has gone back as requested (`TrainConfig.resume_from`)."""
        for epoch, record in self._returns().items():
            if record["request"] == request:
                log.info("[%s] attempt %d has gone back to %s; this one goes on", self.output.address, epoch, request)
                return True
        return False

    def record_return(self, request: str, step: int) -> None:
        """Records that this attempt has gone back to a step, and that all earlier ones have no later checkpoints."""
        record = json.dumps({"fingerprint": self.output.fingerprint, "request": request, "step": step}).encode()
        self.output.store.publish(f"{self.output.address.path}/{RETURNS}/{self.epoch:06d}.json", record)

    def _returns(self) -> dict[int, dict[str, Any]]:
        paths = self.output.store.list(f"{self.output.address.path}/{RETURNS}")
        records = {int(path[-11:-5]): json.loads(self.output.store.read(path)) for path in paths}
        return {epoch: one for epoch, one in records.items() if one["fingerprint"] == self.output.fingerprint}

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
    """Returns the start time of the first attempt at an unfinished artifact; None if there was none."""
    paths = sorted(path for path in store.list(f"{address.path}/{FOLDER}") if path.endswith(".json"))
    if not paths:
        return None
    return datetime.strptime(json.loads(store.read(paths[0]))["started"], _STARTED).replace(tzinfo=UTC)


def take_over(earlier: Sequence[Path], run: Path) -> None:
    """Renames the last of some folders of earlier attempts to `run`, and removes the others."""
    for path in earlier[:-1]:
        shutil.rmtree(path, ignore_errors=True)
    for path in earlier[-1:]:
        path.rename(run)


def take_folder(output: Output, node: int) -> Path:
    """Returns a new folder for the run on a node, from 1, with the files of the most advanced earlier start."""
    prefix = f"node-{node:05d}-"
    run = Path(output.scratch) / f"{prefix}{secrets.token_hex(4)}"
    # A process of an earlier start that still runs cannot write to a folder with another name.
    earlier = run.parent.glob(f"{prefix}*")
    take_over(sorted(earlier, key=lambda path: checkpoint.steps_at(path / "checkpoints")), run)
    run.mkdir(parents=True, exist_ok=True)
    return run


def usable_step(run: Path) -> int:
    """Returns the newest step under `run` with a checkpoint and a complete log up to it; 0 if there is none."""
    proven = proven_steps(run / METRICS)
    return max((step for step in checkpoint.steps_at(run / "checkpoints") if step <= proven), default=0)
