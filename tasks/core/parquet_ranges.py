"""Some rows of a Parquet file on a remote store: of its bytes, the footer and the columns that are needed are fetched.

They are written to a local file of the same size, which is otherwise a hole, because Parquet is opened by path alone
(see `parquet`). The columns of rows that do not match are fetched for row groups with a match only.
"""

import os
import tempfile
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core import parquet
from tasks.core.artifact import Artifact

IN_FLIGHT = 8
_TAIL = 1 << 16
"""Bytes read for the footer at first, as Arrow does."""


def rows_with(artifact: Artifact, path: str, column: str, values: Sequence[str], columns: list[str]) -> pa.Table:
    """Returns the rows of a file in which a column has one of some values.

    Args:
        artifact: the artifact.
        path: one of its Parquet files.
        column: name of a column of strings.
        values: what it has in the rows that are wanted.
        columns: the columns to return.
    """
    where = pc.field(column).isin(list(values))
    if artifact.store.is_local:
        return artifact.table(path, columns, where)
    with tempfile.NamedTemporaryFile(prefix="sluice-", suffix=".parquet") as file:
        partial = _Partial(artifact, path, file.name)
        groups = partial.groups(column, values)
        if not groups:
            return parquet.schema(file.name).empty_table().select(columns)
        partial.fetch(groups, columns)
        with parquet.opened(file.name) as opened:
            found = opened.read_row_groups(groups, columns=[*dict.fromkeys([column, *columns])])
        return found.filter(where).select(columns)


class _Partial:
    """A local file with parts of a remote one at their places."""

    def __init__(self, artifact: Artifact, path: str, local: str) -> None:
        sizes = {file.path: file.bytes for part in artifact.parts for file in part.files}
        self._store, self._path, self._local = artifact.store, f"{artifact.path}/{path}", local
        size = sizes[path]
        os.truncate(local, size)
        tail = self._copy(max(0, size - _TAIL), size)
        footer = int.from_bytes(tail[-8:-4], "little") + 8
        if footer > len(tail):
            self._copy(size - footer, size - len(tail))
        self._metadata = parquet.metadata(local)

    def groups(self, column: str, values: Collection[str]) -> list[int]:
        """Returns the row groups with one of some values in a column."""
        every = range(self._metadata.num_row_groups)
        self.fetch(every, [column])
        with parquet.opened(self._local) as opened:
            wanted = pa.array(sorted(values), pa.string())
            read = (opened.read_row_group(group, columns=[column]).column(0) for group in every)
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
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            list(pool.map(lambda bounds: self._copy(*bounds), chunks))

    def _copy(self, first: int, end: int) -> bytes:
        data = self._store.read_range(self._path, first, end)
        descriptor = os.open(self._local, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, first)
        finally:
            os.close(descriptor)
        return data
