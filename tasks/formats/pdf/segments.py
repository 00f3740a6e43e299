"""Segments: characters that follow one another on a line without a wide gap.

Pure functions. A segment never crosses a gutter between columns that is wider than a letter; a line of justified text
may be several segments, which `lines` joins. Accents that a page draws as characters of their own over their letters,
as TeX's older fonts do, join these. Ruby, small kana beside ideographs that say how these are read, is left out: in the
text it would divide the words that it explains.
"""

import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.formats.pdf.bidi import direction, mostly_right_to_left, read, runs
from tasks.formats.pdf.characters import Char

_ACCENTS = {
    **{0xA8: 0x308, 0xB4: 0x301, 0x60: 0x300, 0x2C6: 0x302, 0x5E: 0x302, 0x2DC: 0x303, 0x7E: 0x303, 0xB8: 0x327},
    **{0x2C7: 0x30C, 0x2DA: 0x30A, 0xAF: 0x304, 0x2D8: 0x306, 0x2D9: 0x307, 0x2DD: 0x30B},
}
"""Accents, and the marks that combine with a letter."""
_MOST_ACCENTS = 1_000

_SPACES = frozenset((0x20, 0x09, 0xA0, 0x2007, 0x202F, 0x3000))
_BREAKS = frozenset((0x0A, 0x0D))
# PDFium's own signs for a hyphen at the end of a line.
_HYPHENS = frozenset((0x02, 0xAD, 0xFFFE))
_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
_UPRIGHT_SIGNS = (*range(0xFE10, 0xFE1A), *range(0xFE30, 0xFE45))
"""Signs as they are written in lines from top to bottom."""
# Signs that some maps of fonts take for the letters they look like: C, D, L and M as small Roman numerals.
_ROMAN = {0x217C: "l", 0x217D: "c", 0x217E: "d", 0x217F: "m"}
# What TeX's fonts have at the places of control characters (encodings OT1 and T1), where the file has no map.
_TEX = {
    **dict(zip((0x0B, 0x0C, 0x0E, 0x0F), ("ff", "fi", "ffi", "ffl"), strict=True)),
    **dict(zip(range(0x1B, 0x20), ("ff", "fi", "fl", "ffi", "ffl"), strict=True)),
    **{0x10: "\u201c", 0x11: "\u201d", 0x15: "\u2013", 0x16: "\u2014"},
}
_OTHERS = {
    **dict.fromkeys((*range(0x20), *range(0xD800, 0xE000)), ""),
    **_TEX,
    **dict.fromkeys(_HYPHENS, "-"),
    **_LIGATURES,
    **{code: unicodedata.normalize("NFKC", chr(code)) for code in _UPRIGHT_SIGNS},
    **_ROMAN,
}
WIDE = 1.0
"""Gap, in font sizes, that ends a segment."""
_SPACE = 0.25
_INK = 0.2
SMALL = 0.85
"""Size of exponents and indices beside that of what they belong to, at most."""
_MOSTLY = 0.95

_RUBY_SIZE = 0.62
_RUBY_FARTHEST = 1.4
"""Size against that of its line, and how many sizes of the line its middle may stand above that line's."""


@dataclass(slots=True)
class Segment:
    """Characters in a row, with their box; `size` is that of most of them, and nearly all have `weight` or more.

    `bold` is set once the body of the document is known.
    """

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    weight: int = 0
    bold: bool = False
    math: float = 0.0
    """Share of characters in a font of formulas."""
    mono: float = 0.0
    """Share of characters in a font whose characters have one width."""

    @property
    def middle(self) -> float:
        """The y in the middle of its box."""
        return (self.y0 + self.y1) / 2


class _Open:
    """A segment to which characters are added."""

    __slots__ = ("faces", "math", "parts", "x0", "x1", "y0", "y1")

    def __init__(self, char: Char, text: str) -> None:
        _, self.x0, self.y0, self.x1, self.y1, face, _ = char
        self.parts = [text]
        assert face is not None
        self.faces = [face]
        self.math = face.math

    def add(self, char: Char, text: str) -> None:
        _, x0, y0, x1, y1, face, _ = char
        assert face is not None
        self.parts.append(text)
        self.faces.append(face)
        # Comparisons, since this runs for every character: min and max take three times as long.
        if x0 < self.x0:
            self.x0 = x0
        if x1 > self.x1:
            self.x1 = x1
        if face.math is not self.math:
            if self.math:  # fonts of formulas have boxes much taller than the lines of text that they stand in
                self.y0, self.y1, self.math = y0, y1, False
            return
        if y0 < self.y0:
            self.y0 = y0
        if y1 > self.y1:
            self.y1 = y1

    def takes(self, char: Char, size: float) -> bool:
        """Returns whether a character stands beside the last one, on the same line."""
        code, x0, y0, x1, y1, _, _ = char
        shared = (y1 if y1 < self.y1 else self.y1) - (y0 if y0 > self.y0 else self.y0)
        if shared < 0.4 * (y1 - y0) and shared < 0.4 * (self.y1 - self.y0):
            return False
        wide = WIDE * size if size > 1.0 else WIDE
        return -wide < x0 - self.x1 < wide or (direction(code) == "R" and -wide < self.x0 - x1 < wide)

    def raises(self, char: Char) -> bool:
        """Returns whether a character is an exponent or index, or stands behind one: PDFium ends a line there."""
        face, last = char.face, self.faces[-1]
        assert face is not None
        small = min(face.size, last.size) < SMALL * max(face.size, last.size)
        shared = min(char.y1, self.y1) - max(char.y0, self.y0)
        return (small or face.math or last.math) and shared > 0.5 * (char.y1 - char.y0) and char.x0 > self.x0


def segments(chars: Sequence[Char]) -> tuple[list[Segment], list[Segment]]:
    """Returns the segments of a page that run from left to right or right to left, and those that are turned."""
    chars = with_accents(chars)
    upright: list[Segment] = []
    turned: list[Segment] = []
    whole = mostly_right_to_left(chars)
    for line, mixed in _lines(chars):
        if mixed:
            from_right = whole or mostly_right_to_left(line)
            upright += (_read(run, from_right=from_right) for run in runs(line, WIDE))
        else:
            _left_to_right(line, upright, turned)
    return [one for one in upright if one.text], [one for one in turned if one.text]


def _lines(chars: Sequence[Char]) -> Iterator[tuple[Sequence[Char], bool]]:
    """Yields (line as PDFium sees it, whether letters in it run from right to left); all as one where none do."""
    if not any(direction(char.code) == "R" for char in chars):
        yield chars, False
        return
    line: list[Char] = []
    for char in (*chars, None):
        if char is not None:
            line.append(char)
        if char is None or (char.face is None and char.code in _BREAKS):
            yield line, any(direction(one.code) == "R" and one.face and not one.face.turn for one in line)
            line = []


def _read(run: list[Char], *, from_right: bool) -> Segment:
    now: _Open | None = None
    for text, char in read(run, from_right=from_right):
        space, text = " " * text.startswith(" "), _text_of(ord(text[-1]))
        if now is None:
            now = _Open(char, text)
        else:
            now.add(char, space + text)
    assert now is not None
    return _closed(now)


def _text_of(code: int) -> str:
    return _OTHERS[code] if code in _OTHERS else chr(code)


def _left_to_right(chars: Sequence[Char], upright: list[Segment], turned: list[Segment]) -> None:
    now: _Open | None = None
    turn = 0
    pending = drawn = ended = False
    for char in chars:
        code, face = char.code, char.face
        if face is None or code in _SPACES or code in _BREAKS:
            pending, drawn = True, drawn or face is not None
            ended = ended or code in _BREAKS
            continue
        if now is not None and (
            face.turn != turn or (turn == 0 and ((ended and not now.raises(char)) or not now.takes(char, face.size)))
        ):
            (turned if turn else upright).append(_closed(now))
            now = None
        text = _text_of(code)
        if now is None:
            turn = face.turn
            now = _Open(char, text)
        else:
            if pending and not drawn and (face.spelt or now.faces[-1].spelt):
                # PDFium takes the whole object for each of its characters; the box of one ends where its ink does.
                pending = abs(char.x0 - now.x1) > (_INK if now.faces[-1].spelt else _INK / 2) * face.size
            if pending or (
                turn == 0 and char.x0 - now.x1 > _SPACE * face.size and not _ideographs(now.parts[-1], text)
            ):
                now.parts.append(" ")
            now.add(char, text)
        pending = drawn = ended = False
    if now is not None:
        (turned if turn else upright).append(_closed(now))


def _ideographs(before: str, after: str) -> bool:
    """Returns whether both are of scripts without spaces; their squares leave gaps beside signs."""
    return "\u3000" <= before[-1:] <= "\u9fff" and "\u3000" <= after[:1] <= "\u9fff"


def _closed(now: _Open) -> Segment:
    faces = {id(face): face for face in now.faces}
    counts = Counter(map(id, now.faces))
    sizes: Counter[float] = Counter()
    weights: Counter[int] = Counter()
    math = mono = 0
    for name, face in faces.items():
        sizes[round(face.size, 1)] += counts[name]
        weights[face.weight] += counts[name]
        math += face.math * counts[name]
        mono += face.mono * counts[name]
    count = len(now.faces)
    size = max(sizes, key=lambda size: (sizes[size], size))
    text = "".join(now.parts).strip()
    return Segment(text, now.x0, now.y0, now.x1, now.y1, size, _least(weights), math=math / count, mono=mono / count)


def _least(weights: Counter[int]) -> int:
    """Returns the weight that nearly all characters have or exceed."""
    lighter, few = 0, (1 - _MOSTLY) * weights.total()
    for weight in sorted(weights):
        lighter += weights[weight]
        if lighter > few:
            return weight
    return 0


def with_accents(chars: Sequence[Char]) -> Sequence[Char]:
    """Returns the characters with each accent on the letter that it is drawn over; one over nothing stays.

    A page with more than `_MOST_ACCENTS` accents is left as it is: each is compared with all letters.
    """
    places = [at for at, char in enumerate(chars) if char.code in _ACCENTS and char.face is not None]
    if not 0 < len(places) <= _MOST_ACCENTS:
        return chars
    found = list(chars)
    gone = set()
    for at in places:
        accent = found[at]
        under = next((to for to, char in enumerate(found) if to != at and _is_under(char, accent)), None)
        if under is not None:
            letter = found[under]
            whole = unicodedata.normalize("NFC", chr(letter.code) + chr(_ACCENTS[accent.code]))
            if len(whole) == 1:
                found[under] = letter._replace(code=ord(whole))
                gone.add(at)
    return [char for at, char in enumerate(found) if at not in gone]


def _is_under(letter: Char, accent: Char) -> bool:
    if letter.face is None or not accent.x0 < letter.x1 or not letter.x0 < accent.x1:
        return False
    shared = min(letter.x1, accent.x1) - max(letter.x0, accent.x0)
    beside = min(letter.y1, accent.y1) - max(letter.y0, accent.y0)
    wide = shared > 0.6 * (accent.x1 - accent.x0) and beside > 0.5 * (letter.y1 - letter.y0)
    return wide and chr(letter.code).isalpha()


def without_ruby(found: Sequence[Segment]) -> list[Segment]:
    """Returns the segments without those of small kana above a line of twice their size, and over a part of it."""
    lines = sorted(found, key=lambda one: one.middle)
    heights = [one.middle for one in lines]
    kept = []
    for one in found:
        if _is_kana(one.text):
            reach = _RUBY_FARTHEST * one.size / _RUBY_SIZE * 2
            below = lines[bisect_right(heights, one.middle) : bisect_left(heights, one.middle + reach)]
            if any(_is_over(one, line) for line in below):
                continue
        kept.append(one)
    return kept


def _is_kana(text: str) -> bool:
    return all("\u3040" <= letter <= "\u30ff" or letter == " " for letter in text)


def _is_over(one: Segment, line: Segment) -> bool:
    close = line.middle - one.middle < _RUBY_FARTHEST * line.size
    shared = min(one.x1, line.x1) - max(one.x0, line.x0)
    return close and one.size < _RUBY_SIZE * line.size and shared > 0.5 * (one.x1 - one.x0)
