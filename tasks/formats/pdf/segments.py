"""Segments: characters that follow one another on a line without a wide gap.

Pure functions. A segment never crosses a gutter between columns that is wider than a letter; a line of justified text
may be several segments, which `lines` joins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasks.formats.pdf.reader import Char, Face

_SPACES = frozenset((0x20, 0x09, 0xA0, 0x2007, 0x202F, 0x3000))
_BREAKS = frozenset((0x0A, 0x0D))
# PDFium's own signs for a hyphen at the end of a line.
_HYPHENS = frozenset((0x02, 0xAD, 0xFFFE))
_LIGATURES = {0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st", 0xFB06: "st"}
WIDE = 1.0
"""Gap, in font sizes, that ends a segment."""
_SPACE = 0.25
_PLAIN = Face(10.0)


@dataclass(slots=True)
class Segment:
    """Characters in a row, with their box; `size`, `bold` and `math` are those of most of the characters."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    size: float
    bold: bool = False
    math: float = 0.0
    """Share of characters in a font of formulas."""

    @property
    def middle(self) -> float:
        """The y in the middle of its box."""
        return (self.y0 + self.y1) / 2


@dataclass(slots=True)
class _Open:
    parts: list[str]
    x0: float
    y0: float
    x1: float
    y1: float
    faces: list[Face] = field(default_factory=list)


def segments(chars: Sequence[Char]) -> tuple[list[Segment], list[Segment]]:
    """Returns the segments of a page that run from left to right or right to left, and those that are turned."""
    upright, turned = [], []
    now: _Open | None = None
    turn = 0
    pending = False
    for char in chars:
        if char.code in _SPACES:
            pending = True
            continue
        if char.code in _BREAKS or char.face is None:
            pending = True
            if turn == 0 and now is not None and char.code in _BREAKS:
                upright.append(_closed(now))
                now = None
            continue
        if now is not None and (char.face.turn != turn or (turn == 0 and not _follows(now, char))):
            (turned if turn else upright).append(_closed(now))
            now = None
        text = _text(char.code)
        if now is None:
            turn = char.face.turn
            now = _Open([text], char.x0, char.y0, char.x1, char.y1, [char.face])
        else:
            gap = char.x0 - now.x1
            if pending or (turn == 0 and gap > _SPACE * char.face.size):
                now.parts.append(" ")
            _add(now, char, text)
        pending = False
    if now is not None:
        (turned if turn else upright).append(_closed(now))
    return [one for one in upright if one.text], [one for one in turned if one.text]


def _text(code: int) -> str:
    if code in _HYPHENS:
        return "-"
    if code in _LIGATURES:
        return _LIGATURES[code]
    return "" if code < 0x20 or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF else chr(code)


def _follows(now: _Open, char: Char) -> bool:
    assert char.face is not None
    size = max(char.face.size, 1.0)
    shared = min(now.y1, char.y1) - max(now.y0, char.y0)
    if shared < 0.4 * min(now.y1 - now.y0, char.y1 - char.y0):
        return False
    gap = char.x0 - now.x1
    if -WIDE * size < gap < WIDE * size:
        return True
    before = now.x0 - char.x1
    return _right_to_left(char.code) and -WIDE * size < before < WIDE * size


def _right_to_left(code: int) -> bool:
    return 0x590 <= code <= 0x8FF or 0xFB1D <= code <= 0xFDFF or 0xFE70 <= code <= 0xFEFF


def _add(now: _Open, char: Char, text: str) -> None:
    assert char.face is not None
    now.parts.append(text)
    now.faces.append(char.face)
    now.x0, now.x1 = min(now.x0, char.x0), max(now.x1, char.x1)
    now.y0, now.y1 = min(now.y0, char.y0), max(now.y1, char.y1)


def _closed(now: _Open) -> Segment:
    faces = now.faces or [_PLAIN]
    count = len(faces)
    sizes: dict[float, int] = {}
    for face in faces:
        size = round(face.size, 1)
        sizes[size] = sizes.get(size, 0) + 1
    return Segment(
        "".join(now.parts).strip(),
        now.x0,
        now.y0,
        now.x1,
        now.y1,
        max(sizes, key=lambda size: (sizes[size], size)),
        2 * sum(face.bold for face in faces) > count,
        sum(face.math for face in faces) / count,
    )
