"""Local cache of files of a remote store, for libraries that map memory or need a path.

Reads and writes the folder $SLUICE_CACHE, by default one below the system's temporary folder; all processes of the
machine share it, and it may be deleted at any time. The least recently used files are removed when their total size
exceeds $SLUICE_CACHE_GB (default 50).
"""

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_JUST_USED_S = 3600.0
"""A copy used within this time is kept over any limit: its path may have been returned and not been opened yet."""


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
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(size)
    aside = path.with_name(f"{key}.{secrets.token_hex(4)}.tmp")
    try:
        fetch(str(aside))
        if aside.stat().st_size != size:
            raise OSError(f"{aside.stat().st_size} of {size} bytes arrived")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return str(path)


def folder() -> Path:
    """Returns the folder of the copies."""
    return Path(os.environ.get("SLUICE_CACHE") or Path(tempfile.gettempdir()) / "sluice-cache")


def _make_room(size: int) -> None:
    limit = float(os.environ.get("SLUICE_CACHE_GB") or 50) * 1e9
    files = []
    for path in folder().iterdir():
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            files.append((found.st_mtime, found.st_size, path))
    total = sum(bytes_ for _, bytes_, _ in files) + size
    for used, bytes_, path in sorted(files):
        if total <= limit or used > time.time() - _JUST_USED_S:
            return
        path.unlink(missing_ok=True)
        total -= bytes_
