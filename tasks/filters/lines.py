"""The lines of many documents at once, as Arrow columns.

Used by annotators through `Batch.line_columns`. Whatever rules ask of a line (how long, how it ends, does it repeat) is
asked of all lines of a batch by one call.
"""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.filters.stretches import NEWLINE, buffers, strings


class Lines:
    """Lines of several documents, one after the other, blank ones too.

    Args:
        texts: the documents.

    Attributes:
        raw: the lines as they stand.
        starts: int64 of shape (n_documents + 1,): where the lines of each document begin.
    """

    def __init__(self, texts: pa.StringArray) -> None:
        data, bounds = buffers(texts)
        ends = np.flatnonzero(data == NEWLINE)
        self.starts: NDArray[np.int64] = np.searchsorted(ends, bounds) + np.arange(len(bounds))
        # A line begins behind a line end or where a document does, and ends at the next of them.
        begins = np.sort(np.concatenate((bounds[:-1], ends + 1)), kind="stable")
        sizes = np.sort(np.concatenate((bounds[1:], ends)), kind="stable") - begins
        self.raw = strings(data[data != NEWLINE], sizes)

    def __len__(self) -> int:
        return len(self.raw)

    @cached_property
    def stripped(self) -> pa.StringArray:
        """The lines without white space around them."""
        return pc.utf8_trim_whitespace(self.raw)

    @cached_property
    def chars(self) -> NDArray[np.int32]:
        """Code points of each line as it stands, shape (n_lines,)."""
        sizes: NDArray[np.int32] = pc.utf8_length(self.raw).to_numpy()
        return sizes

    @cached_property
    def stripped_chars(self) -> NDArray[np.int32]:
        """Code points of each line without white space around it; 0 for a blank one; shape (n_lines,)."""
        sizes: NDArray[np.int32] = pc.utf8_length(self.stripped).to_numpy()
        return sizes

    @cached_property
    def repeats(self) -> NDArray[np.bool_]:
        """Whether a line stood before in its document, as it stands; shape (n_lines,)."""
        return self._repeats(self.raw)

    @cached_property
    def stripped_repeats(self) -> NDArray[np.bool_]:
        """Whether a line stood before in its document, white space around it aside; shape (n_lines,)."""
        return self._repeats(self.stripped)

    @cached_property
    def last(self) -> pa.StringArray:
        """The last character of each line as it stands."""
        return pc.utf8_slice_codeunits(self.raw, -1)

    @cached_property
    def stripped_last(self) -> pa.StringArray:
        """The last character of each line that is not white space."""
        return pc.utf8_slice_codeunits(self.stripped, -1)

    def per_document(self, values: NDArray[np.generic]) -> NDArray[np.int64]:
        """Sums a value per line over each document; shape (n_documents,)."""
        total = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
        return np.diff(total[self.starts])

    def _repeats(self, lines: pa.StringArray) -> NDArray[np.bool_]:
        alike = lines.dictionary_encode().indices.to_numpy().astype(np.int64)
        document = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        group = pa.array((document << 32) | alike).dictionary_encode().indices.to_numpy()
        # Groups are numbered in the order in which they are first met.
        known: NDArray[np.bool_] = np.diff(np.maximum.accumulate(group), prepend=-1) == 0
        return known


def one_of(column: pa.StringArray, values: Iterable[str]) -> NDArray[np.bool_]:
    """Returns which strings of a column are among the values; shape (len(column),)."""
    found: NDArray[np.bool_] = pc.is_in(column, pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
    return found
