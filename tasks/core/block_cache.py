"""Blocks of remote files in the local cache (`cache`): each is fetched by one process of the machine.

Reads and writes `$SLUICE_CACHE/blocks/<key>/<number>`. A block is a file of its own, so that the least recently used
can be removed one by one, also while others read them: a reader opens the file each time, and fetches it again if it is
gone. Where the cache cannot be written (a full disk, no rights), blocks are fetched and not kept.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from tasks.core.cache import BLOCKS, claimed, folder

log = logging.getLogger("sluice.cache")

_TOUCH_S = 600.0
"""Reading a block marks it as used unless this process has done so within this time."""


class BlockCache:
    """The blocks of one content.

    Args:
        key: identifies the content: another content has another key.
    """

    _warned = False

    def __init__(self, key: str) -> None:
        self._folder = str(folder() / BLOCKS / key)
        self._marked: dict[int, float] = {}

    def read_into(self, number: int, offset: int, out: memoryview) -> bool:
        """Fills `out` from byte `offset` of a block on; returns False where the cache does not have these bytes."""
        try:
            descriptor = os.open(self._path(number), os.O_RDONLY)
        except OSError:
            return False
        try:
            now = time.monotonic()
            if now > self._marked.get(number, -_TOUCH_S) + _TOUCH_S:
                self._marked[number] = now
                os.utime(descriptor)
            if os.preadv(descriptor, [out], offset) == len(out):
                return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        self.drop(number)  # a block has its name when it is complete: this one was cut short later
        return False

    def fetch(self, number: int, size: int, get: Callable[[], bytes]) -> bytes | None:
        """Returns a missing block of `size` bytes from `get()`, and keeps it; None if another process has just kept it.

        Raises:
            whatever `get` raises.
        """
        path = Path(self._path(number))
        with contextlib.ExitStack() as claim:
            try:
                aside = claim.enter_context(claimed(path, size))
            except OSError as error:
                self._warn(error)
                return get()
            if aside is None:
                return None
            data = get()
            try:
                aside.write_bytes(data)
                os.replace(aside, path)
            except OSError as error:
                self._warn(error)
            return data

    def drop(self, number: int) -> None:
        """Removes a block that is damaged."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:07d}"  # no Path: making one takes longer than the read

    def _warn(self, error: OSError) -> None:
        if not BlockCache._warned:
            BlockCache._warned = True
            log.warning("%s cannot be written (%s): blocks are read without it", folder(), error.strerror)
