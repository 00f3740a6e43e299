"""Key index: the rows of an artifact that a word names, such as a URL, without a scan.

A word is a kind and a value ("url" and a URL), its key XXH3 of both. Writes and reads, packed and without a header:

    keys/<part>.bin                OWN, sorted: the keys of the rows of one part
    index/words-<n>-of-<m>.bin     KEY, sorted: those of all parts, in m ranges of equal width of the 64 bits,
                                   each with its `checksums/`

Hashes are uniform, so that the place of a key can be computed, up to what keys with many rows displace: a look-up reads
one or two blocks, however many rows and parts there are. Two words can have one key: compare what the rows have.
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
from tasks.core.ranges import Piece, RangeReader
from tasks.core.stage import Output

URL, ID, DOMAIN = "url", "id", "domain"
"""Kinds of words of documents."""
OWN_FOLDER = "keys"
FOLDER = "index"
OWN = np.dtype([("key", "<u8"), ("row", "<u4")])
KEY = np.dtype([("key", "<u8"), ("part", "<u4"), ("row", "<u4")])
"""`part` is the number of the part among those that were merged, in name order."""

_RANGE_KEYS = 1 << 22
"""Keys per file at most, about: 64 MB, which one worker sorts in memory."""
_REACHES = (1 << 12, 1 << 16, 1 << 20)
"""Rows around the computed place in which a key is looked for first; 4,096 are four times the deviation in 4 M rows."""


def key_of(kind: str, value: str) -> int:
    """Returns the key of a word: XXH3 of "<kind>:<value>", 64 bits."""
    return int(xxhash.xxh3_64_intdigest(f"{kind}:{value}".encode()))


def write_own(part: Part, words: Iterable[tuple[int, int]]) -> None:
    """Writes the keys of one part.

    Args:
        part: the part.
        words: (key, row), the rows ascending.
    """
    own = np.fromiter(words, OWN)
    own = own[np.argsort(own["key"], kind="stable")]
    with part.file(f"{OWN_FOLDER}/{part.name}.bin", rows=len(own)) as file:
        file.write(own.tobytes())


def merge(output: Output, engine: Engine, records: Sequence[PartRecord]) -> None:
    """Merges the keys of all parts, range by range of the keys.

    Args:
        output: the artifact being written.
        engine: executor of the ranges.
        records: the parts that `write_own` has written, in name order.
    """
    files = {file.path: file.rows or 0 for record in records for file in record.files}
    paths = [f"{OWN_FOLDER}/{record.name}.bin" for record in records]
    count = max(1, -(-sum(files[path] for path in paths) // _RANGE_KEYS))
    folder = ArtifactFolder(output.store, output.address, output.address.path)
    specs = [PartSpec(_name(number, count), (folder, paths, number, count)) for number in range(count)]
    output.map_parts(engine, _merge_range, specs, conserved=False)


def _name(number: int, count: int) -> str:
    return f"words-{number:05d}-of-{count:05d}"


def _merge_range(part: Part, payload: tuple[ArtifactFolder, list[str], int, int]) -> None:
    folder, paths, number, count = payload
    bounds = _bound(number, count), _bound(number + 1, count)
    pieces = []
    for index, path in enumerate(paths):
        own = np.fromfile(folder.local(path), OWN)
        first, end = (_below(own["key"], bound) for bound in bounds)
        piece = np.empty(end - first, KEY)
        piece["key"], piece["part"], piece["row"] = own["key"][first:end], index, own["row"][first:end]
        pieces.append(piece)
    merged = np.concatenate([*pieces, np.empty(0, KEY)])
    merged = merged[np.argsort(merged["key"], kind="stable")]
    with ranges.checksummed_file(part, f"{FOLDER}/{part.name}.bin", rows=len(merged)) as file:
        file.write(merged.tobytes())


def _below(keys: NDArray[np.uint64], bound: int) -> int:
    """Returns how many sorted keys are below a bound of at most 2**64."""
    return len(keys) if bound >> 64 else int(np.searchsorted(keys, np.uint64(bound)))


def _bound(number: int, count: int) -> int:
    """Returns the least key of a range."""
    return -(-(number << 64) // count)


class KeyIndex:
    """The merged keys of an artifact. For use by several threads.

    Args:
        artifact: an artifact whose stage has called `merge`.

    Raises:
        InputError: (here and when reading) it has no index, or a file is missing or damaged.
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
            path.removeprefix(f"{OWN_FOLDER}/").removesuffix(".bin") for path in artifact.files(f"{OWN_FOLDER}/")
        )
        """The names of the parts, which `find` numbers."""
        self._rows = [rows[path] for path in sorted(rows)]
        self._reader = RangeReader(artifact, sorted(rows))

    def find(self, kind: str, value: str, most: int | None = None) -> tuple[int, list[tuple[int, int]]]:
        """Returns how many rows have a word, and (part, row) of the first `most` of them, sorted."""
        key = key_of(kind, value)
        number = next(n for n in range(len(self._rows)) if key < _bound(n + 1, len(self._rows)))
        first, end = self._place(number, key), self._place(number, key + 1)
        shown = end - first if most is None else min(most, end - first)
        return end - first, [(int(part), int(row)) for _, part, row in self._read(number, first, shown).tolist()]

    def _place(self, number: int, key: int) -> int:
        """Returns the first row of a file whose key is not below `key`."""
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
        self._reader.read([Piece(number, first * KEY.itemsize, memoryview(out))])
        return np.frombuffer(out, KEY)
