"""A PDF file as blocks with their positions on its pages, and the OCR score of each page.

Reads the bytes of a file. Pages without a usable text layer may be read from their bitmaps, after all others. Running
heads, running feet and page numbers, which repeat at the same position from page to page, are removed; paragraphs that
continue in the next column or on the next page are joined. Memory grows with the number of characters, which
`reader.Limits` bounds: segments of all pages are kept until running heads are detected.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from tasks.formats.documents.layout import Box, LayoutSpan, PageScore
from tasks.formats.documents.structure import Block, Kind, written
from tasks.formats.documents.text import clean, clean_code
from tasks.formats.pdf.blocks import END, LEVELS, LISTING_MONO, BodyStyle, PdfBlock, blocks, step_of
from tasks.formats.pdf.characters import displayed
from tasks.formats.pdf.columns import regions
from tasks.formats.pdf.health import NEEDS_OCR, health
from tasks.formats.pdf.lines import lines
from tasks.formats.pdf.reader import Limits, open_pdf, pages, title_of
from tasks.formats.pdf.recognized import ReadPage, Unread
from tasks.formats.pdf.render import Bitmap, render_page
from tasks.formats.pdf.rulings import dividers, with_tables
from tasks.formats.pdf.segments import Segment, segments, without_ruby

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_DIVIDED_WORD = re.compile(r"([^\W\d_]+(?:-[^\W\d_]+)*)-$")
_FLOAT_KINDS = frozenset(("caption", "table", "footnote", "turned"))
_MOST_FLOATS = 60
_MONO_DOCUMENT = 0.85
"""Minimum share of monospaced characters of a document without listings."""
# Kinds that a block of a document has, too; an item keeps its own bullet or number, and is a paragraph.
_KINDS: dict[str, Kind] = {
    "heading": "heading",
    "code": "code",
    "formula": "formula",
    "caption": "caption",
    "footnote": "footnote",
}
_LINE_KINDS = frozenset(("table", "code", "contents"))
_TERMINAL = (".", "!", "?", ":", ";", "\u201d", '"', ")")
# After these prefixes a hyphen is kept if the document gives no evidence: "self-" + "attention" is a compound.
_PREFIXES = frozenset(
    ("self", "non", "well", "high", "low", "large", "small", "state", "open", "end", "fine", "zero", "few")
)

_TITLE_CHARS = 300
# Default titles of programs.
_USELESS_TITLES = (
    "untitled",
    "microsoft word",
    "powerpoint",
    "about:blank",
    "slide 1",
    ".doc",
    ".tex",
    ".dvi",
    ".indd",
)

PageReader = Callable[[int], Sequence[PdfBlock] | None]
"""Reads a page without usable text by other means, such as OCR: page number -> blocks, or None on failure."""


@dataclass(frozen=True)
class BitmapReader:
    """Reads the bitmaps of pages without usable text.

    Attributes:
        read: returns what a bitmap says; raises `Unread` if it cannot be read.
        dpi: dots per inch of the bitmaps.
        max_pages: maximum number of pages of a file that it reads; the pages after them still need OCR.
    """

    read: Callable[[Bitmap], ReadPage]
    dpi: int = 200
    max_pages: int = 500


_OUTERMOST = 3
_REPEATED = 3
_EDGE = 0.14
"""Share of a page's height, from its top and bottom, in which running lines are searched."""
_DIGITS = re.compile(r"[0-9]+")
_ROMAN = r"[ivxlc]{1,7}"
_NUMBER = re.compile(
    rf"(?i)(?:page|seite|p\.)?\s*[-–|]?\s*([0-9]{{1,4}}|{_ROMAN})\s*[-–|]?(?:\s*(?:of|von|/)\s*[0-9]+)?"
)
_AT_END = re.compile(rf"(?:^([0-9]{{1,4}}|{_ROMAN})\b)|(?:\b([0-9]{{1,4}}|{_ROMAN})$)", re.IGNORECASE)
_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}


@dataclass(frozen=True)
class PdfText:
    """Text of a file.

    Attributes:
        blocks: its blocks in reading order, each with its pieces on the pages.
        title: the title of the file, else the largest heading of its first page, else "".
        pages: OCR score of each page.
    """

    blocks: tuple[Block, ...]
    title: str
    pages: tuple[PageScore, ...]

    @cached_property
    def _written(self) -> tuple[str, tuple[LayoutSpan, ...]]:
        return written(self.blocks, "plain")

    @property
    def text(self) -> str:
        """The plain text, as `tasks.formats.documents.text.clean` returns it."""
        return self._written[0]

    @property
    def layout(self) -> tuple[LayoutSpan, ...]:
        """Position of each piece of `text`."""
        return self._written[1]


@dataclass
class _Page:
    number: int
    height: float
    upright: list[Segment]
    turned: list[Segment]
    rulings: Sequence[Box] = ()
    other: Sequence[PdfBlock] = ()


def read_pdf(
    data: bytes,
    limits: Limits | None = None,
    read_page: PageReader | None = None,
    *,
    all_pages: bool = False,
    bitmaps: BitmapReader | None = None,
) -> PdfText:
    """Reads a file; pages that need OCR give no text unless `read_page` reads them.

    Args:
        data: the file.
        limits: resource limits.
        read_page: reads pages by other means, such as OCR.
        all_pages: whether `read_page` reads all pages instead of only those that need OCR.
        bitmaps: reads the bitmaps of the pages that need OCR.

    Raises:
        PdfError: the file cannot be opened, or exceeds a limit; see `reader`.
    """
    limits = limits or Limits()
    pages_read, scores = [], []
    to_displayed: dict[int, Callable[[Box], Box]] = {}
    with open_pdf(data, limits) as document:
        file_title = title_of(document)
        for raw in pages(document, limits):
            score = health(raw)
            unreadable = score >= NEEDS_OCR
            page = _Page(raw.number, raw.height, [], [])
            ocr_blocks = read_page(raw.number) if read_page and (all_pages or unreadable) else None
            if ocr_blocks is not None:
                page.other = ocr_blocks
            elif not unreadable:
                page.upright, page.turned = segments(raw.chars, dividers(raw.rulings))
                page.upright = without_ruby(page.upright)
                page.rulings = raw.rulings
                to_displayed[raw.number] = partial(displayed, page=replace(raw, chars=[], rulings=[]))
            scores.append(PageScore(raw.number, round(score, 3), unreadable and ocr_blocks is None))
            pages_read.append(page)
        if bitmaps:
            for number, found in _read_bitmaps(document, scores, bitmaps).items():
                page = pages_read[number - 1]
                page.height, page.upright = found.height or page.height, found.segments
                page.other = [replace(block, page=number) for block in found.blocks]
                to_displayed[number] = found.displayed
    blocks_read = _blocks(pages_read)
    joined = [
        replace(block, pieces=tuple(_displayed(piece, to_displayed.get(piece.page)) for piece in block.pieces))
        for block in structure(blocks_read)
    ]
    return PdfText(tuple(joined), _title(file_title, blocks_read), tuple(scores))


def _displayed(piece: LayoutSpan, place: Callable[[Box], Box] | None) -> LayoutSpan:
    return replace(piece, box=place(piece.box)) if place else piece


def _read_bitmaps(document: Any, scores: list[PageScore], reader: BitmapReader) -> dict[int, ReadPage]:
    """Returns what the bitmaps of the pages that need OCR say, by page number, and completes the scores of the pages.

    They are read after all other pages, so that their time does not count as time of the text layer.
    """
    read: dict[int, ReadPage] = {}
    for at, score in [(at, score) for at, score in enumerate(scores) if score.needs_ocr][: reader.max_pages]:
        try:
            if (bitmap := render_page(document, score.page, reader.dpi)) is None:
                raise Unread("not_drawn")
            found = read[score.page] = reader.read(bitmap)
            scores[at] = replace(score, needs_ocr=False, confidence=found.confidence)
        except Unread as unread:
            scores[at] = replace(score, unread=f"ocr_{unread.reason}")
    return read


def _blocks(pages: Sequence[_Page]) -> list[PdfBlock]:
    size = _body_style([page.upright for page in pages]).size
    body_pages = without_running([page.upright for page in pages], [page.height for page in pages], size)
    body = _body_style(body_pages)
    for page_segments in body_pages:
        for segment in page_segments:
            segment.bold = segment.weight >= body.heavy
            segment.begins_bold, segment.ends_bold = (weight >= body.heavy for weight in segment.end_weights)
    result: list[PdfBlock] = []
    of_pages = [
        [lines(region) for region in regions(with_tables(upright, page.rulings))]
        for page, upright in zip(pages, body_pages, strict=True)
    ]
    body = replace(body, step=step_of((region for of_page in of_pages for region in of_page), body.size))
    for page, of_page in zip(pages, of_pages, strict=True):
        for region in of_page:
            result += blocks(region, page.number, page.height, body)
        result += (
            PdfBlock(
                "turned", (segment.text,), page.number, (segment.x0, segment.y0, segment.x1, segment.y1), segment.size
            )
            for segment in page.turned
        )
        result += page.other
    return with_levels(result)


def with_levels(blocks: Sequence[PdfBlock]) -> list[PdfBlock]:
    """Returns the blocks, headings with their level: the rank of their font size, to half a point, among headings.

    Headings that have a level keep it.
    """
    sizes = {round(2 * block.size) for block in blocks if block.kind == "heading" and not block.level}
    ranks = {size: min(rank, LEVELS) for rank, size in enumerate(sorted(sizes, reverse=True), 1)}
    return [
        replace(block, level=ranks[round(2 * block.size)]) if block.kind == "heading" and not block.level else block
        for block in blocks
    ]


def _body_style(pages: Sequence[Sequence[Segment]]) -> BodyStyle:
    """Returns font size and weight of most characters, without those of listings unless nearly all are monospaced."""
    mono = total = 0.0
    for page in pages:
        for segment in page:
            total += len(segment.text)
            mono += segment.mono * len(segment.text)
    is_mono = mono > _MONO_DOCUMENT * total
    sizes: Counter[float] = Counter()
    weights: Counter[int] = Counter()
    for page in pages:
        for segment in page:
            if is_mono or segment.mono < LISTING_MONO:
                sizes[segment.size] += len(segment.text)
                weights[segment.weight] += len(segment.text)
    size = max(sizes, key=lambda size: (sizes[size], size), default=10.0)
    weight = max(weights, key=lambda weight: (weights[weight], weight), default=0)
    return BodyStyle(size, weight, mono=is_mono)


def _title(file_title: str, blocks: Sequence[PdfBlock]) -> str:
    if len(file_title) > 3 and not any(word in file_title.lower() for word in _USELESS_TITLES):
        return file_title[:_TITLE_CHARS]
    headings = [block for block in blocks if block.page == 1 and block.kind == "heading"]
    largest = max(headings, key=lambda block: block.size, default=None)
    return " ".join(largest.lines)[:_TITLE_CHARS] if largest else ""


def structure(blocks: Sequence[PdfBlock]) -> list[Block]:
    """Returns the blocks of a document: parts of a paragraph on several pages or in several columns are joined."""
    words = _vocabulary(blocks)
    return [block for chain in _chains(_footnotes_last(blocks)) if (block := _joined(chain, words)).pieces]


def _joined(chain: Sequence[PdfBlock], words: set[str]) -> Block:
    """Returns the blocks of a chain as one, which has no pieces if they have no text."""
    text, pieces = "", list[LayoutSpan]()
    apart = False
    for block in chain:
        more = _text_of(block, words)
        if not more:
            continue
        separator = ""
        if text:
            apart = apart or block.kind == "formula"
            separator, drops_hyphen = ("\n", False) if apart else _separator(text, more, words)
            apart = block.kind == "formula"
            if drops_hyphen:
                text = text[:-1]
                pieces[-1] = replace(pieces[-1], end=len(text))
        start = len(text) + len(separator)
        text += separator + more
        pieces.append(LayoutSpan(start, len(text), block.kind, block.page, block.box))
    first = chain[0]
    kind = _KINDS.get(first.kind, "paragraph")
    if first.rows:
        return Block("table", rows=first.rows, header=first.header_rows > 0, pieces=tuple(pieces))
    return Block(kind, text, first.level, pieces=tuple(pieces))


def _text_of(block: PdfBlock, words: set[str]) -> str:
    if block.kind == "code":
        return clean_code("\n".join(block.lines))
    return clean("\n".join(block.lines) if block.kind in _LINE_KINDS else _flow_lines(block.lines, words))


def _vocabulary(blocks: Sequence[PdfBlock]) -> set[str]:
    """Returns the words that are not divided at a line end, in lower case; hyphenated words count as one."""
    return {
        word.lower() for block in blocks for line in block.lines for word in _WORD.findall(_DIVIDED_WORD.sub("", line))
    }


def _footnotes_last(blocks: Sequence[PdfBlock]) -> list[PdfBlock]:
    """Moves the footnotes of each page after its other blocks."""
    return sorted(blocks, key=lambda block: (block.page, block.kind == "footnote"))


def _chains(blocks: Sequence[PdfBlock]) -> Iterator[list[PdfBlock]]:
    """Yields the blocks of each paragraph; floats between two of its parts follow it."""
    waiting = list(blocks)
    floats: list[PdfBlock] = []
    index = 0
    while index < len(waiting):
        chain = [waiting[index]]
        index += 1
        while chain[0].kind in ("paragraph", "item"):
            after = next((later for later in range(index, len(waiting)) if waiting[later].kind != "formula"), index)
            if after > index and _continues_after_formula(chain[-1], waiting[after]):
                chain += waiting[index : after + 1]
                index = after + 1
                continue
            ahead = _after_figure(waiting, index, chain[-1])
            while ahead < len(waiting) and _floats(waiting[ahead], chain[-1]) and ahead - index < _MOST_FLOATS:
                ahead += 1
            if ahead >= len(waiting) or not _continues(chain[-1], waiting[ahead]):
                break
            floats += waiting[index:ahead]
            chain.append(waiting[ahead])
            index = ahead + 1
        yield chain
        yield from ([block] for block in floats)
        floats = []


def _after_figure(waiting: Sequence[PdfBlock], index: int, before: PdfBlock) -> int:
    """Returns the index after the figure or table at the top of the next page or column, if one follows there.

    Its caption tells which blocks belong to it; text that goes on after it begins with a small letter.
    """
    if not before.runs_on or waiting[index : index + 1] == [] or before.lines[-1].endswith(_TERMINAL):
        return index
    top = waiting[index]
    for at in range(index, min(len(waiting) - 1, index + _MOST_FLOATS)):
        if waiting[at].page != top.page or waiting[at].lines[0][:1].islower() > (at > index):
            return index
        if waiting[at].kind == "caption":
            return at if waiting[at + 1].page == top.page and waiting[at + 1].lines[0][:1].islower() else index
    return index


def _floats(block: PdfBlock, before: PdfBlock) -> bool:
    """Returns whether a block does not belong to the running text of a paragraph, such as the labels of a figure."""
    return block.kind in _FLOAT_KINDS or (block.kind != "heading" and abs(block.size - before.size) > 0.3)


def _continues_after_formula(before: PdfBlock, after: PdfBlock) -> bool:
    """Returns whether a block continues a paragraph after displayed formulas.

    Few texts begin a paragraph after a formula, so it does unless it is indented, regardless of its first letter.
    """
    if after.kind != "paragraph" or after.page - before.page not in (0, 1) or abs(before.size - after.size) > 0.3:
        return False
    indent = after.box[0] - before.box[0]
    if len(after.lines) == 1 < len(before.lines) and before.page == after.page and 0.8 < indent / after.size < 4.0:
        return False
    return not after.indented


def _continues(before: PdfBlock, after: PdfBlock) -> bool:
    """Returns whether a block continues a paragraph in the next column or on the next page."""
    if after.kind != "paragraph" or after.page - before.page not in (0, 1) or abs(before.size - after.size) > 0.3:
        return False
    if after.page == before.page and after.box == before.box and after.box[0] < after.box[2]:
        return False  # both have the box of their page: its reader has separated them
    if after.page == before.page and after.box[1] >= before.box[3] - before.size and after.box[0] < before.box[2]:
        return False  # below it in the same column
    last, first = before.lines[-1], after.lines[0][:1]
    if last.endswith(_TERMINAL):
        return False
    return before.runs_on or first.islower() or first.isdigit() or last.endswith(("-", ","))


def _flow_lines(lines: Sequence[str], words: set[str]) -> str:
    text = lines[0]
    for line in lines[1:]:
        if line.startswith(END):
            text += line
            continue
        separator, drops_hyphen = _separator(text, line, words)
        text = (text[:-1] if drops_hyphen else text) + separator + line
    return text


def _separator(before: str, after: str, words: set[str]) -> tuple[str, bool]:
    """Returns the separator between two lines, and whether to remove the hyphen at the end of the first.

    A hyphen is removed if the word without it occurs elsewhere in the document, and kept if the word with it does. If
    neither occurs, it is removed between lower-case letters. In a compound of three parts the two parts at the hyphen
    are looked up in the same way, and the hyphen is kept if the first of them is a word.
    """
    left, right = _DIVIDED_WORD.search(before[-80:]), _WORD.match(after)
    if left is None or right is None:
        return (" ", False) if not _are_unspaced(before[-1:], after[:1]) else ("", False)
    whole = (left[1] + right[0]).lower()
    if whole in words and left[1].rpartition("-")[2]:
        return "", True
    compound = f"{left[1]}-{right[0]}".lower() in words or left[1].lower() in _PREFIXES
    if "-" in whole:
        tail, head = left[1].rpartition("-")[2].lower(), right[0].partition("-")[0].lower()
        compound = compound or (tail + head not in words and tail in words)
    if compound or not right[0][0].islower() or left[1][-1].isupper():
        return "", False
    return "", True


def _are_unspaced(before: str, after: str) -> bool:
    """Returns whether both letters are of a script without spaces: Chinese and Japanese."""
    return all(
        "\u3040" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or letter in "、。「」，"
        for letter in (before, after)
        if letter
    )


def without_running(pages: Sequence[list[Segment]], heights: Sequence[float], body: float) -> list[list[Segment]]:
    """Returns the segments of each page without running heads and feet.

    A line is running if the same text, ignoring digits, is at the same height on at least two of up to four pages, on
    three of up to fifteen, or on a fifth of more. The first and the last line of a page are also running in two cases.
    Part of the line is at the same position on three pages, and is not larger than the body text, as titles of slides
    are. Or the line begins or ends with the page number: a number that grows with the pages, at the same height on at
    least three pages and a twentieth of all. A line with nothing but a number is running if two pages have one, and
    "Page 1 of 1" always.

    Args:
        pages: segments of each page.
        heights: height of each page in points.
        body: font size of most of the text.
    """
    filled = sum(map(bool, pages))
    needed = 2 if filled <= 4 else max(3, filled // 5)
    outer = [_outermost(page, height) for page, height in zip(pages, heights, strict=True)]
    counts = Counter(key for rows in outer for key in {_running_key(row) for row in rows})
    ends = Counter(
        key for rows in outer for key in {key for row in _page_ends(rows) for key in _running_parts(row, body)}
    )
    numbered = sum(any(_is_number(row) for row in rows) for rows in outer)
    offsets = Counter(
        offset
        for index, rows in enumerate(outer)
        for offset in {offset for row in _page_ends(rows) for offset in _offsets(row, index)}
    )
    page_number_offsets = {offset for offset, count in offsets.items() if count >= max(3, filled // 20)}
    result = []
    for index, (page, rows) in enumerate(zip(pages, outer, strict=True)):
        running = [
            *(row for row in rows if counts[_running_key(row)] >= needed),
            *(row for row in rows if _is_number(row) and (numbered > 1 or " " in _running_text(row))),
            *(row for row in _page_ends(rows) if page_number_offsets & _offsets(row, index)),
            *(row for row in _page_ends(rows) if any(ends[key] >= _REPEATED for key in _running_parts(row, body))),
        ]
        removed = {id(segment) for row in running for segment in row}
        result.append([segment for segment in page if id(segment) not in removed])
    return result


def _page_ends(rows: list[list[Segment]]) -> list[list[Segment]]:
    """Returns the first and the last row of a page."""
    return rows[:1] + rows[1:][-1:]


def _running_parts(row: Sequence[Segment], body: float) -> Iterator[tuple[str, int, int]]:
    """Yields text and position of each segment of a row that has letters and is not larger than the body text."""
    for segment in row:
        if segment.size < 1.1 * body and any(letter.isalpha() for letter in segment.text):
            yield segment.text, round(segment.middle / 6), round(segment.x0 / 6)


def _offsets(row: Sequence[Segment], page: int) -> set[tuple[int, bool, int]]:
    """Returns (number minus page index, is decimal, approximate height) for the numbers at the ends of a row."""
    offsets = set()
    for match in _AT_END.finditer(_running_text(row)):
        written = (match[1] or match[2]).lower()
        value = int(written) if written.isdecimal() else _roman(written)
        offsets.add((value - page, written.isdecimal(), round(row[0].middle / 12)))
    return offsets


def _roman(written: str) -> int:
    values = [_VALUES[letter] for letter in written]
    return sum(-value if value < after else value for value, after in zip(values, [*values[1:], 0], strict=True))


def _outermost(page: Sequence[Segment], height: float) -> list[list[Segment]]:
    """Returns the topmost and bottommost rows near the edges of a page, each from left to right."""
    rows: list[list[Segment]] = []
    for segment in sorted(page, key=lambda segment: segment.middle):
        if rows and abs(rows[-1][0].middle - segment.middle) < 0.4 * segment.size:
            rows[-1].append(segment)
        else:
            rows.append([segment])
    at_top = [row for row in rows[:_OUTERMOST] if row[0].middle < _EDGE * height]
    at_bottom = [row for row in rows[-_OUTERMOST:] if row[0].middle > (1 - _EDGE) * height]
    return [sorted(row, key=lambda segment: segment.x0) for row in (*at_top, *at_bottom)]


def _running_text(row: Sequence[Segment]) -> str:
    return " ".join(segment.text for segment in row)


def _running_key(row: Sequence[Segment]) -> tuple[str, int]:
    return _DIGITS.sub("#", _running_text(row)), round(row[0].middle / 6)


def _is_number(row: Sequence[Segment]) -> bool:
    return _NUMBER.fullmatch(_running_text(row)) is not None
