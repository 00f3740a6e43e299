"""Artifacts: committed results, identified by name@version, each with a record of what it was made from.

An artifact is a folder `<store>/<name>/<version>/` with its data and its record, `.artifact.json`. The record is
written last and exactly once: an artifact without a record does not exist. Reads records and the files that they list.

Files that nothing needs any more can be removed: their records stay, so that lineage is complete and no stage runs
again, and `.removed.json` beside the record has the time and the reason.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, BinaryIO

import pyarrow as pa
from pydantic import Field

from tasks.core import parquet
from tasks.core.config import Config, sha256_of_json
from tasks.core.errors import InputError
from tasks.core.remote import concurrently
from tasks.core.store import Store

parquet.leave_out_pandas()  # here, because every process of a stage reads or writes artifacts

log = logging.getLogger("sluice.artifact")

RECORD = ".artifact.json"
REMOVED = ".removed.json"
TRACKING = ".tracking.json"
"""The URL of the MLflow run of the stage (`tasks.run.runner`)."""


@dataclass(frozen=True, order=True)
class ArtifactId:
    """Identifier of an artifact: a name such as "demo/documents", and a version such as "dev" or "2026.11.21"."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def path(self) -> str:
        """The artifact's folder, relative to the store's root."""
        return f"{self.name}/{self.version}"

    @classmethod
    def parse(cls, text: str) -> "ArtifactId":
        """Parses "name@version"; raises InputError."""
        name, _, version = text.partition("@")
        if not name or not version:
            raise InputError(f'"{text}" is not an artifact id', "write it as name@version, such as demo/documents@dev")
        return cls(name, version)


class FileEntry(Config):
    """One file of a part: path relative to the artifact, size in bytes, sha256 (hex), and rows if the file has rows.

    `tokens` is the number of tokens in the rows of a token shard. `folder` is the folder of another artifact, relative
    to the store's root, if the file is there; "" if the file is in the artifact's own.
    """

    path: str
    bytes: int
    sha256: str
    rows: int | None = None
    tokens: int | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    folder: str = Field(default="", exclude_if=lambda folder: not folder)


class PartRecord(Config):
    """One committed part: its row counts, files and metrics."""

    name: str
    rows_in: int
    rows_out: int
    rejected: dict[str, int]
    files: tuple[FileEntry, ...]
    metrics: dict[str, float]


EXTERNAL = "external:"
"""Prefix of the address of an input from outside the store."""

CODE = "code:"
"""Prefix of the address of an input that is code."""


class InputRef(Config):
    """Reference to an input as it was when it was read.

    `content` identifies its bytes: it differs between two captures of the same pages, whose `fingerprint` is the same.
    `files` identifies the bytes of the files that the stage reads; "" if the stage reads all files.
    """

    role: str
    address: str
    fingerprint: str
    content: str
    files: str = ""

    @property
    def identity(self) -> list[str]:
        """The fields that are part of a result's fingerprint; only `files` if the input is read in part."""
        return [self.role, "", self.files] if self.files else [self.role, self.fingerprint, self.content]


class ArtifactRecord(Config):
    """Content of `.artifact.json`.

    `adopted_from` is the id of the artifact with the files, if another version already had the same result; "" if this
    artifact has its own files.
    """

    artifact: str
    stage: str
    stage_version: int
    member: str
    fingerprint: str
    content: str
    config: dict[str, Any]
    inputs: tuple[InputRef, ...]
    code: dict[str, str]
    rows_in: int
    rows_out: int
    rejected: dict[str, int]
    bytes: int
    parts: tuple[PartRecord, ...]
    metrics: dict[str, float]
    members: tuple[str, ...]
    note: str
    host: dict[str, str]
    started: datetime
    finished: datetime
    adopted_from: str = ""


LARGE = 1 << 16
"""Bytes of a record from which on its parse is kept for the next reader of the same bytes."""


_HASHED, _HASHED_TOGETHER = 16 << 20, 8
"""Bytes of one request of `verify`, and number of files that it hashes at a time; together 128 MB of memory."""


@lru_cache(maxsize=8)  # the page of the filters reads as many, again and again
def _large_record(data: bytes) -> ArtifactRecord:
    """Parses a record; one of 10 million documents takes 0.05 s, and pages and traces read it several times."""
    return ArtifactRecord.model_validate_json(data)


class Removal(Config):
    """Content of `.removed.json`: the time of the removal, and its reason."""

    at: datetime
    why: str


class ArtifactFolder:
    """Read access to the files of an artifact by path, for workers. Picklable.

    It does not contain the record. The size of a record is proportional to the number of parts, so sending it with
    every part would take quadratic time.

    Args:
        store: the store with the files.
        address: name and version.
        path: folder of the files, relative to the store's root; the folder of another version if they were adopted.
        only: prefixes of the paths that can be opened; () for all.
    """

    def __init__(self, store: Store, address: ArtifactId, path: str, only: tuple[str, ...] = ()) -> None:
        self.store = store
        self.address = address
        self.path = path
        self.only = only

    def open(self, path: str) -> BinaryIO:
        """Opens one file of the artifact for reading.

        Raises:
            FileNotFoundError: the artifact has no such file.
            InputError: its files have been removed; also raised by the other methods that read files, except that
                `local` and `table` may return what this machine has a copy of.
        """
        with self._naming_removal():
            return self.store.open(self._inside(path))

    def read(self, path: str) -> bytes:
        """Returns the bytes of one file of the artifact."""
        with self._naming_removal():
            return self.store.read(self._inside(path))

    def local(self, path: str) -> str:
        """Returns the path of a local file with the content of `path` (see `Store.local`)."""
        with self._naming_removal():
            local = self.store.local(self._inside(path), *self._recorded(path))
            if self.store.is_local and not os.path.exists(local):
                raise FileNotFoundError(local)
            return local

    def _recorded(self, path: str) -> tuple[int, str] | tuple[()]:
        """Returns size and sha256 of a file; () if they are unknown here."""
        return ()

    def table(self, path: str, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
        """Reads a Parquet file of the artifact: all columns or some, all rows or those that pass `filters`."""
        return parquet.read(self.local(path), columns, filters)

    def removal(self) -> "Removal | None":
        """Returns when and why the files were removed; None if they were not."""
        try:
            return Removal.model_validate_json(self.store.read(f"{self.path}/{REMOVED}"))
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _naming_removal(self) -> Iterator[None]:
        """Raises InputError instead of FileNotFoundError if the files have been removed."""
        try:
            yield
        except FileNotFoundError:
            if removal := self.removal():
                name, _, version = self.path.rpartition("/")
                raise InputError(
                    f"the files of {name}@{version} were removed on {removal.at:%Y-%m-%d %H:%M} ({removal.why})",
                    "use a version whose files exist, or make a new one",
                ) from None
            raise

    def _inside(self, path: str) -> str:
        if self.only and not path.startswith(self.only):
            raise ValueError(f"{path} of {self.address} is not one of the files that this stage declares: {self.only}")
        return f"{self.path}/{path}"


class Artifact(ArtifactFolder):
    """A committed artifact, opened for reading. Picklable.

    Args:
        store: the store with the files.
        address: name and version.
        record: content of `.artifact.json`.
        only: prefixes of the paths that can be opened; () for all.
    """

    def __init__(self, store: Store, address: ArtifactId, record: ArtifactRecord, only: tuple[str, ...] = ()) -> None:
        files = ArtifactId.parse(record.adopted_from) if record.adopted_from else address
        super().__init__(store, address, files.path, only)
        self.record = record

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "entries"}

    @cached_property
    def entries(self) -> dict[str, FileEntry]:
        """The files by path, including those outside `only`."""
        return {entry.path: entry for part in self.parts for entry in part.files}

    def _recorded(self, path: str) -> tuple[int, str] | tuple[()]:
        entry = self.entries.get(path)
        return (entry.bytes, entry.sha256) if entry else ()

    @property
    def folder(self) -> ArtifactFolder:
        """The artifact's files without its record."""
        return ArtifactFolder(self.store, self.address, self.path, self.only)

    @classmethod
    def open_at(cls, store: Store, address: ArtifactId) -> "Artifact":
        """Opens the artifact at `address`; raises InputError if it does not exist."""
        artifact = cls.find(store, address)
        if artifact is None:
            raise InputError(
                f"no artifact {address} in {store.root}",
                "run the stage that makes it, or name another version",
            )
        return artifact

    @classmethod
    def find(cls, store: Store, address: ArtifactId) -> "Artifact | None":
        """Opens the artifact at `address`, or returns None if it does not exist.

        Raises:
            InputError: the record cannot be read, or the files that it was adopted with are gone.
        """
        try:
            data = store.read(f"{address.path}/{RECORD}")
        except FileNotFoundError:
            return None
        try:
            record = _large_record(data) if len(data) >= LARGE else ArtifactRecord.model_validate_json(data)
        except ValueError as error:
            raise InputError(
                f"{store.url(address.path)}/{RECORD} is not a readable record ({error})",
                "restore the file; or remove its folder, and run the stage that makes it again",
            ) from None
        if record.adopted_from:
            source = cls.find(store, ArtifactId.parse(record.adopted_from))
            if source is None or source.record.content != record.content:
                raise InputError(
                    f"{address} uses the files of {record.adopted_from}, which is gone or has other files now",
                    f"restore it; or remove {store.url(address.path)}, and run the stage that makes it again",
                )
        return cls(store, address, record)

    @classmethod
    def find_unchanged(cls, store: Store, ref: InputRef) -> "Artifact | None":
        """Opens the artifact of a reference; None if it is gone or, with a warning, if its content is another now."""
        artifact = cls.find(store, ArtifactId.parse(ref.address))
        if artifact and not artifact.matches(ref):
            log.warning("[%s] was made again with another result since it was read: it is not used", ref.address)
            return None
        return artifact

    def ids_of(self, role: str) -> list[ArtifactId]:
        """Returns the ids of the artifacts that it was made from in a role."""
        return [ArtifactId.parse(ref.address) for ref in self.record.inputs if ref.role == role]

    def open_input(self, role: str) -> "Artifact":
        """Opens the only artifact that it was made from in a role; raises InputError if that is gone."""
        (address,) = self.ids_of(role)
        return Artifact.open_at(self.store, address)

    def matches(self, ref: InputRef) -> bool:
        """Returns whether the artifact has the fingerprint and the content of a reference."""
        return (self.record.fingerprint, self.record.content) == (ref.fingerprint, ref.content)

    def rows(self, path: str, column: str, values: Sequence[str], columns: list[str]) -> pa.Table:
        """Returns `columns` of the rows of a Parquet file in which the string column `column` has one of `values`."""
        if self.store.is_local:
            return self.table(path, columns, parquet.is_in(column, values))
        size = self.entries[path].bytes
        return parquet.rows_of_remote(self.store, f"{self.path}/{path}", size, column, values, columns)

    def column(self, path: str, column: str) -> pa.ChunkedArray:
        """Returns a column of a Parquet file; of a file on a remote store, only this column is fetched."""
        if self.store.is_local:
            return self.table(path, [column]).column(column)
        size = self.entries[path].bytes
        return parquet.columns_of_remote(self.store, f"{self.path}/{path}", size, [column]).column(column)

    def ref(self, role: str) -> InputRef:
        """Returns the reference to this artifact, for the record of an artifact that is made from it."""
        address, record = str(self.address), self.record
        files = content_of(self.parts, self.only) if self.only else ""
        return InputRef(role=role, address=address, fingerprint=record.fingerprint, content=record.content, files=files)

    def names(self, folder: str) -> list[str]:
        """Returns the names of the Parquet files in a folder ("documents/"), without folder and suffix, sorted."""
        return [path.removeprefix(folder).removesuffix(".parquet") for path in self.files(folder)]

    def restricted_to(self, prefixes: tuple[str, ...]) -> "Artifact":
        """Returns the artifact limited to files whose paths begin with one of `prefixes`."""
        return Artifact(self.store, self.address, self.record, prefixes)

    def limited_to(self, parts: Iterable[PartRecord]) -> "Artifact":
        """Returns the artifact with some of its parts, for a worker that reads only those."""
        record = self.record.model_copy(update={"parts": tuple(parts)})
        return Artifact(self.store, self.address, record, self.only)

    @property
    def parts(self) -> tuple[PartRecord, ...]:
        """The committed parts, sorted by name."""
        return self.record.parts

    def files(self, prefix: str = "") -> list[str]:
        """Returns the paths (relative to the artifact) that begin with `prefix`, sorted."""
        paths = (entry.path for part in self.parts for entry in part.files if entry.path.startswith(prefix))
        return sorted(path for path in paths if not self.only or path.startswith(self.only))

    def remove(self) -> None:
        """Removes the artifact. The record is removed first, so that no record lists files that do not exist."""
        self.store.remove(f"{self.address.path}/{RECORD}")
        self.store.remove(self.address.path)

    def remove_files(self, why: str, at: datetime) -> None:
        """Removes the files and keeps the record; may be repeated after a kill.

        Raises:
            ValueError: the files are those of another artifact, from which this one was adopted.
        """
        if self.record.adopted_from:
            raise ValueError(f"{self.address} has no files of its own: they are those of {self.record.adopted_from}")
        if self.removal() is None:
            with self.store.write(f"{self.path}/{REMOVED}") as file:
                file.write(Removal(at=at, why=why).model_dump_json().encode())
        paths = [f"{self.path}/{path}" for path in sorted(self.entries)]
        self.store.remove_files(paths[:-1])
        self.store.remove_files(paths[-1:])  # alone, so that it is gone only when all are

    def removal_is_unfinished(self) -> bool:
        """Returns whether files are left of an artifact whose removal was begun."""
        return bool(self.entries) and self.store.exists(f"{self.path}/{max(self.entries)}")

    def verify(self) -> list[str]:
        """Hashes every file again; returns the paths that are missing or differ from the record.

        One listing has the sizes, and only files of the right size are read.

        Raises:
            InputError: the files have been removed.
        """
        sizes = self.store.sizes(self.path)
        entries = list(self.entries.values())
        if missing := next((entry.path for entry in entries if entry.path not in sizes), ""):
            with contextlib.suppress(FileNotFoundError):
                self.open(missing).close()  # raises the reason if the files were removed

        def is_equal(entry: FileEntry) -> bool:
            return sizes.get(entry.path) == entry.bytes and self._sha256(entry) == entry.sha256

        equal = concurrently(is_equal, entries, _HASHED_TOGETHER)
        return [entry.path for entry, same in zip(entries, equal, strict=True) if not same]

    def _sha256(self, entry: FileEntry) -> str:
        digest = hashlib.sha256()
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
            for first in range(0, entry.bytes, _HASHED):
                end = min(first + _HASHED, entry.bytes)
                digest.update(self.store.read_range(self._inside(entry.path), first, end))
        return digest.hexdigest()


def fingerprint(
    stage: str, version: int, member: str, config: Config | dict[str, Any], inputs: Iterable[InputRef]
) -> str:
    """Returns the identity of a result: sha256 over the stage, its version, its settings and its inputs.

    Artifact ids and `[place]` are not included, so moving a store does not change its fingerprints. For an input that
    the stage reads in part, only the content of the files that it reads is included.
    """
    basis = {
        "stage": stage,
        "version": version,
        "member": member,
        "config": config,
        "inputs": [ref.identity for ref in inputs],
    }
    return sha256_of_json(basis)


def content_of(parts: Iterable[PartRecord], prefixes: tuple[str, ...] = ("",)) -> str:
    """Returns the identity of the bytes: sha256 over the sorted (path, sha256) of all files below `prefixes`."""
    files = (entry for part in parts for entry in part.files if entry.path.startswith(prefixes))
    return sha256_of_json(sorted((entry.path, entry.sha256) for entry in files))
