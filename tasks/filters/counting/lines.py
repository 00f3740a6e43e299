"""The lines of many documents as Arrow columns.

Properties of lines (length, last character, repetition) are computed for all lines of a batch by one call.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.filters.counting.columns import NEWLINE, buffers, lines_of, size, strings


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
