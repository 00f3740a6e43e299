"""Columns of the whole corpus, without texts, for the global comparison.

Reads the signature files of this stage. Memory: about 110 bytes per document, plus 8 for the current band; 10 M
documents take about 1.2 GB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.store import Store
from tasks.stages.dedup.clusters import preference
from tasks.stages.dedup.exact import KEY_BYTES
from tasks.stages.dedup.signatures import band_column, path_of

_COLUMNS = ["id", "source", "fetched_at", "prose_score", "text_key"]


@dataclass(frozen=True)
class Corpus:
    """All documents, by row number: the parts concatenated in name order."""

    store: Store
    folder: str
    names: tuple[str, ...]
    table: pa.Table
    starts: tuple[int, ...]

    @classmethod
    def read(cls, store: Store, folder: str, names: Sequence[str]) -> "Corpus":
        """Reads all columns except the bands from the artifact at `folder`."""
        parts = [_read(store, f"{folder}/{path_of(name)}", _COLUMNS) for name in names]
        starts = np.cumsum([0, *(part.num_rows for part in parts)]).tolist()
        return cls(store, folder, tuple(names), pa.concat_tables(parts), tuple(starts))

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def ids(self) -> pa.ChunkedArray:
        """The documents' ids."""
        return self.table.column("id")

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """The rank of each document, 0 for the most preferred."""
        column = self.table.column
        return preference(column("prose_score"), column("fetched_at"), column("id"))

    @cached_property
    def has_words(self) -> NDArray[np.bool_]:
        """Whether a document has any word; documents without words are not compared."""
        valid: NDArray[np.bool_] = self.table.column("text_key").is_valid().to_numpy()
        return valid

    def text_keys(self) -> NDArray[np.uint64]:
        """The two halves of each text key, shape (documents, 2); zeros for a text without words."""
        filled = self.table.column("text_key").fill_null(bytes(KEY_BYTES)).combine_chunks()
        data = np.frombuffer(filled.buffers()[1], dtype=np.uint64)
        return data[filled.offset * 2 : (filled.offset + len(filled)) * 2].reshape(-1, 2)

    def bands(self, count: int, rows: NDArray[np.int64]) -> Iterator[NDArray[np.uint64]]:
        """Yields the keys of each band at `rows`."""
        for band in range(count):
            column = band_column(band)
            parts = [_read(self.store, f"{self.folder}/{path_of(name)}", [column]) for name in self.names]
            yield np.concatenate([part.column(column).to_numpy() for part in parts])[rows]


def _read(store: Store, path: str, columns: list[str]) -> pa.Table:
    return parquet.read(store.local(path), columns)
