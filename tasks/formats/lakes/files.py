"""The Parquet files of a written table: new ones, copies without some rows, and searches for rows; on workers.

A file is written once, under a name with a hash of what it was made from, and never changed. A copy is made row group
by row group. From a remote store a search fetches the columns with ids and URLs, not the file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.digest import sha256_of
from tasks.core.store import Store
from tasks.formats.documents.text import digest128
from tasks.formats.documents.tombstones import NO_TOMBSTONES, Tombstones
from tasks.formats.lakes.table import NewFile

ID, URL = "id", "url"
FOLDER = "data"
_ROWS_AT_ONCE = 8192
_ID = np.dtype("S16")


class Reader(Protocol):
    """Reads the rows of a part; picklable."""

    def read(self, part: str) -> pa.Table:
        """Returns the rows."""


@dataclass(frozen=True)
class SortedSet:
    """A set of ids or hashes in a file on this machine, sorted; "" for the empty set. Picklable."""

    path: str = ""

    @classmethod
    def write(cls, path: str, values: NDArray[Any]) -> "SortedSet":
        """Writes a set."""
        if not len(values):
            return cls()
        np.save(path, np.unique(values))
        return cls(path)

    def mask(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        """Returns which of some values are in the set."""
        if not self.path:
            return np.zeros(len(values), np.bool_)
        own = np.load(self.path, mmap_mode="r")
        found: NDArray[np.bool_] = own[np.minimum(np.searchsorted(own, values), len(own) - 1)] == values
        return found

    def __bool__(self) -> bool:
        return bool(self.path)


NOTHING = SortedSet()


def id_array(column: pa.ChunkedArray) -> NDArray[np.bytes_]:
    """Returns ids of 32 hex digits as 16 bytes each."""
    return np.frombuffer(bytes.fromhex("".join(column.to_pylist())), _ID)


def url_array(column: pa.ChunkedArray) -> NDArray[np.bytes_]:
    """Returns hashes of URLs, 16 bytes each."""
    return np.frombuffer(bytes.fromhex("".join(map(digest128, column.to_pylist()))), _ID)


@dataclass(frozen=True)
class LeftOut:
    """Rows that a table does not get, or loses. Picklable.

    Attributes:
        column: column with the id of the document of a row.
        rows: ids of rows.
        documents: ids of documents.
        urls: hashes of URLs of which there are newer documents, and `newer` the ids of these.
        tombstones: URLs, domains and documents that are taken down.
    """

    column: str = ID
    rows: SortedSet = NOTHING
    documents: SortedSet = NOTHING
    urls: SortedSet = NOTHING
    newer: SortedSet = NOTHING
    tombstones: Tombstones = NO_TOMBSTONES

    def __bool__(self) -> bool:
        return bool(self.rows or self.documents or self.urls or self.tombstones)

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [*dict.fromkeys([ID, URL, self.column])]

    def mask(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Returns which rows are left out."""
        named = pa.table({ID: rows.column(self.column), URL: rows.column(URL)})
        masked = self.tombstones.mask(named)
        if self.rows:
            masked |= self.rows.mask(id_array(rows.column(ID)))
        if self.documents or self.urls:
            documents = id_array(rows.column(self.column))
            masked |= self.documents.mask(documents)
            masked |= self.urls.mask(url_array(rows.column(URL))) & ~self.newer.mask(documents)
        return masked


@dataclass(frozen=True)
class NewPart:
    """A part to write: where, from what, with which schema, and which rows it does not get (None: it gets all)."""

    folder: Store
    name: str
    identity: str
    reader: Reader
    part: str
    schema: pa.Schema
    left_out: LeftOut | None


def write_part(new: NewPart) -> NewFile | None:
    """Writes a part as a file `<name>-<hash>.parquet`; returns None, and writes nothing, if it has no rows."""
    rows, dropped = new.reader.read(new.part), b""
    if new.left_out:
        mask = new.left_out.mask(rows)
        rows, dropped = rows.filter(pa.array(~mask)), np.packbits(mask).tobytes()
    if not rows.num_rows:
        return None
    basis = f"{new.identity}\n{new.schema.to_string()}\n{sha256_of(dropped)}"
    path = f"{new.name}-{sha256_of(basis.encode())[:16]}.parquet"
    return _write(new.folder, path, rows.cast(new.schema).to_batches(_ROWS_AT_ONCE), new.schema)


def _write(folder: Store, path: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> NewFile:
    rows = 0
    with folder.write(path) as file:
        # Without Arrow's own schema in the file: the types are those of the table.
        with pq.ParquetWriter(file, schema, compression="zstd", store_schema=False) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        size = file.tell()
    return NewFile(path, rows, size)


@dataclass(frozen=True)
class OldFile:
    """A file of a table to search.

    Attributes:
        folder: folder of the table.
        path: path below it.
        left_out: the rows that the table loses.
        sought: ids of rows to look for.
        name: name of a copy without the rows that the table loses, without hash; "" to make none.
    """

    folder: Store
    path: str
    left_out: LeftOut
    sought: SortedSet = NOTHING
    name: str = ""


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Attributes:
        path: the file.
        lost: number of its rows that the table loses.
        copy: the copy without them; None if there is no row left, or none was made.
        ids: ids of its other rows that were sought.
        examples: URL and id of some of the rows that the table loses.
    """

    path: str
    lost: int
    copy: NewFile | None
    ids: NDArray[np.bytes_]
    examples: list[str]


def search(old: OldFile) -> Found:
    """Searches a file for rows, and copies it without those that its table loses."""
    columns = old.left_out.columns
    if old.folder.is_local:
        rows = parquet.read(old.folder.local(old.path), columns)
    else:
        rows = parquet.columns_of_remote(old.folder, old.path, old.folder.size(old.path), columns)
    mask = old.left_out.mask(rows)
    ids = np.empty(0, _ID)
    if old.sought:
        kept = id_array(rows.column(ID).filter(pa.array(~mask)))
        ids = kept[old.sought.mask(kept)]
    lost = int(mask.sum())
    copy = _copy(old, mask) if old.name and lost and lost < len(mask) else None
    first = rows.slice(0, len(mask)).filter(pa.array(mask)).slice(0, 3).to_pylist()
    return Found(old.path, lost, copy, ids, [f"{row[URL]} ({row[old.left_out.column]})" for row in first])


def _copy(old: OldFile, mask: NDArray[np.bool_]) -> NewFile:
    path = f"{old.name}-{sha256_of(old.path.encode() + np.packbits(mask).tobytes())[:16]}.parquet"
    with parquet.open_file(old.folder.local(old.path)) as file:

        def batches() -> Iterable[pa.RecordBatch]:
            first = 0
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                kept = ~mask[first : first + batch.num_rows]
                first += batch.num_rows
                yield batch.filter(pa.array(kept))

        return _write(old.folder, path, batches(), file.schema_arrow)
