"""The words and punctuation marks of many documents as arrays, with the kind of each word.

Every distinct chunk of text is split once per process (`tasks.filters.counting.english`) and every distinct word is
classified once: symbols only, without a letter, punctuation only, sentence end, stop word. A document then costs a
look-up per chunk and sums over arrays. The tables are dropped when they have grown large; no result depends on them.
"""

import threading
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, islice, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filters.counting.columns import ChunkBounds, looked_up, places, portions, running_sums, size, stretches
from tasks.filters.counting.english import pieces

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's stop words (Rae et al., arXiv 2112.11446, A.1.1)."""

# Properties of a word, as bits: made of typographical marks alone, without a letter, made of Unicode punctuation
# alone, ends a sentence, one of STOP_WORDS. Most words have none of them.
SYMBOL, NO_LETTER, MARK, ENDS, STOP = (1 << bit for bit in range(5))

_PUNCTUATION = frozenset(char for char in map(chr, range(128)) if unicodedata.category(char).startswith("P"))

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

# Threads of a worker share the tables: one table per thread would need the memory of several workers.
_one_at_a_time = threading.Lock()


def _chars(ranges: str) -> frozenset[str]:
    """Returns the characters of code points and ranges of them in hexadecimal."""
    ends = [(first, last or first) for first, _, last in (one.partition("-") for one in ranges.split())]
    return frozenset(chr(code) for first, last in ends for code in range(int(first, 16), int(last, 16) + 1))


# As hexadecimal numbers, since few fonts show them all.
SENTENCE_ENDS = _chars(
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6"
    " 17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049"
    " 2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB"
    " FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143"
    " 111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642"
    " 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5"
    " 16B37-16B38 16B44 16E98 1BC9F 1DA88"
)
"""Marks that end a sentence: datatrove's TERMINAL_PUNCTUATION, which is Unicode's Sentence_Terminal and a few more."""

SPLIT_ENDS = SENTENCE_ENDS - _chars(
    "61D-61E 837 839 83D-83E 17D4-17D6 17D9-17DA 1B7D-1B7E 2E53-2E54 10F55-10F59 10F86-10F89 11944 11946 11EF7-11EF8"
    " 11F43-11F44 16E98"
)
"""Those behind which spaCy's sentencizer splits: by it datatrove counts the sentences of C4's rules."""

# Marks of typesetting and control characters: a word of nothing else is a symbol (datatrove's set).
_SYMBOLS = SENTENCE_ENDS | frozenset(
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, (*range(9), 11, 12, *range(13, 32), *range(127, 160))))
)


@dataclass(frozen=True)
class Known:
    """Properties of each distinct word, as arrays by word id.

    Attributes:
        lengths: code points.
        bits: its kinds.
        stop: number of the stop word of Gopher's list, or -1.
    """

    lengths: NDArray[np.int32]
    bits: NDArray[np.uint8]
    stop: NDArray[np.int8]


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


def split(texts: pa.StringArray) -> Words:
    """Splits documents into words, with this process's tables."""
    with _one_at_a_time:
        return _vocabulary.split(texts)


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


def joined(several: Sequence[Known]) -> Known:
    """Concatenates the properties of several vocabularies."""
    names = Known.__dataclass_fields__
    return Known(*(np.concatenate([getattr(one, name) for one in several]) for name in names))


def look_at(words: Sequence[str]) -> Known:
    """Returns the properties of each word."""
    stops = {word: number for number, word in enumerate(STOP_WORDS)}
    stop = np.fromiter(map(stops.get, words, repeat(-1)), np.int8, len(words))
    bits = (stop >= 0).astype(np.uint8) * np.uint8(STOP)
    plain = np.fromiter(map(str.isalpha, words), bool, len(words))
    for place in np.flatnonzero(~plain).tolist():
        bits[place] = _kind(words[place])
    return Known(np.fromiter(map(len, words), np.int32, len(words)), bits, stop)


def _kind(word: str) -> int:
    """Returns the kinds of a word that is not made of letters alone."""
    if word.isascii():
        letter, mark = word.lower() != word.upper(), _PUNCTUATION.issuperset(word)
    else:
        letter = any(map(str.isalpha, word))
        mark = all(unicodedata.category(char).startswith("P") for char in word)
    bits = 0 if letter else NO_LETTER
    if not letter and _SYMBOLS.issuperset(word):
        bits |= SYMBOL
    if mark:
        bits |= MARK
    return bits | ENDS if word in SPLIT_ENDS else bits


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


def _encoded(texts: pa.StringArray) -> tuple[pa.DictionaryArray, ChunkBounds]:
    """Returns chunks by number, and their bounds."""
    found, bounds = stretches(texts)
    return found.dictionary_encode(), bounds


def _words(bounds: ChunkBounds, indices: NDArray[np.int32], table: _Apart) -> Words:
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
