"""Where artifacts lie: whole files on any fsspec file system.

Read and written by the spine on behalf of every stage. Two promises, whatever the file system: a file appears whole or
not at all, and `publish` lets exactly one writer win. Neither relies on a rename that an object store does not have:
a local file is written aside and linked into place, an object is one PUT.
"""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec

from tasks.errors import StoreError

_ASIDE = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


class AlreadyPublished(Exception):
    """Another writer has published this path first."""


class Store:
    """A folder of artifacts, addressed by relative POSIX paths. Picklable: workers open it anew.

    Args:
        root: a local folder or any fsspec URL (`file://`, `s3://bucket/prefix`, `memory://`, ...).
    """

    def __init__(self, root: str) -> None:
        self.root = root if "://" in root else os.path.abspath(os.path.expanduser(root))
        self._connect()

    def _connect(self) -> None:
        self._fs, base = fsspec.core.url_to_fs(self.root)
        self._base = str(base).rstrip("/")
        self._is_local = "file" in _protocols(self._fs)

    def __getstate__(self) -> dict[str, str]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.root = state["root"]
        self._connect()

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def url(self, path: str) -> str:
        """Returns the full address of `path`, for messages and records."""
        return f"{self.root.rstrip('/')}/{path}"

    def exists(self, path: str) -> bool:
        """Tells whether a file or folder stands at `path`."""
        return bool(self._fs.exists(self._full(path)))

    def size(self, path: str) -> int:
        """Returns the file's size in bytes; raises FileNotFoundError."""
        return int(self._fs.size(self._full(path)))

    def list(self, prefix: str, *, unfinished: bool = False) -> list[str]:
        """Returns all files below the folder `prefix`, sorted, as paths relative to the root.

        With `unfinished`, also what writers have written aside and, if they were killed, left behind.
        """
        found = [str(path) for path in self._fs.find(self._full(prefix))] if self.exists(prefix) else []
        return sorted(path[len(self._base) + 1 :] for path in found if unfinished or not path.endswith(_ASIDE))

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading bytes; raises FileNotFoundError."""
        return cast(BinaryIO, self._fs.open(self._full(path), "rb"))

    def read(self, path: str) -> bytes:
        """Returns a file's bytes; raises FileNotFoundError."""
        with self.open(path) as file:
            return file.read()

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        """Yields a binary file that replaces `path` as a whole on a clean exit, and leaves nothing otherwise.

        Raises:
            StoreError: the store is full or refuses; names the path and the remedy.
        """
        with self._explained(path):
            if self._is_local:
                with self._aside(path) as (file, aside):
                    yield file
                    _flush(file)
                    os.replace(aside, self._full(path))
            else:
                with tempfile.TemporaryFile() as spool:
                    yield cast(BinaryIO, spool)
                    spool.seek(0)
                    with self._fs.open(self._full(path), "wb") as target:
                        shutil.copyfileobj(spool, target, 1 << 20)

    def publish(self, path: str, data: bytes) -> None:
        """Creates `path` with `data`; of several writers exactly one succeeds.

        Raises:
            AlreadyPublished: the path exists.
            StoreError: the store is full or refuses.
        """
        with self._explained(path):
            if not self._is_local:
                self._create_object(path, data)
                return
            with self._aside(path) as (file, aside):
                file.write(data)
                _flush(file)
                try:
                    os.link(aside, self._full(path))
                except FileExistsError:
                    raise AlreadyPublished(path) from None

    def remove(self, path: str) -> None:
        """Removes a file or a folder with all that is in it; nothing there is no error."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._full(path), recursive=True)

    def local(self, path: str) -> str:
        """Returns a local file with the content of `path`, for libraries that map memory.

        On a remote store the file is fetched once into a cache folder of this machine.
        """
        if self._is_local:
            return self._full(path)
        name = hashlib.sha256(self.url(path).encode()).hexdigest()[:32]
        cached = Path(tempfile.gettempdir()) / "sluice-cache" / f"{name}-{self.size(path)}"
        if not cached.exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            aside = cached.with_suffix(f".{secrets.token_hex(4)}.tmp")
            self._fs.get_file(self._full(path), str(aside))
            os.replace(aside, cached)
        return str(cached)

    def scratch(self, path: str) -> str:
        """Returns a local folder for work in progress on `path`; the same one after a restart on this machine."""
        if self._is_local:
            folder = Path(self._full(path))
        else:
            name = hashlib.sha256(self.url(path).encode()).hexdigest()[:32]
            folder = Path(tempfile.gettempdir()) / "sluice-scratch" / name
        with self._explained(path):
            folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def _full(self, path: str) -> str:
        parts = path.split("/")
        if path.startswith("/") or ".." in parts:
            raise ValueError(f"a store path is relative and stays inside the store, not {path!r}")
        return f"{self._base}/{path}" if path else self._base

    @contextlib.contextmanager
    def _aside(self, path: str) -> Iterator[tuple[BinaryIO, str]]:
        full = self._full(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        aside = f"{full}.{secrets.token_hex(6)}{_ASIDE}"
        try:
            with open(aside, "wb") as file:
                yield file, aside
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)

    def _create_object(self, path: str, data: bytes) -> None:
        try:
            self._fs.pipe_file(self._full(path), data, mode="create")
        except FileExistsError:
            raise AlreadyPublished(path) from None

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise StoreError(
                    f"the store is full while writing {self.url(path)}", "free space and run again"
                ) from error
            if error.errno in _FORBIDDEN:
                raise StoreError(
                    f"no right to write {self.url(path)} ({error.strerror})",
                    "grant it or set [place] store to another folder",
                ) from error
            raise


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
