"""Where documents fall into lines and into stretches without white space, found on the bytes of a whole column.

Used by `words`, which takes every different stretch apart. NumPy looks at all bytes at once: lists of Python strings
would cost several times as much. White space is what `str.isspace` says it is.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NEWLINE = ord("\n")
_SPACE = np.array([byte < 0x80 and chr(byte).isspace() for byte in range(256)])
# First bytes of white space that is no ASCII, in UTF-8, and which bytes follow there, as one number.
_WIDE = {
    0xC2: (0x85, 0xA0),
    0xE1: (0x9A80,),
    0xE2: (*range(0x8080, 0x808B), 0x80A8, 0x80A9, 0x80AF, 0x819F),
    0xE3: (0x8080,),
}


@dataclass(frozen=True)
class Stretches:
    """Stretches of several documents, one after the other.

    Attributes:
        texts: the stretches.
        lines: int64 of shape (n_lines + 1,): where the stretches of each line begin.
        documents: int64 of shape (n_documents + 1,): where the stretches of each document begin.
        line_starts: int64 of shape (n_documents + 1,): where the lines of each document begin.
    """

    texts: pa.StringArray
    lines: NDArray[np.int64]
    documents: NDArray[np.int64]
    line_starts: NDArray[np.int64]


def buffers(texts: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Returns the UTF-8 bytes of all texts, and where each begins in them, shape (len(texts) + 1,)."""
    _, offsets, data = texts.buffers()
    if offsets is None:
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return held[bounds[0] : bounds[-1]], bounds - bounds[0]


def strings(data: NDArray[np.uint8], sizes: NDArray[np.int64]) -> pa.StringArray:
    """Returns the strings of these sizes that the bytes hold, one after the other."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)))


def stretches(texts: pa.StringArray) -> Stretches:
    """Splits documents at white space."""
    data, bounds = buffers(texts)
    filled = ~_spaces(data)
    starts, ends = _edges(filled, bounds)
    line_ends = np.flatnonzero(data == NEWLINE)
    documents = np.searchsorted(starts, bounds)
    # A document of n line ends has n + 1 lines: each begins where the document or a line end is.
    line_starts = np.searchsorted(line_ends, bounds) + np.arange(len(bounds))
    lines = np.sort(np.concatenate((documents, np.searchsorted(starts, line_ends))), kind="stable")
    return Stretches(strings(data[filled], ends - starts), lines, documents, line_starts)


def _edges(filled: NDArray[np.bool_], bounds: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns where stretches begin and where they end: at white space and at the bounds of documents."""
    changes = np.flatnonzero(filled[1:] != filled[:-1]) + 1
    outer = [at for at, byte in ((0, 0), (len(filled), -1)) if len(filled) and filled[byte]]
    # A bound inside a run of other bytes is the end of one stretch and the beginning of the next.
    inside = np.unique(bounds[(bounds > 0) & (bounds < len(filled))])
    inside = inside[filled[inside - 1] & filled[inside]]
    edges = np.sort(np.concatenate((outer, changes, inside, inside)).astype(np.int64), kind="stable")
    return edges[::2], edges[1::2]


def _spaces(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Returns which bytes belong to white space."""
    space = _SPACE[data]
    if not len(data) or data.max() < min(_WIDE):
        return space
    for first, endings in _WIDE.items():
        at = np.flatnonzero(data == first)
        width = 3 if endings[0] > 0xFF else 2
        follows = data[at + 1].astype(np.int32)
        if width == 3:
            follows = follows * 256 + data[at + 2]
        found = at[np.isin(follows, endings)]
        for byte in range(width):
            space[found + byte] = True
    return space
