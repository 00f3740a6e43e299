"""Reading of Parquet files, by path, and of some rows of one on a remote store; Arrow without pandas.

Arrow's threads may still reference an open Python file, or Python bytes, when the interpreter ends, and freeing it then
aborts the process (apache/arrow issues 34314 and 39162): 35 of 200 short processes that read an open file ended so, 10
of 400 that read bytes, whatever class wrapped them; `iter_batches` of an open file did 16 of 250 times, without threads
too. By path it was 0 of 400. So this module is the only one that opens Parquet, and it takes paths: for a file of a
store the result of `Store.local`.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.store import Store

_IN_FLIGHT = 8
_TAIL = 1 << 16
"""Bytes read for the footer at first, as Arrow does."""


def read(path: str, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
    """Reads a local file, optionally some columns and the rows that pass `filters` (an expression of Arrow)."""
    return pq.read_table(path, columns=columns, filters=filters)


def is_one_of(column: str, values: Sequence[str]) -> pc.Expression:
    """Returns the expression of rows in which a column has one of some values."""
    return pc.field(column).isin(list(values))


def schema(path: str) -> pa.Schema:
    """Returns the columns of a local file."""
    return pq.read_schema(path)


def metadata(path: str) -> pq.FileMetaData:
    """Returns the footer of a local file: its row groups, with their rows and bytes."""
    return pq.read_metadata(path)


def opened(path: str, read_dictionary: list[str] | None = None) -> pq.ParquetFile:
    """Opens a local file to read its row groups or batches; to be closed, as by `with`.

    Args:
        path: the file.
        read_dictionary: columns to read dictionary-encoded.
    """
    return pq.ParquetFile(path, read_dictionary=read_dictionary)


def from_bytes(data: bytes) -> pa.Table:
    """Reads a whole file that is in memory, in this thread alone: no other one references the bytes (0 of 250)."""
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def rows_of_remote(
    store: Store, path: str, size: int, column: str, values: Sequence[str], columns: list[str]
) -> pa.Table:
    """Returns the rows of a file on a remote store in which a column has one of some values.

    Of its bytes, the footer and the columns that are needed are fetched, and written at their places in a local file of
    the same size, which is otherwise a hole. The columns of rows that do not match are fetched for row groups with a
    match only.

    Args:
        store: the store.
        path: the file, in the store.
        size: its bytes.
        column: name of a column of strings.
        values: what it has in the rows that are wanted.
        columns: the columns to return.
    """
    with tempfile.NamedTemporaryFile(prefix="sluice-", suffix=".parquet") as local:
        partial = _Partial(store, path, size, local.name)
        groups = partial.groups(column, values)
        if not groups:
            return schema(local.name).empty_table().select(columns)
        partial.fetch(groups, columns)
        with opened(local.name) as file:
            found = file.read_row_groups(groups, columns=[*dict.fromkeys([column, *columns])])
        return found.filter(is_one_of(column, values)).select(columns)


class _Partial:
    """A local file with parts of a remote one at their places."""

    def __init__(self, store: Store, path: str, size: int, local: str) -> None:
        self._store, self._path, self._local = store, path, local
        os.truncate(local, size)
        tail = self._copy(max(0, size - _TAIL), size)
        footer = int.from_bytes(tail[-8:-4], "little") + 8
        if footer > len(tail):
            self._copy(size - footer, size - len(tail))
        self._metadata = metadata(local)

    def groups(self, column: str, values: Collection[str]) -> list[int]:
        """Returns the row groups with one of some values in a column."""
        every = range(self._metadata.num_row_groups)
        self.fetch(every, [column])
        with opened(self._local) as file:
            wanted = pa.array(sorted(values), pa.string())
            read = (file.read_row_group(group, columns=[column]).column(0) for group in every)
            return [group for group, found in enumerate(read) if pc.any(pc.is_in(found, value_set=wanted)).as_py()]

    def fetch(self, groups: Iterable[int], columns: Collection[str]) -> None:
        """Fetches some columns of some row groups."""
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
    """Makes pyarrow try, and fail, to import pandas now; does nothing where pandas is imported already.

    No stage uses pandas: it would be 0.2 s and 49 MB in every process of a stage. pyarrow imports it, where it is
    installed, at the first `pa.array` or `pa.table`, to check whether its argument is a pandas object, and tries only
    once: where the import fails, the process continues without. Code that imports pandas itself (`Table.to_pandas`,
    MLflow) finds it as before.
    """
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])  # not empty: other code that checks the elements tries the import too
    finally:
        sys.meta_path.remove(absent)


class _Absent:
    """Module finder that raises ModuleNotFoundError for pandas in the thread that created it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is left out", name=name)
        return None
