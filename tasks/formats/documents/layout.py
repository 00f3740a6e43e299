"""Layout of a document: which stretch of its text stands on which page of a file, as what, in which box.

Places are code points of the text as extracted: text that a later stage has cut or masked has others.
"""

from dataclasses import dataclass

Box = tuple[float, float, float, float]
"""Left, upper, right and lower end, in points from the upper left corner of a page."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the text of a document: the part of a block in one column of one page.

    Attributes:
        start, end: code points of the text, end exclusive. Pieces are in order and do not overlap; what lies between
            two of one block is a space or nothing, between blocks a blank line.
        kind: what the block is: "paragraph", "heading", "item", "caption", "footnote", "formula", "table" or "turned".
        page: number of the page, from 1.
        box: where it stands.
    """

    start: int
    end: int
    kind: str
    page: int
    box: Box


@dataclass(frozen=True, slots=True)
class PageScore:
    """How much a page needs OCR: number from 1, score from 0 to 1, and whether it was left out for it."""

    page: int
    score: float
    needs_ocr: bool
