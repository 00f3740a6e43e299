"""Writer of the token shards of one part, with their checksums and the index of their documents.

Writes `shards/<source>-<split>-<part>-<piece>.arrow` (see `shard`), `checksums/` and `index/` (see `index`).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tasks.core import checksums
from tasks.core.part import Part
from tasks.formats.tokens.index import Indexed, write_index
from tasks.formats.tokens.shard import FOLDER, ShardBuffer, TokenFormat, shard_name, write_shard


@dataclass(frozen=True)
class Row:
    """One document: its tokens with end-of-text, the UTF-8 bytes of its text, and its label in each column."""

    uid: bytes
    url: str
    tokens: NDArray[Any]
    n_bytes: int
    labels: tuple[str, ...]


class ShardWriter:
    """Buffers the documents of one part by source and split, and writes a shard whenever a buffer is full.

    Args:
        part: the part that is made.
        index: its number, in the names of its shards.
        fmt: format of the shards.
        columns: names of the labels.
        shard_tokens: tokens from which a shard is closed.
    """

    def __init__(self, part: Part, index: int, fmt: TokenFormat, columns: Sequence[str], shard_tokens: int) -> None:
        self._part = part
        self._index = index
        self._format = fmt
        self._columns = columns
        self._shard_tokens = shard_tokens
        self._buffers: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self._sizes: dict[tuple[str, str], int] = defaultdict(int)
        self._pieces: dict[tuple[str, str], int] = defaultdict(int)
        self._entries: list[Indexed] = []
        self._bytes = 0

    def add(self, row: Row, source: str, split: str) -> None:
        """Adds one document."""
        key = (source, split)
        self._buffers[key].append(row)
        self._sizes[key] += len(row.tokens)
        self._bytes += row.n_bytes
        if self._sizes[key] >= self._shard_tokens:
            self._flush(key)

    def close(self) -> None:
        """Writes the remaining buffers and the index."""
        for key in sorted(self._buffers):
            self._flush(key)
        self._part.metric("bytes", self._bytes)
        write_index(self._part, self._entries)

    def _flush(self, key: tuple[str, str]) -> None:
        rows = self._buffers.pop(key)
        name = shard_name(*key, self._index, self._pieces[key])
        uids, tokens, n_bytes = [r.uid for r in rows], [r.tokens for r in rows], [r.n_bytes for r in rows]
        labels = {column: [row.labels[at] for row in rows] for at, column in enumerate(self._columns)}
        path = f"{FOLDER}/{name}.arrow"
        with checksums.file(self._part, path, rows=len(rows)) as file:
            buffer = ShardBuffer(*key, uids, tokens, n_bytes, labels)
            offsets = write_shard(file, buffer, self._format).tolist()
        self._entries.extend(
            Indexed(name, row, document.uid, document.url, offset, len(document.tokens))
            for row, (document, offset) in enumerate(zip(rows, offsets, strict=True))
        )
        self._part.count_out(len(rows))
        self._part.metric("tokens", self._sizes[key])
        self._part.metric(f"tokens/{'/'.join(key)}", self._sizes[key])
        self._pieces[key] += 1
        self._sizes[key] = 0
