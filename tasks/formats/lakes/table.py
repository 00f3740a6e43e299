"""What both formats have in common: a snapshot to read, a table to write, and addresses of tables.

A snapshot is a version of a table that never changes. Its identity, "delta:<id of the table>:<version>" or
"iceberg:<uuid of the table>:<snapshot>", is that of an input from outside the store. Rows are read from the Parquet
files of a snapshot, without the library of the format; a row that the snapshot has deleted is skipped.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.external_files import SourceFile

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True)
class Column:
    """A column of a table, and where the values are.

    Attributes:
        name: its name in the table.
        stored: its name in the files.
        field_id: id of the field in the files, which takes precedence over the name; None without ids.
        constant: value of every row of a file without this column: of a partition, the default, or None.
    """

    name: str
    stored: str
    field_id: int | None = None
    constant: Any = None


@dataclass(frozen=True)
class TableFile(SourceFile):
    """A Parquet file of a snapshot.

    Attributes:
        columns: the columns of the table.
        deleted: positions of the rows that the snapshot has deleted, ascending: int64, little-endian.
    """

    columns: tuple[Column, ...] = ()
    deleted: bytes = b""

    def local(self) -> str:
        """Returns a local path; a remote object is fetched once into the cache of this machine."""
        if "://" not in self.path:
            return self.path
        folder, _, name = self.path.rpartition("/")
        return Store(folder).local(name)

    def stored_columns(self, schema: pa.Schema) -> dict[str, str]:
        """Returns the columns that the file has, by their name in the table.

        Args:
            schema: schema of the file.
        """
        ids = {int(field.metadata[_FIELD_ID]): field.name for field in schema if _FIELD_ID in (field.metadata or {})}
        found: dict[str, str] = {}
        for column in self.columns:
            by_id = ids and column.field_id is not None
            name = ids.get(column.field_id or 0, "") if by_id else column.stored
            if name in schema.names:
                found[column.name] = name
        return found

    def deleted_rows(self) -> frozenset[int]:
        """Returns the positions of the rows that are skipped."""
        return frozenset(np.frombuffer(self.deleted, "<i8").tolist())


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a table: its identity, and its files, sorted by name."""

    identity: str
    files: list[TableFile]


@dataclass(frozen=True)
class Head:
    """What the newest version of a written table has: a time in microseconds that orders versions, and a content."""

    number: int
    content: int


@dataclass(frozen=True)
class NewFile:
    """A file to add to a table: its path below the folder of the table, and its numbers of rows and bytes."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class TableVersion:
    """A version of a table that its metadata still has: its number, and the paths of its files."""

    number: int
    files: frozenset[str]


class LakeTable(ABC):
    """A table that is written: one commit per version, whose files are written before.

    An object knows the table as it was when it was first looked at, and after its own commits. It cannot commit if
    another writer has committed since, so what was decided by head and files still holds when it commits.

    Args:
        folder: folder of the table.
    """

    def __init__(self, folder: Store) -> None:
        self.folder = folder
        self._held: Any = None

    @abstractmethod
    def _load(self) -> Any:
        """Returns the library's object of the table; None if there is no table yet."""

    def _table(self) -> Any:
        if self._held is None:
            self._held = self._load()
        return self._held

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """Returns the columns; None if there is no table yet."""

    @abstractmethod
    def evolve(self, schema: pa.Schema) -> pa.Schema:
        """Creates the table, or adds columns that it lacks; returns the schema with which files are written."""

    @abstractmethod
    def head(self) -> Head | None:
        """Returns the head that the newest commit has stated; None if there was none."""

    @abstractmethod
    def files(self) -> list[str]:
        """Returns the paths of the files of the newest version, sorted, below the folder."""

    @abstractmethod
    def commit(self, added: Sequence[NewFile], removed: Sequence[str], head: Head, about: Mapping[str, str]) -> None:
        """Commits a version with some files added and others removed; all or nothing.

        Args:
            added: files that exist below the folder.
            removed: paths of files of the newest version.
            head: the head that the version states.
            about: properties of the version, for people.

        Raises:
            TransientError: another writer has committed in the meantime.
        """

    @abstractmethod
    def versions(self) -> list[TableVersion]:
        """Returns the versions that the metadata still has, oldest first; the last one is the newest."""

    @abstractmethod
    def forget(self, paths: Sequence[str]) -> None:
        """Removes files that are not in the newest version, so that no version with one of them can be read."""


@contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Converts an ImportError to an InputError that names the extra."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{package} is not installed ({error})", f"pip install 'sluice[{extra}]'") from None


def plain_path(url: str) -> str:
    """Returns a URL without "file://"; others stay.

    >>> plain_path("file:///data/t/a.parquet"), plain_path("s3://b/t/a.parquet")
    ('/data/t/a.parquet', 's3://b/t/a.parquet')
    """
    return f"/{url.removeprefix('file:').lstrip('/')}" if url.startswith("file:") else url


def below(folder: str, path: str) -> str:
    """Returns a path below a folder; the path of a file elsewhere is without scheme and leading slash.

    >>> below("s3://b/t", "s3://b/t/data/a.parquet"), below("/t", "s3://b/a.parquet")
    ('data/a.parquet', 'b/a.parquet')
    """
    root = f"{plain_path(folder).rstrip('/')}/"
    path = plain_path(path)
    return path.removeprefix(root) if path.startswith(root) else path.partition("://")[2] or path.lstrip("/")


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns with the types that both formats have, each nullable.

    Raises:
        InputError: a column has a type that they lack.

    >>> plain_schema(pa.schema([("a", pa.uint8()), ("b", pa.large_string())]))
    a: int32
    b: string
    """
    return pa.schema([pa.field(field.name, _plain(field.type, field.name)) for field in schema])


_SAME = {
    **dict.fromkeys((pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), pa.binary()),
    **dict.fromkeys((pa.int8(), pa.int16(), pa.uint8(), pa.uint16()), pa.int32()),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
}
_PLAIN = {pa.string(), pa.binary(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.date32()}


def _plain(kind: pa.DataType, name: str) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type, name)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type, f"{name}.{field.name}")) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type, name))
    plain = _SAME.get(kind, kind)
    if plain not in _PLAIN:
        raise InputError(f"the column {name} has the type {kind}, which tables of a lake lack", "leave its table out")
    return plain


def lacks(existing: pa.Schema, wanted: pa.Schema, table: str) -> bool:
    """Returns whether a table lacks a wanted column, or a field of one.

    Args:
        existing: columns of the table.
        wanted: the columns to write (`plain_schema`).
        table: where the table is, for the message.

    Raises:
        InputError: a column of the table has another type.
    """
    existing = plain_schema(existing)
    # A list, not a generator: every column is compared before one is added.
    return any([_lacks(pa.struct(list(existing)), field, "", table) for field in wanted])


def _lacks(existing: pa.StructType, field: pa.Field, prefix: str, table: str) -> bool:
    index, name = existing.get_field_index(field.name), f"{prefix}{field.name}"
    if index < 0:
        return True
    old, new = existing.field(index).type, field.type
    while pa.types.is_list(old) and pa.types.is_list(new):
        old, new = old.value_type, new.value_type
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return any([_lacks(old, inner, f"{name}.", table) for inner in new])
    if old != new:
        raise InputError(
            f"the column {name} of {table} has the type {old}, and would get {new}: its readers would break",
            "write to another root of [place.lake], or remove the table",
        )
    return False


def s3_environment() -> dict[str, str]:
    """Returns endpoint and region of S3 from the environment, as `endpoint` and `region`, where they are set.

    The clients of the formats read keys themselves, but not all names of these two.
    """
    names = {
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    }
    found = {key: next(filter(None, map(os.environ.get, variables)), "") for key, variables in names.items()}
    return {key: value for key, value in found.items() if value}
