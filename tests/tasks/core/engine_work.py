"""Functions that engine tests map over workers; workers import this module by name."""

import os
import time
from pathlib import Path

from tests.waiting import until


class Counted:
    """Doubles numbers; records in `folder` each process that unpickles it, and each call.

    With `processes`, the first call waits until that many processes have it.
    """

    def __init__(self, folder: Path, seconds: float = 0.0, ballast: int = 0, processes: int = 1) -> None:
        self.folder = folder
        self.seconds = seconds
        self.processes = processes
        self.ballast = bytes(ballast)

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        note(self.folder / "unpickled", str(os.getpid()))

    def __call__(self, number: int) -> int:
        note(self.folder / "called", str(number))
        time.sleep(self.seconds)
        until(lambda: len(noted(self.folder / "unpickled")) >= self.processes, 300)
        return 2 * number


def note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def noted(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def die(_: int) -> None:
    os._exit(1)


def fill(megabytes: int) -> int:
    """Occupies memory for a while."""
    held = bytearray(megabytes << 20)
    time.sleep(4)
    return len(held) >> 20
