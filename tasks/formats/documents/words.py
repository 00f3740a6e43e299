"""Words of scripts written without spaces: Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan.

Reads and writes nothing. `spaced` inserts spaces between the words of these scripts, so that whatever splits a text at
spaces counts its words. Everything else that counts, compares or limits words goes through it: filters, shingles,
n-gram models, chunks, features of extraction. Text of other scripts is returned unchanged.

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
from collections.abc import Iterator
from dataclasses import dataclass

WORDS = "icu 78.3, rules 1"
"""Segmentation by which words are counted: the version of ICU and its dictionaries, and that of the rules here."""

BLOCK = 1 << 14
"""Code points that are split at once. A longer line is cut there, so memory is bounded."""

_HAN = "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HIRAGANA = "\u3041-\u3096\u309d-\u309f"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_THAI = "\u0e01-\u0e3a\u0e40-\u0e4e"
_LAO = "\u0e81-\u0ebd\u0ec0-\u0ece\u0edc-\u0edf"
_TSEK = "\u0f0b\u0f0c"
_TIBETAN = f"\u0f00{_TSEK}\u0f18\u0f19\u0f35\u0f37\u0f39\u0f3e-\u0fbc"
_MYANMAR = "\u1000-\u103f\u1050-\u108f\u109a-\u109d\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f"
_KHMER = "\u1780-\u17d3\u17d7\u17dc\u17dd"
# `re` checks ranges beyond the Basic Multilingual Plane one by one, so there are two: old kana, and Han.
_BEYOND = "\U0001b000-\U0001b16f\U00020000-\U000323af"
UNSPACED = _HAN + _HIRAGANA + _KATAKANA + _THAI + _LAO + _TIBETAN + _MYANMAR + _KHMER + _BEYOND
"""Letters of scripts written without spaces, as the body of a character class."""

_ANY = re.compile(f"[{UNSPACED}]")


def spaced(text: str) -> str:
    """Returns the text with a space between the words of scripts written without spaces.

    Only spaces are added. Text without such scripts is returned as the same object. Lines are independent of each
    other: the result of a text is the results of its lines.

    >>> spaced("我爱中国人民。AIで作る"), spaced("plain text")
    ('我 爱 中国 人民。 AI で 作る', 'plain text')
    """
    if text.isascii() or not _ANY.search(text):
        return text
    return "".join(map(_spaced, _blocks(text)))


def words(text: str) -> list[str]:
    """Returns the words of a text: `spaced` split at white space, with the punctuation that touches them."""
    return spaced(text).split()


def _blocks(text: str) -> Iterator[str]:
    """Yields the text in parts of whole lines; a line longer than BLOCK is cut, at a space if it has one."""
    begin = 0
    while len(text) - begin > BLOCK:
        cut = text.rfind("\n", begin, begin + BLOCK)
        if cut <= begin:
            cut = text.rfind(" ", begin, begin + BLOCK)
        if cut <= begin:
            cut = begin + BLOCK
        yield text[begin:cut]
        begin = cut
    yield text[begin:] if begin else text


def _spaced(text: str) -> str:
    """Returns `spaced` of at most BLOCK code points."""
    from icu4py.breakers import WordBreaker

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
    gaps: dict[str, str] = {}
    last = len(parts) - 1
    for index in range(0, last + 1, 2):
        gap = parts[index]
        if 0 < index < last and (known := gaps.get(gap)) is not None:
            parts[index] = known
        else:
            parts[index] = _gap(gap, after=index > 0, before=index < last)
            if 0 < index < last:
                gaps[gap] = parts[index]
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
    run: re.Pattern[str]
    katakana: re.Pattern[str]
    torn: re.Pattern[str]
    opening: re.Pattern[str]
    closing: re.Pattern[str]


@functools.cache
def _rules() -> _Rules:
    kinds = {point: unicodedata.category(chr(point)) for point in range(0x21, 0x10000)}
    marks = _ranges([point for point, kind in kinds.items() if kind.startswith("M")])
    opening = _ranges([point for point, kind in kinds.items() if kind in ("Ps", "Pi")])
    # Marks, joiners and variation selectors belong to the letter before them; so do the kana marks of half width.
    extend = f"{marks}\u200c\u200d\uff9e\uff9f\U000e0100-\U000e01ef"
    return _Rules(
        run=re.compile(f"([{UNSPACED}][{UNSPACED}{extend}]*+)"),
        katakana=re.compile(f"[{_KATAKANA}]++(?: [{_KATAKANA}]++)++"),
        torn=re.compile(f" (?=[{extend}{_TSEK}])"),
        opening=re.compile(f"[{opening}]"),
        closing=re.compile(f"[^\\s\\w{opening}]*+"),
    )


def _ranges(points: list[int]) -> str:
    runs: list[list[int]] = []
    for point in points:
        if runs and point == runs[-1][1] + 1:
            runs[-1][1] = point
        else:
            runs.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in runs)
