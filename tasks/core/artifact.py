"""Artifacts: committed results, addressed as name@version, with a record of what they were made from.

An artifact is a folder `<store>/<name>/<version>/` with `.artifact.json` beside its data. The record is written last
and exactly once: an artifact without its record does not exist. Stages, ledger, tracking and the plugin read it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

import pyarrow as pa

from tasks.core import parquet, without_pandas
from tasks.core.config import Config
from tasks.core.digest import sha256_of_json, sha256_of_stream
from tasks.core.errors import InputError
from tasks.core.store import Store

without_pandas.leave_out()  # here, because every process of a stage reads or writes artifacts

RECORD = ".artifact.json"


@dataclass(frozen=True, order=True)
class ArtifactId:
    """Where an artifact stands: a name ("demo/documents") and a version ("dev", "2026.11.21")."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def path(self) -> str:
        """The folder relative to the store's root."""
        return f"{self.name}/{self.version}"

    @classmethod
    def parse(cls, text: str) -> "ArtifactId":
        """Reads "name@version"; raises InputError."""
        name, _, version = text.partition("@")
        if not name or not version:
            raise InputError(
                f'"{text}" is not an artifact address', "write it as name@version, such as demo/documents@dev"
            )
        return cls(name, version)


class FileEntry(Config):
    """One file of a part: path relative to the artifact, size in bytes, sha256 (hex), rows where it has any."""

    path: str
    bytes: int
    sha256: str
    rows: int | None = None


class PartRecord(Config):
    """One committed part and what became of its rows."""

    name: str
    rows_in: int
    rows_out: int
    rejected: dict[str, int]
    files: tuple[FileEntry, ...]
    metrics: dict[str, float]


class InputRef(Config):
    """One input as it was when it was read. `content` tells two captures of the moving web apart."""

    role: str
    address: str
    fingerprint: str
    content: str


class Record(Config):
    """What `.artifact.json` holds."""

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


class ArtifactFolder:
    """The files of an artifact, to be read by their paths: what workers are sent. Picklable.

    It has no record, which grows with the parts: sent with every part, that would be the square of their number.
    """

    def __init__(self, store: Store, address: ArtifactId) -> None:
        self.store = store
        self.address = address

    def open(self, path: str) -> BinaryIO:
        """Opens one file of the artifact for reading; raises FileNotFoundError."""
        return self.store.open(f"{self.address.path}/{path}")

    def read(self, path: str) -> bytes:
        """Returns the bytes of one file of the artifact."""
        return self.store.read(f"{self.address.path}/{path}")

    def local(self, path: str) -> str:
        """Returns a local file with the content of `path` (see `Store.local`)."""
        return self.store.local(f"{self.address.path}/{path}")

    def table(self, path: str, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
        """Reads one Parquet file of the artifact, optionally some columns and the rows that pass `filters`."""
        return parquet.read(self.local(path), columns, filters)


class Artifact(ArtifactFolder):
    """A committed artifact, opened for reading. Picklable."""

    def __init__(self, store: Store, address: ArtifactId, record: Record) -> None:
        super().__init__(store, address)
        self.record = record

    @property
    def folder(self) -> ArtifactFolder:
        """Its files without its record."""
        return ArtifactFolder(self.store, self.address)

    @classmethod
    def open_at(cls, store: Store, address: ArtifactId) -> "Artifact":
        """Opens the artifact at `address`; raises InputError when it does not exist."""
        artifact = cls.find(store, address)
        if artifact is None:
            raise InputError(
                f"no artifact {address} in {store.root}",
                "run the stage that makes it, or name another version",
            )
        return artifact

    @classmethod
    def find(cls, store: Store, address: ArtifactId) -> "Artifact | None":
        """Opens the artifact at `address`, or returns None when it does not exist."""
        try:
            data = store.read(f"{address.path}/{RECORD}")
        except FileNotFoundError:
            return None
        try:
            return cls(store, address, Record.model_validate_json(data))
        except ValueError as error:
            raise InputError(
                f"{store.url(address.path)}/{RECORD} is not a readable record ({error})",
                "restore the file; or remove its folder, and run the stage that makes it again",
            ) from None

    def ref(self, role: str) -> InputRef:
        """Returns what the record of something made from this artifact says of it."""
        address, record = str(self.address), self.record
        return InputRef(role=role, address=address, fingerprint=record.fingerprint, content=record.content)

    @property
    def parts(self) -> tuple[PartRecord, ...]:
        """The committed parts in name order."""
        return self.record.parts

    def files(self, prefix: str = "") -> list[str]:
        """Returns the paths (relative to the artifact) that begin with `prefix`, sorted."""
        return sorted(entry.path for part in self.parts for entry in part.files if entry.path.startswith(prefix))

    def remove(self) -> None:
        """Removes the artifact: its record first, so that no record ever stands without the files that it names."""
        self.store.remove(f"{self.address.path}/{RECORD}")
        self.store.remove(self.address.path)

    def verify(self) -> list[str]:
        """Hashes every file anew; returns the paths that are missing or differ from the record."""
        wrong = []
        for entry in (entry for part in self.parts for entry in part.files):
            try:
                with self.open(entry.path) as file:
                    same = sha256_of_stream(file) == entry.sha256
            except FileNotFoundError:
                same = False
            if not same:
                wrong.append(entry.path)
        return wrong


def fingerprint(stage: str, version: int, member: str, config: Config, inputs: Iterable[InputRef]) -> str:
    """Returns the identity of a result: sha256 over the stage, its version, its settings and its inputs.

    Addresses and everything about the place are left out: a store that moves keeps its fingerprints.
    """
    basis = {
        "stage": stage,
        "version": version,
        "member": member,
        "config": config,
        "inputs": [[ref.role, ref.fingerprint, ref.content] for ref in inputs],
    }
    return sha256_of_json(basis)


def content_of(parts: Iterable[PartRecord]) -> str:
    """Returns the identity of the bytes: sha256 over the sorted (path, sha256) of every file."""
    return sha256_of_json(sorted((entry.path, entry.sha256) for part in parts for entry in part.files))
