"""The store of artifacts: whole files on any fsspec file system.

Two guarantees hold on every file system. A file appears complete or not at all. If several writers `publish` the same
path, exactly one succeeds. Neither guarantee relies on rename, which object stores do not have: a local file is written
under another name and linked into place, and an object is written with one PUT. `probe` checks the second guarantee
before any work.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from tasks.core import remote
from tasks.core.cache import cached_copy
from tasks.core.digest import sha256_of, sha256_of_file
from tasks.core.errors import InputError, SluiceError, StoreError, TransientError

_ASIDE = ".tmp"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
PROBE_FOLDER = ".probe"
PROBE_LIMIT_S = 40.0
"""Seconds for which the probe is retried if the store does not respond."""


class AlreadyPublished(Exception):
    """Another writer has already published this path."""


class Store:
    """A folder of artifacts, addressed by relative POSIX paths. Picklable: workers open it again.

    Args:
        root: a local folder or an fsspec URL (`file://`, `s3://bucket/prefix`, `gs://`, `abfs://`,
            `hdfs://`, `webhdfs://`).
        brief: few attempts and short timeouts if the store does not respond.

    Every method raises StoreError for permanent faults (full, no permission, no bucket) and TransientError if the store
    does not respond, both with the URL and the cause.
    """

    def __init__(self, root: str, *, brief: bool = False) -> None:
        self.root = root if "://" in root else os.path.abspath(os.path.expanduser(root))
        self._fs, self._base = remote.connect(self.root, brief=brief)
        protocol = remote.protocol_of(self.root)
        self.is_local = protocol in {"file", "local"}
        """Whether the store is a folder on this machine, so that `local` makes no copies."""
        self._read_whole = remote.READ_WHOLE.get(protocol, {})
        self._read_range = remote.READ_RANGE.get(protocol, {})
        self._deleted_together = remote.DELETED_TOGETHER.get(protocol, 1)
        self.requests = 0
        """Number of read requests that this object has sent to a remote store, not counting the client's retries."""
        self._counting = threading.Lock()

    def __reduce__(self) -> tuple[type["Store"], tuple[str]]:
        return Store, (self.root,)

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def url(self, path: str) -> str:
        """Returns the full URL of `path`, for messages and records."""
        return f"{self.root.rstrip('/')}/{path}"

    def exists(self, path: str) -> bool:
        """Returns whether `path` is a file or folder."""
        with self._translated_errors(path, requests=1):
            return bool(self._fs.exists(self._full(path)))

    def size(self, path: str) -> int:
        """Returns the file's size in bytes; raises FileNotFoundError."""
        with self._translated_errors(path, requests=1):
            return int(self._fs.size(self._full(path)))

    def list(self, prefix: str, *, unfinished: bool = False) -> list[str]:
        """Returns all files below the folder `prefix`, sorted, as paths relative to the root.

        With `unfinished`, the list includes temporary files of writers that are running or were killed. Keys of S3 that
        end in "/", which some clients make for folders, are left out. A folder that cannot be listed is an error; one
        that does not exist has no files.
        """
        paths = [path for path, _ in self._find(prefix) if unfinished or not path.endswith(_ASIDE)]
        return sorted(path[len(self._base) + 1 :] for path in paths)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Returns the sizes in bytes of all files below the folder `prefix`, by path relative to it, in one listing.

        Files and errors are those of `list`.
        """
        below = len(self._full(prefix)) + 1
        return {path[below:]: size for path, size in self._find(prefix) if not path.endswith(_ASIDE)}

    def _find(self, prefix: str) -> Iterator[tuple[str, int]]:
        with self._translated_errors(prefix, requests=1), contextlib.suppress(FileNotFoundError):
            yield from remote.find(self._fs, self._full(prefix))

    def folders(self, path: str = "") -> Sequence[str]:
        """Returns the names of the folders directly in `path` ("": the root), sorted."""
        return self._names(path, "directory")

    def names(self, path: str) -> Sequence[str]:
        """Returns the names of the files directly in the folder `path`, sorted."""
        return [name for name in self._names(path, "file") if not name.endswith(_ASIDE)]

    def _names(self, path: str, kind: str) -> Sequence[str]:
        entries: Sequence[Any] = ()
        with self._translated_errors(path, requests=1), contextlib.suppress(FileNotFoundError):
            entries = self._fs.ls(self._full(path), detail=True)
        return sorted(str(one["name"]).rstrip("/").rpartition("/")[2] for one in entries if one["type"] == kind)

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading bytes; raises FileNotFoundError."""
        with self._translated_errors(path):
            return cast(BinaryIO, self._fs.open(self._full(path), "rb"))

    def read(self, path: str) -> bytes:
        """Returns a file's bytes; raises FileNotFoundError."""
        with self._translated_errors(path, requests=1):
            return bytes(self._fs.cat_file(self._full(path), **self._read_whole))

    def read_range(self, path: str, first: int, end: int) -> bytes:
        """Returns the bytes from `first` to `end` (exclusive) of a file; fewer if the file ends before `end`.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with self._translated_errors(path, requests=1):
            try:
                return bytes(self._fs.cat_file(self._full(path), start=first, end=end, **self._read_range))
            except Exception as error:
                if remote.is_range_past_end(error):
                    return b""
                raise

    def check_root(self) -> None:
        """Raises StoreError if `root` is a file or below one, or a folder that this user may not read.

        Otherwise nothing would exist in it and listings would be empty, as in a new store.
        """
        if not self.is_local:
            return
        remedy = "set [place] store to another folder"
        try:
            if not stat.S_ISDIR(os.stat(self._base).st_mode):
                raise StoreError(f"the store {self.root} is a file", remedy)
            os.scandir(self._base).close()
        except FileNotFoundError:
            return  # the first file creates it
        except OSError as error:
            cause = f"the store {self.root} cannot be read ({error.strerror})"
            raise StoreError(cause, f"correct that, or {remedy}") from error

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        """Yields a binary file that atomically replaces `path` on a clean exit, and is removed otherwise.

        Raises:
            StoreError: the store is full or rejects the file; names the path and the remedy.
        """
        with self._translated_errors(path, remote_errors=False):
            if self.is_local:
                with self._aside(path) as aside, open(aside, "wb") as file:
                    yield file
                    _flush(file)
                    os.replace(aside, self._full(path))
                return
            with tempfile.NamedTemporaryFile(prefix="sluice-") as spool:
                yield cast(BinaryIO, spool)
                spool.flush()
                # In one request: closing an open remote file after a failed upload would publish a truncated file.
                with self._translated_errors(path):
                    self._fs.put_file(spool.name, self._full(path))

    def publish(self, path: str, data: bytes) -> None:
        """Creates `path` with `data`; exactly one of several writers succeeds.

        Raises:
            AlreadyPublished: the path exists.
            StoreError: the store is full or rejects the file.
        """
        with self._translated_errors(path):
            if not self.is_local:
                if not remote.create(self._fs, self._full(path), data):
                    raise AlreadyPublished(path)
                return
            with self._aside(path) as aside, open(aside, "wb") as file:
                file.write(data)
                _flush(file)
                try:
                    os.link(aside, self._full(path))
                except FileExistsError:
                    raise AlreadyPublished(path) from None
                except FileNotFoundError:
                    # The writer that won has already cleared the folder, and with it the file to link.
                    if os.path.exists(self._full(path)):
                        raise AlreadyPublished(path) from None
                    raise

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with its content; a missing path is not an error."""
        if self._deleted_together > 1:
            self.remove_files([path, *self.list(path, unfinished=True)])
            return
        with self._translated_errors(path), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._full(path), recursive=True)

    def remove_files(self, paths: Sequence[str]) -> None:
        """Removes files in any order, on S3 up to 1,000 in one request; a missing one is not an error."""
        together = self._deleted_together
        batches = (paths[first : first + together] for first in range(0, len(paths), together))
        for _ in remote.concurrently(self._remove_batch, batches, 3 if together > 1 else remote.IN_FLIGHT):
            pass

    def _remove_batch(self, paths: Sequence[str]) -> None:
        with self._translated_errors(paths[0]), contextlib.suppress(FileNotFoundError):
            if self._deleted_together > 1:
                remote.delete_objects(self._fs, [self._full(path) for path in paths])
            else:
                self._fs.rm_file(self._full(paths[0]))

    def local(self, path: str, size: int | None = None, sha256: str = "") -> str:
        """Returns the path of a local file with the content of `path`, for libraries that need a path or map memory.

        A file of a remote store is fetched once into a cache folder of this machine (`tasks.core.cache`). With `size`
        and `sha256`, a copy in the cache is returned without a request, even if the store no longer has the file.

        Args:
            path: the file.
            size: the file's size in bytes by its artifact's record; None if unknown.
            sha256: the file's hash (hex) by the same record; required with `size`, and a fetched file must have it.

        Raises:
            FileNotFoundError: the remote store has no such file, and the cache has no copy by size and hash.
            InputError: the fetched file has another hash.
        """
        full = self._full(path)
        if self.is_local:
            return full
        if size is not None:
            with self._translated_errors(path):
                return cached_copy(sha256[:40], size, lambda aside: self._fetch(path, aside, sha256))
        with self._translated_errors(path, requests=1):
            # The path is not a sufficient key: an artifact may have been deleted and made again.
            info = self._fs.info(full)
            name = sha256_of(f"{self.url(path)}|{remote.version_of(info)}".encode())[:40]
            return cached_copy(name, int(info["size"]), lambda aside: self._fetch(path, aside))

    def _fetch(self, path: str, aside: str, sha256: str = "") -> None:
        with self._translated_errors(path, requests=1):
            self._fs.get_file(self._full(path), aside)
        if sha256 and sha256_of_file(aside) != sha256:
            remedy = "restore the file; or remove its artifact, and run the stage that makes it again"
            raise InputError(f"{self.url(path)} is damaged: it differs from its artifact's record", remedy)

    def scratch(self, path: str) -> str:
        """Returns a local folder for work in progress on `path`; after a restart on this machine, the same folder."""
        folder = self._scratch(path)
        with self._translated_errors(path, remote_errors=False):
            folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    def forget_scratch(self, path: str) -> None:
        """Removes the folder of `scratch(path)` on this machine."""
        shutil.rmtree(self._scratch(path), ignore_errors=True)

    def _scratch(self, path: str) -> Path:
        if self.is_local:
            return Path(self._full(path))
        name = sha256_of(self.url(path).encode())[:32]
        return Path(tempfile.gettempdir()) / "sluice-scratch" / name

    def _full(self, path: str) -> str:
        parts = path.split("/")
        if path.startswith("/") or ".." in parts:
            raise ValueError(f"a store path is relative and stays inside the store, not {path!r}")
        return f"{self._base}/{path}" if path else self._base

    @contextlib.contextmanager
    def _aside(self, path: str) -> Iterator[str]:
        """Yields the name under which a local file is written before it gets its own; removes what is left there."""
        full = self._full(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        aside = f"{full}.{secrets.token_hex(6)}{_ASIDE}"
        try:
            yield aside
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)

    @contextlib.contextmanager
    def _translated_errors(self, path: str, *, remote_errors: bool = True, requests: int = 0) -> Iterator[None]:
        """Translates errors about `path` into SluiceErrors, with `remote_errors` those of a remote client too.

        Adds `requests` to the count of requests.
        """
        if requests and not self.is_local:
            with self._counting:
                self.requests += requests
        try:
            yield
        except (SluiceError, AlreadyPublished):
            raise
        except Exception as error:
            translated = self._translate(error, path, remote_errors and not self.is_local)
            if translated is None:
                raise
            raise translated from error

    def _translate(self, error: Exception, path: str, remote_errors: bool) -> SluiceError | None:
        number = error.errno if isinstance(error, OSError) else None
        if number in _FULL:
            where = self.url(path) if self.is_local else tempfile.gettempdir()
            return StoreError(f"the store is full while writing {where}", "free space and run again")
        if number in _FORBIDDEN and self.is_local:
            return StoreError(
                f"no permission to use {self.url(path)} ({os.strerror(number or 0)})",
                "grant it or set [place] store to another folder",
            )
        return remote.translate(error, self.url(path)) if remote_errors else None


@cache
def probe(root: str) -> None:
    """Checks that exclusive creation, which all commits rely on, works in the store at `root`; once per process.

    Creates a small file below `.probe/` exclusively, tries to create it again, reads it back and removes it. A server
    that ignores If-None-Match, as some S3-compatible servers do, would let both writers succeed and silently lose a
    committed record.

    Raises:
        StoreError: the folder cannot be created, no permission, no bucket, another region, no credentials, or
            conditional writes are ignored.
        TransientError: the store does not respond.
    """
    store = Store(root, brief=True)
    store.check_root()
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
        except OSError as error:
            if not store.is_local:
                raise
            cause = f"the store {store.root} cannot be created ({error.strerror})"
            raise StoreError(cause, "create the folder, or set [place] store to another one") from error
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
            "use a server that honors them, such as AWS S3, or a folder",
        )
    finally:
        with contextlib.suppress(SluiceError, OSError):  # a failed removal must not hide the result of the probe
            store.remove(path)


def read_outside(path: str) -> bytes:
    """Returns the bytes of a file that a recipe names: a local path, or an fsspec URL of a protocol of stores.

    Raises:
        OSError: it cannot be read.
        StoreError, TransientError: see `Store`.
    """
    if "://" not in path:
        return Path(path).read_bytes()
    folder, _, name = path.rpartition("/")
    return Store(folder, brief=True).read(name)


def exists_outside(path: str) -> bool:
    """Returns whether a file that a recipe may name exists; path and errors are those of `read_outside`."""
    if "://" not in path:
        return Path(path).is_file()
    folder, _, name = path.rpartition("/")
    return Store(folder, brief=True).exists(name)


def open_outside(path: str) -> BinaryIO:
    """Opens a file that a recipe names for reading in chunks; path and errors are those of `read_outside`."""
    if "://" not in path:
        return Path(path).open("rb")
    folder, _, name = path.rpartition("/")
    return Store(folder, brief=True).open(name)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
