"""Status file of the supervisor, replaced as a whole at every change.

Reads and writes `<state>/run/status.json`. The supervisor locks the file `lock` in the same folder as long as it lives,
so that a status file left by a killed supervisor is recognized as outdated.
"""

import fcntl
import os
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel

State = Literal["waiting", "starting", "healthy", "restarting", "stopping"]


class ServiceStatus(BaseModel):
    """One service, as last seen."""

    state: State = "waiting"
    pid: int = 0
    restarts: int = 0


class Status(BaseModel):
    """The stack, as last seen; `error` is why it cannot start, in one line."""

    pid: int
    ready: bool = False
    error: str = ""
    services: dict[str, ServiceStatus] = {}

    def save(self, run: Path) -> None:
        """Replaces the status file."""
        aside = run / "status.json.new"
        aside.write_text(self.model_dump_json(indent=1))
        aside.replace(run / "status.json")


def read_status(run: Path) -> Status | None:
    """Returns the status of the running supervisor, or None."""
    return read_last(run) if _locked(run / "lock") else None


def read_last(run: Path) -> Status | None:
    """Returns the last written status, of a running or ended supervisor, or None."""
    try:
        return Status.model_validate_json((run / "status.json").read_text())
    except FileNotFoundError:
        return None


def take_lock(run: Path) -> IO[str] | None:
    """Locks the lock file until it is closed or this process ends; returns None if another supervisor has it."""
    file = (run / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    (run / "status.json").unlink(missing_ok=True)
    os.set_inheritable(file.fileno(), False)
    return file


def _locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
