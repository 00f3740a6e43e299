"""Reading of Parquet files, by path.

Arrow's threads may still reference an open Python file, or Python bytes, when the interpreter ends, and freeing it then
aborts the process (apache/arrow issues 34314 and 39162): 35 of 200 short processes that read an open file ended so, 10
of 400 that read bytes, whatever class wrapped them; `iter_batches` of an open file did 16 of 250 times, without threads
too. By path it was 0 of 400. So this module is the only one that opens Parquet, and it takes paths: for a file of a
store the result of `Store.local`.

Prevents Arrow from importing pandas, which no stage uses: 0.2 s and 49 MB in every process of a stage.

pyarrow imports pandas, where it is installed, at the first `pa.array` or `pa.table`, to check whether its argument is
a pandas object, and tries only once: where the import fails, the process continues without pandas. Code that imports
pandas itself (`Table.to_pandas`, MLflow) finds it as before.
"""

import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def read(path: str, columns: list[str] | None = None, filters: Any = None) -> pa.Table:
    """Reads a local file, optionally some columns and the rows that pass `filters` (an expression of Arrow)."""
    return pq.read_table(path, columns=columns, filters=filters)


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


class _Absent:
    """Module finder that raises ModuleNotFoundError for pandas in the thread that created it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is left out", name=name)
        return None


def leave_out_pandas() -> None:
    """Makes pyarrow try, and fail, to import pandas now; does nothing where pandas is imported already."""
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])  # not empty: other code that checks the elements tries the import too
    finally:
        sys.meta_path.remove(absent)
