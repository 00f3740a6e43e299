"""Functions that engine tests map over workers; workers import this module by name."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


class Fatal:
    """Doubles numbers, but ends the process with one of them, as often as `times`; notes each call in `folder`."""

    def __init__(self, folder: Path, number: int, times: int) -> None:
        self.folder = folder
        self.number = number
        self.times = times

    def __call__(self, number: int) -> int:
        note(self.folder / "called", str(number))
        if number == self.number and noted(self.folder / "called").count(str(number)) <= self.times:
            os._exit(1)
        return 2 * number


class Watched(Sequence[int]):
    """The numbers below `size`, with the number of different items that were read, in order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        self.read = max(self.read, index + 1)
        return index


def note(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


def noted(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def die(_: int) -> None:
    os._exit(1)


def fail_at_40(number: int) -> int:
    if number == 40:
        error = ValueError("it is 40")
        error.add_note("while 40 was made")
        raise error
    return number


def fill(megabytes: int) -> int:
    """Occupies memory for a while."""
    held = bytearray(megabytes << 20)
    time.sleep(4)
    return len(held) >> 20
