"""A page as characters with boxes and faces.

Types alone. Boxes are in points from the upper left corner of the page, as most of its text is read (`turning`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

NAMED = 1_000
"""Added to the weight of a font whose name says that it is bold; more than any weight of its own."""


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
