"""Local cache of a remote store: whole files, for libraries that map memory or need a path, and blocks of files.

Reads and writes the folder $SLUICE_CACHE, by default one below the system's temporary folder; all processes of the
machine share it, and it may be deleted at any time. Whole files lie in the folder itself, blocks in
`blocks/<key>/<number>`. The least recently used are removed when their total size exceeds $SLUICE_CACHE_GB (default
50); a process looks again after each hundredth of the limit that it has added.

One process of the machine makes a copy, the others wait for it. A copy gets its name when it is complete; before that
its maker holds a lock on `<name>.part`, which the kernel releases when the maker ends, however it ends.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

log = logging.getLogger("sluice.cache")
BLOCKS = "blocks"
_PART = ".part"
_JUST_USED_S = 3600.0
"""A whole file used within this time is kept over any limit: its path may have been returned and not been opened yet.
So is a copy that is being made."""

_TOUCH_S = 600.0
"""Reading a block marks it as used unless this process has done so within this time."""


def cached(key: str, size: int, fetch: Callable[[str], None]) -> str:
    """Returns the path of the copy that `key` names, after `fetch(path)` has made it where it is missing.

    Args:
        key: identifies the content: another content has another key.
        size: bytes that the copy must have.
        fetch: writes the copy to its argument, a path.

    Raises:
        OSError: the copy has another size.
    """
    path = folder() / key
    if path.exists():
        os.utime(path)
        return str(path)
    with claimed(path, size) as aside:
        if aside:
            fetch(str(aside))
            if aside.stat().st_size != size:
                raise OSError(f"{aside.stat().st_size} of {size} bytes arrived")
            os.replace(aside, path)
    return str(path)


class BlockCache:
    """The blocks of one content: of a remote file, for example.

    A block is a file of its own, so that the least recently used can be removed one by one, also while others read
    them: a reader opens the file each time, and fetches it again if it is gone. Where the cache cannot be written (a
    full disk, no rights), blocks are fetched and not kept.

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


def folder() -> Path:
    """Returns the folder of the copies."""
    return Path(os.environ.get("SLUICE_CACHE") or Path(tempfile.gettempdir()) / "sluice-cache")


@contextlib.contextmanager
def claimed(path: Path, size: int) -> Iterator[Path | None]:
    """Yields where to make the copy `path`, to be renamed to it; None if another process has just made it.

    Waits while another process makes it.

    Args:
        path: the copy.
        size: its bytes, for which room is made.

    Raises:
        OSError: nothing can be written into the cache.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(size)
    aside = path.with_name(path.name + _PART)
    lock = _locked(aside)
    try:
        yield None if path.exists() else aside
    finally:
        # The name is removed by its owner alone: after a rename there is none, or that of the next maker.
        if _is(lock, aside):
            aside.unlink(missing_ok=True)
        os.close(lock)


def _locked(aside: Path) -> int:
    """Returns a descriptor that holds the lock on the file that is now called `aside`."""
    while True:
        lock = os.open(aside, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is(lock, aside):
                return lock
        except BaseException:
            os.close(lock)
            raise
        # Whoever held the lock has renamed or removed the file while this process waited.
        os.close(lock)


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class _Room:
    """How many bytes this process may add to the cache before it looks again how full it is."""

    def __init__(self) -> None:
        self.cache: tuple[Path, float] | None = None
        self.left = 0.0
        self.lock = threading.Lock()


_room = _Room()


def _make_room(size: int) -> None:
    limit = float(os.environ.get("SLUICE_CACHE_GB") or 50) * 1e9
    with _room.lock:
        if _room.cache != (folder(), limit):
            _room.cache, _room.left = (folder(), limit), 0.0
        _room.left -= size
        if _room.left < 0:
            total = _remove_oldest(limit, size)
            # Other processes of the machine add at the same time.
            _room.left = max((limit - total) / 16, limit / 100)


def _remove_oldest(limit: float, size: int) -> float:
    """Removes copies until they and `size` more bytes are within the limit; returns their size in bytes."""
    files = []
    for path, is_block in _copies():
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            keep = not is_block and found.st_mtime > time.time() - _JUST_USED_S
            files.append((found.st_mtime, found.st_size, path, keep))
    total = float(sum(bytes_ for _, bytes_, _, _ in files) + size)
    for _, bytes_, path, keep in sorted(files):
        if total <= limit:
            break
        if not keep:
            path.unlink(missing_ok=True)
            total -= bytes_
    return total


def _copies() -> Iterator[tuple[Path, bool]]:
    """Yields all files of the cache, and whether each is a whole block."""
    for entry in os.scandir(folder()):
        if entry.is_file():
            yield Path(entry.path), False
    with contextlib.suppress(FileNotFoundError):
        for key in os.scandir(folder() / BLOCKS):
            for entry in os.scandir(key.path):
                yield Path(entry.path), not entry.name.endswith(_PART)
