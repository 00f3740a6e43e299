"""Sorted runs: files of packed records with a 64-bit key, from which a range of keys can be read.

A run is a file `<name>.bin`, written once: blocks of records, each block sorted by the field `key`, followed by the
number of records of each block and the number of blocks (u64, little-endian). Runs do not depend on each other or on
the number of buckets: bucket n of m is the n-th of m ranges of equal width of the 64 bits, over all runs. Runs of
several passes over a corpus, or of several cycles, can be read together.

A bucket is located by bisection and only its records are read. From a remote store the whole run is fetched into the
cache; where many runs are read by many tasks, they are merged first (`tasks.formats.dedup.exchange`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.part import Part

_COUNT = np.dtype("<u8")


@dataclass(frozen=True)
class Buckets:
    """The runs that a pass over buckets writes: the files `<folder>/<n>-of-<count>.bin`."""

    folder: str
    count: int

    def name(self, number: int) -> str:
        """Returns the name of the part that processes a bucket."""
        return f"{self.folder}-{number:05d}-of-{self.count:05d}"

    def path(self, number: int, kind: str = "bin") -> str:
        """Returns the file of a bucket."""
        return f"{self.folder}/{number:05d}-of-{self.count:05d}.{kind}"

    def paths(self, kind: str = "bin") -> list[str]:
        """Returns the files of all buckets."""
        return [self.path(number, kind) for number in range(self.count)]

    def sibling(self, folder: str) -> "Buckets":
        """Returns the runs that the same pass writes to another folder."""
        return Buckets(folder, self.count)


def write(part: Part, path: str, blocks: Iterable[NDArray[np.void]]) -> int:
    """Writes one run as a file of the part; returns its number of records.

    Args:
        part: the part.
        path: path of the file, relative to the artifact.
        blocks: records of one dtype with a field `key`, each block sorted by it; only one block is held in memory.
    """
    sizes = []
    with part.file(path) as file:
        for block in blocks:
            sizes.append(len(block))
            file.write(block.tobytes())
        file.write(np.array([*sizes, len(sizes)], _COUNT).tobytes())
    return sum(sizes)


def by_key(records: NDArray[np.void]) -> NDArray[np.void]:
    """Returns records sorted by key; equal keys keep their order."""
    sorted_: NDArray[np.void] = records[np.argsort(records["key"], kind="stable")]
    return sorted_


def bucket_count(records: int, per_bucket: int) -> int:
    """Returns the number of buckets for a number of records, at least 1."""
    return max(1, -(-records // per_bucket))


def read_bucket(
    folder: ArtifactFolder, paths: Sequence[str], dtype: np.dtype[Any], number: int, count: int
) -> NDArray[np.void]:
    """Returns the records of bucket `number` of `count`, concatenated over runs; only blocks are sorted by key."""
    return read_range(folder, paths, dtype, -(-(number << 64) // count), -(-((number + 1) << 64) // count))


def read_range(
    folder: ArtifactFolder, paths: Sequence[str], dtype: np.dtype[Any], first: int, end: int
) -> NDArray[np.void]:
    """Returns the records with `first` <= key < `end`; see `read_bucket`.

    Args:
        folder: the artifact.
        paths: its runs to read.
        dtype: dtype of the records.
        first: smallest key, inclusive.
        end: upper bound of the keys, exclusive, at most 2**64.
    """
    pieces = [(path, *span) for path in map(folder.local, paths) for span in _spans(path, dtype, first, end)]
    records = np.empty(sum(stop - start for _, start, stop in pieces), dtype)
    offset = 0
    for path, start, stop in pieces:
        block = np.fromfile(path, dtype, stop - start, offset=start * dtype.itemsize)
        records[offset : offset + len(block)] = block
        offset += len(block)
    return records


def read(folder: ArtifactFolder, paths: Sequence[str], dtype: np.dtype[Any]) -> NDArray[np.void]:
    """Returns all records of some runs; see `read_range`."""
    return read_range(folder, paths, dtype, 0, 1 << 64)


def decode(data: bytes, dtype: np.dtype[Any]) -> NDArray[np.void]:
    """Returns all records of a run, given its bytes; read-only."""
    return np.frombuffer(data, dtype, sum(_sizes(np.frombuffer(data, np.uint8))))


def most_records(size: int, dtype: np.dtype[Any]) -> int:
    """Returns the number of records of a run of so many bytes, or a few more if it has several blocks."""
    return (size - 2 * _COUNT.itemsize) // dtype.itemsize


def _spans(path: str, dtype: np.dtype[Any], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the range of records, first and end, with keys in a range, for each block that has any."""
    mapped = np.memmap(path, np.uint8, mode="r")
    ends = np.cumsum([0, *_sizes(mapped)]).tolist()
    records = mapped[: ends[-1] * dtype.itemsize].view(dtype)
    for begin, stop in pairwise(ends):
        # `bisect` instead of searchsorted, which copies a column that is not contiguous.
        keys = records["key"][begin:stop]
        low, high = _below(keys, first), _below(keys, end)
        if high > low:
            yield begin + low, begin + high


def _sizes(mapped: NDArray[np.uint8]) -> list[int]:
    words = _COUNT.itemsize
    (blocks,) = mapped[-words:].view(_COUNT).tolist()
    sizes: list[int] = mapped[-words * (blocks + 1) : -words].view(_COUNT).tolist()
    return sizes


def _below(keys: NDArray[np.uint64], bound: int) -> int:
    """Returns the number of sorted keys below a bound of at most 2**64."""
    return len(keys) if bound >> 64 else bisect_left(keys, np.uint64(bound))
