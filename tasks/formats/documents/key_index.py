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
from dataclasses import dataclass
from functools import partial

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.merges.range_merge import RangeMerge, Source, below, merge_ranges, range_begin, range_count
from tasks.core.merges.row_marks import range_name, range_names, range_number
from tasks.core.part import Part
from tasks.core.ranges import RangeReader, ReadRequest, entries_of
from tasks.core.stage import Output
from tasks.formats.documents.text import hashes64

URL, ID, DOMAIN = "url", "id", "domain"
"""Kinds of terms of documents."""
PART_KEYS_FOLDER = "keys"
FOLDER, _WORDS = "index", "words"
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


@dataclass(frozen=True)
class MergedKeys:
    """The merged keys of an artifact, for workers, who read them by ranges. Picklable; a few bytes for each file.

    Attributes:
        folder: the artifact, whose stage called `merge`.
        rows: number of keys of each file.
        parts: number of its merged parts.
    """

    folder: ArtifactFolder
    rows: tuple[int, ...]
    parts: int

    @classmethod
    def of(cls, artifact: Artifact) -> "MergedKeys":
        """Returns the merged keys of an artifact; raises InputError if it has none."""
        return cls(artifact.folder, tuple(_rows_of_files(artifact).values()), len(_parts_of(artifact)))

    def between(self, begin: int, end: int) -> NDArray[np.void]:
        """Returns the keys (KEY) from `begin` up to `end`, sorted by key, part and row.

        Reads about as many records as it returns, with one request for each file that has some. Only keys with many
        rows displace the others so far that more are read.
        """
        count = len(self.rows)
        first, last = (begin * count) >> 64, ((end - 1) * count) >> 64
        return np.concatenate([self._of_file(number, begin, end) for number in range(first, last + 1)])

    def _of_file(self, number: int, begin: int, end: int) -> NDArray[np.void]:
        count, rows = len(self.rows), self.rows[number]
        if not rows:
            return np.empty(0, KEY)
        first, after = range_begin(number, count), range_begin(number + 1, count)
        guesses = [rows * (min(max(key, first), after) - first) // (after - first) for key in (begin, end)]
        for reach in (*_REACHES, rows):
            low = 0 if begin <= first else max(0, guesses[0] - reach)
            high = rows if end >= after else min(rows, guesses[1] + reach)
            keys = self._read(number, low, high)
            first_row, end_row = (below(keys["key"], key) for key in (begin, end))
            if (first_row or not low) and (end_row < len(keys) or high == rows):
                break
        return keys[first_row:end_row]

    def _read(self, number: int, first: int, end: int) -> NDArray[np.void]:
        path, size = _path(number, len(self.rows)), KEY.itemsize
        return np.frombuffer(self.folder.read_range(path, first * size, end * size), KEY)


def merge(output: Output, engine: Engine, records: Sequence[PartRecord], earlier: MergedKeys | None = None) -> None:
    """Merges the keys of all parts, one key range at a time (`tasks.core.merges.range_merge`).

    Args:
        output: the artifact being written.
        engine: runs the tasks.
        records: the parts written by `write_part_keys`, in name order.
        earlier: the merged keys of the first of these parts, which were taken over from another artifact; the keys of
            these parts are not read again. None if there are none.
    """
    taken_over = earlier.parts if earlier else 0
    sources = [_source(number, record) for number, record in enumerate(records) if number >= taken_over]
    total = sum(source.records for source in sources) + sum(earlier.rows if earlier else ())
    names = range_names(_WORDS, range_count(total, _RANGE_KEYS))
    keys, write = RangeMerge("keys-merge", KEY, _read_part), partial(_write_range, earlier, len(names))
    merge_ranges(keys, write, output, engine, sources, names, _RANGE_KEYS)


def _path(number: int, count: int) -> str:
    """Returns the path of a merged file."""
    return f"{FOLDER}/{range_name(_WORDS, number, count)}.bin"


def _source(number: int, record: PartRecord) -> Source:
    path = f"{PART_KEYS_FOLDER}/{record.name}.bin"
    return Source(path, number, next(file.rows or 0 for file in record.files if file.path == path))


def _read_part(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    table = np.frombuffer(folder.read(source.path), PART_KEY)
    keys = np.empty(len(table), KEY)
    keys["key"], keys["part"], keys["row"] = table["key"], source.number, table["row"]
    return keys


def _write_range(earlier: MergedKeys | None, count: int, part: Part, keys: NDArray[np.void]) -> None:
    if earlier:
        number = range_number(part.name)
        keys = np.concatenate([earlier.between(range_begin(number, count), range_begin(number + 1, count)), keys])
        keys = keys[np.argsort(keys["key"], kind="stable")]
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
        rows = _rows_of_files(artifact)
        self.parts = _parts_of(artifact)
        """Names of the parts; `find` returns indices into it."""
        self._rows = list(rows.values())
        self._reader = RangeReader(entries_of(artifact, list(rows)))

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


def _rows_of_files(artifact: Artifact) -> dict[str, int]:
    """Returns the number of keys of each merged file, in the order of the keys; raises InputError if there is none."""
    rows = {file.path: file.rows or 0 for file in artifact.entries(f"{FOLDER}/{_WORDS}-")}
    if not rows:
        raise InputError(f"{artifact.address} has no index of its rows", "it is of an earlier Sluice: make it again")
    # By number: from 100,000 files on the order of their names is another one.
    return {path: rows[path] for path in (_path(number, len(rows)) for number in range(len(rows)))}


def _parts_of(artifact: Artifact) -> tuple[str, ...]:
    """Returns the names of the merged parts, in name order."""
    paths = artifact.files(f"{PART_KEYS_FOLDER}/")
    return tuple(path.removeprefix(f"{PART_KEYS_FOLDER}/").removesuffix(".bin") for path in paths)
