"""Kinds of words: symbols only, without a letter, punctuation only, sentence end, stop word."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray


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
    return bits | ENDS if word in SPLIT_ENDS else bits


_PUNCTUATION = frozenset(char for char in map(chr, range(128)) if unicodedata.category(char).startswith("P"))
