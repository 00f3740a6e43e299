"""The words and punctuation marks of many documents as arrays.

Every distinct chunk of text is split once per process (`tasks.filters.counting.english`) and every distinct word is
classified once; a document then costs a look-up per chunk and sums over arrays. The tables are dropped when they have
grown large; no result depends on them.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filters.counting.columns import Bounds, looked_up, places, portions, running_sums, size, stretches
from tasks.filters.counting.english import pieces
from tasks.filters.counting.word_kinds import ENDS, MARK, NO_LETTER, STOP, STOP_WORDS, SYMBOL, Known, joined, look_at

# The tables are dropped before they contain more chunks, words or characters: 400 MB. For a document whose splits alone
# take hundreds of megabytes the limit is half of that.
_MAX_STRETCHES = 1_000_000
_MAX_CHARS = 20_000_000
_LARGE = 8_000_000
# Distinct chunks of one batch, and their bytes, above which none is cached: 4 MB of prose have 90,000 of 1 MB.
_MAX_NEW = 500_000
_MAX_NEW_BYTES = 4_000_000
# Chunks split together: as lists of words they cost many times the memory of word numbers.
_AT_ONCE = 4096


@dataclass(frozen=True)
class Words:
    """Words of several documents, one after the other.

    Attributes:
        ids: int32 of shape (n,); equal words have equal ids within this object.
        lines: int32 of shape (n_lines + 1,): where the words of each line begin.
        documents: int64 of shape (n_documents + 1,): where the words of each document begin.
        line_starts: int32 of shape (n_documents + 1,): where the lines of each document begin.
        line_stretches: int32 of shape (n_lines,): number of words of each line when split at white space alone.
        known: properties of each distinct word, by id.
    """

    ids: NDArray[np.int32]
    lines: NDArray[np.int32]
    documents: NDArray[np.int64]
    line_starts: NDArray[np.int32]
    line_stretches: NDArray[np.int32]
    known: Known

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Words of each document, shape (n_documents,)."""
        return np.diff(self.documents)

    @cached_property
    def ends(self) -> NDArray[np.int32]:
        """Code points of all words before each word, and of all, shape (n + 1,)."""
        return running_sums(looked_up(self.known.lengths, self.ids))

    @cached_property
    def symbols(self) -> NDArray[np.int64]:
        """Words of each document that are made of typographical marks alone, shape (n_documents,)."""
        return self._per_document(SYMBOL)

    @cached_property
    def symbol_chars(self) -> NDArray[np.int64]:
        """Code points of those words, shape (n_documents,)."""
        return self._per_document(SYMBOL, chars=True)

    @cached_property
    def chars(self) -> NDArray[np.int64]:
        """Code points of all words of each document, shape (n_documents,)."""
        found: NDArray[np.int64] = np.diff(self.ends[self.documents]).astype(np.int64)
        return found

    @cached_property
    def letters(self) -> NDArray[np.int64]:
        """Words of each document with at least one letter, shape (n_documents,)."""
        return self.counts - self._per_document(NO_LETTER)

    @cached_property
    def stop_words(self) -> NDArray[np.int64]:
        """How many different ones of STOP_WORDS each document has, shape (n_documents,)."""
        found = np.zeros((len(self.counts), len(STOP_WORDS)), np.int64)
        for part in portions(len(self.ids)):
            at = np.flatnonzero((self._bits[part] & STOP) != 0)
            owner = np.searchsorted(self.documents, at + part.start, side="right") - 1
            found[owner, self.known.stop[self.ids[part][at]]] = 1
        different: NDArray[np.int64] = found.sum(axis=1)
        return different

    @property
    def sentences(self) -> NDArray[Any]:
        """The sentences of each line, at least one, also in a blank line; int32 of shape (n_lines,), not cached.

        A sentence begins at the first word behind a mark that ends one; other marks in between belong to the
        previous sentence.
        """
        counts = places((self._bits & (MARK | ENDS)) != MARK)
        ends = (looked_up(self._bits, counts) & ENDS) != 0
        begins = places(ends[:-1] & ~ends[1:])
        found = np.ones(len(self.lines) - 1, np.int32)
        for part in portions(len(begins)):
            at = begins[part]
            line, before = (np.searchsorted(self.lines, counts[one], side="right") - 1 for one in (at + 1, at))
            np.add.at(found, line[line == before], 1)
        return found

    @cached_property
    def _bits(self) -> NDArray[np.uint8]:
        return looked_up(self.known.bits, self.ids)

    def _per_document(self, bit: int, chars: bool = False) -> NDArray[np.int64]:
        """Counts the words of a kind, or their code points, by document."""
        found = np.zeros(len(self.counts), np.int64)
        for part in portions(len(self.ids)):
            at = np.flatnonzero((self._bits[part] & bit) != 0)
            inside = np.searchsorted(at, self.documents - part.start)
            if chars:
                inside = running_sums(self.known.lengths[self.ids[part][at]])[inside]
            found += np.diff(inside)
        return found


class Vocabulary:
    """All chunks and words that this process has seen."""

    def __init__(self) -> None:
        self._clear()

    def split(self, texts: pa.StringArray) -> Words:
        """Splits documents into lines and words."""
        encoded, bounds = _encoded(texts)
        indices, different = encoded.indices.to_numpy(), encoded.dictionary
        if len(different) > _MAX_NEW or size(different) > _MAX_NEW_BYTES:
            self._clear()
            return _words(bounds, indices, _uncached(different))
        if self._full(len(different), size(texts) > _LARGE):
            self._clear()
        try:
            number = self._numbered(different.to_pylist())
        except BaseException:
            self._clear()  # half a table would make later results wrong
            raise
        # First for the distinct chunks of these documents, so that the look-up tables are small.
        table = _Apart(self._sizes[number], self._begins[number], self._parts, self._known)
        return _words(bounds, indices, table)

    def _full(self, more: int, large: bool) -> bool:
        """Returns whether at most this many new chunks would exceed the limits of the tables."""
        size = max(len(self._numbers) + more, len(self._words))
        return max(size / _MAX_STRETCHES, self._chars / _MAX_CHARS) > (0.5 if large else 1)

    def _clear(self) -> None:
        # A new key gets the next number.
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self._words: defaultdict[str, int] = defaultdict(count().__next__)
        self._chars = 0
        self._sizes = np.empty(0, np.int32)
        self._begins = np.empty(0, np.int32)
        self._parts = np.empty(0, np.int32)
        self._known = look_at(())

    def _numbered(self, different: Sequence[str]) -> NDArray[np.int64]:
        """Returns the number of each of some distinct chunks; splits new ones."""
        have, had = len(self._numbers), len(self._words)
        number = np.fromiter(map(self._numbers.__getitem__, different), np.int64, len(different))
        fresh = [different[place] for place in np.flatnonzero(number >= have).tolist()]
        if fresh:
            taken = [self._taken_apart(fresh[part]) for part in portions(len(fresh), _AT_ONCE)]
            self._sizes = np.concatenate((self._sizes, *(sizes for sizes, _ in taken)))
            self._parts = np.concatenate((self._parts, *(parts for _, parts in taken)))
            self._begins = running_sums(self._sizes)[:-1]
            self._chars += sum(map(len, fresh))
            self._known = joined([self._known, look_at(list(islice(self._words, had, None)))])
        return number

    def _taken_apart(self, fresh: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Returns the number of words of each chunk, and the numbers of the words."""
        found = list(map(pieces, fresh))
        sizes = np.fromiter(map(len, found), np.int32, len(found))
        words = map(self._words.__getitem__, chain.from_iterable(found))
        return sizes, np.fromiter(words, np.int32, int(sizes.sum()))


@dataclass(frozen=True)
class _Apart:
    """Distinct chunks, split.

    Attributes:
        sizes: number of words of each.
        begins: where its words begin in `parts`.
        parts: ids of words.
        known: properties of each word, by id.
    """

    sizes: NDArray[np.int32]
    begins: NDArray[np.int32]
    parts: NDArray[np.int32]
    known: Known


def _uncached(stretches: pa.StringArray) -> _Apart:
    """Splits chunks without the shared table: millions of distinct ones are not natural language.

    As strings in two dictionaries they would cost ten times as much as Arrow's columns.
    """
    sizes, columns = [], []
    for part in portions(len(stretches), _AT_ONCE):
        found = list(map(pieces, stretches[part].to_pylist()))
        sizes.append(np.fromiter(map(len, found), np.int32, len(found)))
        columns.append(pa.array(list(chain.from_iterable(found)), pa.string()))
    words = pa.concat_arrays(columns).dictionary_encode()
    known = joined([look_at(words.dictionary[part].to_pylist()) for part in portions(len(words.dictionary), _AT_ONCE)])
    counts = np.concatenate(sizes)
    return _Apart(counts, running_sums(counts)[:-1], words.indices.to_numpy(), known)


def _encoded(texts: pa.StringArray) -> tuple[pa.DictionaryArray, Bounds]:
    """Returns chunks by number, and their bounds."""
    found, bounds = stretches(texts)
    return found.dictionary_encode(), bounds


def _words(bounds: Bounds, indices: NDArray[np.int32], table: _Apart) -> Words:
    """Returns the words of documents.

    Args:
        bounds: bounds of the chunks.
        indices: index of each chunk in the table.
        table: the distinct chunks, split.
    """
    before = running_sums(looked_up(table.sizes, indices))
    ids = np.empty(before[-1], np.int32)
    # A chunk has 1,000 words at most, so that a portion of chunks ends a little behind one of words.
    begins = np.array([part.start for part in portions(len(ids))], np.int32)
    cuts = [*np.searchsorted(before, begins), len(indices)]
    for start, end in pairwise(cuts):
        first = before[start : end + 1]
        # Word j overall is word j minus the words before its chunk, within that chunk.
        at = np.repeat(table.begins[indices[start:end]] - first[:-1], np.diff(first))
        at += np.arange(first[0], first[-1], dtype=np.int32)
        ids[first[0] : first[-1]] = table.parts[at]
    return Words(
        ids=ids,
        lines=looked_up(before, bounds.lines),
        documents=before[bounds.documents].astype(np.int64),
        line_starts=bounds.line_starts,
        line_stretches=np.diff(bounds.lines),
        known=table.known,
    )


_vocabulary = Vocabulary()
# Threads of a worker share the tables: one table per thread would need the memory of several workers.
_one_at_a_time = threading.Lock()


def split(texts: pa.StringArray) -> Words:
    """Splits documents into words, with this process's tables."""
    with _one_at_a_time:
        return _vocabulary.split(texts)
