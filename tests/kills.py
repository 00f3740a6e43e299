"""What tests of killed runs share: a process that kills itself, and what of an artifact is there already.

The process dies of SIGKILL when a part is to be committed: its files are there, its record is not.
"""

import json
import os
import signal
from collections.abc import Collection
from pathlib import Path

from tasks.core.store import Store


def die_in(name: str, count: int = 2, folder: str = "") -> None:
    """Makes this process kill itself when the record of the `count`-th part of a pass is to be published.

    Args:
        name: how the names of the parts of the pass begin.
        count: which of them.
        folder: what the path of the artifact contains.
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
    """When those of some files were written that parts with a record have; of a committed artifact, all."""
    if (artifact / ".artifact.json").exists():
        return {path: (artifact / path).stat().st_mtime_ns for path in files}
    records = [json.loads(path.read_text())["part"] for path in (artifact / ".parts").glob("*.json")]
    known = {entry["path"] for record in records for entry in record["files"]}
    return {path: (artifact / path).stat().st_mtime_ns for path in known.intersection(files)}
