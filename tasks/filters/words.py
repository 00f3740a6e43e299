"""The words and punctuation marks of many documents at once, as arrays.

Used by annotators through `Batch.words`. Every different stretch of text is taken apart once per process
(`tasks.filters.english`) and every different word is looked at once; what remains for a document is a look-up for each
of its stretches and sums over arrays. The tables are dropped when they have grown large; no result depends on them.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, repeat

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filters.english import pieces
from tasks.filters.stretches import stretches

SENTENCE_ENDS = tuple("!.?։؟۔܀܁܂߹।॥၊။።፧፨᙮᜵᜶᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗！．？｡。")
"""Marks that end a sentence: Unicode's Sentence_Terminal in the Basic Multilingual Plane."""

# Marks of typesetting and control characters: a word of nothing else is a symbol (datatrove's set).
_SYMBOLS = frozenset(SENTENCE_ENDS) | frozenset(
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, (*range(9), 11, 12, *range(13, 32), *range(127, 160))))
)
_MAX_STRETCHES = 1_000_000
_MAX_CHARS = 50_000_000

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's everyday words (Rae et al., arXiv 2112.11446, A.1.1)."""

# What is known of a word, as bits: made of typographical marks alone, without a letter, made of Unicode punctuation
# alone, ends a sentence, one of STOP_WORDS. Most words have none of them.
_SYMBOL, _NO_LETTER, _MARK, _ENDS, _STOP = (1 << bit for bit in range(5))


@dataclass(frozen=True)
class Words:
    """Words of several documents, one after the other.

    Attributes:
        ids: int32 of shape (n,); equal words have equal ids within this object.
        lines: int64 of shape (n_lines + 1,): where the words of each line begin.
        documents: int64 of shape (n_documents + 1,): where the words of each document begin.
        line_starts: int64 of shape (n_documents + 1,): where the lines of each document begin.
        line_stretches: int64 of shape (n_lines,): how many words each line has when it is split at white space alone.
        known: what is known of each different word, by id.
    """

    ids: NDArray[np.int32]
    lines: NDArray[np.int64]
    documents: NDArray[np.int64]
    line_starts: NDArray[np.int64]
    line_stretches: NDArray[np.int64]
    known: "Known"

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Words of each document, shape (n_documents,)."""
        return np.diff(self.documents)

    @cached_property
    def owner(self) -> NDArray[np.int32]:
        """The document that each word belongs to, shape (n,)."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Code points of all words before each word, and of all, shape (n + 1,)."""
        total = np.zeros(len(self.ids) + 1, np.int64)
        np.cumsum(self.known.lengths[self.ids], out=total[1:])
        return total

    @cached_property
    def symbols(self) -> NDArray[np.int64]:
        """Words of each document that are made of typographical marks alone, shape (n_documents,)."""
        return self._per_document(self._places(_SYMBOL))

    @cached_property
    def symbol_chars(self) -> NDArray[np.int64]:
        """Code points of those words, shape (n_documents,)."""
        places = self._places(_SYMBOL)
        before = np.concatenate(([0], np.cumsum(self.ends[places + 1] - self.ends[places])))
        return np.diff(before[np.searchsorted(places, self.documents)])

    @cached_property
    def chars(self) -> NDArray[np.int64]:
        """Code points of all words of each document, shape (n_documents,)."""
        return np.diff(self.ends[self.documents])

    @cached_property
    def letters(self) -> NDArray[np.int64]:
        """Words of each document that have a letter in them, shape (n_documents,)."""
        return self.counts - self._per_document(self._places(_NO_LETTER))

    @cached_property
    def stop_words(self) -> NDArray[np.int64]:
        """How many different ones of STOP_WORDS each document has, shape (n_documents,)."""
        places = self._places(_STOP)
        owner = np.searchsorted(self.documents, places, side="right") - 1
        found = np.zeros((len(self.counts), len(STOP_WORDS)), np.int64)
        found[owner, self.known.stop[self.ids[places]]] = 1
        different: NDArray[np.int64] = found.sum(axis=1)
        return different

    @cached_property
    def sentences(self) -> NDArray[np.int64]:
        """The sentences of each line, at least one, also in a blank line; shape (n_lines,).

        A sentence begins at the first word behind a mark that ends one; other marks in between belong to what stood
        before.
        """
        bits = self._bits & (_MARK | _ENDS)
        counts = np.flatnonzero(bits != _MARK)
        ends = (bits[counts] & _ENDS) != 0
        begins = np.flatnonzero(ends[:-1] & ~ends[1:])
        line, before = (np.searchsorted(self.lines, counts[at], side="right") - 1 for at in (begins + 1, begins))
        return 1 + np.bincount(line[line == before], minlength=len(self.lines) - 1)

    @cached_property
    def _bits(self) -> NDArray[np.uint8]:
        return self.known.bits[self.ids]

    def _places(self, bit: int) -> NDArray[np.int64]:
        return np.flatnonzero((self._bits & bit) != 0)

    def _per_document(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Counts places, which rise, by document."""
        return np.diff(np.searchsorted(places, self.documents))


@dataclass(frozen=True)
class Known:
    """What is known of each different word, as arrays by word id.

    Attributes:
        lengths: code points.
        bits: what kind of word it is.
        stop: number of the stop word of Gopher's list, or -1.
    """

    lengths: NDArray[np.int32]
    bits: NDArray[np.uint8]
    stop: NDArray[np.int8]


class Vocabulary:
    """Every stretch and word that this process has met."""

    def __init__(self) -> None:
        self._clear()

    def split(self, texts: pa.StringArray) -> Words:
        """Splits documents into lines and words."""
        if len(self._numbers) > _MAX_STRETCHES or self._chars > _MAX_CHARS:
            self._clear()
        found = stretches(texts)
        encoded = found.texts.dictionary_encode()
        try:
            number = self._numbered(encoded.dictionary.to_pylist())
        except BaseException:
            self._clear()  # half a table would make later results wrong
            raise
        # First for the different stretches of these documents, so that what is looked up by place is small.
        indices = encoded.indices.to_numpy()
        sizes = self._sizes[number][indices]
        before = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(sizes, out=before[1:])
        # Word j of the whole is word j minus the words before its stretch in that stretch.
        places = np.repeat(self._begins[number][indices] - before[:-1], sizes)
        places += np.arange(before[-1])
        return Words(
            ids=self._parts[places],
            lines=before[found.lines],
            documents=before[found.documents],
            line_starts=found.line_starts,
            line_stretches=np.diff(found.lines),
            known=self._known,
        )

    def _clear(self) -> None:
        # A new key is given the next number.
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self._words: defaultdict[str, int] = defaultdict(count().__next__)
        self._chars = 0
        self._sizes = np.empty(0, np.int64)
        self._begins = np.empty(0, np.int64)
        self._parts = np.empty(0, np.int32)
        self._known = _look_at(())

    def _numbered(self, different: Sequence[str]) -> NDArray[np.int64]:
        """Returns the number of each of some different stretches; new ones are taken apart."""
        have, had = len(self._numbers), len(self._words)
        number = np.fromiter(map(self._numbers.__getitem__, different), np.int64, len(different))
        fresh = [different[place] for place in np.flatnonzero(number >= have).tolist()]
        if fresh:
            found = list(map(pieces, fresh))
            sizes = np.fromiter(map(len, found), np.int64, len(found))
            words = map(self._words.__getitem__, chain.from_iterable(found))
            self._parts = np.concatenate((self._parts, np.fromiter(words, np.int32, int(sizes.sum()))))
            self._sizes = np.concatenate((self._sizes, sizes))
            self._begins = np.cumsum(self._sizes) - self._sizes
            self._chars += sum(map(len, fresh))
            new = _look_at(list(self._words)[had:])
            names = Known.__dataclass_fields__
            self._known = Known(*(np.concatenate((getattr(self._known, name), getattr(new, name))) for name in names))
        return number


def _look_at(words: Sequence[str]) -> Known:
    stops = {word: number for number, word in enumerate(STOP_WORDS)}
    stop = np.fromiter(map(stops.get, words, repeat(-1)), np.int8, len(words))
    bits = (stop >= 0).astype(np.uint8) * np.uint8(_STOP)
    plain = np.fromiter(map(str.isalpha, words), bool, len(words))
    for place in np.flatnonzero(~plain).tolist():
        bits[place] = _kind(words[place])
    return Known(np.fromiter(map(len, words), np.int32, len(words)), bits, stop)


def _kind(word: str) -> int:
    """Returns what is known of a word that is not made of letters alone."""
    if word.isascii():
        letter, mark = word.lower() != word.upper(), _PUNCTUATION.issuperset(word)
    else:
        letter = any(map(str.isalpha, word))
        mark = all(unicodedata.category(char).startswith("P") for char in word)
    bits = 0 if letter else _NO_LETTER
    if not letter and _SYMBOLS.issuperset(word):
        bits |= _SYMBOL
    if mark:
        bits |= _MARK
    return bits | _ENDS if word in _ENDINGS else bits


_ENDINGS = frozenset(SENTENCE_ENDS)
_PUNCTUATION = frozenset(char for char in map(chr, range(128)) if unicodedata.category(char).startswith("P"))

_vocabulary = Vocabulary()


def split(texts: pa.StringArray) -> Words:
    """Splits documents into words, with this process's tables."""
    return _vocabulary.split(texts)
