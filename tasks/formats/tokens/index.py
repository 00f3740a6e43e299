"""The document index: position of a document in the token shards, by URL and by id, without a scan.

Writes and reads one file `index/<part>.arrow` per part of documents: a memory-mapped Arrow IPC file of one batch, rows
sorted by document id:

    doc_uid fixed_size_binary(16), url string, shard string (dictionary), row u32,
    url_hash u64 (XXH3 of the URL), sorted, and url_row u32: the row that each of these hashes belongs to

A look-up is a binary search that touches a few pages. The price is some 110 bytes per document on disk.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.text import hash64
from tasks.formats.tokens.shard import part_number

FOLDER = "index"
SCHEMA = pa.schema(
    [
        pa.field("doc_uid", pa.binary(16), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("shard", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("url_hash", pa.uint64(), nullable=False),
        pa.field("url_row", pa.uint32(), nullable=False),
    ]
)


class Entry(NamedTuple):
    """Position of one document."""

    uid: bytes
    url: str
    shard: str
    row: int
    part: str
    """Name of the part of documents that contains it."""


def write_index(file: BinaryIO, entries: list[tuple[bytes, str, str, int]]) -> None:
    """Writes (uid, url, shard, row) of the documents of a part; any order gives the same bytes."""
    entries = sorted(entries)
    hashes = np.array([hash64(url) for _, url, _, _ in entries], dtype=np.uint64)
    by_hash = np.argsort(hashes, kind="stable")
    names = sorted({shard for _, _, shard, _ in entries})
    codes = {name: code for code, name in enumerate(names)}
    columns = [
        pa.array([uid for uid, _, _, _ in entries], pa.binary(16)),
        pa.array([url for _, url, _, _ in entries], pa.string()),
        pa.DictionaryArray.from_arrays(
            pa.array([codes[shard] for _, _, shard, _ in entries], pa.int32()), pa.array(names, pa.string())
        ),
        pa.array([row for _, _, _, row in entries], pa.uint32()),
        pa.array(hashes[by_hash]),
        pa.array(by_hash.astype(np.uint32)),
    ]
    with pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=SCHEMA))


def read_entries(artifact: Artifact, path: str) -> pa.Table:
    """Reads one file of the index, memory-mapped: doc_uid, url, shard (as text) and row; raises InputError."""
    table = pa.Table.from_batches([_opened(artifact, path)]).select(["doc_uid", "url", "shard", "row"])
    return table.set_column(2, "shard", table.column("shard").cast(pa.string()))


def _opened(artifact: Artifact, path: str) -> pa.RecordBatch:
    try:
        return pa.ipc.open_file(pa.memory_map(artifact.local(path))).get_batch(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{artifact.address}/{path} is not readable ({error})", "run encode again") from None


class DocumentIndex:
    """The index of all parts of an encoding.

    Args:
        artifact: an artifact of the stage encode.

    Raises:
        InputError: a file of the index cannot be read.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._parts = [_IndexPart.open(artifact, path) for path in artifact.files(f"{FOLDER}/")]

    def by_url(self, url: str) -> list[Entry]:
        """Returns the documents captured from a URL, one per content; sorted by id."""
        return sorted(entry for part in self._parts for entry in part.by_url(url))

    def by_uid(self, uid: bytes, part: int | None = None) -> Entry | None:
        """Returns the document with an id; None when it was not encoded.

        Args:
            uid: 16 bytes.
            part: number of the part to look in; None looks in all.
        """
        parts = self._parts if part is None else self._parts[part : part + 1]
        return next((entry for index in parts if (entry := index.by_uid(uid))), None)

    def urls(self, shard: str) -> pa.Array:
        """Returns the URLs of a shard's documents in the order of its rows, shape (rows,)."""
        return self._parts[part_number(shard)].urls(shard)


@dataclass(frozen=True)
class _IndexPart:
    name: str
    batch: pa.RecordBatch
    uids: NDArray[Any]
    hashes: NDArray[np.uint64]

    @classmethod
    def open(cls, artifact: Artifact, path: str) -> "_IndexPart":
        batch = _opened(artifact, path)
        # Big-endian halves compare like the bytes do.
        uids = np.frombuffer(batch.column("doc_uid").buffers()[1], ">u8")[: 2 * batch.num_rows].reshape(-1, 2)
        name = path.removeprefix(f"{FOLDER}/").removesuffix(".arrow")
        return cls(name, batch, uids, batch.column("url_hash").to_numpy())

    def by_url(self, url: str) -> Iterator[Entry]:
        url_hash = np.uint64(hash64(url))
        first, end = (int(np.searchsorted(self.hashes, url_hash, side)) for side in ("left", "right"))
        for place in range(first, end):
            entry = self._entry(self.batch.column("url_row")[place].as_py())
            if entry.url == url:
                yield entry

    def by_uid(self, uid: bytes) -> Entry | None:
        low, high = 0, len(self.uids)
        target = (int.from_bytes(uid[:8], "big"), int.from_bytes(uid[8:], "big"))
        while low < high:
            middle = (low + high) // 2
            if (int(self.uids[middle, 0]), int(self.uids[middle, 1])) < target:
                low = middle + 1
            else:
                high = middle
        entry = self._entry(low) if low < len(self.uids) else None
        return entry if entry and entry.uid == uid else None

    def urls(self, shard: str) -> pa.Array:
        column = self.batch.column("shard")
        code = pc.index(column.dictionary, shard).as_py()
        inside = np.flatnonzero(column.indices.to_numpy() == code)
        order = inside[np.argsort(self.batch.column("row").to_numpy()[inside])]
        return self.batch.column("url").take(pa.array(order))

    def _entry(self, row: int) -> Entry:
        uid, url, shard, place = (self.batch.column(name)[row].as_py() for name in ("doc_uid", "url", "shard", "row"))
        return Entry(uid, url, shard, place, self.name)
