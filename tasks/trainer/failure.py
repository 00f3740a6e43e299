"""How a rank tells the others why it failed: one small file per rank in the run's folder.

Written by a rank that fails, read by a rank that torchrun starts again (a permanent failure is not tried a second
time), by the agents of a gang, who tell it to the other nodes, and by whoever started the run (the cause, in one line).
"""

import contextlib
import errno
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.core.errors import InputError, RecipeError, SluiceError, StoreError, TransientError

KINDS = {kind.__name__: kind for kind in (InputError, RecipeError, StoreError, TransientError)}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
"""Errors of a disk that trying again does not mend."""


@dataclass(frozen=True)
class Failure:
    """Why one rank failed; `launch` tells starts of the same run apart."""

    launch: str
    rank: int
    kind: str
    cause: str
    remedy: str

    @property
    def permanent(self) -> bool:
        """Whether a restart would fail in the same way."""
        return KINDS[self.kind].permanent

    @property
    def code(self) -> int:
        """The exit code that says so."""
        return KINDS[self.kind].exit_code

    def error(self) -> SluiceError:
        """Returns the error as whoever started the run may raise it."""
        return KINDS[self.kind](f"training: {self.cause}", self.remedy)


def note(folder: Path, rank: int, error: BaseException) -> Failure:
    """Writes down why this rank fails and returns it."""
    known = explained(error)
    failure = Failure(launch_id(), rank, type(known).__name__, known.cause, known.remedy)
    write(folder, failure)
    return failure


def write(folder: Path, failure: Failure) -> None:
    """Puts a failure, of this node or another, into `folder`."""
    aside = folder / f".failure-{failure.rank}"
    with contextlib.suppress(OSError):  # the disk may be what failed
        aside.write_text(json.dumps(asdict(failure)))
        aside.rename(folder / f"failure-{failure.rank}.json")


def explained(error: BaseException) -> SluiceError:
    """Returns `error`, or an error of ours that says the same."""
    if isinstance(error, SluiceError):
        return error if type(error).__name__ in KINDS else InputError(error.cause, error.remedy)
    if isinstance(error, OSError) and error.errno in FULL:
        return StoreError(str(error), "free space or set the rights; the run resumes from its newest checkpoint")
    return TransientError(f"{type(error).__name__}: {error}")


def noted(folder: Path) -> Sequence[Failure]:
    """Returns what ranks wrote down, the permanent ones first, then in the order they were written."""
    paths = sorted(folder.glob("failure-*.json"), key=lambda path: path.stat().st_mtime_ns)
    failures = [Failure(**json.loads(path.read_text())) for path in paths]
    return sorted(failures, key=lambda failure: not failure.permanent)


def forget(folder: Path) -> None:
    """Removes what earlier starts wrote down."""
    for path in folder.glob("failure-*.json"):
        path.unlink(missing_ok=True)


def launch_id() -> str:
    """Returns what torchrun calls this start of the run; all its restarts share it."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")
