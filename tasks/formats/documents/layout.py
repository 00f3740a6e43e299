"""Layout of a document: the page, block kind and box of each stretch of its text.

Offsets are code points of the text as extracted. They do not apply to text that a later stage cut or masked.
"""

from dataclasses import dataclass

Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge, in points from the upper left corner of a page."""


@dataclass(frozen=True, slots=True)
class LayoutSpan:
    """A stretch of the text of a document: the part of a block in one column of one page.

    Attributes:
        start, end: code points of the text, end exclusive. Spans are sorted and do not overlap; between two spans of
            one block there is a space or nothing, between blocks a blank line.
        kind: kind of the block: "paragraph", "heading", "item", "caption", "footnote", "formula", "table" or "turned".
        page: 1-based page number.
        box: position on the page.
    """

    start: int
    end: int
    kind: str
    page: int
    box: Box


@dataclass(frozen=True, slots=True)
class PageScore:
    """How much a page needs OCR: 1-based page number, score from 0 to 1, and whether the page was omitted for it.

    `confidence` is the mean confidence, from 0 to 1, of the letters of a page that was read by recognition; `unread` is
    why recognition has given no text of the page, such as "ocr_uncertain", "" for a page that it has read or not tried.
    """

    page: int
    score: float
    needs_ocr: bool
    confidence: float | None = None
    unread: str = ""

    @property
    def rejection(self) -> str:
        """The reason for which the page gives no text; "" for a page with text."""
        return self.unread or "needs_ocr" if self.needs_ocr else ""
