"""Helpers for tests of killed runs: a process that kills itself, and the state of an unfinished artifact.

The process dies of SIGKILL when a part is committed: its files exist, its record does not.
"""

import json
import os
import signal
from collections.abc import Collection
from pathlib import Path

from tasks.core.store import Store


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
