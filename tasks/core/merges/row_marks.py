"""A byte for each row of all parts, found by comparing rows of different parts; no process holds all rows.

    per part            the caller writes records of its rows, with a hash as `key`
    per range of hashes merges the records (`tasks.core.merges.range_merge`), and compares those of equal hashes
    per range of rows   merges what was found, keyed by the row; writes a byte per row, 0 if nothing was found

Rows are numbered in the order of the parts, so the bytes of a part are in one place, and a worker reads them with a
request or two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.merges.range_merge import RangeMerge, Source, merge_ranges, range_begin
from tasks.core.part import Part
from tasks.core.stage import Output

MARK = np.dtype([("key", "<u8"), ("mark", "u1")])
"""A row that was found, as `RowRanges.keys` gives its key, and its mark."""


@dataclass(frozen=True)
class RowRanges:
    """The rows of all parts, divided into ranges. Picklable.

    Attributes:
        total: number of rows.
        count: number of ranges.
    """

    total: int
    count: int

    @property
    def _step(self) -> int:
        """The factor that distributes the numbers of rows over the 64 bits of keys."""
        return ((1 << 64) - 1) // max(1, self.total)

    def keys(self, rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Returns the keys of rows, in the same order."""
        return rows * np.uint64(self._step)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Returns the rows of keys."""
        return keys // np.uint64(self._step)

    def of(self, number: int) -> tuple[int, int]:
        """Returns first and end of the rows of a range."""
        first, end = (min(self.total, -(-range_begin(edge, self.count) // self._step)) for edge in (number, number + 1))
        return first, end

    def holding(self, first: int, end: int) -> range:
        """Returns the ranges that have the rows from `first` up to `end`, which is above it."""
        low, high = (row * self._step * self.count >> 64 for row in (first, end - 1))
        return range(low, high + 1)


@dataclass(frozen=True)
class RowMarks:
    """The marks of the rows of one part. Picklable, of constant size.

    Attributes:
        folder: the artifact that has them.
        name: folder of their files.
        ranges: the rows of all parts.
        first: number of the first row of the part.
        end: end of its rows, exclusive.
    """

    folder: ArtifactFolder
    name: str
    ranges: RowRanges
    first: int
    end: int

    def read(self) -> bytes:
        """Returns the mark of each row of the part."""
        if self.first == self.end:
            return b""
        return b"".join(map(self._read, self.ranges.holding(self.first, self.end)))

    def _read(self, number: int) -> bytes:
        begin, end = self.ranges.of(number)
        path = f"{self.folder.path}/{marks_path(self.name, range_name(self.name, number, self.ranges.count))}"
        return self.folder.store.read_range(path, max(self.first, begin) - begin, min(self.end, end) - begin)


def range_names(name: str, count: int) -> list[str]:
    """Returns the names of the parts of some ranges."""
    return [range_name(name, number, count) for number in range(count)]


def range_name(name: str, number: int, count: int) -> str:
    """Returns the name of the part of a range.

    >>> range_name("known", 3, 4)
    'known-00003-of-00004'
    """
    return f"{name}-{number:05d}-of-{count:05d}"


def range_number(name: str) -> int:
    """Returns the number of the range whose part has a name.

    >>> range_number("known-00003-of-00004")
    3
    """
    return int(name.rsplit("-", 3)[1])


def marks_path(name: str, part: str) -> str:
    """Returns the path of the file of a part."""
    return f"{name}/{part}.bin"


def sources_of(records: Sequence[PartRecord]) -> list[Source]:
    """Returns the files of parts with any records; the number of each is that of the rows read before (`rows_in`)."""
    sources, before = [], 0
    for record in records:
        (file,) = record.files
        if file.rows:
            sources.append(Source(file.path, before, file.rows))
        before += record.rows_in
    return sources


def merge_marks(
    name: str, ranges: RowRanges, output: Output, engine: Engine, found: Sequence[PartRecord], per_range: int
) -> None:
    """Writes the marks of all rows.

    Args:
        name: folder of the files, and prefix of their parts.
        ranges: the rows of all parts.
        output: the artifact being written.
        engine: runs the tasks.
        found: parts with a file of MARK each, in any order of rows.
        per_range: about the most records of a task.
    """
    merge, write = RangeMerge(f"{name}-merge", MARK, read_marks), partial(write_marks, name, ranges)
    merge_ranges(merge, write, output, engine, sources_of(found), range_names(name, ranges.count), per_range)


def write_found(name: str, ranges: RowRanges, part: Part, rows: NDArray[np.uint64]) -> None:
    """Writes a record (MARK) with the mark 1 for each of some rows, for `merge_marks`."""
    found = np.ones(len(rows), MARK)
    found["key"] = ranges.keys(rows)
    part.write(marks_path(name, part.name), found.tobytes(), rows=len(found))


def read_marks(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    """Returns the records (MARK) of a source."""
    return np.frombuffer(folder.read(source.path), MARK)


def write_marks(name: str, ranges: RowRanges, part: Part, found: NDArray[np.void]) -> None:
    """Writes the marks of the range that a part is for, from the records (MARK) of its rows."""
    begin, end = ranges.of(range_number(part.name))
    marks = np.zeros(end - begin, np.uint8)
    marks[ranges.rows(found["key"]) - np.uint64(begin)] = found["mark"]
    part.write(marks_path(name, part.name), marks.tobytes())
