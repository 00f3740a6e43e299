"""Columns of text as arrays: their lines, their chunks without white space, and array operations in portions.

NumPy processes the bytes of a whole column at once; lists of Python strings would cost several times as much.
Properties of lines (length, last character, repetition) are computed for all lines of a batch by one call. White space
is that of `str.isspace`.

A document of 16 MB can have sixteen million words or lines. NumPy uses 64-bit indices, and each step of an expression
allocates an array: eight or ten of those would exceed the memory of a worker. So arrays here have 32 bits, as Arrow's
offsets in a column of text have, and are processed in portions. A batch of ordinary size is a single portion.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

PORTION = 1 << 20

Kind = TypeVar("Kind", bound=np.generic)

NEWLINE = ord("\n")
_SPACE = np.array([byte < 0x80 and chr(byte).isspace() for byte in range(256)])
# Non-ASCII white space in UTF-8: the remaining bytes as one number, by first byte.
_WIDE = {
    0xC2: (0x85, 0xA0),
    0xE1: (0x9A80,),
    0xE2: (*range(0x8080, 0x808B), 0x80A8, 0x80A9, 0x80AF, 0x819F),
    0xE3: (0x8080,),
}


class Lines:
    """Lines of several documents in order, including blank ones.

    Args:
        texts: the documents.

    Attributes:
        raw: the lines, unchanged.
        starts: int64 of shape (n_documents + 1,): index of the first line of each document, and the number of lines.
    """

    def __init__(self, texts: pa.StringArray) -> None:
        data, bounds = buffers(texts)
        begins, firsts = lines_of(data, bounds)
        self.starts: NDArray[np.int64] = firsts.astype(np.int64)
        # All lines but the last of a document have a line end, which does not belong to the line.
        sizes = np.diff(begins)
        sizes -= 1
        sizes[firsts[1:] - 1] += 1
        self.raw = strings(data[data != NEWLINE], sizes)

    def __len__(self) -> int:
        return len(self.raw)

    @cached_property
    def stripped(self) -> pa.StringArray:
        """The lines without surrounding white space; the same column as `raw` if no line has any."""
        stripped = pc.utf8_trim_whitespace(self.raw)
        return self.raw if size(stripped) == size(self.raw) else stripped

    @cached_property
    def chars(self) -> NDArray[np.int32]:
        """Code points of each unchanged line, shape (n_lines,)."""
        sizes: NDArray[np.int32] = pc.utf8_length(self.raw).to_numpy()
        return sizes

    @cached_property
    def stripped_chars(self) -> NDArray[np.int32]:
        """Code points of each line without surrounding white space; 0 for a blank line; shape (n_lines,)."""
        if self.stripped is self.raw:
            return self.chars
        sizes: NDArray[np.int32] = pc.utf8_length(self.stripped).to_numpy()
        return sizes

    @cached_property
    def repeats(self) -> NDArray[np.bool_]:
        """Whether an earlier line of the document is equal; shape (n_lines,)."""
        return self._repeats(self.raw)

    @cached_property
    def stripped_repeats(self) -> NDArray[np.bool_]:
        """Whether an earlier line of the document is equal except for surrounding white space; shape (n_lines,)."""
        return self.repeats if self.stripped is self.raw else self._repeats(self.stripped)

    @property
    def last(self) -> pa.StringArray:
        """The last character of each unchanged line; not cached, because it is cheap to compute."""
        return pc.utf8_slice_codeunits(self.raw, -1)

    @property
    def stripped_last(self) -> pa.StringArray:
        """The last character of each line that is not white space; not cached, like `last`."""
        return pc.utf8_slice_codeunits(self.stripped, -1)

    def per_document(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Sums values of lines, shape (n_lines,), over each document; returns shape (n_documents,)."""
        # Every document has at least one line, so no sum is empty.
        sums: NDArray[np.int64] = np.add.reduceat(values, self.starts[:-1], dtype=np.int64)
        return sums

    def _repeats(self, lines: pa.StringArray) -> NDArray[np.bool_]:
        group = lines.dictionary_encode().indices.to_numpy()
        if len(self.starts) > 2:
            document = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
            group = pa.array((document << 32) | group).dictionary_encode().indices.to_numpy()
        # Groups are numbered in the order of first occurrence, so a repeated line does not raise the maximum.
        highest = np.maximum.accumulate(group)
        repeats = np.zeros(len(group), np.bool_)
        np.equal(highest[1:], highest[:-1], out=repeats[1:])
        return repeats


def is_in(column: pa.StringArray, values: Iterable[str]) -> NDArray[np.bool_]:
    """Returns which strings of a column are among the values, shape (len(column),)."""
    mask: NDArray[np.bool_] = pc.is_in(column, pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
    return mask


@dataclass(frozen=True)
class ChunkBounds:
    """Bounds of the chunks of several consecutive documents.

    Attributes:
        lines: int32 of shape (n_lines + 1,): index of the first chunk of each line, and the number of chunks.
        documents: int32 of shape (n_documents + 1,): index of the first chunk of each document, likewise.
        line_starts: int32 of shape (n_documents + 1,): index of the first line of each document, likewise.
    """

    lines: NDArray[np.int32]
    documents: NDArray[np.int32]
    line_starts: NDArray[np.int32]


def split_chunks(texts: pa.StringArray) -> tuple[pa.StringArray, ChunkBounds]:
    """Splits documents at white space; returns the chunks and their bounds."""
    data, bounds = buffers(texts)
    filled = ~_spaces(data)
    first, last = _edges(filled, bounds)
    starts, sizes = true_indices(first), true_indices(last)
    sizes -= starts
    sizes += 1
    begins, line_starts = lines_of(data, bounds)
    chunk_bounds = ChunkBounds(insertion_points(starts, begins), insertion_points(starts, bounds), line_starts)
    del starts, begins
    return strings(data[filled], sizes), chunk_bounds


def lines_of(data: NDArray[np.uint8], bounds: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns the bounds of lines, shape (n_lines + 1,), and the first line of each document, shape (n_documents + 1,).

    A document with n line ends has n + 1 lines: one begins at the start of the document, and one after each line end.
    """
    ends = true_indices(data == NEWLINE)
    firsts = insertion_points(ends, bounds)
    firsts += np.arange(len(bounds), dtype=np.int32)
    begins = np.empty(len(ends) + len(bounds), np.int32)
    after_line_end = np.ones(len(begins), np.bool_)
    after_line_end[firsts] = False
    begins[firsts] = bounds
    ends += 1
    begins[after_line_end] = ends
    return begins, firsts


def buffers(texts: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Returns the UTF-8 bytes of all texts, and the offsets of the texts in them, shape (len(texts) + 1,)."""
    _, offsets, data = texts.buffers()
    if offsets is None:
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return content[bounds[0] : bounds[-1]], bounds - bounds[0]


def size(texts: pa.StringArray) -> int:
    """Returns the number of UTF-8 bytes of all texts together."""
    _, offsets, _ = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32) if offsets is not None else np.zeros(1, np.int32)
    return int(bounds[texts.offset + len(texts)] - bounds[texts.offset])


def strings(data: NDArray[np.uint8], sizes: NDArray[np.int32]) -> pa.StringArray:
    """Returns consecutive strings with these sizes in bytes."""
    offsets = running_sums(sizes)
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)))


def _edges(filled: NDArray[np.bool_], bounds: NDArray[np.int32]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns which bytes are the first and the last of a chunk: at white space and at the bounds of documents."""
    first, last = filled.copy(), filled.copy()
    change = filled[1:] != filled[:-1]
    first[1:] &= change
    last[:-1] &= change
    # A bound between two bytes that are not white space is the end of one chunk and the beginning of the next.
    inside = bounds[bounds < len(filled)]
    first[inside] = filled[inside]
    inside = bounds[bounds > 0] - 1
    last[inside] = filled[inside]
    return first, last


def _spaces(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Returns which bytes belong to white space."""
    space = _SPACE[data]
    if not len(data) or data.max() < min(_WIDE):
        return space
    for part in portions(len(data)):
        _add_wide(space, data, part)
    return space


def _add_wide(space: NDArray[np.bool_], data: NDArray[np.uint8], part: slice) -> None:
    """Marks non-ASCII white space that begins in a part of the bytes, in place."""
    for first, endings in _WIDE.items():
        at = part.start + np.flatnonzero(data[part] == first)
        width = 3 if endings[0] > 0xFF else 2
        follows = data[at + 1].astype(np.int32)
        if width == 3:
            follows = follows * 256 + data[at + 2]
        starts = at[np.isin(follows, endings)]
        for byte in range(width):
            space[starts + byte] = True


def portions(size: int, step: int | None = None) -> Iterator[slice]:
    """Yields consecutive slices of at most `step` (default PORTION) that cover range(size)."""
    step = step or PORTION
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def true_indices(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Returns the indices at which a mask is true: `np.flatnonzero` in half the memory."""
    if len(mask) <= PORTION:
        return np.flatnonzero(mask).astype(np.int32)
    indices = np.empty(np.count_nonzero(mask), np.int32)
    end = 0
    for part in portions(len(mask)):
        part_indices = np.flatnonzero(mask[part])
        indices[end : end + len(part_indices)] = part_indices + part.start
        end += len(part_indices)
    return indices


def take(table: NDArray[Kind], at: NDArray[np.int32]) -> NDArray[Kind]:
    """Returns table[at], without a copy of `at` in 64 bits."""
    if len(at) <= PORTION:
        return table[at]
    values = np.empty(len(at), table.dtype)
    for part in portions(len(at)):
        values[part] = table[at[part]]
    return values


def insertion_points(ordered: NDArray[np.int32], values: NDArray[Any]) -> NDArray[np.int32]:
    """Returns `np.searchsorted(ordered, values)` in half the memory."""
    points = np.empty(len(values), np.int32)
    for part in portions(len(values)):
        # With values of another type, NumPy would copy all of `ordered`.
        points[part] = np.searchsorted(ordered, values[part].astype(np.int32, copy=False))
    return points


def running_sums(values: NDArray[Any]) -> NDArray[np.int32]:
    """Returns the sum of the values before each index, and of all values, shape (n + 1,)."""
    sums = np.zeros(len(values) + 1, np.int32)
    np.cumsum(values, dtype=np.int32, out=sums[1:])
    return sums
