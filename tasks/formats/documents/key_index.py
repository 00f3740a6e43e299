"""Key index: finds the rows of an artifact by a term, such as a URL, without a scan.

A term is a kind and a value ("url" and a URL); its key is the XXH3 hash of both. Writes and reads packed records
without a header:

    keys/<part>.bin                PART_KEY, sorted: the keys of the rows of one part
    index/words-<n>-of-<m>.bin     KEY, sorted: the keys of all parts, in m ranges of the 64 bits of equal width,
                                   each with its `checksums/`

Hashes are uniform, so the position of a key can be estimated; only keys with many rows displace it. A lookup reads one
or two blocks, regardless of the number of rows and parts. Two terms can share a key: callers compare the values in the
rows.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.part import Part
from tasks.core.range_merge import RangeMerge, Source, merge_ranges, range_begin, range_count
from tasks.core.ranges import RangeReader, ReadRequest, entries_of
from tasks.core.stage import Output
from tasks.formats.documents.text import hashes64

URL, ID, DOMAIN = "url", "id", "domain"
"""Kinds of terms of documents."""
PART_KEYS_FOLDER = "keys"
FOLDER = "index"
PART_KEY = np.dtype([("key", "<u8"), ("row", "<u4")])
KEY = np.dtype([("key", "<u8"), ("part", "<u4"), ("row", "<u4")])
"""`part` is the index of the part among the merged parts, in name order."""

_RANGE_KEYS = 1 << 22
"""Approximate maximum number of distinct keys per file: 64 MB, which one worker sorts in memory. Equal keys are in one
file, however many they are."""
_REACHES = (1 << 12, 1 << 16, 1 << 20)
"""Distances from the estimated row to search first; 4,096 is four standard deviations in 4 M rows."""


def key_of(kind: str, value: str) -> int:
    """Returns the key of a term: the 64-bit XXH3 hash of "<kind>:<value>"."""
    return int(xxhash.xxh3_64_intdigest(f"{kind}:{value}".encode()))


def keys_of(kind: str, values: Iterable[str]) -> NDArray[np.uint64]:
    """Returns `key_of` each value, shape (values,)."""
    return np.array(hashes64(f"{kind}:", values), np.uint64)


def write_part_keys(part: Part, keys: NDArray[np.uint64], rows: NDArray[np.integer]) -> None:
    """Writes the keys of one part, in any order.

    Args:
        part: the part.
        keys: the keys, shape (n,).
        rows: the row of each key.
    """
    table = np.empty(len(keys), PART_KEY)
    order = np.lexsort((rows, keys))
    table["key"], table["row"] = keys[order], rows[order]
    part.write(f"{PART_KEYS_FOLDER}/{part.name}.bin", table.tobytes(), rows=len(table))


def merge(output: Output, engine: Engine, records: Sequence[PartRecord]) -> None:
    """Merges the keys of all parts, one key range at a time (`tasks.core.range_merge`).

    Args:
        output: the artifact being written.
        engine: runs the tasks.
        records: the parts written by `write_part_keys`, in name order.
    """
    sources = [_source(number, record) for number, record in enumerate(records)]
    count = range_count(sum(source.records for source in sources), _RANGE_KEYS)
    names = [f"words-{number:05d}-of-{count:05d}" for number in range(count)]
    merge_ranges(RangeMerge("keys-merge", KEY, _read_part, _write_range), output, engine, sources, names, _RANGE_KEYS)


def _source(number: int, record: PartRecord) -> Source:
    path = f"{PART_KEYS_FOLDER}/{record.name}.bin"
    return Source(path, number, next(file.rows or 0 for file in record.files if file.path == path))


def _read_part(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    table = np.frombuffer(folder.read(source.path), PART_KEY)
    keys = np.empty(len(table), KEY)
    keys["key"], keys["part"], keys["row"] = table["key"], source.number, table["row"]
    return keys


def _write_range(part: Part, keys: NDArray[np.void]) -> None:
    with ranges.checksummed_file(part, f"{FOLDER}/{part.name}.bin", rows=len(keys)) as file:
        file.write(keys.view(np.uint8).data)


class KeyIndex:
    """The merged keys of an artifact. Safe for use by several threads.

    Args:
        artifact: an artifact whose stage called `merge`.

    Raises:
        InputError: the artifact has no index, or a file is missing or damaged; `find` raises it too.
    """

    def __init__(self, artifact: Artifact) -> None:
        rows = {
            file.path: file.rows or 0
            for part in artifact.parts
            if part.name.startswith("words-")
            for file in part.files
            if file.path.startswith(f"{FOLDER}/")
        }
        if not rows:
            raise InputError(
                f"{artifact.address} has no index of its rows", "it is of an earlier Sluice: make it again"
            )
        self.parts = tuple(
            path.removeprefix(f"{PART_KEYS_FOLDER}/").removesuffix(".bin")
            for path in artifact.files(f"{PART_KEYS_FOLDER}/")
        )
        """Names of the parts; `find` returns indices into it."""
        self._rows = [rows[path] for path in sorted(rows)]
        self._reader = RangeReader(entries_of(artifact, sorted(rows)))

    def find(self, kind: str, value: str, most: int | None = None) -> tuple[int, list[tuple[int, int]]]:
        """Returns the number of rows that have a term, and (part, row) of the first `most` of them, sorted."""
        key = key_of(kind, value)
        number = next(n for n in range(len(self._rows)) if key < range_begin(n + 1, len(self._rows)))
        first, end = self._lower_bound(number, key), self._lower_bound(number, key + 1)
        count = end - first if most is None else min(most, end - first)
        return end - first, [(int(part), int(row)) for _, part, row in self._read(number, first, count).tolist()]

    def _lower_bound(self, number: int, key: int) -> int:
        """Returns the first row of a file whose key is at least `key`."""
        low, high = 0, self._rows[number]
        begin, end = (range_begin(n, len(self._rows)) for n in (number, number + 1))
        guess = high * (key - begin) // (end - begin)
        for reach in _REACHES:
            for row in (guess - reach, guess + reach):
                if low <= row < high:
                    low, high = (row + 1, high) if self._key(number, row) < key else (low, row)
            if low >= guess - reach and high <= guess + reach:
                break
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._key(number, middle) < key else (low, middle)
        return low

    def _key(self, number: int, row: int) -> int:
        return int(self._read(number, row, 1)["key"][0])

    def _read(self, number: int, first: int, count: int) -> NDArray[np.void]:
        out = bytearray(count * KEY.itemsize)
        self._reader.read([ReadRequest(number, first * KEY.itemsize, memoryview(out))])
        return np.frombuffer(out, KEY)
