"""A PDF file as one text with the place of each block, and the score of each page.

Reads the bytes of a file. Memory grows with the characters of the file, which `reader.Limits` bounds: segments of all
pages are kept until running heads are known.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tasks.formats.documents.layout import PageScore, Piece
from tasks.formats.pdf.blocks import Block, Body, blocks
from tasks.formats.pdf.characters import RawPage, displayed
from tasks.formats.pdf.columns import regions
from tasks.formats.pdf.health import health
from tasks.formats.pdf.joining import joined
from tasks.formats.pdf.lines import lines
from tasks.formats.pdf.reader import Limits, opened, pages, title_of
from tasks.formats.pdf.running import without_running
from tasks.formats.pdf.segments import Segment, segments, without_ruby

_TITLE_CHARS = 300
# Titles that programs put in by themselves.
_NO_TITLES = ("untitled", "microsoft word", "powerpoint", "about:blank", "slide 1", ".doc", ".tex", ".dvi", ".indd")

PageReader = Callable[[int], Sequence[Block] | None]
"""Reads a page that has no usable text by other means: page number -> blocks, or None if it cannot."""


@dataclass(frozen=True)
class PdfText:
    """Text of a file.

    Attributes:
        text: blocks with a blank line between them, as `tasks.formats.documents.text.clean` gives it.
        title: "" where neither the file nor its first page has one.
        pieces: where each block of `text` stands.
        pages: the score of each page.
    """

    text: str
    title: str
    pieces: tuple[Piece, ...]
    pages: tuple[PageScore, ...]


@dataclass
class _Page:
    number: int
    height: float
    upright: list[Segment]
    turned: list[Segment]
    other: Sequence[Block] = ()


def read_pdf(
    data: bytes, limits: Limits | None = None, read_page: PageReader | None = None, *, all_pages: bool = False
) -> PdfText:
    """Reads a file; pages that need OCR give no text unless `read_page` reads them.

    Args:
        data: the file.
        limits: what it may take.
        read_page: reads pages by other means.
        all_pages: whether it reads all pages, and not only those that need OCR.

    Raises:
        Unreadable: the file cannot be opened, or exceeds a limit; see `reader`.
    """
    limits = limits or Limits()
    read, scores = [], []
    lying: dict[int, RawPage] = {}
    with opened(data, limits) as document:
        named = title_of(document)
        for raw in pages(document, limits):
            state = health(raw)
            page = _Page(raw.number, raw.height, [], [])
            other = read_page(raw.number) if read_page and (all_pages or state.needs_ocr) else None
            if other is not None:
                page.other = other
            elif not state.needs_ocr:
                page.upright, page.turned = segments(raw.chars)
                page.upright = without_ruby(page.upright)
                lying[raw.number] = replace(raw, chars=[])
            scores.append(PageScore(raw.number, round(state.score, 3), state.needs_ocr and other is None))
            read.append(page)
    found_blocks = _blocks(read)
    text, pieces = joined(found_blocks)
    pieces = tuple(
        replace(one, box=displayed(one.box, lying[one.page])) if one.page in lying else one for one in pieces
    )
    return PdfText(text, _title(named, found_blocks), pieces, tuple(scores))


def _blocks(read: Sequence[_Page]) -> list[Block]:
    size = _body([page.upright for page in read]).size
    kept = without_running([page.upright for page in read], [page.height for page in read], size)
    body = _body(kept)
    for page_segments in kept:
        for one in page_segments:
            one.bold = one.weight >= body.heavy
    made: list[Block] = []
    for page, upright in zip(read, kept, strict=True):
        for region in regions(upright):
            made += blocks(lines(region), page.number, page.height, body)
        made += (
            Block("turned", (one.text,), page.number, (one.x0, one.y0, one.x1, one.y1), one.size) for one in page.turned
        )
        made += page.other
    return made


def _body(read: Sequence[Sequence[Segment]]) -> Body:
    """Returns what most characters have."""
    sizes: Counter[float] = Counter()
    weights: Counter[int] = Counter()
    mono = 0.0
    for page in read:
        for one in page:
            sizes[one.size] += len(one.text)
            weights[one.weight] += len(one.text)
            mono += one.mono * len(one.text)
    half = sizes.total() / 2
    size = max(sizes, key=lambda size: (sizes[size], size), default=10.0)
    weight = max(weights, key=lambda weight: (weights[weight], weight), default=0)
    return Body(size, weight, mono=mono > half)


def _title(named: str, found: Sequence[Block]) -> str:
    if len(named) > 3 and not any(word in named.lower() for word in _NO_TITLES):
        return named[:_TITLE_CHARS]
    headings = [block for block in found if block.page == 1 and block.kind == "heading"]
    largest = max(headings, key=lambda block: block.size, default=None)
    return " ".join(largest.lines)[:_TITLE_CHARS] if largest else ""
