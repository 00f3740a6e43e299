"""The words and punctuation marks of many documents at once, as arrays.

Used by annotators through `Batch.words`. Every different stretch of text is taken apart once per process
(`tasks.filters.english`) and every different word is looked at once; what remains for a document is a look-up for each
of its stretches and sums over arrays. The tables are dropped when they have grown large; no result depends on them.
"""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.filters.english import pieces
from tasks.text import hash64

SENTENCE_ENDS = tuple("!.?։؟۔܀܁܂߹।॥၊။።፧፨᙮᜵᜶᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗！．？｡。")
"""Marks that end a sentence: Unicode's Sentence_Terminal in the Basic Multilingual Plane."""

# Marks of typesetting and control characters: a word of nothing else is a symbol (datatrove's set).
_SYMBOLS = frozenset(SENTENCE_ENDS) | frozenset(
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, (*range(9), 11, 12, *range(13, 32), *range(127, 160))))
)
_MAX_STRETCHES = 1_000_000
_MAX_CHARS = 50_000_000
# Stands for a line end among the stretches; `tasks.text.clean` leaves none in a text.
_LINE_END = "\0"


@dataclass(frozen=True)
class Words:
    """Words of several documents, one after the other.

    Attributes:
        ids: int32 of shape (n,); equal words have equal ids within this object.
        lines: int64 of shape (n_lines + 1,): where the words of each line begin.
        documents: int64 of shape (n_documents + 1,): where the words of each document begin.
        line_starts: int64 of shape (n_documents + 1,): where the lines of each document begin.
        known: what is known of each different word, by id.
    """

    ids: NDArray[np.int32]
    lines: NDArray[np.int64]
    documents: NDArray[np.int64]
    line_starts: NDArray[np.int64]
    known: "Known"

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Words of each document, shape (n_documents,)."""
        return np.diff(self.documents)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Code points of each word, shape (n,)."""
        return self.known.lengths[self.ids]

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """64-bit hash of each word, shape (n,)."""
        return self.known.hashes[self.ids]

    @cached_property
    def owner(self) -> NDArray[np.int32]:
        """The document that each word belongs to, shape (n,)."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    @cached_property
    def stop_words(self) -> NDArray[np.int64]:
        """How many different ones of STOP_WORDS each document has, shape (n_documents,)."""
        stop = self.known.stop[self.ids]
        found = np.zeros(len(self.counts), np.int64)
        for number in range(len(STOP_WORDS)):
            found += self.per_document(stop == number) > 0
        return found

    @cached_property
    def sentences(self) -> NDArray[np.int64]:
        """The sentences of each line, at least one, also in a blank line; shape (n_lines,).

        A sentence begins at the first word behind a mark that ends one; other marks in between belong to what stood
        before.
        """
        ends = self.known.ends[self.ids]
        counts = np.flatnonzero(ends | ~self.known.mark[self.ids])
        line = np.searchsorted(self.lines, counts, side="right") - 1
        begins = ends[counts[:-1]] & ~ends[counts[1:]] & (line[:-1] == line[1:])
        return 1 + np.bincount(line[1:][begins], minlength=len(self.lines) - 1)

    def per_document(self, values: NDArray[np.generic]) -> NDArray[np.int64]:
        """Sums a value per word over each document; shape (n_documents,)."""
        return sums(values, self.documents)


@dataclass(frozen=True)
class Known:
    """What is known of each different word, as arrays by word id.

    Attributes:
        lengths: code points.
        hashes: 64-bit hash.
        symbol: made of typographical marks alone.
        letter: has a letter in it.
        mark: made of Unicode punctuation alone.
        ends: ends a sentence.
        stop: number of the stop word of Gopher's list, or -1.
    """

    lengths: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    symbol: NDArray[np.bool_]
    letter: NDArray[np.bool_]
    mark: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    stop: NDArray[np.int8]


STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's everyday words (Rae et al., arXiv 2112.11446, A.1.1)."""


class _Stretches(dict[str, int]):
    """Number of each different stretch of text; a new one is taken apart when it is first looked up."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.sizes: list[int] = []
        self.parts: list[int] = []
        self.chars = 0
        for number, nothing in enumerate((_LINE_END, "")):
            self[nothing] = number
            self.sizes.append(0)

    def __missing__(self, stretch: str) -> int:
        number = self[stretch] = len(self.sizes)
        found = pieces(stretch)
        self.chars += len(stretch)
        self.sizes.append(len(found))
        words = self.words
        for word in found:
            self.parts.append(words.setdefault(word, len(words)))
        return number


class Vocabulary:
    """Every stretch and word that this process has met."""

    def __init__(self) -> None:
        self._clear()

    def split(self, texts: pa.StringArray) -> Words:
        """Splits documents into lines and words."""
        if len(self._stretches) > _MAX_STRETCHES or self._stretches.chars > _MAX_CHARS:
            self._clear()
        marked = pc.utf8_split_whitespace(pc.replace_substring(texts, "\n", f" {_LINE_END} "))
        encoded = marked.flatten().dictionary_encode()
        different = map(self._stretches.__getitem__, encoded.dictionary.to_pylist())
        number = np.fromiter(different, dtype=np.int64, count=len(encoded.dictionary))
        self._learn()
        found = number[encoded.indices.to_numpy()]
        sizes = self._sizes[found]
        before = np.concatenate(([0], np.cumsum(sizes)))
        # Word j of the whole is word j minus the words before its stretch in that stretch.
        places = np.arange(before[-1]) + np.repeat(self._begins[found] - before[:-1], sizes)
        starts = marked.offsets.to_numpy()
        ends = np.flatnonzero(found == 0)
        # A document of n line ends has n + 1 lines: each begins where the document or a line end is.
        line_starts = np.searchsorted(ends, starts) + np.arange(len(starts))
        lines = np.sort(np.concatenate((starts, ends)), kind="stable")
        return Words(self._parts[places], before[lines], before[starts], line_starts, self._known)

    def _clear(self) -> None:
        self._stretches = _Stretches()
        self._sizes = np.empty(0, np.int64)
        self._begins = np.empty(0, np.int64)
        self._parts = np.empty(0, np.int32)
        self._known = _look_at(())

    def _learn(self) -> None:
        """Brings the arrays up to what the look-ups have found."""
        table = self._stretches
        if len(table.sizes) == len(self._sizes):
            return
        self._sizes = np.concatenate((self._sizes, np.array(table.sizes[len(self._sizes) :], np.int64)))
        self._begins = np.cumsum(self._sizes) - self._sizes
        self._parts = np.concatenate((self._parts, np.array(table.parts[len(self._parts) :], np.int32)))
        have = len(self._known.lengths)
        fresh = _look_at(list(table.words)[have:])
        self._known = Known(
            *(np.concatenate((getattr(self._known, name), getattr(fresh, name))) for name in Known.__dataclass_fields__)
        )


def _look_at(words: Iterable[str]) -> Known:
    several = list(words)
    stops = {word: number for number, word in enumerate(STOP_WORDS)}

    def flags(values: Iterable[bool]) -> NDArray[np.bool_]:
        return np.fromiter(values, dtype=bool, count=len(several))

    return Known(
        lengths=np.fromiter(map(len, several), dtype=np.int32, count=len(several)),
        hashes=np.fromiter(map(hash64, several), dtype=np.uint64, count=len(several)),
        symbol=flags(_SYMBOLS.issuperset(word) for word in several),
        letter=flags(any(map(str.isalpha, word)) for word in several),
        mark=flags(all(unicodedata.category(char).startswith("P") for char in word) for word in several),
        ends=flags(word in SENTENCE_ENDS for word in several),
        stop=np.fromiter((stops.get(word, -1) for word in several), dtype=np.int8, count=len(several)),
    )


_vocabulary = Vocabulary()


def split(texts: pa.StringArray) -> Words:
    """Splits documents into words, with this process's tables."""
    return _vocabulary.split(texts)


def sums(values: NDArray[np.generic], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums values over runs; run i is starts[i] .. starts[i + 1]. Shape (len(starts) - 1,)."""
    total = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
    return total[starts[1:]] - total[starts[:-1]]
