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
from tasks.core.part import Part, PartSpec
from tasks.core.ranges import RangeReader, ReadRequest
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
"""Approximate maximum number of keys per file: 64 MB, which one worker sorts in memory."""
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
    """Merges the keys of all parts, one key range at a time.

    Args:
        output: the artifact being written.
        engine: runs the ranges.
        records: the parts written by `write_part_keys`, in name order.
    """
    files = {file.path: file.rows or 0 for record in records for file in record.files}
    paths = [f"{PART_KEYS_FOLDER}/{record.name}.bin" for record in records]
    count = max(1, -(-sum(files[path] for path in paths) // _RANGE_KEYS))
    folder = output.folder
    specs = [PartSpec(_name(number, count), (folder, paths, number, count)) for number in range(count)]
    output.map_parts(engine, _merge_range, specs, conserved=False)


def _name(number: int, count: int) -> str:
    return f"words-{number:05d}-of-{count:05d}"


def _merge_range(part: Part, payload: tuple[ArtifactFolder, list[str], int, int]) -> None:
    folder, paths, number, count = payload
    bounds = _bound(number, count), _bound(number + 1, count)
    pieces = []
    for index, path in enumerate(paths):
        table = np.fromfile(folder.local(path), PART_KEY)
        first, end = (_below(table["key"], bound) for bound in bounds)
        piece = np.empty(end - first, KEY)
        piece["key"], piece["part"], piece["row"] = table["key"][first:end], index, table["row"][first:end]
        pieces.append(piece)
    merged = np.concatenate([*pieces, np.empty(0, KEY)])
    merged = merged[np.argsort(merged["key"], kind="stable")]
    with ranges.checksummed_file(part, f"{FOLDER}/{part.name}.bin", rows=len(merged)) as file:
        file.write(merged.tobytes())


def _below(keys: NDArray[np.uint64], bound: int) -> int:
    """Returns the number of sorted keys below a bound of at most 2**64."""
    return len(keys) if bound >> 64 else int(np.searchsorted(keys, np.uint64(bound)))


def _bound(number: int, count: int) -> int:
    """Returns the smallest key of a range."""
    return -(-(number << 64) // count)


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
        self._reader = RangeReader(artifact, sorted(rows))

    def find(self, kind: str, value: str, most: int | None = None) -> tuple[int, list[tuple[int, int]]]:
        """Returns the number of rows that have a term, and (part, row) of the first `most` of them, sorted."""
        key = key_of(kind, value)
        number = next(n for n in range(len(self._rows)) if key < _bound(n + 1, len(self._rows)))
        first, end = self._lower_bound(number, key), self._lower_bound(number, key + 1)
        count = end - first if most is None else min(most, end - first)
        return end - first, [(int(part), int(row)) for _, part, row in self._read(number, first, count).tolist()]

    def _lower_bound(self, number: int, key: int) -> int:
        """Returns the first row of a file whose key is at least `key`."""
        low, high = 0, self._rows[number]
        begin, end = (_bound(n, len(self._rows)) for n in (number, number + 1))
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
