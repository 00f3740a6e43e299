"""Failure records of training ranks: one JSON file per rank in the run's folder.

Reads and writes `failure-<rank>.json` (launch id, rank, kind of error, cause, remedy). A restarted rank exits if a
permanent failure is recorded; the agents of a gang exchange the records; the stage raises the first one as its error.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.core.errors import InputError, RecipeError, SluiceError, StoreError, TransientError

KINDS = {kind.__name__: kind for kind in (InputError, RecipeError, StoreError, TransientError)}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
"""Disk errors that a retry does not fix."""
RESUMES = "free space on that disk, or fix its permissions, and run it again: it resumes from its newest checkpoint"
"""Remedy for a disk error."""
_ERRNO = re.compile(r"(?:\[Errno |\(os error )(\d+)[\])]")


@dataclass(frozen=True)
class Failure:
    """Failure of one rank; `launch` distinguishes starts of the same run."""

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
        """The exit code for this kind of error."""
        return KINDS[self.kind].exit_code

    def error(self) -> SluiceError:
        """Returns the exception for the process that started the run."""
        return KINDS[self.kind](f"training: {self.cause}", self.remedy)


def record(folder: Path, rank: int, error: BaseException) -> Failure:
    """Records the failure of this rank and returns it."""
    sluice_error = as_sluice_error(error, folder)
    failure = Failure(launch_id(), rank, type(sluice_error).__name__, sluice_error.cause, sluice_error.remedy)
    write(folder, failure)
    return failure


def write(folder: Path, failure: Failure) -> None:
    """Writes a failure of this or another node into `folder`."""
    temporary = folder / f".failure-{failure.rank}"
    with contextlib.suppress(OSError):  # the failure may be that of the disk
        temporary.write_text(json.dumps(asdict(failure)))
        temporary.rename(folder / f"failure-{failure.rank}.json")


def as_sluice_error(error: BaseException, folder: Path) -> SluiceError:
    """Returns `error` as a SluiceError of one of `KINDS`; a disk error without a path is about the run's folder."""
    if isinstance(error, SluiceError):
        return error if type(error).__name__ in KINDS else InputError(error.cause, error.remedy)
    if fault := disk_fault(error):
        return StoreError(f"{getattr(error, 'filename', None) or folder} cannot be written: {fault}", RESUMES)
    return TransientError(f"{type(error).__name__}: {error}")


def disk_fault(error: BaseException) -> str:
    """Returns the operating system's message for one of the errors in `FULL`, "" for any other error.

    safetensors and torch.distributed.checkpoint raise errors of their own, which state the number in their text only.
    """
    if isinstance(error, OSError):
        number = error.errno
    else:
        match = _ERRNO.search(str(error))
        number = int(match[1]) if match else None
    return os.strerror(number) if number in FULL else ""


def recorded(folder: Path) -> Sequence[Failure]:
    """Returns the recorded failures, permanent ones first, then in the order of writing."""
    paths = sorted(folder.glob("failure-*.json"), key=lambda path: path.stat().st_mtime_ns)
    failures = [Failure(**json.loads(path.read_text())) for path in paths]
    return sorted(failures, key=lambda failure: not failure.permanent)


def clear(folder: Path) -> None:
    """Removes the records of earlier starts."""
    for path in folder.glob("failure-*.json"):
        path.unlink(missing_ok=True)


def launch_id() -> str:
    """Returns torchrun's id of this start of the run; all its restarts share it."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")
