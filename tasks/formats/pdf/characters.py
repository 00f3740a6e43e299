"""A page as characters with boxes and faces, turned so that its text runs from left to right.

Types and pure functions. Boxes are in points from the upper left corner of the page, as most of its text is read. Text
at right angles is turned as a whole. Lines from top to bottom, of Chinese and Japanese, become lines from left to right
if the page is turned a quarter anticlockwise: the rightmost one is the first then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tasks.formats.documents.layout import Box

NAMED = 1_000
"""Added to the weight of a font whose name says that it is bold; more than any weight of its own."""

_ENOUGH = 10


class Face(NamedTuple):
    """What the characters of a text object have in common: font size in points, as drawn, and what the font tells.

    Characters of a page with equal faces have the same object.
    """

    size: float
    weight: int = 0
    """As PDFium reckons it from the stems that the file names, which is seldom what is drawn: Latin Modern's regular
    face has 744, its bold one 630. `NAMED` is added where the font's name says that it is bold."""
    math: bool = False
    mono: bool = False
    """Whether all characters of the font have one width."""
    invisible: bool = False
    spelt: bool = False
    """Whether its text is that of the file for the whole object (ActualText), whose box its characters share."""
    turn: int = 0
    """Quarters of a full turn, anticlockwise."""


class Char(NamedTuple):
    """One character with its box in points; `face` is None for a space or a line end that PDFium has put in."""

    code: int
    x0: float
    y0: float
    x1: float
    y1: float
    face: Face | None
    unmapped: bool = False


@dataclass
class RawPage:
    """One page.

    Attributes:
        number: from 1.
        width, height: in points, as most of the text is read.
        chars: in the order of the page's content.
        objects: how many objects it has.
        image_share: share of its area that images cover, 0 to 1; of images that overlap the largest counts.
        covered: whether an image of most of the page is drawn after the text.
        rotation: quarters of a turn, clockwise, by which a viewer turns the page to show it.
        turned: quarters of a turn, clockwise, by which the boxes are turned.
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


def turn_of(chars: Sequence[Char]) -> int:
    """Returns the direction of most characters, in quarters of a full turn, anticlockwise."""
    turns = [0, 0, 0, 0]
    for char in chars:
        if char.face is not None:
            turns[char.face.turn] += 1
    return max(range(4), key=lambda one: turns[one])


def upright(page: RawPage) -> RawPage:
    """Returns the page turned so that most of its characters stand upright, in lines from left to right."""
    if turn := turn_of(page.chars):
        page = _turned(page, turn, {one: (one - turn) % 4 for one in range(4)})
    if _is_vertical(page.chars):
        # Latin letters lie on their side in such lines; the others stand upright before and after.
        page = _turned(page, 3, {0: 0, 1: 2, 2: 1, 3: 0})
    return page


def displayed(box: Box, page: RawPage) -> Box:
    """Returns a box of the page at its place in the page as a viewer shows it."""
    turn = (page.rotation - page.turned) % 4
    return _box(*box, turn, page.width, page.height) if turn else box


def _is_vertical(chars: Sequence[Char]) -> bool:
    """Returns whether ideographs and kana follow one another downwards."""
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


def _turned(page: RawPage, turn: int, turns: Mapping[int, int]) -> RawPage:
    """Turns a page clockwise by quarters; `turns` maps those of its faces."""
    width, height = page.width, page.height
    faces: dict[Face | None, Face | None] = {
        face: face._replace(turn=turns[face.turn]) for face in {char.face for char in page.chars} if face is not None
    }
    faces[None] = None
    page.chars = [
        Char(one.code, *_box(one.x0, one.y0, one.x1, one.y1, turn, width, height), faces[one.face], one.unmapped)
        for one in page.chars
    ]
    if turn % 2:
        page.width, page.height = height, width
    page.turned = (page.turned + turn) % 4
    return page


def _box(x0: float, y0: float, x1: float, y1: float, turn: int, width: float, height: float) -> Box:
    """Turns a box clockwise by quarters within a page of this size; y grows downwards."""
    if turn == 1:
        return height - y1, x0, height - y0, x1
    if turn == 2:
        return width - x1, height - y1, width - x0, height - y0
    return y0, width - x1, y1, width - x0
