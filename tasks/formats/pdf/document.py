"""A PDF file as one text with the place of each block, and the score of each page.

Reads the bytes of a file. Running heads, running feet and page numbers, which repeat at the same place from page to
page, are left out; paragraphs that go on in the next column or page are joined. Memory grows with the characters of the
file, which `reader.Limits` bounds: segments of all pages are kept until running heads are known.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tasks.formats.documents.layout import LayoutSpan, PageScore
from tasks.formats.documents.text import clean
from tasks.formats.pdf.blocks import END, Block, Body, blocks
from tasks.formats.pdf.characters import RawPage, displayed
from tasks.formats.pdf.columns import regions
from tasks.formats.pdf.health import health
from tasks.formats.pdf.lines import lines
from tasks.formats.pdf.reader import Limits, opened, pages, title_of
from tasks.formats.pdf.segments import Segment, segments, without_ruby

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_LAST = re.compile(r"([^\W\d_]+(?:-[^\W\d_]+)*)-$")
_FIRST = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_ASIDE = frozenset(("caption", "table", "footnote", "turned"))
_MOST_FLOATS = 60
_AS_LINES = frozenset(("table", "code", "contents"))
_TERMINAL = (".", "!", "?", ":", ";", "\u201d", '"', ")")
# Before these a hyphen stays where the document tells nothing: "self-" and "attention" are two words.
_PREFIXES = frozenset(
    ("self", "non", "well", "high", "low", "large", "small", "state", "open", "end", "fine", "zero", "few")
)

_TITLE_CHARS = 300
# Titles that programs put in by themselves.
_NO_TITLES = ("untitled", "microsoft word", "powerpoint", "about:blank", "slide 1", ".doc", ".tex", ".dvi", ".indd")

PageReader = Callable[[int], Sequence[Block] | None]
"""Reads a page that has no usable text by other means: page number -> blocks, or None if it cannot."""

_OUTERMOST = 3
_REPEATED = 3
_EDGE = 0.14
"""Share of a page's height, from its upper and lower end, in which they stand."""
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
        text: blocks with a blank line between them, as `tasks.formats.documents.text.clean` gives it.
        title: "" where neither the file nor its first page has one.
        pieces: where each block of `text` stands.
        pages: the score of each page.
    """

    text: str
    title: str
    pieces: tuple[LayoutSpan, ...]
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


def joined(found: Sequence[Block]) -> tuple[str, tuple[LayoutSpan, ...]]:
    """Returns the text of a document and its pieces."""
    words = _vocabulary(found)
    texts: list[str] = []
    pieces: list[LayoutSpan] = []
    at = 0
    for chain in _chains(_footnotes_last(found)):
        before, apart = "", False
        for block in chain:
            text = clean("\n".join(block.lines) if block.kind in _AS_LINES else _flowing(block.lines, words))
            if not text:
                continue
            if before:
                apart = apart or block.kind == "formula"
                glue, cut = ("\n", False) if apart else _seam(before, text, words)
                apart = block.kind == "formula"
                if cut:
                    texts[-1] = texts[-1][:-1]
                    last = pieces[-1]
                    pieces[-1] = LayoutSpan(last.start, last.end - 1, last.kind, last.page, last.box)
                    at -= 1
            else:
                glue = "\n\n" if texts else ""
            texts += [glue, text]
            at += len(glue)
            pieces.append(LayoutSpan(at, at + len(text), block.kind, block.page, block.box))
            at += len(text)
            before = text
    return "".join(texts), tuple(pieces)


def _vocabulary(found: Sequence[Block]) -> set[str]:
    """Returns the words that stand within lines, in lower case, those with hyphens whole."""
    return {word.lower() for block in found for line in block.lines for word in _WORD.findall(_LAST.sub("", line))}


def _footnotes_last(found: Sequence[Block]) -> list[Block]:
    """Returns the blocks with the footnotes of each page behind its other blocks."""
    return sorted(found, key=lambda block: (block.page, block.kind == "footnote"))


def _chains(found: Sequence[Block]) -> Iterator[list[Block]]:
    """Yields the blocks of each paragraph; what floats between two of its parts follows it."""
    waiting = list(found)
    floats: list[Block] = []
    at = 0
    while at < len(waiting):
        chain = [waiting[at]]
        at += 1
        while chain[0].kind in ("paragraph", "item"):
            after = next((to for to in range(at, len(waiting)) if waiting[to].kind != "formula"), at)
            if after > at and _goes_on_after(chain[-1], waiting[after]):
                chain += waiting[at : after + 1]
                at = after + 1
                continue
            ahead = at
            while ahead < len(waiting) and _floats(waiting[ahead], chain[-1]) and ahead - at < _MOST_FLOATS:
                ahead += 1
            if ahead >= len(waiting) or not _goes_on(chain[-1], waiting[ahead]):
                break
            floats += waiting[at:ahead]
            chain.append(waiting[ahead])
            at = ahead + 1
        yield chain
        yield from ([one] for one in floats)
        floats = []


def _floats(block: Block, before: Block) -> bool:
    """Returns whether a block is none of the text that a paragraph belongs to, such as the labels of a figure."""
    return block.kind in _ASIDE or (block.kind != "heading" and abs(block.size - before.size) > 0.3)


def _goes_on_after(before: Block, after: Block) -> bool:
    """Returns whether a block is the rest of the paragraph before it, with displayed formulas between them.

    It is in most texts, whatever its first letter, since few begin a paragraph behind a formula; an indent says so.
    """
    if after.kind != "paragraph" or after.page - before.page not in (0, 1) or abs(before.size - after.size) > 0.3:
        return False
    return not after.indented


def _goes_on(before: Block, after: Block) -> bool:
    """Returns whether a block is the rest of the paragraph before it, in the next column or on the next page."""
    if after.kind != "paragraph" or after.page - before.page not in (0, 1) or abs(before.size - after.size) > 0.3:
        return False
    if after.page == before.page and after.box[1] >= before.box[3] - before.size and after.box[0] < before.box[2]:
        return False  # below it in the same column
    last, first = before.lines[-1], after.lines[0][:1]
    if last.endswith(_TERMINAL):
        return False
    return before.runs_on or first.islower() or first.isdigit() or last.endswith(("-", ","))


def _flowing(lines: Sequence[str], words: set[str]) -> str:
    text = lines[0]
    for line in lines[1:]:
        if line.startswith(END):
            text += line
            continue
        glue, cut = _seam(text, line, words)
        text = (text[:-1] if cut else text) + glue + line
    return text


def _seam(before: str, after: str, words: set[str]) -> tuple[str, bool]:
    """Returns what goes between two lines, and whether the hyphen at the end of the first goes.

    A hyphen goes if the word without it stands elsewhere in the document, and stays if the word with it does; without
    either it goes between lower case letters. In a compound of three parts the two parts beside it tell the same, and
    it stays if the first of them is a word.
    """
    last, first = _LAST.search(before[-80:]), _FIRST.match(after)
    if last is None or first is None:
        return (" ", False) if not _without_spaces(before[-1:], after[:1]) else ("", False)
    whole = (last[1] + first[0]).lower()
    if whole in words and last[1].rpartition("-")[2]:
        return "", True
    compound = f"{last[1]}-{first[0]}".lower() in words or last[1].lower() in _PREFIXES
    if "-" in whole:
        tail, head = last[1].rpartition("-")[2].lower(), first[0].partition("-")[0].lower()
        compound = compound or (tail + head not in words and tail in words)
    if compound or not first[0][0].islower() or last[1][-1].isupper():
        return "", False
    return "", True


def _without_spaces(before: str, after: str) -> bool:
    """Returns whether both letters are of a script that writes no spaces: Chinese and Japanese."""
    return all(
        "\u3040" <= letter <= "\u30ff" or "\u3400" <= letter <= "\u9fff" or letter in "、。「」，"
        for letter in (before, after)
        if letter
    )


def without_running(pages: Sequence[list[Segment]], heights: Sequence[float], body: float) -> list[list[Segment]]:
    """Returns the segments of each page without those that run.

    Args:
        pages: segments of each page.
        heights: height of each page in points.
        body: font size of most of the text.

    A line runs if the same text, digits aside, stands at the same height on two pages of up to four, on three of up
    to fifteen, and on a fifth of more. The first and the last line of a page run if a part of them does so on three,
    unless it is larger than the text, as titles of slides are; or if they begin or end with the number of the page: one
    that grows with the pages, at the same height of three of them and of a twentieth of all. Numbers alone run from
    two pages on, and "Page 1 of 1" on one.
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
        one for at, rows in enumerate(outer) for one in {one for row in _page_ends(rows) for one in _offsets(row, at)}
    )
    agreed = {one for one, count in offsets.items() if count >= max(3, filled // 20)}
    kept = []
    for at, (page, rows) in enumerate(zip(pages, outer, strict=True)):
        running = [
            *(row for row in rows if counts[_running_key(row)] >= needed),
            *(row for row in rows if _is_number(row) and (numbered > 1 or " " in _running_text(row))),
            *(row for row in _page_ends(rows) if agreed & _offsets(row, at)),
            *(row for row in _page_ends(rows) if any(ends[key] >= _REPEATED for key in _running_parts(row, body))),
        ]
        gone = {id(one) for row in running for one in row}
        kept.append([one for one in page if id(one) not in gone])
    return kept


def _page_ends(rows: list[list[Segment]]) -> list[list[Segment]]:
    """Returns the first and the last row of a page, where a footnote is followed by the page's number."""
    return rows[:1] + rows[1:][-1:]


def _running_parts(row: Sequence[Segment], body: float) -> Iterator[tuple[str, int, int]]:
    """Yields what names each segment of a row, if it is no larger than the text."""
    for one in row:
        if one.size < 1.1 * body and any(letter.isalpha() for letter in one.text):
            yield one.text, round(one.middle / 6), round(one.x0 / 6)


def _offsets(row: Sequence[Segment], page: int) -> set[tuple[int, bool, int]]:
    """Returns by how much the numbers at the ends of a row exceed its page, with the numerals, and about the height."""
    found = set()
    for match in _AT_END.finditer(_running_text(row)):
        written = (match[1] or match[2]).lower()
        value = int(written) if written.isdecimal() else _roman(written)
        found.add((value - page, written.isdecimal(), round(row[0].middle / 12)))
    return found


def _roman(written: str) -> int:
    values = [_VALUES[letter] for letter in written]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))


def _outermost(page: Sequence[Segment], height: float) -> list[list[Segment]]:
    """Returns the uppermost and lowermost rows near the ends of a page."""
    rows: list[list[Segment]] = []
    for one in sorted(page, key=lambda one: one.middle):
        if rows and abs(rows[-1][0].middle - one.middle) < 0.4 * one.size:
            rows[-1].append(one)
        else:
            rows.append([one])
    at_top = [row for row in rows[:_OUTERMOST] if row[0].middle < _EDGE * height]
    at_bottom = [row for row in rows[-_OUTERMOST:] if row[0].middle > (1 - _EDGE) * height]
    return [sorted(row, key=lambda one: one.x0) for row in (*at_top, *at_bottom)]


def _running_text(row: Sequence[Segment]) -> str:
    return " ".join(one.text for one in row)


def _running_key(row: Sequence[Segment]) -> tuple[str, int]:
    return _DIGITS.sub("#", _running_text(row)), round(row[0].middle / 6)


def _is_number(row: Sequence[Segment]) -> bool:
    return _NUMBER.fullmatch(_running_text(row)) is not None
