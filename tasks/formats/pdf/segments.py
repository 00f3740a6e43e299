"""Segments: consecutive characters on a line without a wide gap.

Pure functions. A segment never crosses a gutter between columns that is wider than a letter; a line of justified text
may consist of several segments, which `lines` joins. Accents that are drawn as separate characters over their letters,
as in TeX's older fonts, are combined with these. Ruby, small kana next to ideographs that give their pronunciation, is
removed, because it would split the words that it annotates.
"""

import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.formats.pdf.bidi import direction, mostly_right_to_left, read, runs
from tasks.formats.pdf.characters import TEX, Char

_ACCENTS = {
    **{0xA8: 0x308, 0xB4: 0x301, 0x60: 0x300, 0x2C6: 0x302, 0x5E: 0x302, 0x2DC: 0x303, 0x7E: 0x303, 0xB8: 0x327},
    **{0x2C7: 0x30C, 0x2DA: 0x30A, 0xAF: 0x304, 0x2D8: 0x306, 0x2D9: 0x307, 0x2DD: 0x30B},
}
"""Accents, and the corresponding combining marks."""
_MOST_ACCENTS = 1_000

_SPACES = frozenset((0x20, 0x09, 0xA0, 0x2007, 0x202F, 0x3000))
_BREAKS = frozenset((0x0A, 0x0D))
# PDFium's codes for a hyphen at the end of a line.
_HYPHENS = frozenset((0x02, 0xAD, 0xFFFE))
_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
_UPRIGHT_SIGNS = (*range(0xFE10, 0xFE1A), *range(0xFE30, 0xFE45))
"""Presentation forms of punctuation for vertical lines."""
# Some fonts map the letters l, c, d and m to small Roman numerals, which look the same.
_ROMAN = {0x217C: "l", 0x217D: "c", 0x217E: "d", 0x217F: "m"}
_REPLACEMENTS = {
    **dict.fromkeys((*range(0x20), *range(0xD800, 0xE000)), ""),
    **TEX,
    **dict.fromkeys(_HYPHENS, "-"),
    **_LIGATURES,
    **{code: unicodedata.normalize("NFKC", chr(code)) for code in _UPRIGHT_SIGNS},
    **_ROMAN,
}
WIDE = 1.0
"""Gap, in font sizes, that ends a segment."""
_SPACE = 0.25
_INK = 0.2
_SPLIT = 0.5
"""Minimum gap in points between two cells with a ruling between them."""
SMALL = 0.85
"""Maximum size of exponents and indices, relative to their base."""
_SMALLEST, _RISE, _SINK = 0.4, 0.15, 0.05
"""Minimum size of exponents relative to their base, and distances of the baselines of exponents and indices from that
of their base, in its sizes."""
_THIN_SPACE = 0.2
"""Minimum gap of a space before or after an exponent or index, in sizes of its base."""
_BEFORE = 24
_EXPONENT = re.compile(r"[+\-\u2212]?(?:[0-9]{1,4}|[A-Za-z]{1,3}|[0-9A-Za-z+\-\u2212/()]{1,10})")
_CLOSING = frozenset(")]}\u2032")
_SIGNS = "+-\u2212"
_RAISED = str.maketrans("0123456789+-\u2212ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻ⁿⁱ")
_NUMBER_AT_END = re.compile(r"(?<![0-9.,:/\w-])[0-9]{1,2}$")
_WORD_AT_END = re.compile(r"[^\W\d_]+$")
_SHORT_WORDS = frozenset(
    (
        *("am", "an", "as", "at", "be", "by", "do", "go", "he", "if", "in", "is", "it", "me", "my", "no", "of", "on"),
        *("or", "so", "to", "up", "us", "we", "ab", "da", "du", "er", "es", "im", "ob", "um", "wo", "zu"),
    )
)
"""Words of two letters, after which a raised number is the mark of a note."""
_MOSTLY = 0.95
_PLAIN = 0.1
"""Minimum share of characters in other than monospaced fonts whose size is that of the segment."""

_RUBY_SIZE = 0.62
_RUBY_FARTHEST = 1.4
"""Maximum size of ruby relative to its line, and maximum distance between their middles, in sizes of the line."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a table, all with the same number of cells, and how many of them are its head (0 if unknown)."""

    rows: tuple[tuple[str, ...], ...]
    header_rows: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """A line per row, its cells separated by tabs: the words of the table, for code that does not read `rows`."""
        return tuple("\t".join(row).rstrip() for row in self.rows)


@dataclass(slots=True)
class Segment:
    """Consecutive characters with their box.

    `size` is the font size of most characters; nearly all have at least `weight`. `bold` is set once the body style of
    the document is known.
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
    """Share of characters in a math font."""
    mono: float = 0.0
    """Share of characters in a monospaced font."""
    end_weights: tuple[int, int] = (0, 0)
    """Weights of the first and the last character."""
    begins_bold: bool = False
    ends_bold: bool = False
    """Whether the first and the last character are bold; set with `bold`."""
    table: Table | None = None
    """The ruled table in place of whose text it is."""

    @property
    def middle(self) -> float:
        """Vertical center of its box."""
        return (self.y0 + self.y1) / 2


class _SegmentBuilder:
    """A segment under construction."""

    __slots__ = ("anchor", "faces", "math", "parts", "raised_from", "x0", "x1", "y0", "y1")

    def __init__(self, char: Char, text: str) -> None:
        _, self.x0, self.y0, self.x1, self.y1, face, _, _ = char
        self.parts = [text]
        assert face is not None
        self.faces = [face]
        self.math = face.math
        self.anchor = char
        """The last character that is no exponent or index."""
        self.raised_from = -1
        """Number of the part with which an exponent begins, or -1."""

    def add(self, char: Char, text: str) -> None:
        _, x0, y0, x1, y1, face, _, _ = char
        assert face is not None
        self.parts.append(text)
        self.faces.append(face)
        # Runs for every character: comparisons are three times faster than min and max.
        if x0 < self.x0:
            self.x0 = x0
        if x1 > self.x1:
            self.x1 = x1
        if face.math is not self.math:
            if self.math:  # math fonts have boxes much taller than the line of text
                self.y0, self.y1, self.math = y0, y1, False
            return
        if y0 < self.y0:
            self.y0 = y0
        if y1 > self.y1:
            self.y1 = y1

    def is_adjacent(self, char: Char, size: float) -> bool:
        """Returns whether a character is next to the segment, on the same line."""
        code, x0, y0, x1, y1, _, _, _ = char
        shared = (y1 if y1 < self.y1 else self.y1) - (y0 if y0 > self.y0 else self.y0)
        if shared < 0.4 * (y1 - y0) and shared < 0.4 * (self.y1 - self.y0):
            return False
        wide = WIDE * size if size > 1.0 else WIDE
        return -wide < x0 - self.x1 < wide or (direction(code) == "R" and -wide < self.x0 - x1 < wide)

    def is_script(self, char: Char) -> bool:
        """Returns whether a character is an exponent or index or follows one; PDFium ends a line there."""
        face, last = char.face, self.faces[-1]
        assert face is not None
        small = min(face.size, last.size) < SMALL * max(face.size, last.size)
        shared = min(char.y1, self.y1) - max(char.y0, self.y0)
        return (small or face.math or last.math) and shared > 0.5 * (char.y1 - char.y0) and char.x0 > self.x0

    def rise(self, char: Char) -> int:
        """Returns 1 for an exponent, -1 for an index, 0 for other characters."""
        face, below = char.face, self.anchor.face
        assert face is not None
        assert below is not None
        if not _SMALLEST * below.size < face.size < SMALL * below.size or not char.base or not self.anchor.base:
            return 0
        height = (self.anchor.base - char.base) / below.size
        return 1 if height > _RISE else -1 if height < -_SINK else 0

    def place(self, char: Char, *, pending: bool, drawn: bool) -> bool:
        """Begins or ends an exponent where the face changes, and returns whether a space is before the character.

        Args:
            char: the next character.
            pending: whether a space was read before it.
            drawn: whether the file has this space; PDFium inserts others.
        """
        face, anchor = char.face, self.anchor.face
        assert face is not None
        assert anchor is not None
        rise = self.rise(char)
        if pending and not drawn and (rise or anchor is not self.faces[-1]):
            pending = char.x0 - self.x1 > _THIN_SPACE * anchor.size
        if rise < 1 or pending:
            self.end_exponent()
        elif self.raised_from < 0:
            self.raised_from = len(self.parts)
        if rise == 0:
            self.anchor = char
        return pending

    def end_exponent(self) -> None:
        """Writes the raised characters at the end as an exponent, if they are one."""
        if self.raised_from < 0:
            return
        before, raised = (
            "".join(self.parts[max(0, self.raised_from - _BEFORE) : self.raised_from]),
            self.parts[self.raised_from :],
        )
        assert self.anchor.face is not None
        own = [face.math for face in self.faces[-len(raised) :]]
        if all(own) and set(raised) == {"0"}:
            text = "\u2032" * len(raised)  # the prime of TeX's symbols without a map
        else:
            is_math = any(own) or self.anchor.face.math or (before[-1:] in _CLOSING and self._has_math())
            text = exponent(before, "".join(raised), is_math=is_math)
        self.parts[self.raised_from :] = [text]
        self.raised_from = -1

    def _has_math(self) -> bool:
        return any(face.math for face in self.faces[-_BEFORE:])


def exponent(before: str, raised: str, *, is_math: bool) -> str:
    """Returns raised characters as an exponent, or unchanged if they are a mark of a note, an ordinal or a sign.

    Digits and signs, and the letters i and n, have characters of their own in Unicode; others are written as ^{...}. A
    number is an exponent after a number of up to two digits, a letter, a word of two letters or a bracket of a formula,
    and, with a sign, after any word; else it is the mark of a note. Letters are an exponent only in a formula.

    Args:
        before: the text before them.
        raised: the raised characters.
        is_math: whether they, or the character before them, are in a math font.
    """
    if not _EXPONENT.fullmatch(raised) or not before or not _is_base(before, raised, is_math=is_math):
        return raised
    signs = raised.translate(_RAISED)
    return f"^{{{raised}}}" if set(signs) & set(raised) else signs


def _is_base(before: str, raised: str, *, is_math: bool) -> bool:
    last = before[-1]
    is_number = any(letter.isdigit() for letter in raised)
    if last.isdigit():
        return is_number and _NUMBER_AT_END.search(before) is not None
    if last in _CLOSING:
        return is_math
    if not last.isalpha():
        return False
    word = _WORD_AT_END.search(before)
    length = len(word[0]) if word else 1
    if raised[0] in _SIGNS and is_number:
        return True
    short = length == 1 or (length == 2 and word is not None and word[0].lower() not in _SHORT_WORDS)
    return is_math or (is_number and short)


def segments(
    chars: Sequence[Char], dividers: Sequence[tuple[float, float, float]] = ()
) -> tuple[list[Segment], list[Segment]]:
    """Returns the segments of horizontal text of a page, and the segments of rotated text.

    Args:
        chars: characters of the page.
        dividers: vertical rulings by place (x, top, bottom), which end a segment between words.
    """
    chars = with_accents(chars)
    upright: list[Segment] = []
    turned: list[Segment] = []
    whole = mostly_right_to_left(chars)
    for line, mixed in _lines(chars):
        if mixed:
            from_right = whole or mostly_right_to_left(line)
            upright += (_read_run(run, from_right=from_right) for run in runs(line, WIDE))
        else:
            _left_to_right(line, upright, turned, dividers)
    return [segment for segment in upright if segment.text], [segment for segment in turned if segment.text]


def _lines(chars: Sequence[Char]) -> Iterator[tuple[Sequence[Char], bool]]:
    """Yields (line of PDFium, whether it has right-to-left letters); all characters as one line if none has any."""
    if not any(direction(char.code) == "R" for char in chars):
        yield chars, False
        return
    line: list[Char] = []
    for char in (*chars, None):
        if char is not None:
            line.append(char)
        if char is None or (char.face is None and char.code in _BREAKS):
            yield line, any(direction(letter.code) == "R" and letter.face and not letter.face.turn for letter in line)
            line = []


def _read_run(run: list[Char], *, from_right: bool) -> Segment:
    builder: _SegmentBuilder | None = None
    for text, char in read(run, from_right=from_right):
        space, text = " " * text.startswith(" "), _char_text(ord(text[-1]))
        if builder is None:
            builder = _SegmentBuilder(char, text)
        else:
            builder.add(char, space + text)
    assert builder is not None
    return _build(builder)


def _char_text(code: int) -> str:
    return _REPLACEMENTS[code] if code in _REPLACEMENTS else chr(code)


def _left_to_right(
    chars: Sequence[Char],
    upright: list[Segment],
    turned: list[Segment],
    dividers: Sequence[tuple[float, float, float]],
) -> None:
    builder: _SegmentBuilder | None = None
    turn = 0
    pending = drawn = ended = False
    for char in chars:
        code, face = char.code, char.face
        if face is None or code in _SPACES or code in _BREAKS:
            pending, drawn = True, drawn or face is not None
            ended = ended or code in _BREAKS
            continue
        if builder is not None and (
            face.turn != turn
            or (turn == 0 and ((ended and not builder.is_script(char)) or not builder.is_adjacent(char, face.size)))
            or (dividers and char.x0 - builder.x1 > _SPLIT and _is_divided(builder.x1, char, dividers))
        ):
            (turned if turn else upright).append(_build(builder))
            builder = None
        text = _char_text(code)
        if builder is None:
            turn = face.turn
            builder = _SegmentBuilder(char, text)
        else:
            if pending and not drawn and (face.actual_text or builder.faces[-1].actual_text):
                # PDFium returns the ink box of the whole object for each of its characters.
                pending = abs(char.x0 - builder.x1) > (_INK if builder.faces[-1].actual_text else _INK / 2) * face.size
            if turn == 0 and (face is not builder.anchor.face or face is not builder.faces[-1]):
                pending = builder.place(char, pending=pending, drawn=drawn)
            if pending or (
                turn == 0 and char.x0 - builder.x1 > _SPACE * face.size and not _ideographs(builder.parts[-1], text)
            ):
                builder.parts.append(" ")
            builder.add(char, text)
        pending = drawn = ended = False
    if builder is not None:
        (turned if turn else upright).append(_build(builder))


def _is_divided(x1: float, char: Char, dividers: Sequence[tuple[float, float, float]]) -> bool:
    """Returns whether a vertical ruling is between a text that ends at `x1` and a character."""
    middle = (char.y0 + char.y1) / 2
    between = dividers[bisect_left(dividers, (x1 - _SPLIT, -math.inf, 0)) : bisect_right(dividers, (char.x0 + _SPLIT,))]
    return any(top <= middle <= bottom for _, top, bottom in between)


def _ideographs(before: str, after: str) -> bool:
    """Returns whether both characters are of scripts without spaces, whose square cells leave gaps at punctuation."""
    return "\u3000" <= before[-1:] <= "\u9fff" and "\u3000" <= after[:1] <= "\u9fff"


def _build(builder: _SegmentBuilder) -> Segment:
    builder.end_exponent()
    faces = {id(face): face for face in builder.faces}
    counts = Counter(map(id, builder.faces))
    sizes: Counter[float] = Counter()
    weights: Counter[int] = Counter()
    maths = mono = 0
    count = len(builder.faces)
    plain = sum(counts[name] for name, face in faces.items() if not face.mono)
    for name, face in faces.items():
        if not face.mono or plain < _PLAIN * count:  # names in text may be set in a smaller monospaced font
            sizes[round(face.size, 1)] += counts[name]
        weights[face.weight] += counts[name]
        maths += face.math * counts[name]
        mono += face.mono * counts[name]
    size = max(sizes, key=lambda size: (sizes[size], size))
    text = "".join(builder.parts).strip()
    return Segment(
        text,
        builder.x0,
        builder.y0,
        builder.x1,
        builder.y1,
        size,
        _common_weight(weights),
        math=maths / count,
        mono=mono / count,
        end_weights=(builder.faces[0].weight, builder.faces[-1].weight),
    )


def _common_weight(weights: Counter[int]) -> int:
    """Returns the largest weight that nearly all characters reach."""
    lighter, few = 0, (1 - _MOSTLY) * weights.total()
    for weight in sorted(weights):
        lighter += weights[weight]
        if lighter > few:
            return weight
    return 0


def with_accents(chars: Sequence[Char]) -> Sequence[Char]:
    """Combines each accent with the letter over which it is drawn; an accent without a letter is kept.

    A page with more than `_MOST_ACCENTS` accents is returned unchanged, because each is compared with all letters.
    """
    places = [index for index, char in enumerate(chars) if char.code in _ACCENTS and char.face is not None]
    if not 0 < len(places) <= _MOST_ACCENTS:
        return chars
    result = list(chars)
    merged = set()
    for index in places:
        accent = result[index]
        base = next((other for other, char in enumerate(result) if other != index and _is_under(char, accent)), None)
        if base is not None:
            letter = result[base]
            composed = unicodedata.normalize("NFC", chr(letter.code) + chr(_ACCENTS[accent.code]))
            if len(composed) == 1:
                result[base] = letter._replace(code=ord(composed))
                merged.add(index)
    return [char for index, char in enumerate(result) if index not in merged]


def _is_under(letter: Char, accent: Char) -> bool:
    if letter.face is None or not accent.x0 < letter.x1 or not letter.x0 < accent.x1:
        return False
    shared = min(letter.x1, accent.x1) - max(letter.x0, accent.x0)
    beside = min(letter.y1, accent.y1) - max(letter.y0, accent.y0)
    wide = shared > 0.6 * (accent.x1 - accent.x0) and beside > 0.5 * (letter.y1 - letter.y0)
    return wide and chr(letter.code).isalpha()


def without_ruby(segments: Sequence[Segment]) -> list[Segment]:
    """Returns the segments without ruby: small kana directly above part of a line of about twice their size."""
    lines = sorted(segments, key=lambda segment: segment.middle)
    heights = [segment.middle for segment in lines]
    remaining = []
    for segment in segments:
        if _is_kana(segment.text):
            reach = _RUBY_FARTHEST * segment.size / _RUBY_SIZE * 2
            below = lines[bisect_right(heights, segment.middle) : bisect_left(heights, segment.middle + reach)]
            if any(_is_over(segment, line) for line in below):
                continue
        remaining.append(segment)
    return remaining


def _is_kana(text: str) -> bool:
    return all("\u3040" <= letter <= "\u30ff" or letter == " " for letter in text)


def _is_over(segment: Segment, line: Segment) -> bool:
    close = line.middle - segment.middle < _RUBY_FARTHEST * line.size
    shared = min(segment.x1, line.x1) - max(segment.x0, line.x0)
    return close and segment.size < _RUBY_SIZE * line.size and shared > 0.5 * (segment.x1 - segment.x0)
