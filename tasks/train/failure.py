"""How a rank tells the others why it failed: one small file per rank in the run's folder.

Written by a rank that fails, read by a rank that torchrun starts again (a permanent failure is not tried a second time)
and by whoever started the run (the cause, in one line).
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.errors import SluiceError


@dataclass(frozen=True)
class Failure:
    """Why one rank failed; `launch` tells starts of the same run apart."""

    launch: str
    rank: int
    cause: str
    remedy: str
    permanent: bool


def note(folder: Path, rank: int, error: BaseException) -> Failure:
    """Writes down why this rank fails and returns it."""
    if isinstance(error, SluiceError):
        failure = Failure(launch_id(), rank, error.cause, error.remedy, error.permanent)
    else:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        failure = Failure(launch_id(), rank, cause, "", permanent=False)
    (folder / f"failure-{rank}.json").write_text(json.dumps(asdict(failure)))
    return failure


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
