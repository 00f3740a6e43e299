"""Words of scripts written without spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan.

Reads and writes nothing. `spaced` inserts spaces between the words of these scripts, so that whatever splits a text at
spaces counts its words. Everything that counts or limits words goes through it: filters, n-gram models, chunks,
repeated paragraphs, decontamination. Text of other scripts is returned unchanged.

Words are those of ICU's word break iterator (UAX #29) with its dictionaries for Chinese and Japanese, Thai, Lao, Khmer
and Burmese, except that

- a run of katakana is one word if ICU finds a word of one character in it: ICU's rule for unknown katakana ends at 8
  characters, and cuts a longer run into letters;
- a word of Tibetan is a syllable with the mark that ends it (tsek); no dictionary is used;
- a mark stays with its letter.

Punctuation is not cut off: as in other scripts it belongs to the word before it, and opening marks to the word after.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

WORDS = "icu 78.3, rules 1"
"""Segmentation by which words are counted: the version of ICU and its dictionaries, and that of the rules here."""

BLOCK = 1 << 14
"""Code points that are split at once. A longer line is cut there, so memory is bounded."""

_HAN = ((0x3005, 0x3007), (0x3021, 0x3029), (0x3038, 0x303B), (0x3400, 0x4DBF), (0x4E00, 0x9FFF))
_HIRAGANA = ((0x3041, 0x3096), (0x309D, 0x309F))
_KATAKANA = ((0x30A1, 0x30FA), (0x30FC, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F))
_THAI = ((0x0E01, 0x0E3A), (0x0E40, 0x0E4E))
_LAO = ((0x0E81, 0x0EBD), (0x0EC0, 0x0ECE), (0x0EDC, 0x0EDF))
TSEK = (0x0F0B, 0x0F0C)
"""The marks between syllables of Tibetan."""
_TIBETAN = ((0x0F00, 0x0F00), TSEK, (0x0F18, 0x0F19), *((p, p) for p in (0x0F35, 0x0F37, 0x0F39)), (0x0F3E, 0x0FBC))
_MYANMAR = ((0x1000, 0x103F), (0x1050, 0x108F), (0x109A, 0x109D))
_KHMER = ((0x1780, 0x17D3), (0x17D7, 0x17D7), (0x17DC, 0x17DD))
# `re` checks ranges beyond the Basic Multilingual Plane one by one, so there are two: old kana, and Han.
_BEYOND = ((0x1B000, 0x1B16F), (0x20000, 0x323AF))
UNSPACED = (
    *(*_HAN, (0xF900, 0xFAFF), *_HIRAGANA, *_KATAKANA, *_THAI, *_LAO, *_TIBETAN, *_MYANMAR, *_KHMER),
    *_BEYOND,
)
"""First and last code points of the letters of scripts written without spaces."""

# First bytes in UTF-8 of these letters: a text that is left with none of them has none of these scripts.
_OTHER_BYTES = bytes({*range(256)} - {*b"\xe0\xe1\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xef\xf0"})


def spaced(text: str) -> str:
    """Returns the text with a space between the words of scripts written without spaces.

    Only spaces are added. Text without such scripts is returned as the same object. Lines are independent of each
    other: the result of a text is the results of its lines.

    >>> spaced("我爱中国人民。AIで作る"), spaced("plain text")
    ('我 爱 中国 人民。 AI で 作る', 'plain text')
    """
    if not has_unspaced(text):
        return text
    return "".join(map(_spaced, _blocks(text)))


def has_unspaced(text: str) -> bool:
    """Returns whether a text has letters of scripts written without spaces."""
    if text.isascii():
        return False
    # Ten times as fast as a search in the many texts whose other characters are accented letters and typographic marks.
    if not text.encode("utf-8", "surrogatepass").translate(None, _OTHER_BYTES):
        return False
    return _rules().letter.search(text) is not None


def words(text: str) -> list[str]:
    """Returns the words of a text: `spaced` split at white space, with the punctuation that touches them."""
    return spaced(text).split()


def _blocks(text: str) -> Iterator[str]:
    """Yields the text in parts of whole lines; a line longer than BLOCK is cut, after a space if it has one."""
    begin = 0
    while len(text) - begin > BLOCK:
        cut = text.rfind("\n", begin, begin + BLOCK + 1) + 1
        if cut <= begin:
            cut = text.rfind(" ", begin, begin + BLOCK) + 1
        if cut <= begin:
            cut = begin + BLOCK
        yield text[begin:cut]
        begin = cut
    yield text[begin:] if begin else text


def _spaced(text: str) -> str:
    """Returns `spaced` of one block."""
    from icu4py.breakers import WordBreaker

    if not has_unspaced(text):
        return text
    rules = _rules()
    parts = rules.run.split(text)  # runs of these scripts have odd numbers
    if len(parts) == 1:
        return text
    # One iterator for all runs: to create one takes as long as to split 20 words.
    cut = " ".join(WordBreaker("\n".join(parts[1::2]), "root"))
    cut = rules.torn.sub("", rules.katakana.sub(_katakana, cut))
    if "\u200d" in cut:
        cut = cut.replace("\u200d ", "\u200d")
    parts[1::2] = [run.strip(" ") for run in cut.split("\n")]
    parts[0] = _gap(parts[0], after=False, before=True)
    parts[-1] = _gap(parts[-1], after=True, before=False)
    between = parts[2:-1:2]
    gaps = {gap: _gap(gap, after=True, before=True) for gap in set(between)}  # few: most are a comma or a full stop
    parts[2:-1:2] = [gaps[gap] for gap in between]
    return "".join(parts)


def _gap(text: str, after: bool, before: bool) -> str:
    """Returns what stands between runs, with spaces where it touches them.

    Closing marks stay at the word before them, and opening marks at the word after them.

    Args:
        text: from the end of a run to the beginning of the next, or to an end of the block.
        after: whether a run is before it.
        before: whether a run is after it.
    """
    if not text:
        return text
    rules = _rules()
    last = text[-1]
    end = " " if before and not (last.isspace() or rules.opening.match(last)) else ""
    if not after:
        return text + end
    closing = rules.closing.match(text)
    size = closing.end() if closing else 0
    begin = " " if size < len(text) and not text[size].isspace() else ""
    return f"{text[:size]}{begin}{text[size:]}{end}"


def _katakana(match: re.Match[str]) -> str:
    run = match[0]
    return run.replace(" ", "") if 1 in map(len, run.split(" ")) else run


@dataclass(frozen=True)
class _Rules:
    letter: re.Pattern[str]
    run: re.Pattern[str]
    katakana: re.Pattern[str]
    torn: re.Pattern[str]
    opening: re.Pattern[str]
    closing: re.Pattern[str]


@functools.cache
def _rules() -> _Rules:
    kinds = {point: unicodedata.category(chr(point)) for point in range(0x21, 0x10000)}
    opening = class_body(point for point, kind in kinds.items() if kind in ("Ps", "Pi"))
    # Marks, joiners and variation selectors belong to the letter before them; so do the kana marks of half width.
    extend = class_body(point for point, kind in kinds.items() if kind.startswith("M"))
    extend += "\u200c\u200d\uff9e\uff9f\U000e0100-\U000e01ef"
    letter, katakana = ("".join(map(_range, ranges)) for ranges in (UNSPACED, _KATAKANA))
    points = chain.from_iterable(range(begin, end + 1) for begin, end in UNSPACED)
    first = class_body(point for point in points if not kinds.get(point, "").startswith("M"))
    return _Rules(
        letter=re.compile(f"[{letter}]"),
        run=re.compile(f"([{first}][{letter}{extend}]*+)"),
        # The lookbehind keeps long runs without a space linear.
        katakana=re.compile(f"(?<![{katakana}])[{katakana}]++(?: [{katakana}]++)++"),
        torn=re.compile(f" (?=[{extend}{_range(TSEK)}])"),
        opening=re.compile(f"[{opening}]"),
        closing=re.compile(f"[^\\s\\w{opening}]*+"),
    )


def class_body(points: Iterable[int]) -> str:
    """Returns ascending code points as the body of a character class of `re`, with consecutive ones as ranges."""
    runs: list[list[int]] = []
    for point in points:
        if runs and point == runs[-1][1] + 1:
            runs[-1][1] = point
        else:
            runs.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in runs)


def _range(ends: tuple[int, int]) -> str:
    return f"\\U{ends[0]:08x}-\\U{ends[1]:08x}"
