"""Columns of text as arrays: their lines, chunks without white space, and chunked array operations.

With NumPy on the bytes of a whole column at once: lists of Python strings would cost several times as much. Properties
of lines (length, last character, repetition) are computed for all lines of a batch by one call. White space is that of
`str.isspace`.

A document of 16 MB can contain sixteen million words or lines. NumPy returns and uses 64-bit indices, and each step of
an expression allocates an array: eight or ten of those would exceed a worker's memory. All counts here are positions in
a column of text, which Arrow addresses with 32 bits. A batch of ordinary size is one portion, without extra cost.
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
# First bytes of non-ASCII white space in UTF-8, and the bytes that follow, as one number.
_WIDE = {
    0xC2: (0x85, 0xA0),
    0xE1: (0x9A80,),
    0xE2: (*range(0x8080, 0x808B), 0x80A8, 0x80A9, 0x80AF, 0x819F),
    0xE3: (0x8080,),
}


class Lines:
    """Lines of several documents, one after the other, blank ones too.

    Args:
        texts: the documents.

    Attributes:
        raw: the lines, unchanged.
        starts: int64 of shape (n_documents + 1,): where the lines of each document begin.
    """

    def __init__(self, texts: pa.StringArray) -> None:
        data, bounds = buffers(texts)
        begins, firsts = lines_of(data, bounds)
        self.starts: NDArray[np.int64] = firsts.astype(np.int64)
        # All but the last line of a document have a line end, which is not part of them.
        sizes = np.diff(begins)
        sizes -= 1
        sizes[firsts[1:] - 1] += 1
        self.raw = strings(data[data != NEWLINE], sizes)

    def __len__(self) -> int:
        return len(self.raw)

    @cached_property
    def stripped(self) -> pa.StringArray:
        """The lines without white space around them; the same column as `raw` where there is none."""
        found = pc.utf8_trim_whitespace(self.raw)
        return self.raw if size(found) == size(self.raw) else found

    @cached_property
    def chars(self) -> NDArray[np.int32]:
        """Code points of each unchanged line, shape (n_lines,)."""
        sizes: NDArray[np.int32] = pc.utf8_length(self.raw).to_numpy()
        return sizes

    @cached_property
    def stripped_chars(self) -> NDArray[np.int32]:
        """Code points of each line without white space around it; 0 for a blank one; shape (n_lines,)."""
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
        """Whether an earlier line of the document is equal but for white space around it; shape (n_lines,)."""
        return self.repeats if self.stripped is self.raw else self._repeats(self.stripped)

    @property
    def last(self) -> pa.StringArray:
        """The last character of each unchanged line; not cached, as computing it is faster than storing it."""
        return pc.utf8_slice_codeunits(self.raw, -1)

    @property
    def stripped_last(self) -> pa.StringArray:
        """The last character of each line that is not white space; not cached, as `last`."""
        return pc.utf8_slice_codeunits(self.stripped, -1)

    def per_document(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Sums a value per line over each document; shape (n_documents,)."""
        # Every document has a line: no sum is empty.
        found: NDArray[np.int64] = np.add.reduceat(values, self.starts[:-1], dtype=np.int64)
        return found

    def _repeats(self, lines: pa.StringArray) -> NDArray[np.bool_]:
        group = lines.dictionary_encode().indices.to_numpy()
        if len(self.starts) > 2:
            document = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
            group = pa.array((document << 32) | group).dictionary_encode().indices.to_numpy()
        # Groups are numbered in the order of first occurrence.
        highest = np.maximum.accumulate(group)
        known = np.zeros(len(group), np.bool_)
        np.equal(highest[1:], highest[:-1], out=known[1:])
        return known


def one_of(column: pa.StringArray, values: Iterable[str]) -> NDArray[np.bool_]:
    """Returns which strings of a column are among the values; shape (len(column),)."""
    found: NDArray[np.bool_] = pc.is_in(column, pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
    return found


@dataclass(frozen=True)
class ChunkBounds:
    """Bounds of the chunks of several consecutive documents.

    Attributes:
        lines: int32 of shape (n_lines + 1,): where the stretches of each line begin.
        documents: int32 of shape (n_documents + 1,): where the stretches of each document begin.
        line_starts: int32 of shape (n_documents + 1,): where the lines of each document begin.
    """

    lines: NDArray[np.int32]
    documents: NDArray[np.int32]
    line_starts: NDArray[np.int32]


def stretches(texts: pa.StringArray) -> tuple[pa.StringArray, ChunkBounds]:
    """Splits documents at white space; returns the chunks and their bounds."""
    data, bounds = buffers(texts)
    filled = ~_spaces(data)
    first, last = _edges(filled, bounds)
    starts, sizes = places(first), places(last)
    sizes -= starts
    sizes += 1
    begins, line_starts = lines_of(data, bounds)
    found = ChunkBounds(insertions(starts, begins), insertions(starts, bounds), line_starts)
    del starts, begins
    return strings(data[filled], sizes), found


def lines_of(data: NDArray[np.uint8], bounds: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns where lines begin, and the end of all; and which line of them is the first of each document, and n_lines.

    A document of n line ends has n + 1 lines: one begins where the document does, and one behind each line end.
    """
    ends = places(data == NEWLINE)
    firsts = insertions(ends, bounds)
    firsts += np.arange(len(bounds), dtype=np.int32)
    begins = np.empty(len(ends) + len(bounds), np.int32)
    behind = np.ones(len(begins), np.bool_)
    behind[firsts] = False
    begins[firsts] = bounds
    ends += 1
    begins[behind] = ends
    return begins, firsts


def buffers(texts: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Returns the UTF-8 bytes of all texts, and where each begins in them, shape (len(texts) + 1,)."""
    _, offsets, data = texts.buffers()
    if offsets is None:
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return content[bounds[0] : bounds[-1]], bounds - bounds[0]


def size(texts: pa.StringArray) -> int:
    """Returns the UTF-8 bytes of all texts together."""
    _, offsets, _ = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32) if offsets is not None else np.zeros(1, np.int32)
    return int(bounds[texts.offset + len(texts)] - bounds[texts.offset])


def strings(data: NDArray[np.uint8], sizes: NDArray[np.int32]) -> pa.StringArray:
    """Returns consecutive strings of these sizes from the bytes."""
    offsets = running_sums(sizes)
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)))


def _edges(filled: NDArray[np.bool_], bounds: NDArray[np.int32]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns which bytes are the first of a stretch and which the last: at white space and the bounds of documents."""
    first, last = filled.copy(), filled.copy()
    change = filled[1:] != filled[:-1]
    first[1:] &= change
    last[:-1] &= change
    # A bound inside a run of other bytes is the end of one stretch and the beginning of the next.
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
    """Adds non-ASCII white space that begins in a part of the bytes."""
    for first, endings in _WIDE.items():
        at = part.start + np.flatnonzero(data[part] == first)
        width = 3 if endings[0] > 0xFF else 2
        follows = data[at + 1].astype(np.int32)
        if width == 3:
            follows = follows * 256 + data[at + 2]
        found = at[np.isin(follows, endings)]
        for byte in range(width):
            space[found + byte] = True


def portions(size: int, step: int | None = None) -> Iterator[slice]:
    """Yields slices of `step` (PORTION) that together are range(size), in order."""
    step = step or PORTION
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def places(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Returns where a mask is true: `np.flatnonzero` in half the memory."""
    if len(mask) <= PORTION:
        return np.flatnonzero(mask).astype(np.int32)
    found = np.empty(np.count_nonzero(mask), np.int32)
    end = 0
    for part in portions(len(mask)):
        some = np.flatnonzero(mask[part])
        found[end : end + len(some)] = some + part.start
        end += len(some)
    return found


def looked_up(table: NDArray[Kind], at: NDArray[np.int32]) -> NDArray[Kind]:
    """Returns table[at], without a copy of `at` in 64 bits."""
    if len(at) <= PORTION:
        return table[at]
    found = np.empty(len(at), table.dtype)
    for part in portions(len(at)):
        found[part] = table[at[part]]
    return found


def insertions(ordered: NDArray[np.int32], values: NDArray[Any]) -> NDArray[np.int32]:
    """Returns where the values would be inserted: `np.searchsorted` in half the memory."""
    found = np.empty(len(values), np.int32)
    for part in portions(len(values)):
        # Of another type than the values, all of `ordered` would be copied.
        found[part] = np.searchsorted(ordered, values[part].astype(np.int32, copy=False))
    return found


def running_sums(values: NDArray[Any]) -> NDArray[np.int32]:
    """Returns the sum of all values before each one, and of all, shape (n + 1,)."""
    found = np.zeros(len(values) + 1, np.int32)
    np.cumsum(values, dtype=np.int32, out=found[1:])
    return found
