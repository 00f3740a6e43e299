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
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.store import Store

_IN_FLIGHT = 8
_TAIL = 1 << 16
"""Bytes of the first read for the footer, the same as in Arrow."""


def read(path: str, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
    """Reads a local file: all columns or some, all rows or those that pass `filters` (an Arrow expression)."""
    return pq.read_table(path, columns=columns, filters=filters)


def is_in(column: str, values: Sequence[str]) -> pc.Expression:
    """Returns the filter expression for rows in which `column` has one of `values`."""
    return pc.field(column).isin(list(values))


def schema(path: str) -> pa.Schema:
    """Returns the schema of a local file."""
    return pq.read_schema(path)


def schema_in(file: BinaryIO) -> pa.Schema:
    """Returns the schema of an open file, local or remote, of which only the footer is read."""
    return pq.read_schema(file)


def metadata(path: str) -> pq.FileMetaData:
    """Returns the footer of a local file, with rows and bytes of its row groups."""
    return pq.read_metadata(path)


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
        partial = _SparseCopy(store, path, size, local.name)
        groups = partial.groups(column, values)
        if not groups:
            return schema(local.name).empty_table().select(columns)
        partial.fetch(groups, columns)
        with open_file(local.name) as file:
            rows = file.read_row_groups(groups, columns=[*dict.fromkeys([column, *columns])])
        return rows.filter(is_in(column, values)).select(columns)


def columns_of_remote(store: Store, path: str, size: int, columns: list[str]) -> pa.Table:
    """Returns `columns` of a file on a remote store, of which only these are fetched; see `rows_of_remote`."""
    with tempfile.NamedTemporaryFile(prefix="sluice-", suffix=".parquet") as local:
        partial = _SparseCopy(store, path, size, local.name)
        partial.fetch(range(metadata(local.name).num_row_groups), columns)
        return read(local.name, columns)


class _SparseCopy:
    """A sparse local file with some byte ranges of a remote file at the same offsets."""

    def __init__(self, store: Store, path: str, size: int, local: str) -> None:
        self._store, self._path, self._local = store, path, local
        os.truncate(local, size)
        tail = self._copy(max(0, size - _TAIL), size)
        footer = int.from_bytes(tail[-8:-4], "little") + 8
        if footer > len(tail):
            self._copy(size - footer, size - len(tail))
        self._metadata = metadata(local)

    def groups(self, column: str, values: Collection[str]) -> list[int]:
        """Returns the row groups in which `column` has one of `values`."""
        all_groups = range(self._metadata.num_row_groups)
        self.fetch(all_groups, [column])
        with open_file(self._local) as file:
            value_set = pa.array(sorted(values), pa.string())
            arrays = (file.read_row_group(group, columns=[column]).column(0) for group in all_groups)
            return [group for group, array in enumerate(arrays) if pc.any(pc.is_in(array, value_set=value_set)).as_py()]

    def fetch(self, groups: Iterable[int], columns: Collection[str]) -> None:
        """Copies `columns` of `groups` into the local file."""
        chunks = []
        for group in map(self._metadata.row_group, groups):
            for chunk in map(group.column, range(group.num_columns)):
                if chunk.path_in_schema.partition(".")[0] in columns:
                    first = chunk.data_page_offset
                    if chunk.has_dictionary_page:
                        first = min(first, chunk.dictionary_page_offset)
                    chunks.append((first, first + chunk.total_compressed_size))
        with ThreadPoolExecutor(_IN_FLIGHT) as pool:
            list(pool.map(lambda bounds: self._copy(*bounds), chunks))

    def _copy(self, first: int, end: int) -> bytes:
        data = self._store.read_range(self._path, first, end)
        descriptor = os.open(self._local, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, first)
        finally:
            os.close(descriptor)
        return data


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
