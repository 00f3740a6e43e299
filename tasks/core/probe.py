"""Check of a store before any work: exclusive creation, on which all commits rely, must work.

Creates one small file below `.probe/` exclusively, tries to create it again, reads it back and removes it. A server
that ignores If-None-Match (some S3-compatible ones do) lets both writers succeed and would silently lose a committed
record: such a store is rejected.
"""

import secrets
import time
from contextlib import suppress
from functools import cache

from tasks.core.errors import SluiceError, StoreError, TransientError
from tasks.core.store import AlreadyPublished, Store

PROBE_FOLDER = ".probe"
PROBE_LIMIT_S = 40.0
"""Seconds for which the probe is retried on a store that does not answer."""


@cache
def probe(root: str) -> None:
    """Checks the store at `root`.

    Raises:
        StoreError: no rights, no bucket, another region, no credentials, or conditional writes are ignored.
        TransientError: the store does not answer.
    """
    store = Store(root, brief=True)
    deadline = time.monotonic() + PROBE_LIMIT_S
    pause = 0.5
    while True:
        try:
            _check_exclusive(store)
        except TransientError:
            if time.monotonic() + pause > deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        else:
            return


def _check_exclusive(store: Store) -> None:
    path = f"{PROBE_FOLDER}/{secrets.token_hex(16)}"
    first = path.encode()
    try:
        store.publish(path, first)
        try:
            store.publish(path, b"second")
        except AlreadyPublished:
            if store.read(path) == first:
                return
        raise StoreError(
            f"the store {store.root} ignores conditional writes (If-None-Match), so two writers would both win",
            "use a server that honours them, such as AWS S3, or a folder",
        )
    finally:
        with suppress(SluiceError):  # it must not hide the result of the probe
            store.remove(path)
