"""A process that kills itself with SIGKILL when a part is to be committed: its files are there, its record is not."""

import os
import signal

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
