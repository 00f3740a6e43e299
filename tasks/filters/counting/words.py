"""The words and punctuation marks of many documents as arrays, with the kind of each word.

In scripts written without spaces, words are those of a dictionary (`tasks.formats.documents.words`); lines and their
characters remain those of the text.

Every distinct chunk of text is split once per process (`tasks.filters.counting.english`) and every distinct word is
classified once: symbols only, without a letter, punctuation only, sentence end, stop word. A document then costs a
lookup per chunk and sums over arrays. Tables that have grown too large are dropped; no result depends on them.
"""

import threading
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, count, islice, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filters.counting.columns import (
    ChunkBounds,
    buffers,
    portions,
    running_sums,
    size,
    split_chunks,
    take,
    true_indices,
)
from tasks.filters.counting.english import tokenize
from tasks.formats.documents.words import UNSPACED, spaced

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's stop words (Rae et al., arXiv 2112.11446, A.1.1)."""

# Properties of a word, as bits: only typographical marks, no letter, only Unicode punctuation, end of a sentence, stop
# word. Most words have none of them.
SYMBOL, NO_LETTER, MARK, ENDS, STOP = (1 << bit for bit in range(5))

_PUNCTUATION = frozenset(char for char in map(chr, range(128)) if unicodedata.category(char).startswith("P"))

# Maximum number of chunks (or words) and of characters in the tables: 400 MB. For a batch of more than _LARGE bytes,
# whose splits alone take hundreds of megabytes, the limits are half of that.
_MAX_CHUNKS = 1_000_000
_MAX_CHARS = 20_000_000
_LARGE = 8_000_000
# Distinct chunks of a batch, and their bytes, above which none is cached: 4 MB of prose have 90,000 with 1 MB.
_MAX_NEW = 500_000
_MAX_NEW_BYTES = 4_000_000
# Chunks split together: lists of words take many times the memory of word numbers.
_AT_ONCE = 4096

# The least first byte of letters of scripts without spaces.
_LEAST_FIRST = min(chr(first).encode()[0] for first, _ in UNSPACED)

# Threads of a worker share the tables, since tables per thread would need the memory of several workers.
_lock = threading.Lock()


def _chars(ranges: str) -> frozenset[str]:
    """Returns the characters of space-separated code points and ranges in hexadecimal."""
    ends = [(first, last or first) for first, _, last in (item.partition("-") for item in ranges.split())]
    return frozenset(chr(code) for first, last in ends for code in range(int(first, 16), int(last, 16) + 1))


# Hexadecimal, because few fonts show all of them.
SENTENCE_ENDS = _chars(
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6"
    " 17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049"
    " 2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB"
    " FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143"
    " 111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642"
    " 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5"
    " 16B37-16B38 16B44 16E98 1BC9F 1DA88"
)
"""Marks that end a sentence: datatrove's TERMINAL_PUNCTUATION (Unicode's Sentence_Terminal and a few others)."""

SPLIT_ENDS = SENTENCE_ENDS - _chars(
    "61D-61E 837 839 83D-83E 17D4-17D6 17D9-17DA 1B7D-1B7E 2E53-2E54 10F55-10F59 10F86-10F89 11944 11946 11EF7-11EF8"
    " 11F43-11F44 16E98"
)
"""Those after which spaCy's sentencizer splits; datatrove counts the sentences of C4's rules with it."""

# Typographical marks and control characters: a word of only these is a symbol (datatrove's set).
_SYMBOLS = SENTENCE_ENDS | frozenset(
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, (*range(9), 11, 12, *range(13, 32), *range(127, 160))))
)


@dataclass(frozen=True)
class WordProperties:
    """Properties of each distinct word, as arrays by word id.

    Attributes:
        lengths: number of code points.
        bits: SYMBOL, NO_LETTER, MARK, ENDS and STOP.
        stop: index in STOP_WORDS, or -1.
    """

    lengths: NDArray[np.int32]
    bits: NDArray[np.uint8]
    stop: NDArray[np.int8]


@dataclass(frozen=True)
class Words:
    """Words of several documents in order.

    Attributes:
        ids: int32 of shape (n,); equal words have equal ids within this object.
        lines: int32 of shape (n_lines + 1,): index of the first word of each line, and n.
        documents: int64 of shape (n_documents + 1,): index of the first word of each document, and n.
        line_starts: int32 of shape (n_documents + 1,): index of the first line of each document, and n_lines.
        line_chunks: int32 of shape (n_lines,): number of words of each line without splitting off marks.
        properties: properties of each distinct word, by id.
    """

    ids: NDArray[np.int32]
    lines: NDArray[np.int32]
    documents: NDArray[np.int64]
    line_starts: NDArray[np.int32]
    line_chunks: NDArray[np.int32]
    properties: WordProperties

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Words of each document, shape (n_documents,)."""
        return np.diff(self.documents)

    @cached_property
    def ends(self) -> NDArray[np.int32]:
        """Number of code points of all words before each word, and of all words, shape (n + 1,)."""
        return running_sums(take(self.properties.lengths, self.ids))

    @cached_property
    def symbols(self) -> NDArray[np.int64]:
        """Words of each document that consist only of typographical marks, shape (n_documents,)."""
        return self._per_document(SYMBOL)

    @cached_property
    def symbol_chars(self) -> NDArray[np.int64]:
        """Code points of those words, shape (n_documents,)."""
        return self._per_document(SYMBOL, chars=True)

    @cached_property
    def chars(self) -> NDArray[np.int64]:
        """Code points of all words of each document, shape (n_documents,)."""
        totals: NDArray[np.int64] = np.diff(self.ends[self.documents]).astype(np.int64)
        return totals

    @cached_property
    def letters(self) -> NDArray[np.int64]:
        """Words of each document with at least one letter, shape (n_documents,)."""
        return self.counts - self._per_document(NO_LETTER)

    @cached_property
    def stop_words(self) -> NDArray[np.int64]:
        """Number of distinct STOP_WORDS in each document, shape (n_documents,)."""
        present = np.zeros((len(self.counts), len(STOP_WORDS)), np.int64)
        for part in portions(len(self.ids)):
            at = np.flatnonzero((self._bits[part] & STOP) != 0)
            owner = np.searchsorted(self.documents, at + part.start, side="right") - 1
            present[owner, self.properties.stop[self.ids[part][at]]] = 1
        counts: NDArray[np.int64] = present.sum(axis=1)
        return counts

    @property
    def sentences(self) -> NDArray[Any]:
        """Number of sentences of each line, at least 1 even in a blank line; int32 of shape (n_lines,), not cached.

        A sentence begins at the first word after a mark that ends one; other marks in between belong to the previous
        sentence.
        """
        indices = true_indices((self._bits & (MARK | ENDS)) != MARK)
        ends = (take(self._bits, indices) & ENDS) != 0
        begins = true_indices(ends[:-1] & ~ends[1:])
        sentences = np.ones(len(self.lines) - 1, np.int32)
        for part in portions(len(begins)):
            at = begins[part]
            line = np.searchsorted(self.lines, indices[at + 1], side="right") - 1
            line_before = np.searchsorted(self.lines, indices[at], side="right") - 1
            np.add.at(sentences, line[line == line_before], 1)
        return sentences

    @cached_property
    def _bits(self) -> NDArray[np.uint8]:
        return take(self.properties.bits, self.ids)

    def _per_document(self, bit: int, chars: bool = False) -> NDArray[np.int64]:
        """Returns the number of words with a property, or of their code points, shape (n_documents,)."""
        totals = np.zeros(len(self.counts), np.int64)
        for part in portions(len(self.ids)):
            at = np.flatnonzero((self._bits[part] & bit) != 0)
            inside = np.searchsorted(at, self.documents - part.start)
            if chars:
                inside = running_sums(self.properties.lengths[self.ids[part][at]])[inside]
            totals += np.diff(inside)
        return totals


def split(texts: pa.StringArray) -> Words:
    """Splits documents into words, with the tables of this process."""
    with _lock:
        return _vocabulary.split(texts)


class Vocabulary:
    """Tables of the chunks and words that this process has split."""

    def __init__(self) -> None:
        self._clear()

    def split(self, texts: pa.StringArray) -> Words:
        """Splits documents into lines and words."""
        encoded, bounds = _encoded(texts)
        indices, distinct = encoded.indices.to_numpy(), encoded.dictionary
        if len(distinct) > _MAX_NEW or size(distinct) > _MAX_NEW_BYTES:
            self._clear()
            return _words(bounds, indices, _split_uncached(distinct))
        if self._full(len(distinct), size(texts) > _LARGE):
            self._clear()
        try:
            numbers = self._chunk_numbers(distinct.to_pylist())
        except BaseException:
            self._clear()  # incomplete tables would make later results wrong
            raise
        # Restricted to the distinct chunks of these documents, so that the lookup table is small.
        table = _SplitChunks(self._sizes[numbers], self._begins[numbers], self._parts, self._properties)
        return _words(bounds, indices, table)

    def _full(self, more: int, large: bool) -> bool:
        """Returns whether up to `more` new chunks could exceed the limits of the tables."""
        size = max(len(self._numbers) + more, len(self._words))
        return max(size / _MAX_CHUNKS, self._chars / _MAX_CHARS) > (0.5 if large else 1)

    def _clear(self) -> None:
        # Looking up a new key assigns the next number to it.
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self._words: defaultdict[str, int] = defaultdict(count().__next__)
        self._chars = 0
        self._sizes = np.empty(0, np.int32)
        self._begins = np.empty(0, np.int32)
        self._parts = np.empty(0, np.int32)
        self._properties = classify(())

    def _chunk_numbers(self, distinct: Sequence[str]) -> NDArray[np.int64]:
        """Returns the number of each distinct chunk; splits and adds new ones."""
        n_chunks, n_words = len(self._numbers), len(self._words)
        numbers = np.fromiter(map(self._numbers.__getitem__, distinct), np.int64, len(distinct))
        new = [distinct[index] for index in np.flatnonzero(numbers >= n_chunks).tolist()]
        if new:
            batches = [self._tokenize_chunks(new[part]) for part in portions(len(new), _AT_ONCE)]
            self._sizes = np.concatenate((self._sizes, *(sizes for sizes, _ in batches)))
            self._parts = np.concatenate((self._parts, *(parts for _, parts in batches)))
            self._begins = running_sums(self._sizes)[:-1]
            self._chars += sum(map(len, new))
            self._properties = concatenate([self._properties, classify(list(islice(self._words, n_words, None)))])
        return numbers

    def _tokenize_chunks(self, chunks: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Returns the number of words of each chunk, and the ids of all these words."""
        tokenized = list(map(tokenize, chunks))
        sizes = np.fromiter(map(len, tokenized), np.int32, len(tokenized))
        words = map(self._words.__getitem__, chain.from_iterable(tokenized))
        return sizes, np.fromiter(words, np.int32, int(sizes.sum()))


@dataclass(frozen=True)
class _SplitChunks:
    """Distinct chunks, split.

    Attributes:
        sizes: number of words of each chunk.
        begins: index of its first word in `parts`.
        parts: ids of words.
        properties: properties of each word, by id.
    """

    sizes: NDArray[np.int32]
    begins: NDArray[np.int32]
    parts: NDArray[np.int32]
    properties: WordProperties


def concatenate(parts: Sequence[WordProperties]) -> WordProperties:
    """Concatenates the properties of several vocabularies."""
    names = WordProperties.__dataclass_fields__
    return WordProperties(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def classify(words: Sequence[str]) -> WordProperties:
    """Returns the properties of each word."""
    stops = {word: number for number, word in enumerate(STOP_WORDS)}
    stop = np.fromiter(map(stops.get, words, repeat(-1)), np.int8, len(words))
    bits = (stop >= 0).astype(np.uint8) * np.uint8(STOP)
    alphabetic = np.fromiter(map(str.isalpha, words), bool, len(words))
    for index in np.flatnonzero(~alphabetic).tolist():
        bits[index] = _kind(words[index])
    return WordProperties(np.fromiter(map(len, words), np.int32, len(words)), bits, stop)


def _kind(word: str) -> int:
    """Returns the property bits of a word that does not consist only of letters."""
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


def _split_uncached(chunks: pa.StringArray) -> _SplitChunks:
    """Splits chunks without the shared tables: millions of distinct chunks are not natural language.

    As strings in two dictionaries they would take ten times as much memory as Arrow's columns.
    """
    sizes, columns = [], []
    for part in portions(len(chunks), _AT_ONCE):
        tokenized = list(map(tokenize, chunks[part].to_pylist()))
        sizes.append(np.fromiter(map(len, tokenized), np.int32, len(tokenized)))
        columns.append(pa.array(list(chain.from_iterable(tokenized)), pa.string()))
    words = pa.concat_arrays(columns).dictionary_encode()
    parts = portions(len(words.dictionary), _AT_ONCE)
    properties = concatenate([classify(words.dictionary[part].to_pylist()) for part in parts])
    counts = np.concatenate(sizes)
    return _SplitChunks(counts, running_sums(counts)[:-1], words.indices.to_numpy(), properties)


def _encoded(texts: pa.StringArray) -> tuple[pa.DictionaryArray, ChunkBounds]:
    """Returns the chunks, dictionary-encoded, and their bounds; the plain column is freed on return."""
    chunks, bounds = split_chunks(_spaced(texts))
    return chunks.dictionary_encode(), bounds


def _spaced(texts: pa.StringArray) -> pa.StringArray:
    """Returns the texts with spaces between the words of scripts without spaces; the same column if it has none."""
    data, bounds = buffers(texts)
    # Most bytes of most texts are of letters below U+0800: comparing them costs a hundredth of counting words.
    first = true_indices(data >= _LEAST_FIRST)
    if not len(first):
        return texts
    first = first[_unspaced_beginnings()[data[first], data[first + 1]]]
    if not len(first):
        return texts
    documents = np.unique(np.searchsorted(bounds, first, side="right") - 1).tolist()
    columns, end = [], 0
    for document in documents:
        columns += [texts.slice(end, document - end), pa.array([spaced(texts[document].as_py())], pa.string())]
        end = document + 1
    return pa.concat_arrays([*columns, texts.slice(end)])


@cache
def _unspaced_beginnings() -> NDArray[np.bool_]:
    """Returns whether letters of scripts without spaces begin with two bytes (UTF-8), by both; shape (256, 256)."""
    beginnings = np.zeros((256, 256), np.bool_)
    for begin, end in UNSPACED:
        for point in (*range(begin, end, 64), end):  # the last byte has six bits
            first, second, *_ = chr(point).encode()
            beginnings[first, second] = True
    return beginnings


def _words(bounds: ChunkBounds, indices: NDArray[np.int32], table: _SplitChunks) -> Words:
    """Returns the words of documents.

    Args:
        bounds: bounds of the chunks.
        indices: index of each chunk in the table.
        table: the distinct chunks, split.
    """
    before = running_sums(take(table.sizes, indices))
    ids = np.empty(before[-1], np.int32)
    # A chunk has at most 1,000 words, so portions of whole chunks are only slightly larger than PORTION words.
    begins = np.array([part.start for part in portions(len(ids))], np.int32)
    cuts = [*np.searchsorted(before, begins), len(indices)]
    for start, end in pairwise(cuts):
        first = before[start : end + 1]
        # Word j is, within its chunk, the word j minus the number of words before the chunk.
        at = np.repeat(table.begins[indices[start:end]] - first[:-1], np.diff(first))
        at += np.arange(first[0], first[-1], dtype=np.int32)
        ids[first[0] : first[-1]] = table.parts[at]
    return Words(
        ids=ids,
        lines=take(before, bounds.lines),
        documents=before[bounds.documents].astype(np.int64),
        line_starts=bounds.line_starts,
        line_chunks=np.diff(bounds.lines),
        properties=table.properties,
    )


_vocabulary = Vocabulary()
