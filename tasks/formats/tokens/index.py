"""The document index: looks up documents of an encoding by URL, id, domain, or shard and row, without a scan.

Writes and reads, for each part of documents, packed records without a header, each file with its `checksums/`:

    index/<part>-documents.bin   DOCUMENT (40 bytes) per document, in the order of shard names and rows
    index/<part>-urls.bin        the URLs, UTF-8, in the same order

and the keys of URLs, ids and domains (`documents.key_index`). The shards of a part and their rows are in the manifests,
which are read once, so the offset of a document in a file is computed, and a lookup reads only the blocks with the
result.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core import ranges
from tasks.core.artifact import Artifact, PartRecord
from tasks.core.errors import InputError
from tasks.core.part import Part
from tasks.core.ranges import RangeFile, RangeReader, ReadRequest, entries_of
from tasks.formats.documents import key_index
from tasks.formats.documents.key_index import DOMAIN, ID, URL, KeyIndex
from tasks.formats.documents.tombstones import page_term
from tasks.formats.tokens.shard import FOLDER as SHARDS
from tasks.formats.tokens.shard import read_label, uid_bytes
from tasks.formats.web.domain import domains_of, host_name

FOLDER = "index"
DOCUMENT = np.dtype([("uid", "V16"), ("offset", "<u8"), ("url", "<u8"), ("url_bytes", "<u4"), ("tokens", "<u4")])
"""The document's id, the offset of its first token as in `plan.SLICE`, the offset and length of its URL in the part's
URLs in bytes, and its number of tokens."""

ENTRIES = pa.schema([("doc_uid", pa.binary(16)), ("url", pa.string()), ("shard", pa.string()), ("row", pa.int64())])
"""Schema of the tables of `DocumentIndex.entries`, whose rows are in the order of a part's shards and rows."""


class IndexedShard(NamedTuple):
    """The documents of one shard to index: arrays of equal length, in the order of the rows."""

    shard: str
    uids: pa.FixedSizeBinaryArray
    urls: pa.StringArray
    offsets: NDArray[np.int64]
    """As in `plan.SLICE`."""
    n_tokens: NDArray[np.int64]


class IndexEntry(NamedTuple):
    """One document of an encoding."""

    uid: bytes
    url: str
    shard: str
    row: int
    part: str
    """Name of the part of documents that contains it."""
    offset: int
    """Offset of its first token, as in `plan.SLICE`."""
    n_tokens: int
    """Including end-of-text."""


def write_index(part: Part, shards: Iterable[IndexedShard]) -> None:
    """Writes the index of a part's documents and their keys; the order of the shards does not matter."""
    shards = sorted(shards, key=lambda shard: shard.shard)
    urls = pa.concat_arrays([shard.urls for shard in shards] or [pa.array([], pa.string())])
    uids = b"".join(uid_bytes(shard.uids).tobytes() for shard in shards)
    sizes = pc.binary_length(urls).to_numpy()
    table = np.empty(len(urls), DOCUMENT)
    table["uid"] = np.frombuffer(uids, "V16")
    table["url"], table["url_bytes"] = np.cumsum(sizes, dtype=np.int64) - sizes, sizes
    table["offset"] = np.concatenate([*(shard.offsets for shard in shards), np.empty(0, np.int64)])
    table["tokens"] = np.concatenate([*(shard.n_tokens for shard in shards), np.empty(0, np.int64)])
    stem, texts = f"{FOLDER}/{part.name}", urls.to_pylist()
    with ranges.checksummed_file(part, f"{stem}-documents.bin", rows=len(table)) as file:
        file.write(table.tobytes())
    with ranges.checksummed_file(part, f"{stem}-urls.bin") as file:
        file.write("".join(texts).encode())
    key_index.write_part_keys(part, *_keys(uids.hex(), texts))


def _keys(uids: str, urls: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Returns the keys of all documents, and the row of each key; `uids` has 32 hex digits per document."""
    rows = np.arange(len(urls))
    hosts = [host_name(url) or "" for url in urls]
    keys_of_host = {host: key_index.keys_of(DOMAIN, filter(None, domains_of(host))) for host in set(hosts)}
    domains = [keys_of_host[host] for host in hosts]
    ids = [uids[first : first + 32] for first in range(0, len(uids), 32)]
    keys = [key_index.keys_of(URL, map(page_term, urls)), key_index.keys_of(ID, ids), *domains]
    return np.concatenate(keys), np.concatenate([rows, rows, np.repeat(rows, list(map(len, domains)))])


class _IndexPart:
    """One part: its name, its shards, and the index of the first document of each shard."""

    def __init__(self, record: PartRecord) -> None:
        rows = {PurePosixPath(f.path).stem: f.rows or 0 for f in record.files if f.path.startswith(f"{SHARDS}/")}
        self.name = record.name
        self.shards = sorted(rows)
        self.starts = [0, *accumulate(rows[shard] for shard in self.shards)]

    def place(self, number: int) -> tuple[str, int]:
        """Returns shard and row of a document."""
        shard = bisect_right(self.starts, number) - 1
        return self.shards[shard], number - self.starts[shard]

    def rows(self, shard: str) -> range:
        """Returns the indices of the documents of a shard."""
        index = self.shards.index(shard)
        return range(self.starts[index], self.starts[index + 1])


class IndexedRows(NamedTuple):
    """The documents of one shard in the index: `rows` records of a part from record `first` on."""

    shard: str
    part: str
    first: int
    rows: int


def indexed_rows(artifact: Artifact) -> dict[str, IndexedRows]:
    """Returns where the index has the documents of each shard; reads the manifests and no other file."""
    parts = [_IndexPart(part) for part in artifact.parts]
    return {
        shard: IndexedRows(shard, part.name, first, end - first)
        for part in parts
        for shard, (first, end) in zip(part.shards, pairwise(part.starts), strict=True)
    }


def read_records(artifact: Artifact, shards: Sequence[IndexedRows]) -> list[NDArray[np.void]]:
    """Returns the records (DOCUMENT) of some shards in row order, shape (rows,) each; no shard is opened.

    Raises:
        InputError: a file of the index is missing or damaged.
    """
    numbers = {path: number for number, path in enumerate(dict.fromkeys(table_path(shard.part) for shard in shards))}
    reader, size = RangeReader(entries_of(artifact, list(numbers))), DOCUMENT.itemsize
    outs = [bytearray(shard.rows * size) for shard in shards]
    reader.read(
        ReadRequest(numbers[table_path(shard.part)], shard.first * size, memoryview(out))
        for shard, out in zip(shards, outs, strict=True)
    )
    reader.close()
    return [np.frombuffer(out, DOCUMENT) for out in outs]


def read_urls(artifact: Artifact, part: str) -> list[str]:
    """Returns the URLs of the documents of a part, in its order; raises InputError."""
    reader = RangeReader(entries_of(artifact, [table_path(part), f"{FOLDER}/{part}-urls.bin"]))
    table, text = (bytearray(reader.entry(number).bytes) for number in (0, 1))
    reader.read([ReadRequest(number, 0, memoryview(data)) for number, data in enumerate((table, text)) if data])
    reader.close()
    ends = np.cumsum(np.frombuffer(table, DOCUMENT)["url_bytes"], dtype=np.int64).tolist()
    return [text[first:end].decode() for first, end in pairwise([0, *ends])]


class DocumentIndex:
    """The index of all parts of an encoding. Safe for use by several threads.

    Args:
        artifact: an artifact of the stage encode.

    Raises:
        InputError: there is no index, or one of its files is missing or damaged; lookups raise it too.
    """

    def __init__(self, artifact: Artifact) -> None:
        documents = [part for part in artifact.parts if any(f.path == table_path(part.name) for f in part.files)]
        self._artifact = artifact
        self._parts = [_IndexPart(record) for record in documents]
        self._keys = KeyIndex(artifact)
        paths = [path for part in self._parts for path in (table_path(part.name), f"{FOLDER}/{part.name}-urls.bin")]
        self._reader = RangeReader(entries_of(artifact, paths))
        self._part_of = {shard: number for number, part in enumerate(self._parts) for shard in part.shards}
        self._shard_number = {shard: number for number, shard in enumerate(sorted(self._part_of))}
        self._shards = RangeReader(entries_of(artifact, [f"{SHARDS}/{shard}.arrow" for shard in self._shard_number]))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of documents, sorted; `entries` yields a table for each."""
        return tuple(part.name for part in self._parts)

    def by_url(self, url: str) -> list[IndexEntry]:
        """Returns the documents captured from the page at a URL in any spelling (`page_term`), sorted by id."""
        term = page_term(url)
        _, places = self._keys.find(URL, term)
        return sorted(entry for entry in self._entries(places) if entry.url == url or page_term(entry.url) == term)

    def by_uid(self, uid: bytes) -> IndexEntry | None:
        """Returns the document with an id of 16 bytes, or None if it was not encoded."""
        _, places = self._keys.find(ID, uid.hex())
        return next((entry for entry in self._entries(places) if entry.uid == uid), None)

    def by_domain(self, name: str, most: int | None = None) -> tuple[int, list[IndexEntry]]:
        """Returns the number of documents of a domain and its subdomains, and the first `most` of these documents.

        Args:
            name: a host name in canonical form, below a public suffix.
            most: maximum number of documents to return; None for all.
        """
        count, places = self._keys.find(DOMAIN, name, most)
        return count, [entry for entry in self._entries(places) if name in domains_of(host_name(entry.url) or "")]

    def at(self, places: Sequence[tuple[str, int]]) -> list[IndexEntry]:
        """Returns the documents at the given (shard, row), in the same order.

        Raises:
            InputError: there is no such shard.
        """
        return self._entries([self._part_and_number(shard, row) for shard, row in places])

    def label(self, shard: str, row: int, column: str) -> str:
        """Returns the value of the column `source` or a label column for a document.

        Raises:
            InputError: there is no such shard or column.
        """
        self._part_at(shard)
        return read_label(cast(BinaryIO, RangeFile(self._shards, self._shard_number[shard])), row, column)

    def tokens(self, ranges: Sequence[tuple[str, int, int]], dtype: str) -> list[NDArray[np.integer]]:
        """Returns the tokens of ranges (shard, offset as in `plan.SLICE`, number of tokens), in the same order."""
        size = np.dtype(dtype).itemsize
        outs = [bytearray(count * size) for _, _, count in ranges]
        self._shards.read(
            ReadRequest(self._shard_number[shard], first * size, memoryview(out))
            for (shard, first, _), out in zip(ranges, outs, strict=True)
        )
        return [np.frombuffer(out, dtype) for out in outs]

    def urls(self, shard: str) -> pa.Array:
        """Returns the URLs of a shard's documents in row order, shape (rows,)."""
        number = self._part_at(shard)
        rows = self._parts[number].rows(shard)
        return self._columns(number, rows)[1]

    def entries(self) -> Iterator[pa.Table]:
        """Yields all documents as tables of ENTRIES, one per part."""
        for number, part in enumerate(self._parts):
            uids, urls = self._columns(number, range(part.starts[-1]))
            sizes = np.diff(part.starts)
            shards = np.repeat(np.array(part.shards, dtype=object), sizes)
            rows = np.arange(part.starts[-1]) - np.repeat(part.starts[:-1], sizes)
            columns = [uids, urls, pa.array(shards.tolist(), pa.string()), pa.array(rows, pa.int64())]
            yield pa.table(columns, schema=ENTRIES)

    def _columns(self, part: int, rows: range) -> tuple[pa.Array, pa.Array]:
        out = bytearray(len(rows) * DOCUMENT.itemsize)
        self._reader.read([ReadRequest(2 * part, rows.start * DOCUMENT.itemsize, memoryview(out))])
        table = np.frombuffer(out, DOCUMENT)
        text = bytearray(int(table["url_bytes"].sum()))
        if text:
            self._reader.read([ReadRequest(2 * part + 1, int(table["url"][0]), memoryview(text))])
        offsets = np.concatenate([[0], np.cumsum(table["url_bytes"], dtype=np.int64)])
        urls = pa.LargeStringArray.from_buffers(len(table), pa.py_buffer(offsets), pa.py_buffer(bytes(text)))
        return pa.array(table["uid"].tolist(), pa.binary(16)), urls.cast(pa.string())

    def _entries(self, places: Sequence[tuple[int, int]]) -> list[IndexEntry]:
        size = DOCUMENT.itemsize
        table = memoryview(bytearray(len(places) * size))
        self._reader.read(
            ReadRequest(2 * part, number * size, table[position * size : (position + 1) * size])
            for position, (part, number) in enumerate(places)
        )
        rows = np.frombuffer(table, DOCUMENT).tolist()
        urls = [bytearray(size) for _, _, _, size, _ in rows]
        self._reader.read(
            ReadRequest(2 * part + 1, row[2], memoryview(url))
            for (part, _), row, url in zip(places, rows, urls, strict=True)
        )
        return [
            IndexEntry(uid, url.decode(), *self._parts[part].place(number), self._parts[part].name, offset, tokens)
            for (part, number), (uid, offset, _, _, tokens), url in zip(places, rows, urls, strict=True)
        ]

    def _part_and_number(self, shard: str, row: int) -> tuple[int, int]:
        number = self._part_at(shard)
        return number, self._parts[number].rows(shard)[row]

    def _part_at(self, shard: str) -> int:
        if shard not in self._part_of:
            raise InputError(
                f"{self._artifact.address} has no token shard called {shard}",
                "use the plan that was packed from these shards",
            )
        return self._part_of[shard]


def table_path(part: str) -> str:
    """Returns the path of the records (DOCUMENT) of a part."""
    return f"{FOLDER}/{part}-documents.bin"
