"""Blocks of a region: paragraphs, headings, list items, captions, footnotes, formulas, tables, listings and contents.

Pure functions over the lines of a region, in which ruled tables already are lines of their own (`rulings`). Tables
without rulings are found by the alignment of their cells (`tables`). Listings, such as source code, are lines in a
monospaced font and keep their line ends and indents; a document that is entirely monospaced has no listings.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from tasks.formats.documents.layout import Box
from tasks.formats.pdf.characters import NAMED
from tasks.formats.pdf.formulas import MIN_LINES, displayed, is_formula, is_fragment
from tasks.formats.pdf.lines import Line
from tasks.formats.pdf.segments import Table
from tasks.formats.pdf.tables import table_of, table_runs

LISTING_MONO = 0.75
"""Minimum share of monospaced characters of a line, or of a part of one, of a listing."""
_LISTING_APART = 0.35
_LISTING_BLANK = 0.7
"""Minimum gaps between lines, in font sizes: around a listing of one line, and for a blank line."""
_LISTING_FARTHEST = 3.0
_LISTING_COLUMNS = 200

LEVELS = 6
"""Number of levels of headings."""
KINDS = ("paragraph", "heading", "item", "caption", "footnote", "formula", "table", "code", "contents", "turned")

_BULLET = re.compile(r"[•◦▪‣∙●○■]\s?|[–—*-]\s|\(?[0-9]{1,3}[.)]\s|\[[0-9]{1,3}\]\s|\([a-z]\)\s|\(?[ivx]{1,4}[.)]\s")
_CAPTION = re.compile(
    r"(?:Figure|Fig\.|Table|Tab\.|Abbildung|Abb\.|Tabelle|Algorithm)\s*[0-9A-Z]{1,3}(?:[.:]|\s+[^\sa-z])"
)
_NOTE = re.compile(r"(?:[0-9]{1,3}|[*†‡§¶∗])\s?[^\W\d_]")
_NUMBERED = re.compile(r"(?:[0-9]{1,2}(?:\.[0-9]{1,2}){0,3}\.?|[A-Z]\.|[IVX]{1,5}\.)\s+[^\W\d_]")
_DIVIDED = re.compile(r"[^\W\d_]-$")
_LEADER = re.compile(r"(?:\s?[.·…]){4,}\s?")
_ENTRY = re.compile(_LEADER.pattern + r"\S{1,8}$")
"""A line of a table of contents: dots from its title to a page number."""
_ENDS = (".", ",", ";", "!", "?")
_SENTENCE_END = re.compile(r"[.!?:;。؟۔][)\]\"'”’»]*$")
_SLIGHTLY, _APART, _FAR = 1.12, 1.25, 1.8
"""Minimum distance of lines at which a new paragraph begins, relative to the line distance of the paragraph: after the
end of a sentence, anywhere, and in text with formulas."""
_TAGGED, _TAG_CHARS = 2.0, 24
_EARLY, _EARLY_CAPITAL = 0.3, 0.15
"""Minimum room at the end of a line that ends a paragraph with its sentence, as a share of the width of the region:
before any line, and before one that begins with a capital letter."""
_BOLD_WEIGHT, _BOLDER = 600, 1.3
_SHARED_END, _SAME_END, _SAME_STEP = 3, 0.6, 0.03
"""Minimum number of lines that end together at the right edge, within so many points; equality of line distances."""
END = "\n"
"""Prefix of a line that begins after a hard line break: its first word would have fitted on the previous line."""


@dataclass(frozen=True, slots=True)
class PdfBlock:
    """A block of one region: its lines of text, its kind, and its box on a page.

    Line ends are soft, except before lines that begin with `END`, and in tables, listings and contents.
    """

    kind: str
    lines: tuple[str, ...]
    page: int
    box: Box
    size: float
    runs_on: bool = False
    """Whether its last line is full and ends in the middle of a sentence."""
    indented: bool = False
    """Whether its first line is indented relative to the others."""
    rows: tuple[tuple[str, ...], ...] = ()
    """Rows of a table, each with a text per column; a text over several cells is in the first of them."""
    header_rows: int = 0
    """Number of rows that are the head of a table; 0 if unknown."""
    level: int = 0
    """Level of a heading, 1 to 6 by font size within the document; 0 for other blocks."""


@dataclass(frozen=True)
class BodyStyle:
    """Style of most characters of a document: font size, weight, whether the font is monospaced, line distance."""

    size: float = 10.0
    weight: int = 0
    mono: bool = False
    step: float = 0.0
    """Most frequent distance of its lines in points."""

    @property
    def heavy(self) -> float:
        """The minimum weight that counts as bold; infinite if the body font is bold by name."""
        return min(max(_BOLD_WEIGHT, _BOLDER * self.weight), NAMED) if self.weight < NAMED else math.inf


def step_of(regions: Iterable[Sequence[Line]], size: float) -> float:
    """Returns the most frequent distance in points of lines of this font size, to a tenth; 0 for none."""
    counts: Counter[float] = Counter()
    for lines in regions:
        for before, after in pairwise(lines):
            step = after.y1 - before.y1
            if abs(before.size - size) < 0.3 > abs(after.size - size) and 0.9 * size < step < 2.5 * size:
                counts[round(step, 1)] += 1
    return max(counts, key=lambda step: (counts[step], -step), default=0.0)


def blocks(lines: Sequence[Line], page: int, height: float, body: BodyStyle) -> Iterator[PdfBlock]:
    """Yields the blocks of a region from top to bottom.

    Args:
        lines: lines of the region.
        page: page number.
        height: height of the page in points.
        body: style of the document's body text.
    """
    position = 0
    for index, line in enumerate(lines):
        for cell in line.cells:
            if cell.table is not None:
                yield from _unruled_blocks(lines[position:index], page, height, body)
                yield _table_block(cell.table, [Line([cell])], page)
                position = index + 1
    yield from _unruled_blocks(lines[position:], page, height, body)


def _unruled_blocks(lines: Sequence[Line], page: int, height: float, body: BodyStyle) -> Iterator[PdfBlock]:
    position = 0
    for start, end in [*([] if body.mono else _listing_runs(lines)), (len(lines), len(lines))]:
        yield from _text_blocks(lines[position:start], page, height, body)
        if end > start:
            yield _block("code", _listing_lines(lines[start:end]), lines[start:end], page)
        position = end


def _table_block(table: Table, lines: Sequence[Line], page: int) -> PdfBlock:
    return replace(_block("table", table.lines, lines, page), rows=table.rows, header_rows=table.header_rows)


def _text_blocks(lines: Sequence[Line], page: int, height: float, body: BodyStyle) -> Iterator[PdfBlock]:
    position = 0
    for start, end in [*table_runs(lines), (len(lines), len(lines))]:
        in_footnote = False
        right = _right_edge(lines)
        for group, is_formula_group in _with_fragments(list(_paragraphs(lines[position:start], body))):
            kind = "formula" if is_formula_group else _kind_of(group, height, body)
            in_footnote = kind == "footnote" or (
                in_footnote and kind == "paragraph" and group[0].size < 0.93 * body.size
            )
            kind = "footnote" if in_footnote else kind
            runs_on = len(lines) >= MIN_LINES and _flows(group[-1], right)
            yield _block(kind, _texts(group, kind, right), group, page, runs_on=runs_on)
        if end > start:
            yield _table_block(table_of(lines[start:end]), lines[start:end], page)
        position = end


def _texts(group: Sequence[Line], kind: str, right: float) -> list[str]:
    """Returns the lines of a group, with `END` after hard line breaks; `right` is the end of the region's lines."""
    if kind == "contents":
        return _contents_entries(group)
    texts = [line.text for line in group]
    if kind not in ("paragraph", "item", "footnote"):
        return texts
    full_end, longest = max(line.end for line in group), max(len(text) for text in texts)
    ends = [
        index
        for index in range(1, len(group))
        # Lines with equal numbers of characters were broken by a program that ignores widths.
        if _has_room(group, index, full_end) and len(texts[index - 1]) + 1 + _unbreakable_chars(texts[index]) <= longest
    ]
    if 3 * len(ends) >= 2 * (len(group) - 1):  # a list without bullets: the longest of its lines ends, too
        ends = [index for index in range(1, len(group)) if _has_room(group, index, right)]
    return [END * (index in ends) + text for index, text in enumerate(texts)]


def _has_room(group: Sequence[Line], index: int, full_end: float) -> bool:
    """Returns whether the previous line had room for the first word of this line, if full lines end at `full_end`.

    A line that ends where an adjacent line does counts as full: it is justified, or next to a figure. So does a
    hyphenated line.
    """
    before, line = group[index - 1], group[index]
    if _DIVIDED.search(before.text):
        return False
    room = full_end - before.end - (_unbreakable_chars(line.text) + 1) * (line.x1 - line.x0) / max(1, len(line.text))
    beside = (*group[max(0, index - 2) : index - 1], line)
    return room > before.size and all(abs(before.end - other.end) >= 0.1 * before.size for other in beside)


def _unbreakable_chars(text: str) -> int:
    """Returns the number of characters at the beginning of a line that cannot be broken."""
    return 1 if _breaks_anywhere(text[0]) else len(text.split(" ", 1)[0])


def _breaks_anywhere(letter: str) -> bool:
    """Returns whether lines may be broken at any letter of this letter's script."""
    return "\u0e00" <= letter <= "\u0eff" or "\u3000" <= letter <= "\u9fff" or "\uac00" <= letter <= "\ud7a3"


def _contents_entries(group: Sequence[Line]) -> list[str]:
    """Returns the entries of a table of contents with shortened dots; an entry may begin in lines without dots."""
    entries = [""]
    for line in group:
        entries[-1] = f"{entries[-1]} {_LEADER.sub(' ..... ', line.text)}".strip()
        if _ENTRY.search(line.text):
            entries.append("")
    return [entry for entry in entries if entry]


def _block(kind: str, texts: Sequence[str], group: Sequence[Line], page: int, *, runs_on: bool = False) -> PdfBlock:
    box = (
        min(line.x0 for line in group),
        min(cell.y0 for line in group for cell in line.cells),
        max(line.x1 for line in group),
        max(cell.y1 for line in group for cell in line.cells),
    )
    indented = group[0].begin > min(line.begin for line in group) + 0.8 * group[0].size
    return PdfBlock(kind, tuple(texts), page, box, median(line.size for line in group), runs_on, indented)


def _paragraphs(lines: Sequence[Line], body: BodyStyle) -> Iterator[tuple[list[Line], bool]]:
    """Yields the lines of each paragraph, in order, and whether they are a formula."""
    if not lines:
        return
    steps = _steps(lines, body)
    left = median(line.begin for line in lines)
    right = _right_edge(lines)
    apart = displayed(lines, left, [_BULLET.match(line.text) is not None for line in lines])
    group = [lines[0]]
    for index, line in enumerate(lines[1:], 1):
        if apart[index - 1] or apart[index]:
            begins = not (apart[index - 1] and apart[index])
        else:
            begins = _begins_paragraph(line, group, steps.get(round(line.size), 1.3 * line.size), left, right)
        if begins:
            yield group, _is_formula_group(group, apart=apart[index - 1])
            group = []
        group.append(line)
    yield group, _is_formula_group(group, apart=apart[-1])


def _is_formula_group(group: Sequence[Line], *, apart: bool) -> bool:
    text = " ".join(line.text for line in group)
    if _ENTRY.search(text) or (_BULLET.match(text) and not apart):
        return False
    return is_formula(group, text, apart=apart)


def _with_fragments(groups: Sequence[tuple[list[Line], bool]]) -> Iterator[tuple[list[Line], bool]]:
    """Yields the groups, those that are parts of the formula before or after them as formulas."""
    for index, (group, is_formula_group) in enumerate(groups):
        beside = [other for at in (index - 1, index + 1) if 0 <= at < len(groups) for other, one in [groups[at]] if one]
        yield group, is_formula_group or is_fragment(group, beside)


def _steps(lines: Sequence[Line], body: BodyStyle) -> dict[int, float]:
    """Returns the line distance within paragraphs by font size.

    It is that of the document if any two lines have it, else the lower quartile of all distances, because on some pages
    most lines begin a paragraph.
    """
    steps: dict[int, list[float]] = {}
    for before, after in pairwise(lines):
        step = after.y1 - before.y1
        if _same_size(before, after) and 0.9 * after.size < step < 2.5 * after.size:
            steps.setdefault(round(after.size), []).append(step)
    found = {size: sorted(distances)[len(distances) // 4] for size, distances in steps.items()}
    size = round(body.size)
    if any(abs(distance - body.step) < _SAME_STEP * body.step for distance in steps.get(size, ())):
        found[size] = min(found[size], body.step)
    return found


def _right_edge(lines: Sequence[Line]) -> float:
    """Returns where full lines end: the farthest end that several lines share, because names stick out, else any."""
    ends = sorted((line.end for line in lines), reverse=True)
    shared = max(_SHARED_END, len(ends) // 7)
    for index, end in enumerate(ends[: len(ends) - shared + 1]):
        if end - ends[index + shared - 1] < _SAME_END:
            return end
    return ends[0] if ends else 0.0


def _same_size(before: Line, after: Line) -> bool:
    return abs(before.size - after.size) < 0.08 * before.size


def _begins_paragraph(line: Line, group: Sequence[Line], step: float, left: float, right: float) -> bool:
    """Returns whether a line begins a new paragraph after `group`."""
    last = group[-1]
    if not _same_size(last, line) or _is_tagged(last) or _changes_weight(line, group, right):
        return True
    if _is_apart(line, last, step, right):
        return True
    if _ENTRY.search(last.text) or _ENTRY.search(line.text):
        return not (_ENTRY.search(group[0].text) or len(group) == 1)
    indent = 0.8 * line.size
    if _BULLET.match(line.text):
        first_indent = last.begin - line.begin if len(group) == 1 else 0.0
        begins_below = abs(line.begin - last.begin) < 0.1 * line.size or indent < first_indent < 4 * indent
        if not (_flows(last, right) and begins_below):
            return True
    if len(group) == 1 or abs(group[0].begin - last.begin) < indent / 2:
        # No indent so far: an indented line begins a paragraph, unless it is part of a hanging indent.
        if indent < line.begin - last.begin < 6 * indent and not (len(group) == 1 and _BULLET.match(last.text)):
            return last.begin <= left + indent / 2 and not _hangs(group)
    elif group[0].begin < last.begin - indent / 2 and line.begin < last.begin - indent / 2:
        return True  # the next item of a hanging list
    elif group[0].begin > last.begin + indent / 2 and line.begin > last.begin + indent:
        return True
    return last.begin <= left + indent and _ends_early(last, line, left, right)


def _ends_early(last: Line, line: Line, left: float, right: float) -> bool:
    """Returns whether a line ends a sentence far from the right margin, with room for the next word."""
    if not last.text.endswith((".", "!", "?", ":", "؟", "۔", "。")):
        return False
    word = (_unbreakable_chars(line.text) + 1) * (line.x1 - line.x0) / max(1, len(line.text))
    far = _EARLY if line.text[0].islower() else _EARLY_CAPITAL
    return last.end + word < right - far * (right - left)


def _changes_weight(line: Line, group: Sequence[Line], right: float) -> bool:
    """Returns whether bold text begins or ends with a line, and not within a heading in several fonts."""
    last = group[-1]
    if line.bold == last.bold or (last.ends_bold and line.begins_bold and _flows(last, right)):
        return False
    return line.bold or all(other.bold for other in group)


def _is_tagged(line: Line) -> bool:
    """Returns whether a line ends with a tag at the right margin, such as "[Function]" or a formula number."""
    if len(line.cells) != 2 or len(line.cells[1].text) > _TAG_CHARS:
        return False
    return abs(line.cells[1].x0 - line.cells[0].x1) > _TAGGED * line.size


def _is_apart(line: Line, last: Line, step: float, right: float) -> bool:
    """Returns whether the distance of a line from the last one is larger than within paragraphs."""
    gap = (line.y1 - last.y1) / max(step, line.size)
    if line.math or last.math:  # a sum or a fraction in the text
        return gap > (_FAR if _flows(last, right) else _APART)
    return gap > _APART or (gap > _SLIGHTLY and not _flows(last, 0.0) and not line.text[0].islower())


def _flows(last: Line, right: float) -> bool:
    """Returns whether a line reaches the right end of its region, in the middle of a sentence."""
    return last.end > right - 3 * last.size and not _SENTENCE_END.search(last.text)


def _hangs(group: Sequence[Line]) -> bool:
    return len(group) == 1 and not group[0].text.endswith(".")


def _kind_of(group: Sequence[Line], height: float, body: BodyStyle) -> str:
    text = " ".join(line.text for line in group)
    size = median(line.size for line in group)
    if 2 * sum(_ENTRY.search(line.text) is not None for line in group) >= len(group):
        return "contents"
    if _CAPTION.match(text):
        return "caption"
    if size < 0.93 * body.size and group[0].y0 > height / 2 and _NOTE.match(text):
        return "footnote"
    if _is_heading(group, text, size, body):
        return "heading"
    return "item" if _BULLET.match(text) else "paragraph"


def _is_heading(group: Sequence[Line], text: str, size: float, body: BodyStyle) -> bool:
    if len(group) > 3 or len(text) > 200 or not any(letter.isalpha() for letter in text):
        return False
    if size >= 1.15 * body.size:
        return True
    if len(group) > 2 or size < 0.95 * body.size or text.endswith(_ENDS):
        return False
    bold = all(line.bold for line in group)
    return bold or (len(group) == 1 and len(text) < 80 and _NUMBERED.match(text) is not None and text.isupper())


def _listing_runs(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Returns the ranges of lines (first, end) of a region that are listings.

    A single line is a listing only if gaps separate it from the lines around it, because running text may contain
    monospaced lines.
    """
    runs, index = [], 0
    while index < len(lines):
        end = index
        while (
            end < len(lines)
            and lines[end].mono >= LISTING_MONO
            and (end == index or _gap_above(lines, end) < _LISTING_FARTHEST)
        ):
            end += 1
        if end - index > 1 and _gap_above(lines, index) < _LISTING_APART <= _gap_above(lines, index + 1):
            index += 1  # the last line of a paragraph, which ends with a name
        if end - index > 1 or (
            end > index and _gap_above(lines, index) >= _LISTING_APART and _gap_above(lines, end) >= _LISTING_APART
        ):
            runs.append((index, end))
        index = max(end, index + 1)
    return runs


def _gap_above(lines: Sequence[Line], index: int) -> float:
    """Returns the gap above a line in font sizes; a large number above the first and below the last line."""
    if not 0 < index < len(lines):
        return 100.0
    return (lines[index].y0 - lines[index - 1].y1) / max(1.0, lines[index - 1].size)


def _listing_lines(run: Sequence[Line]) -> list[str]:
    """Returns the lines of a listing, with each cell at its column."""
    widths = [(cell.x1 - cell.x0) / len(cell.text) for line in run for cell in line.cells if cell.text]
    width = max(1.0, median(widths))
    left = min(line.x0 for line in run)
    texts: list[str] = []
    for index, line in enumerate(run):
        if index and _gap_above(run, index) > _LISTING_BLANK:
            texts.append("")
        text = ""
        for cell in line.cells:
            column = min(_LISTING_COLUMNS, round((cell.x0 - left) / width))
            text = (text + " " * bool(text)).ljust(column) + cell.text
        texts.append(text)
    return texts
