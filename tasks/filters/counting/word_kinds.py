"""Kinds of words: symbols only, without a letter, punctuation only, sentence end, stop word."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

SENTENCE_ENDS = tuple("!.?։؟۔܀܁܂߹।॥၊။።፧፨᙮᜵᜶᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿‼‽⁇⁈⁉⸮⸼꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗！．？｡。")
"""Marks that end a sentence: Unicode's Sentence_Terminal in the Basic Multilingual Plane."""

# Marks of typesetting and control characters: a word of nothing else is a symbol (datatrove's set).
_SYMBOLS = frozenset(SENTENCE_ENDS) | frozenset(
    "!/—”:％１〈&(、━\\【#%「」，】；+^]~“《„';’{|∶´[=-`*．（–？！：$～«〉,><》)?）。…@_.\"}►»"
    + "".join(map(chr, (*range(9), 11, 12, *range(13, 32), *range(127, 160))))
)

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""Gopher's stop words (Rae et al., arXiv 2112.11446, A.1.1)."""

# Properties of a word, as bits: made of typographical marks alone, without a letter, made of Unicode punctuation
# alone, ends a sentence, one of STOP_WORDS. Most words have none of them.
SYMBOL, NO_LETTER, MARK, ENDS, STOP = (1 << bit for bit in range(5))


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
    return bits | ENDS if word in _ENDINGS else bits


_ENDINGS = frozenset(SENTENCE_ENDS)
_PUNCTUATION = frozenset(char for char in map(chr, range(128)) if unicodedata.category(char).startswith("P"))
