"""Artifacts: committed results, identified by name@version, each with a record of what it was made from.

An artifact is a folder `<store>/<name>/<version>/` with its data, the manifests of its parts (`tasks.core.manifest`)
and its record, `.artifact.json`. The record is written last and exactly once: an artifact without a record does not
exist. Reads records, manifests and the files that they list.

Files can lie in the folder of another version of the artifact: those of a part that is unchanged since that version
(`FileEntry.home`), or all of them (`ArtifactRecord.adopted_from`). `ArtifactFolder.at` is the one way from a path in an
artifact to the place of the file.

Files that nothing needs any more can be removed (`tasks.core.removal`): their records stay, so that lineage is complete
and no stage runs again, and `.removed.json` beside the record has the time and the reason.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, BinaryIO

import pyarrow as pa

from tasks.core import parquet
from tasks.core.config import Config, identity_of, sha256_of_json
from tasks.core.errors import InputError
from tasks.core.manifest import FileEntry, Manifest, PartRecord, Parts, Total, bytes_elsewhere
from tasks.core.remote import concurrently
from tasks.core.store import Store

__all__ = ["Artifact", "ArtifactFolder", "ArtifactId", "ArtifactRecord", "FileEntry", "InputRef", "PartRecord"]

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
    """Content of `.artifact.json`: what is known of an artifact as a whole, and the list of its manifests.

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
    manifests: tuple[Manifest, ...]
    metrics: dict[str, float]
    members: tuple[str, ...]
    note: str
    host: dict[str, str]
    started: datetime
    finished: datetime
    adopted_from: str = ""

    def elsewhere(self) -> dict[str, int]:
        """Returns the bytes of the files that lie in the folders of other versions, by address, sorted."""
        name = self.artifact.partition("@")[0]
        return {f"{name}@{version}": size for version, size in bytes_elsewhere(self.manifests).items()}

    def stored(self) -> int:
        """Returns the bytes that it adds to the store: those of the files in its own folder."""
        return 0 if self.adopted_from else self.bytes - sum(self.elsewhere().values())


_HASHED, _HASHED_TOGETHER = 16 << 20, 8
"""Bytes of one request of `verify`, and number of files that it hashes at a time; together 128 MB of memory."""


class Kept(Config):
    """Files of a removed artifact that stay because another version refers to them: their number and bytes."""

    files: int
    bytes: int


class Removal(Config):
    """Content of `.removed.json`.

    Attributes:
        at: time at which the removal began.
        why: the reason.
        round: the last round of the removal that is complete (`tasks.core.removal`); -1 if none is.
        files: number of files that are removed.
        kept: those that stay, by the address of a version that refers to them.
    """

    at: datetime
    why: str
    round: int = -1
    files: int = 0
    kept: dict[str, Kept] = {}


class ArtifactFolder:
    """Read access to the files of an artifact by path, for workers. Picklable.

    It has neither the record nor parts. The record grows with the manifests: to send it with every part would take
    quadratic time.

    Args:
        store: the store with the files.
        address: name and version.
        path: folder of the files, relative to the store's root; the folder of another version if they were adopted.
        only: prefixes of the paths that can be opened; () for all.
        manifests: the identity of its manifests if some files lie in the folders of further versions; "" if none does.
            A process that opens such files reads the record once, and the manifests that it needs.
    """

    def __init__(
        self, store: Store, address: ArtifactId, path: str, only: tuple[str, ...] = (), manifests: str = ""
    ) -> None:
        self.store = store
        self.address = address
        self.path = path
        self.only = only
        self.manifests = manifests

    def at(self, path: str) -> str:
        """Returns the place of a file, relative to the store's root: in its folder, or in that of another version.

        Raises:
            InputError: the artifact was made again with other files, or a manifest is missing or damaged.
        """
        if self.only and not path.startswith(self.only):
            raise ValueError(f"{path} of {self.address} is not one of the files that this stage declares: {self.only}")
        return f"{self._folder_of(self._home(path))}/{path}"

    def place(self, entry: FileEntry) -> str:
        """Returns the same as `at` for a file whose entry is known: nothing is looked up."""
        return f"{self._folder_of(entry.home)}/{entry.path}"

    def holder(self, entry: FileEntry) -> "ArtifactFolder":
        """Returns the folder that has a file of the artifact, so that nothing is looked up to open it."""
        return ArtifactFolder(self.store, self.address, self._folder_of(entry.home), self.only)

    def _folder_of(self, home: str) -> str:
        return f"{self.path.rpartition('/')[0]}/{home}" if home else self.path

    def _home(self, path: str) -> str:
        """Returns the version whose folder has a file; "" for its own folder, and for a file that it does not have."""
        if not self.manifests:
            return ""
        entry = _parts_at(self.store.root, self.path, self.manifests).entry(path)
        return entry.home if entry else ""

    def open(self, path: str) -> BinaryIO:
        """Opens one file of the artifact for reading.

        Raises:
            FileNotFoundError: the artifact has no such file.
            InputError: its files have been removed; also raised by the other methods that read files, except that
                `local` and `table` may return what this machine has a copy of.
        """
        with self._naming_removal(path):
            return self.store.open(self.at(path))

    def read(self, path: str) -> bytes:
        """Returns the bytes of one file of the artifact."""
        with self._naming_removal(path):
            return self.store.read(self.at(path))

    def read_range(self, path: str, first: int, end: int) -> bytes:
        """Returns the bytes from `first` to `end` (exclusive) of one file of the artifact, as they are in the store.

        Raises:
            InputError: the file is missing or shorter.
        """
        data, place = b"", self.at(path)
        with contextlib.suppress(FileNotFoundError), self._naming_removal(path):
            data = self.store.read_range(place, first, end)
        if len(data) != end - first:
            raise InputError(
                f"{self.store.url(place)} is missing or has no bytes {first:,} .. {end:,}",
                "restore the file; or remove its artifact, and run the stage that makes it again",
            )
        return data

    def local(self, path: str) -> str:
        """Returns the path of a local file with the content of `path` (see `Store.local`)."""
        with self._naming_removal(path):
            local = self.store.local(self.at(path), *(() if self.store.is_local else self._recorded(path)))
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
    def _naming_removal(self, path: str) -> Iterator[None]:
        """Raises InputError instead of FileNotFoundError if the files have been removed, or lie in another version."""
        try:
            yield
        except FileNotFoundError:
            if removal := self.removal():
                name, _, version = self.path.rpartition("/")
                raise InputError(
                    f"the files of {name}@{version} were removed on {removal.at:%Y-%m-%d %H:%M} ({removal.why})",
                    "use a version whose files exist, or make a new one",
                ) from None
            if home := self._home(path):
                raise self._lost(path, home) from None
            raise

    def _lost(self, path: str, home: str, more: int = 0) -> InputError:
        """Returns the error about a file that is missing in the folder of another version, and further ones."""
        name = self.path.rpartition("/")[0]
        others = f" and {more:,} more files" if more else ""
        return InputError(
            f"{self.address} refers to {path}{others} of {name}@{home}, where it is missing",
            f"restore {self.store.url(f'{name}/{home}/{path}')}; or remove {self.store.url(self.path)}, and run the "
            "stage that makes it again",
        )


class Artifact(ArtifactFolder):
    """A committed artifact, opened for reading. Picklable.

    Args:
        store: the store with the files.
        address: name and version.
        record: content of `.artifact.json`.
        only: prefixes of the paths that can be opened; () for all.
        parts: the parts if they are in memory; None to read them from the manifests.

    Attributes:
        parts: the committed parts, sorted by name and including files outside `only`; read when they are needed.
    """

    def __init__(
        self,
        store: Store,
        address: ArtifactId,
        record: ArtifactRecord,
        only: tuple[str, ...] = (),
        parts: tuple[PartRecord, ...] | None = None,
    ) -> None:
        files = ArtifactId.parse(record.adopted_from) if record.adopted_from else address
        super().__init__(store, address, files.path, only)
        self.record = record
        self.parts = Parts(store, self.path, record.manifests, parts)
        if self.parts.elsewhere():
            self.manifests = _identity(record.manifests)

    @property
    def record_paths(self) -> frozenset[str]:
        """Paths of the record and its manifests in its own folder; those of an adopted one are in another."""
        return frozenset({RECORD, *(() if self.record.adopted_from else (one.path for one in self.record.manifests))})

    def entry(self, path: str) -> FileEntry:
        """Returns size, hash and rows of a file; reads one manifest, or several (`Parts.entry`).

        Raises:
            FileNotFoundError: the artifact has no such file.
            InputError: a manifest is missing or damaged.
        """
        if entry := self.parts.entry(path):
            return entry
        raise FileNotFoundError(f"{self.address} has no {path}")

    def entries(self, prefix: str = "") -> Iterator[FileEntry]:
        """Yields the files whose paths begin with `prefix`, also outside `only`, in the order of the parts."""
        return self.parts.entries((prefix,))

    def total(self, prefix: str = "") -> Total:
        """Returns number, bytes and rows of the files whose paths begin with `prefix`; of a folder from the record."""
        return self.parts.total((prefix,))

    def _recorded(self, path: str) -> tuple[int, str] | tuple[()]:
        entry = self.parts.entry(path)
        return (entry.bytes, entry.sha256) if entry else ()

    def _home(self, path: str) -> str:
        entry = self.parts.entry(path) if self.manifests else None
        return entry.home if entry else ""

    @property
    def folder(self) -> ArtifactFolder:
        """The artifact's files without its record."""
        return ArtifactFolder(self.store, self.address, self.path, self.only, self.manifests)

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
            record = ArtifactRecord.model_validate_json(data)
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
            # If it was made again, the same files may be in other manifests, which also have metrics.
            record = record.model_copy(update={"manifests": source.record.manifests})
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
        size = self.entry(path).bytes
        return parquet.rows_of_remote(self.store, self.at(path), size, column, values, columns)

    def column(self, path: str, column: str) -> pa.ChunkedArray:
        """Returns a column of a Parquet file; of a file on a remote store, only this column is fetched."""
        if self.store.is_local:
            return self.table(path, [column]).column(column)
        size = self.entry(path).bytes
        return parquet.columns_of_remote(self.store, self.at(path), size, [column]).column(column)

    def ref(self, role: str) -> InputRef:
        """Returns the reference to this artifact, for the record of an artifact that is made from it."""
        address, record = str(self.address), self.record
        files = self.parts.total(self.only).digest if self.only else ""
        return InputRef(role=role, address=address, fingerprint=record.fingerprint, content=record.content, files=files)

    def names(self, folder: str) -> list[str]:
        """Returns the names of the Parquet files in a folder ("documents/"), without folder and suffix, sorted."""
        return [path.removeprefix(folder).removesuffix(".parquet") for path in self.files(folder)]

    def restricted_to(self, prefixes: tuple[str, ...]) -> "Artifact":
        """Returns the artifact limited to files whose paths begin with one of `prefixes`."""
        return Artifact(self.store, self.address, self.record, prefixes, self.parts.given)

    def limited_to(self, parts: Iterable[PartRecord]) -> "Artifact":
        """Returns the artifact with some of its parts, for a worker that reads only those."""
        record = self.record.model_copy(update={"manifests": ()})
        limited = Artifact(self.store, self.address, record, self.only, tuple(parts))
        limited.manifests = self.manifests
        return limited

    def files(self, prefix: str = "") -> list[str]:
        """Returns the paths (relative to the artifact) that begin with `prefix`, sorted."""
        return sorted(path for path in self.parts.paths((prefix,)) if not self.only or path.startswith(self.only))

    def remove(self) -> None:
        """Removes the artifact. The record is removed first, so that no record lists files that do not exist."""
        self.store.remove(f"{self.address.path}/{RECORD}")
        self.store.remove(self.address.path)

    def verify(self) -> list[str]:
        """Hashes every file again; returns the paths that are missing or differ from what the manifests have.

        A listing of each folder with files has the sizes, and only files of the right size are read.

        Raises:
            InputError: the files have been removed, a manifest is missing or damaged, or the folder of another version
                lacks a file that this one refers to.
        """
        folders = {home: self.store.sizes(self._folder_of(home)) for home in ("", *self.parts.elsewhere())}
        entries = list(self.entries())
        if missing := [entry for entry in entries if entry.path not in folders[entry.home]]:
            with contextlib.suppress(FileNotFoundError):
                self.open(missing[0].path).close()  # raises the reason if the files were removed
            if lost := [entry for entry in missing if entry.home]:
                raise self._lost(lost[0].path, lost[0].home, len(lost) - 1)

        def is_equal(entry: FileEntry) -> bool:
            return folders[entry.home].get(entry.path) == entry.bytes and self._sha256(entry) == entry.sha256

        equal = concurrently(is_equal, entries, _HASHED_TOGETHER)
        return [entry.path for entry, same in zip(entries, equal, strict=True) if not same]

    def _sha256(self, entry: FileEntry) -> str:
        digest, place = hashlib.sha256(), self.place(entry)
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
            for first in range(0, entry.bytes, _HASHED):
                end = min(first + _HASHED, entry.bytes)
                digest.update(self.store.read_range(place, first, end))
        return digest.hexdigest()


def _identity(manifests: Iterable[Manifest]) -> str:
    return sha256_of_json([one.sha256 for one in manifests])


@lru_cache(16)
def _parts_at(root: str, path: str, manifests: str) -> Parts:
    """Returns the parts of the artifact in a folder, whose manifests have an identity; once in a process."""
    name, _, version = path.rpartition("/")
    artifact = Artifact.open_at(Store(root), ArtifactId(name, version))
    if _identity(artifact.record.manifests) != manifests:
        raise InputError(f"{artifact.address} was made again while it was read", "run the stage again")
    return artifact.parts


def fingerprint(
    stage: str, version: int, member: str, config: Config | dict[str, Any], inputs: Iterable[InputRef]
) -> str:
    """Returns the identity of a result: sha256 over the stage, its version, its settings and its inputs.

    Artifact ids, `[place]` and settings that are marked OPERATION are not included, so moving a store changes no
    fingerprint. For an input that the stage reads in part, only the content of the files that it reads is included.
    """
    basis = {
        "stage": stage,
        "version": version,
        "member": member,
        "config": identity_of(config),
        "inputs": [ref.identity for ref in inputs],
    }
    return sha256_of_json(basis)
