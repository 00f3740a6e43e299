"""A page as characters with boxes and faces, rotated so that its text runs from left to right.

Types and pure functions. Boxes are in points from the upper left corner of the page in the orientation of most of its
text. A page with text at a right angle is rotated as a whole. A page of vertical Chinese or Japanese lines is rotated a
quarter turn counterclockwise, which makes them lines from left to right with the rightmost line first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tasks.formats.documents.layout import Box

NAMED = 1_000
"""Added to the weight of a font whose name says that it is bold; greater than any weight."""

_ENOUGH = 10

TEX = {
    **dict(zip((0x0B, 0x0C, 0x0E, 0x0F), ("ff", "fi", "ffi", "ffl"), strict=True)),
    **dict(zip(range(0x1B, 0x20), ("ff", "fi", "fl", "ffi", "ffl"), strict=True)),
    **{0x10: "\u201c", 0x11: "\u201d", 0x15: "\u2013", 0x16: "\u2014"},
}
"""Characters of TeX's fonts at the codes of control characters (encodings OT1 and T1), for files without a map."""
REPLACEMENT = 0xFFFD
"""Code of a glyph that is drawn, and whose character the file does not tell."""


class Face(NamedTuple):
    """Common properties of the characters of a text object: font size in points, as drawn, and properties of the font.

    Characters of a page with equal faces share one object.
    """

    size: float
    weight: int = 0
    """Weight that PDFium computes from the stem widths in the file, which is seldom that of the glyphs: Latin Modern
    Regular has 744, Latin Modern Bold 630. `NAMED` is added if the font's name says that it is bold."""
    math: bool = False
    mono: bool = False
    """Whether the font is monospaced."""
    invisible: bool = False
    actual_text: bool = False
    """Whether the file gives the text of the whole object (ActualText), whose characters then share one box."""
    turn: int = 0
    """Rotation in quarter turns, counterclockwise."""


class Char(NamedTuple):
    """One character with its box in points; `face` is None for a space or line end inserted by PDFium.

    `base` is the height of its baseline, or 0 if unknown, as on pages that were rotated.
    """

    code: int
    x0: float
    y0: float
    x1: float
    y1: float
    face: Face | None
    unmapped: bool = False
    base: float = 0.0


@dataclass
class RawPage:
    """One page.

    Attributes:
        number: 1-based page number.
        width, height: size in points, in the orientation of most of the text.
        chars: characters in the order of the page's content.
        objects: number of page objects.
        image_share: share of the page's area that its largest image covers, 0 to 1.
        covered: whether an image of most of the page is drawn after the text.
        rotation: rotation in which a viewer shows the page, in clockwise quarter turns.
        turned: rotation of the boxes, in clockwise quarter turns.
        rulings: boxes of thin lines, from drawings of few paths.
    """

    number: int
    width: float
    height: float
    chars: list[Char] = field(default_factory=list)
    objects: int = 0
    image_share: float = 0.0
    covered: bool = False
    rotation: int = 0
    turned: int = 0
    rulings: list[Box] = field(default_factory=list)


def turn_of(chars: Sequence[Char]) -> int:
    """Returns the rotation of most characters, in counterclockwise quarter turns."""
    turns = [0, 0, 0, 0]
    for char in chars:
        if char.face is not None:
            turns[char.face.turn] += 1
    return max(range(4), key=lambda turn: turns[turn])


def upright(page: RawPage) -> RawPage:
    """Rotates a page so that most of its characters are upright, in lines from left to right."""
    if turn := turn_of(page.chars):
        page = _rotate(page, turn, {quarter: (quarter - turn) % 4 for quarter in range(4)})
    if _is_vertical(page.chars):
        # In vertical lines Latin letters are rotated by a quarter turn; all other characters are upright.
        page = _rotate(page, 3, {0: 0, 1: 2, 2: 1, 3: 0})
    return page


def displayed(box: Box, page: RawPage) -> Box:
    """Converts a box to the coordinates of the page as a viewer shows it."""
    turn = (page.rotation - page.turned) % 4
    return _rotate_box(*box, turn, page.width, page.height) if turn else box


def _is_vertical(chars: Sequence[Char]) -> bool:
    """Returns whether most ideographs and kana follow one another from top to bottom."""
    down = right = 0
    before: Char | None = None
    for char in chars:
        if char.face is None or not 0x3040 <= char.code <= 0x9FFF or char.face.turn:
            before = None
            continue
        if before is not None:
            size = char.face.size
            dx, dy = abs(char.x0 - before.x0), char.y0 - before.y0
            down += dx < 0.5 * size and 0.5 * size < dy < 2 * size
            right += abs(dy) < 0.5 * size < dx < 2 * size
        before = char
    return down >= _ENOUGH and down > right


def _rotate(page: RawPage, turn: int, turns: Mapping[int, int]) -> RawPage:
    """Rotates a page by `turn` clockwise quarter turns; `turns` maps the rotation of its faces."""
    width, height = page.width, page.height
    faces: dict[Face | None, Face | None] = {
        face: face._replace(turn=turns[face.turn]) for face in {char.face for char in page.chars} if face is not None
    }
    faces[None] = None
    page.chars = [
        Char(
            char.code,
            *_rotate_box(char.x0, char.y0, char.x1, char.y1, turn, width, height),
            faces[char.face],
            char.unmapped,
        )
        for char in page.chars
    ]
    page.rulings = [_rotate_box(*box, turn, width, height) for box in page.rulings]
    if turn % 2:
        page.width, page.height = height, width
    page.turned = (page.turned + turn) % 4
    return page


def _rotate_box(x0: float, y0: float, x1: float, y1: float, turn: int, width: float, height: float) -> Box:
    """Rotates a box by `turn` (1 to 3) clockwise quarter turns within a page of this size; y grows downward."""
    if turn == 1:
        return height - y1, x0, height - y0, x1
    if turn == 2:
        return width - x1, height - y1, width - x0, height - y0
    return y0, width - x1, y1, width - x0
