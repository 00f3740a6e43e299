"""Helpers for tests of killed runs: a process that kills itself, one that is killed, and what an unfinished run left.

A process that kills itself dies of SIGKILL when a part is committed: its files exist, its record does not.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from random import Random

from tasks.core.store import Store

KILLS_S = float(os.environ.get("SLUICE_KILLS_S", "600"))
"""Seconds in which a test of `make soak` kills what it runs again and again."""


def die_in(name: str, count: int = 2, folder: str = "") -> None:
    """Makes this process kill itself before the record of the `count`-th part of a pass is published.

    Args:
        name: prefix of the names of the pass's parts.
        count: 1-based number of the part.
        folder: substring of the artifact's path.
    """
    publish, seen = Store.publish, []

    def publish_or_die(store: Store, path: str, data: bytes) -> None:
        artifact, _, part = path.partition("/.parts/")
        if folder in artifact and part.startswith(name):
            seen.append(path)
            if len(seen) == count:
                os.kill(os.getpid(), signal.SIGKILL)
        publish(store, path, data)

    Store.publish = publish_or_die  # type: ignore[method-assign]


def times_of(artifact: Path, files: Collection[str]) -> dict[str, int]:
    """Modification times of the files of committed parts; for a committed artifact of all files."""
    if (artifact / ".artifact.json").exists():
        return {path: (artifact / path).stat().st_mtime_ns for path in files}
    records = [json.loads(path.read_text())["part"] for path in (artifact / ".parts").glob("*.json")]
    known = {entry["path"] for record in records for entry in record["files"]}
    return {path: (artifact / path).stat().st_mtime_ns for path in known.intersection(files)}


def rounds() -> Iterator[tuple[int, Callable[[], float]]]:
    """Yields rounds, at least one, until KILLS_S are over: the number of each, and what returns the seconds left."""
    end, number = time.monotonic() + KILLS_S, 0
    while number == 0 or time.monotonic() < end:
        yield number, lambda: end - time.monotonic()
        number += 1


def finish_despite_kills(command: Sequence[str], folder: Path, draw: Random, seconds: float) -> int:
    """Runs a command until it ends well; in the first `seconds` it is killed, with its children, again and again.

    The moment is random: up to a quarter of a second after a random number of files has come into being, so that a slow
    machine also gets on.

    Args:
        command: the command.
        folder: where it writes.
        draw: chooses the moments.
        seconds: see above.

    Returns:
        the number of kills.
    """
    kills, until = 0, time.monotonic() + seconds
    while True:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
            known, limit = _files(folder), draw.randint(1, 120)
            while time.monotonic() < until and process.poll() is None:
                if len(_files(folder) - known) >= limit:
                    time.sleep(draw.uniform(0, 0.25))
                    os.killpg(process.pid, signal.SIGKILL)
                time.sleep(0.05)
            if process.wait() == 0:
                return kills
            assert process.returncode == -signal.SIGKILL
            kills += 1


def _files(folder: Path) -> set[str]:
    return {f"{where}/{name}" for where, _, names in os.walk(folder) for name in names}
