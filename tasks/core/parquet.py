"""Reading of Parquet files by path, and of selected rows of a remote file; keeps pyarrow from importing pandas.

Arrow's threads may still reference an open Python file, or Python bytes, when the interpreter exits, and freeing these
then aborts the process (apache/arrow issues 34314 and 39162). This happened in 35 of 200 short processes that read an
open file, in 10 of 400 that read bytes, whatever class wrapped them, and in 16 of 250 that used `iter_batches` of an
open file, even without threads. It happened in 0 of 400 that read by path. So only this module opens Parquet files, and
it takes paths; for a file of a store, the result of `Store.local`.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.store import Store

_IN_FLIGHT = 8
_MAGIC = b"PAR1"
_TAIL = 1 << 16
"""Bytes of the first read for the footer, the same as in Arrow."""
_HOLE, _SPAN = 8 << 10, 32 << 20
"""Unneeded bytes that are read with what is on both sides, and bytes of such a read; the same as in Arrow."""


def read(path: str, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
    """Reads a local file: all columns or some, all rows or those that pass `filters` (an Arrow expression)."""
    return pq.read_table(path, columns=columns, filters=filters)


def is_in(column: str, values: Sequence[str]) -> pc.Expression:
    """Returns the filter expression for rows in which `column` has one of `values`."""
    return pc.field(column).isin(list(values))


def schema(source: str | BinaryIO) -> pa.Schema:
    """Returns the schema of a local file by its path, or of an open file, of which only the footer is read."""
    return pq.read_schema(source)


def metadata(path: str) -> pq.FileMetaData:
    """Returns the footer of a local file, with rows and bytes of its row groups."""
    return pq.read_metadata(path)


def is_parquet(path: str) -> bool:
    """Returns whether a local file begins like a Parquet file."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def open_file(path: str, read_dictionary: list[str] | None = None) -> pq.ParquetFile:
    """Opens a local file to read its row groups or batches. The caller closes it, for example with `with`.

    Args:
        path: the file.
        read_dictionary: columns to read dictionary-encoded.
    """
    return pq.ParquetFile(path, read_dictionary=read_dictionary)


def from_bytes(data: bytes) -> pa.Table:
    """Reads a whole file from memory, in this thread so that no other references the bytes (0 of 250 aborted)."""
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def rows_of_remote(
    store: Store, path: str, size: int, column: str, values: Sequence[str], columns: list[str]
) -> pa.Table:
    """Returns `columns` of the rows of a file on a remote store in which `column` has one of `values`.

    Fetches the footer, then `column` of all row groups, then `columns` of the row groups with a match. The bytes are
    written at the same offsets into a sparse local file of the same size, which Arrow reads.

    Args:
        store: the store.
        path: the file, relative to the store's root.
        size: its size in bytes.
        column: name of a string column.
        values: values to look up.
        columns: the columns to return.
    """
    with tempfile.NamedTemporaryFile(prefix="sluice-", suffix=".parquet") as local:
        copy = SparseCopy(partial(store.read_range, path), size, local.name)
        groups = copy.groups(column, values)
        if not groups:
            return schema(local.name).empty_table().select(columns)
        copy.fetch(groups, columns)
        with copy.open() as file:
            rows = file.read_row_groups(groups, columns=[*dict.fromkeys([column, *columns])])
        return rows.filter(is_in(column, values)).select(columns)


def columns_of_remote(store: Store, path: str, size: int, columns: list[str]) -> pa.Table:
    """Returns `columns` of a file on a remote store, of which only these are fetched; see `rows_of_remote`."""
    with tempfile.NamedTemporaryFile(prefix="sluice-", suffix=".parquet") as local:
        copy = SparseCopy(partial(store.read_range, path), size, local.name)
        copy.fetch(range(copy.metadata.num_row_groups), columns)
        return read(local.name, columns)


class SparseCopy:
    """A sparse local file with some byte ranges of a remote Parquet file at the same offsets.

    Args:
        read: returns the bytes of the remote file from a first one to an end.
        size: its size in bytes.
        local: path of an empty local file.
        footer: its footer; None to read it.
        in_flight: number of reads at a time.

    Attributes:
        metadata: the footer.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size: int,
        local: str,
        *,
        footer: pq.FileMetaData | None = None,
        in_flight: int = _IN_FLIGHT,
    ) -> None:
        self._read, self._local, self._in_flight = read, local, in_flight
        os.truncate(local, size)
        self.metadata = footer or self._footer(size)

    def _footer(self, size: int) -> pq.FileMetaData:
        tail = self._copy(max(0, size - _TAIL), size)
        footer = int.from_bytes(tail[-8:-4], "little") + 8
        if footer > len(tail):
            self._copy(size - footer, size - len(tail))
        return metadata(self._local)

    def open(self) -> pq.ParquetFile:
        """Opens the local file, of which only what was fetched can be read."""
        return pq.ParquetFile(self._local, metadata=self.metadata)

    def groups(self, column: str, values: Collection[str]) -> list[int]:
        """Returns the row groups in which `column` has one of `values`."""
        all_groups = range(self.metadata.num_row_groups)
        self.fetch(all_groups, [column])
        with self.open() as file:
            value_set = pa.array(sorted(values), pa.string())
            arrays = (file.read_row_group(group, columns=[column]).column(0) for group in all_groups)
            return [group for group, array in enumerate(arrays) if pc.any(pc.is_in(array, value_set=value_set)).as_py()]

    def fetch(self, groups: Iterable[int], columns: Collection[str]) -> None:
        """Copies `columns` of `groups` into the local file."""
        chunks = []
        for group in map(self.metadata.row_group, groups):
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.path_in_schema.partition(".")[0] in columns:
                    first = chunk.data_page_offset
                    if chunk.has_dictionary_page:
                        first = min(first, chunk.dictionary_page_offset)
                    chunks.append((first, first + chunk.total_compressed_size))
        with ThreadPoolExecutor(self._in_flight) as pool:
            list(pool.map(lambda bounds: self._copy(*bounds), _joined(chunks)))

    def _copy(self, first: int, end: int) -> bytes:
        data = self._read(first, end)
        descriptor = os.open(self._local, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, first)
        finally:
            os.close(descriptor)
        return data


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns ranges with those that lie close together as one.

    >>> _joined([(50_000, 60_000), (0, 10), (20, 30)])
    [(0, 30), (50000, 60000)]
    """
    joined: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if joined and first - joined[-1][1] <= _HOLE and end - joined[-1][0] <= _SPAN:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def leave_out_pandas() -> None:
    """Makes pyarrow's import of pandas fail now; does nothing if pandas has already been imported.

    No stage uses pandas, which would cost 0.2 s and 49 MB in every process. If it is installed, pyarrow imports it at
    the first `pa.array` or `pa.table` to check whether the argument is a pandas object. pyarrow tries this once: after
    a failed import, it continues without pandas. Code that imports pandas itself (`Table.to_pandas`, MLflow) is not
    affected.
    """
    if "pandas" in sys.modules:
        return
    finder = _PandasBlocker()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])  # not empty: the code that checks elements tries the import, too
    finally:
        sys.meta_path.remove(finder)


class _PandasBlocker:
    """Module finder that raises ModuleNotFoundError for pandas in the thread that created it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is left out", name=name)
        return None
