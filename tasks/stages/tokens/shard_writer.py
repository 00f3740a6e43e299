"""Writes the encoded documents of one part: a shard per source, split and number of tokens, and the index of them all.

Documents come as Arrow tables, a row per document in the order of the part:

    doc_uid   fixed_size_binary(16)
    url       string
    tokens    large_list<uint16 | uint32>   with end-of-text, in the dtype of the shards
    n_bytes   uint32                        UTF-8 bytes of the text
    @<name>   string                        the label in each label column
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core import ranges
from tasks.core.part import Part
from tasks.formats.tokens.index import IndexedShard, write_index
from tasks.formats.tokens.shard import FOLDER, ShardBuffer, TokenFormat, list_array, shard_name, write_shard


def documents_table(
    uids: Sequence[bytes],
    urls: Sequence[str],
    tokens: Sequence[NDArray[Any]],
    n_bytes: Sequence[int],
    labels: Mapping[str, Sequence[str]] | None = None,
) -> pa.Table:
    """Returns a table of documents that are not in Arrow arrays."""
    columns = {
        "doc_uid": pa.array(uids, pa.binary(16)),
        "url": pa.array(urls, pa.string()),
        "tokens": list_array(tokens),
        "n_bytes": pa.array(n_bytes, pa.uint32()),
    }
    return pa.table(columns | {f"@{name}": pa.array(values, pa.string()) for name, values in (labels or {}).items()})


class ShardWriter:
    """Buffers the documents of one part by source and split, and writes a shard when a buffer is full.

    Args:
        part: the part to write.
        index: number of the part, used in the names of its shards.
        fmt: format of the shards.
        columns: names of the labels.
        shard_tokens: number of tokens after which a shard is closed.
    """

    def __init__(self, part: Part, index: int, fmt: TokenFormat, columns: Sequence[str], shard_tokens: int) -> None:
        self._part = part
        self._index = index
        self._format = fmt
        self._columns = columns
        self._shard_tokens = shard_tokens
        self._buffers: dict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        self._sizes: dict[tuple[str, str], int] = defaultdict(int)
        self._pieces: dict[tuple[str, str], int] = defaultdict(int)
        self._written: list[IndexedShard] = []
        self._bytes = 0

    def add(self, documents: pa.Table, source: str, split: str) -> None:
        """Adds documents of one source and split."""
        key = (source, split)
        self._bytes += pc.sum(documents.column("n_bytes")).as_py() or 0
        lengths = pc.list_value_length(documents.column("tokens")).to_numpy()
        while documents.num_rows:
            # The document that fills the shard is its last one.
            ends = self._sizes[key] + np.cumsum(lengths)
            count = min(int(np.searchsorted(ends, self._shard_tokens)) + 1, len(lengths))
            self._buffers[key].append(documents.slice(0, count))
            self._sizes[key] = int(ends[count - 1])
            if self._sizes[key] >= self._shard_tokens:
                self._flush(key)
            documents, lengths = documents.slice(count), lengths[count:]

    def close(self) -> None:
        """Writes the remaining buffers and the index."""
        for key in sorted(self._buffers):
            self._flush(key)
        self._part.metric("bytes", self._bytes)
        write_index(self._part, self._written)

    def _flush(self, key: tuple[str, str]) -> None:
        table = pa.concat_tables(self._buffers.pop(key)).combine_chunks()
        documents = {name: table.column(name).chunk(0) for name in table.column_names}
        name = shard_name(*key, self._index, self._pieces[key])
        labels = {column: documents[f"@{column}"] for column in self._columns}
        buffer = ShardBuffer(*key, documents["doc_uid"], documents["tokens"], documents["n_bytes"], labels)
        with ranges.checksummed_file(self._part, f"{FOLDER}/{name}.arrow", rows=table.num_rows) as file:
            offsets = write_shard(file, buffer, self._format)
        lengths = pc.list_value_length(buffer.tokens).to_numpy()
        self._written.append(IndexedShard(name, buffer.uids, documents["url"], offsets, lengths))
        self._part.count_out(table.num_rows)
        self._part.metric("tokens", self._sizes[key])
        self._part.metric(f"tokens/{'/'.join(key)}", self._sizes[key])
        self._pieces[key] += 1
        self._sizes[key] = 0
