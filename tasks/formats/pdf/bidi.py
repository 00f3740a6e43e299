"""Right-to-left text: puts the characters of a line in reading order.

Pure functions. A page has characters without an order, and PDFium returns them in the order in which they were drawn.
This module sorts a line by position and reverses it, except runs from left to right in it (words in other scripts and
numbers). That is the inverse of the Unicode Bidirectional Algorithm (UAX #9) for two levels. If several texts look the
same, a number next to a Latin word belongs to that word.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from tasks.formats.pdf.characters import Char

_LETTERS = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
_BRACKETS = dict(zip("()[]{}<>«»", ")(][}{><»«", strict=True))
_OPENING = frozenset("([{«")
_IN_NUMBERS = frozenset(".,:/-+%٫٬")
_SPACES = frozenset((0x20, 0xA0, 0x0D, 0x0A))
_CLOSING = frozenset(".,:;!?)]}»،؛؟")
_WORD_GAP = 0.15
"""Minimum gap that is a space, in font sizes; gaps between ink boxes are a little wider."""


def has_right_to_left(text: str) -> bool:
    """Returns whether a text has right-to-left letters."""
    return _LETTERS.search(text) is not None


@cache
def direction(code: int) -> str:
    """Returns "R" for a right-to-left letter, "L" for a left-to-right letter, "N" for a digit, else ""."""
    kind = unicodedata.bidirectional(chr(code)) if code <= 0x10FFFF else ""
    return {"R": "R", "AL": "R", "L": "L", "EN": "N", "AN": "N"}.get(kind, "")


def mostly_right_to_left(chars: Sequence[Char]) -> bool:
    """Returns whether there are more right-to-left letters than left-to-right ones."""
    directions = [direction(char.code) for char in chars]
    return directions.count("R") > directions.count("L")


def runs(line: Sequence[Char], wide: float) -> list[list[Char]]:
    """Returns the characters of a line from left to right, split at gaps wider than `wide` font sizes.

    A mark follows the letter over which it is drawn; characters with the same box keep the order of the file.
    """
    bases = [char for char in line if char.face is not None and char.code not in _SPACES and not _is_mark(char.code)]
    marks = [char for char in line if char.face is not None and _is_mark(char.code)]
    if not bases:
        return [marks] if marks else []
    bases.sort(key=lambda char: char.x0 + char.x1)
    centers = [char.x0 + char.x1 for char in bases]
    marks_by_base: dict[int, list[Char]] = {}
    for mark in marks:
        center = mark.x0 + mark.x1
        at = bisect_left(centers, center)
        nearest = min(range(max(0, at - 1), min(len(bases), at + 1)), key=lambda at: abs(centers[at] - center))
        marks_by_base.setdefault(nearest, []).append(mark)
    result = [[bases[0], *marks_by_base.get(0, ())]]
    for at, (before, char) in enumerate(pairwise(bases), 1):
        if char.x0 - before.x1 > wide * _size(char):
            result.append([])
        result[-1] += [char, *marks_by_base.get(at, ())]
    return result


def read(run: Sequence[Char], *, from_right: bool) -> list[tuple[str, Char]]:
    """Returns (text, character) for the characters of a run in reading order; a word's text starts with its space.

    Args:
        run: one of `runs`.
        from_right: whether the line is read from right to left.
    """
    if from_right:
        return _read_from_right(run)
    ordered: list[tuple[str, Char]] = []
    at = 0
    while at < len(run):
        end = _end_of_right_to_left(run, at)
        words = _read_from_right(run[at:end])
        if at and _is_space(run[at - 1], run[at]):
            words[0] = (" " + words[0][0], words[0][1])
        ordered += words
        at = end
    return ordered


def _end_of_right_to_left(run: Sequence[Char], start: int) -> int:
    """Returns the end of the right-to-left words that begin at `start`, or of the single other character there."""
    end = start + 1
    if direction(run[start].code) == "R":
        for at in range(start + 1, len(run)):
            kind = direction(run[at].code)
            if kind == "L":
                break
            end = at + 1 if kind == "R" or _is_mark(run[at].code) else end
    return end


def _read_from_right(run: Sequence[Char]) -> list[tuple[str, Char]]:
    units = _units(run)
    ordered: list[tuple[str, Char]] = []
    right = [chr(unit[0].code) for unit in units if len(unit) == 1 and chr(unit[0].code) in _BRACKETS]
    # Programs store a bracket by its shape or by its meaning: the first one in reading order must be an opening one.
    mirrored = bool(right) and right[-1] not in _OPENING
    before: Sequence[Char] = ()
    for unit in reversed(units):
        closing = _text(unit[0], mirrored=mirrored) in _CLOSING
        space = bool(before) and _is_space(unit[-1], before[0], before_sign=closing)
        for number, char in enumerate(unit):
            text = _text(char, mirrored=mirrored and len(unit) == 1)
            inner = number > 0 and _is_space(unit[number - 1], char)
            ordered.append((" " + text if (space and not number) or inner else text, char))
        before = unit
    return ordered


def _text(char: Char, *, mirrored: bool) -> str:
    text = chr(char.code)
    return _BRACKETS.get(text, text) if mirrored else text


def _is_space(left: Char, right: Char, *, before_sign: bool = False) -> bool:
    """Returns whether there is a space between two neighbors; `before_sign` if the later one is a closing sign."""
    actual_text = any(char.face is not None and char.face.actual_text for char in (left, right))
    return right.x0 - left.x1 > (2 * _WORD_GAP if before_sign or actual_text else _WORD_GAP) * _size(left)


def _units(run: Sequence[Char]) -> list[list[Char]]:
    """Splits a run into units that are not reversed: left-to-right stretches, letters with marks, and ligatures."""
    kinds = [direction(char.code) for char in run]
    units: list[list[Char]] = []
    at = 0
    while at < len(run):
        end = at + 1
        if kinds[at] in ("L", "N"):
            end = _end_of_left_to_right(run, kinds, at)
        else:
            while end < len(run) and (_is_mark(run[end].code) or run[end][1:5] == run[at][1:5]):
                end += 1
        units.append(list(run[at:end]))
        at = end
    return units


def _end_of_left_to_right(run: Sequence[Char], kinds: Sequence[str], start: int) -> int:
    """Returns the end of the left-to-right words from `start` on.

    After a letter they extend to the last letter or digit before a right-to-left letter. A bracket belongs to them if
    its counterpart does.
    """
    end, latin, open_brackets = start + 1, kinds[start] == "L", 0
    for at in range(start + 1, len(run)):
        text, kind = chr(run[at].code), kinds[at]
        if kind == "R" or open_brackets < 0:
            break
        open_brackets += (text in _BRACKETS) * (1 if text in _OPENING else -1)
        if kind:
            if not latin and (at > end + 1 or (kind == "L" and at > end)):
                break  # a number, followed by something else
            latin = latin or kind == "L"
        elif not latin and text not in _IN_NUMBERS:
            break
        if (kind or text in _BRACKETS) and not open_brackets:
            end = at + 1
    return end


def _is_mark(code: int) -> bool:
    return 0x590 <= code <= 0x8FF and unicodedata.combining(chr(code)) > 0


def _size(char: Char) -> float:
    return char.face.size if char.face is not None else 0.0
