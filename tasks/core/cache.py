"""Local cache of a remote store: whole files, for libraries that map memory or need a path, and blocks of files.

Reads and writes the folder $SLUICE_CACHE, by default a folder below the system's temporary folder. All processes of the
machine share it, and it may be deleted at any time. Whole files are in the folder itself, blocks in
`blocks/<key>/<number>`. When the total size exceeds $SLUICE_CACHE_GB (default 50), the least recently used copies are
removed. A process checks the total size each time it has added about a hundredth of the limit.

One process of the machine makes a copy; the others wait for it. While it writes `<name>.part` it holds a lock on that
file, which the kernel releases when the process ends for any reason. A complete copy is renamed to its name.
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
"""A whole file used within this time is kept even above the limit: a caller may have its path and not have opened it
yet. The same holds for a copy in progress."""

_TOUCH_S = 600.0
"""Seconds between two updates of a block's time of use by one process."""


def cached_copy(key: str, size: int, fetch: Callable[[str], None]) -> str:
    """Returns the path of the copy with this key; makes it with `fetch` if it is missing.

    Args:
        key: identifies the content; different contents have different keys.
        size: size of the copy in bytes.
        fetch: writes the copy to the path that is its argument.

    Raises:
        OSError: the copy has another size.
    """
    path = folder() / key
    if path.exists():
        os.utime(path)
        return str(path)
    with claim_copy(path, size) as aside:
        if aside:
            fetch(str(aside))
            if aside.stat().st_size != size:
                raise OSError(f"{aside.stat().st_size} of {size} bytes arrived")
            os.replace(aside, path)
    return str(path)


class BlockCache:
    """The cached blocks of one remote file.

    Each block is a separate file, so that single blocks can be removed while other processes read: a reader opens the
    block's file for each read and fetches the block again if it is gone. If the cache cannot be written (disk full, no
    permission), blocks are fetched and not kept.

    Args:
        key: identifies the content of the file; different contents have different keys.
    """

    _warned = False

    def __init__(self, key: str) -> None:
        self._folder = str(folder() / BLOCKS / key)
        self._touched: dict[int, float] = {}

    def read_into(self, number: int, offset: int, out: memoryview) -> bool:
        """Fills `out` with the bytes of a block from `offset` on; returns False if they are not in the cache."""
        try:
            descriptor = os.open(self._path(number), os.O_RDONLY)
        except OSError:
            return False
        try:
            now = time.monotonic()
            if now > self._touched.get(number, -_TOUCH_S) + _TOUCH_S:
                self._touched[number] = now
                os.utime(descriptor)
            if os.preadv(descriptor, [out], offset) == len(out):
                return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        self.drop(number)  # blocks are complete when they get their name, so this one was truncated later
        return False

    def fetch(self, number: int, size: int, get: Callable[[], bytes]) -> bytes | None:
        """Gets a missing block of `size` bytes from `get()` and stores it; None if another process has just stored it.

        Raises the exceptions of `get`.
        """
        path = Path(self._path(number))
        with contextlib.ExitStack() as claim:
            try:
                aside = claim.enter_context(claim_copy(path, size))
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
        """Removes a damaged block."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:07d}"  # not a Path: creating one takes longer than the read

    def _warn(self, error: OSError) -> None:
        if not BlockCache._warned:
            BlockCache._warned = True
            log.warning("%s cannot be written (%s): blocks are read without it", folder(), error.strerror)


def folder() -> Path:
    """Returns the folder of the copies."""
    return Path(os.environ.get("SLUICE_CACHE") or Path(tempfile.gettempdir()) / "sluice-cache")


@contextlib.contextmanager
def claim_copy(path: Path, size: int) -> Iterator[Path | None]:
    """Yields the temporary path for a new copy, which the caller renames to `path`; None if the copy exists by then.

    Waits while another process makes the copy.

    Args:
        path: path of the copy.
        size: its size in bytes; older copies are removed to make space for it.

    Raises:
        OSError: the cache cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_space(size)
    aside = path.with_name(path.name + _PART)
    lock = _acquire_lock(aside)
    try:
        yield None if path.exists() else aside
    finally:
        # After a rename, `aside` is gone or belongs to the next process that makes the copy.
        if _is_same_file(lock, aside):
            aside.unlink(missing_ok=True)
        os.close(lock)


def _acquire_lock(aside: Path) -> int:
    """Returns a descriptor that holds the lock on the file that `aside` names now."""
    while True:
        lock = os.open(aside, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_same_file(lock, aside):
                return lock
        except BaseException:
            os.close(lock)
            raise
        # The previous holder of the lock renamed or removed the file while this process waited.
        os.close(lock)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class _Budget:
    """Number of bytes that this process may add to the cache before it checks the total size again."""

    cache: tuple[Path, float] | None = None
    remaining = 0.0
    lock = threading.Lock()


def _make_space(size: int) -> None:
    limit = float(os.environ.get("SLUICE_CACHE_GB") or 50) * 1e9
    with _Budget.lock:
        if _Budget.cache != (folder(), limit):
            _Budget.cache, _Budget.remaining = (folder(), limit), 0.0
        _Budget.remaining -= size
        if _Budget.remaining < 0:
            total = _remove_oldest(limit, size)
            # Other processes of the machine add copies at the same time.
            _Budget.remaining = max((limit - total) / 16, limit / 100)


def _remove_oldest(limit: float, size: int) -> float:
    """Removes copies until the total size plus `size` is within the limit; returns that sum in bytes."""
    files = []
    for path, is_block in _copies():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            keep = not is_block and status.st_mtime > time.time() - _JUST_USED_S
            files.append((status.st_mtime, status.st_size, path, keep))
    total = float(sum(bytes_ for _, bytes_, _, _ in files) + size)
    for _, bytes_, path, keep in sorted(files):
        if total <= limit:
            break
        if not keep:
            path.unlink(missing_ok=True)
            total -= bytes_
    return total


def _copies() -> Iterator[tuple[Path, bool]]:
    """Yields (path, whether it is a complete block) for all files of the cache."""
    for entry in os.scandir(folder()):
        if entry.is_file():
            yield Path(entry.path), False
    with contextlib.suppress(FileNotFoundError):
        for key in os.scandir(folder() / BLOCKS):
            for entry in os.scandir(key.path):
                yield Path(entry.path), not entry.name.endswith(_PART)
