"""Structure of a text: headings, code, tables and paragraphs, from its lines or from the layout of its pages.

Pure functions. `blocks` parses a plain text. Headings and fences follow CommonMark 0.31 (sections 4.2, 4.3, 4.5) with
three differences, because most texts are not Markdown: an underlined heading is a single line, an underline has at
least three characters, and an unclosed fence is text. A table is lines with bars above a delimiter row (GitHub Flavored
Markdown, section 4.10), or three or more lines with the same number of bars or tabs.

`PageLayout` reads the layout of a paged document, whose positions are code points of the extracted text. The kept text
may have masked parts and fewer lines, so its lines are aligned with those of the extracted text; a layout entry in a
changed line is mapped to the whole line.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tasks.formats.documents.chunks import CODE, HEADING, TABLE, TEXT

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_CLOSING = re.compile(r"[ \t]+#+[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(={3,}|-{3,})[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)")
_DELIMITER = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
_TABLE_LINES = 3
_KINDS = {"heading": HEADING, "table": TABLE, "code": CODE}
_NUMBER = re.compile(r"(\d{1,3}(?:\.\d{1,3}){0,4})\.?\s")
_PARAGRAPH = re.compile(r"\S.*(?:\n.*\S.*)*")
_BOX = ("page", "x0", "y0", "x1", "y1")

LayoutEntry = Mapping[str, Any]
"""An entry of a layout (`tasks.formats.documents.document`)."""


class TextBlock(NamedTuple):
    """A block of a text: its code points, its kind (`formats.documents.chunks`), and a heading's level and title."""

    start: int
    end: int
    kind: str
    level: int = 0
    title: str = ""


class _Line(NamedTuple):
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text.rstrip())


def blocks(text: str) -> list[TextBlock]:
    r"""Returns the blocks of a text in order; between them is only white space.

    >>> [(block.kind, block.level, block.title) for block in blocks("# Doors #\nThey open.\n\n```\nopen()\n```")]
    [('heading', 1, 'Doors'), ('text', 0, ''), ('code', 0, '')]
    """
    return list(_BlockParser(text).blocks())


class _BlockParser:
    def __init__(self, text: str) -> None:
        self.lines, at = list[_Line](), 0
        for line in text.split("\n"):
            self.lines.append(_Line(at, line))
            at += len(line) + 1
        self.unclosed: dict[str, int] = {}
        """Shortest fence of each character that is not closed in the rest of the text."""

    def blocks(self) -> Iterator[TextBlock]:
        paragraph: list[_Line] = []
        at = 0
        while at < len(self.lines):
            block, size = self._structure(at, paragraph)
            if block is None:
                if self.lines[at].text.strip():
                    paragraph.append(self.lines[at])
                else:
                    yield from _paragraph(paragraph)
                    paragraph = []
                at += 1
                continue
            if not paragraph or block.start > paragraph[0].start:  # an underlined heading includes the line above
                yield from _paragraph(paragraph)
            yield block
            paragraph = []
            at += size
        yield from _paragraph(paragraph)

    def _structure(self, at: int, paragraph: Sequence[_Line]) -> tuple[TextBlock | None, int]:
        """Returns a block, not a paragraph, that begins at a line, or a heading underlined by it; and its lines."""
        line = self.lines[at]
        if match := _HEADING.fullmatch(line.text):
            title = _CLOSING.sub("", match[2]).strip()
            return TextBlock(line.start, line.end, HEADING, len(match[1]), title), 1
        if len(paragraph) == 1 and (match := _UNDERLINE.fullmatch(line.text)) and "|" not in paragraph[0].text:
            level = 1 if match[1][0] == "=" else 2
            return TextBlock(paragraph[0].start, line.end, HEADING, level, paragraph[0].text.strip()), 1
        size = self._fenced(at)
        if size:
            return TextBlock(line.start, self.lines[at + size - 1].end, CODE), size
        size = self._table(at)
        return (TextBlock(line.start, self.lines[at + size - 1].end, TABLE), size) if size else (None, 0)

    def _fenced(self, at: int) -> int:
        """Returns the number of lines of the fenced block that begins at a line; 0 if none begins or it is unclosed."""
        match = _FENCE.fullmatch(self.lines[at].text)
        if match is None:
            return 0
        sign, length = match[1][0], len(match[1])
        if length >= self.unclosed.get(sign, length + 1):
            return 0  # an earlier search found no closing fence: avoids a second pass over the text
        for number in range(at + 1, len(self.lines)):
            end = _FENCE.fullmatch(self.lines[number].text)
            if end and end[1][0] == sign and len(end[1]) >= length and not end[2].strip():
                return number - at + 1
        self.unclosed[sign] = length
        return 0

    def _table(self, at: int) -> int:
        """Returns the number of lines of the table that begins at a line; 0 if none begins."""
        first = self.lines[at].text
        if at + 1 == len(self.lines) or not ("|" in first or "\t" in first.strip()):
            return 0
        second = self.lines[at + 1].text
        if "|" in first and "|" in second and _DELIMITER.fullmatch(second):
            return self._run(at, lambda line: "|" in line)
        sign = "|" if "|" in first else "\t"
        cells = first.strip().count(sign)
        size = self._run(at, lambda line: line.strip().count(sign) == cells)
        return size if size >= _TABLE_LINES else 0

    def _run(self, at: int, belongs: Callable[[str], bool]) -> int:
        end = at
        while end < len(self.lines) and belongs(self.lines[end].text):
            end += 1
        return end - at


def _paragraph(lines: Sequence[_Line]) -> Iterator[TextBlock]:
    if lines:
        yield TextBlock(lines[0].start, lines[-1].end, TEXT)


class PageLayout:
    """Maps ranges of a kept text to entries of the layout, with page and box.

    Args:
        extracted: the extracted text, in whose code points the layout is.
        kept: the kept text.
        layout: entries in order, without overlaps.
    """

    def __init__(self, extracted: str, kept: str, layout: Sequence[LayoutEntry]) -> None:
        self._kept = kept
        ranges = [(entry["start"], entry["end"], entry) for entry in layout]
        if extracted != kept:
            ranges = list(_map_layout(extracted, kept, layout))
        self._starts, self._ends = [start for start, _, _ in ranges], [end for _, end, _ in ranges]
        self._entries = [entry for _, _, entry in ranges]

    def blocks(self) -> list[TextBlock]:
        """Returns the blocks of the kept text: its parts between blank lines, with kinds from the layout.

        The level of a heading is one more than the parts of its number ("2.1 Doors": 3). Without a number it is 1 for
        the first heading of the document, which is the title, and 2 for others.
        """
        result, titled = list[TextBlock](), False
        for match in _PARAGRAPH.finditer(self._kept):
            entries = self._of(*match.span())
            kind = _KINDS.get(entries[0]["kind"], TEXT) if entries else TEXT
            if kind == HEADING:
                title = " ".join(match[0].split())
                result.append(TextBlock(*match.span(), kind, _level(title, titled), title))
                titled = True
            else:
                result.append(TextBlock(*match.span(), kind))
        return result

    def boxes(self, start: int, end: int) -> list[dict[str, Any]]:
        """Returns the distinct pages and boxes of the layout entries in a range of the kept text, in order."""
        boxes = [tuple(entry[name] for name in _BOX) for entry in self._of(start, end)]
        return [dict(zip(_BOX, box, strict=True)) for box in dict.fromkeys(boxes)]

    def _of(self, start: int, end: int) -> list[LayoutEntry]:
        return self._entries[bisect_right(self._ends, start) : bisect_left(self._starts, end)]


def _level(title: str, titled: bool) -> int:
    if number := _NUMBER.match(title):
        return number[1].count(".") + 2
    return 2 if titled else 1


def _map_layout(extracted: str, kept: str, layout: Sequence[LayoutEntry]) -> Iterator[tuple[int, int, LayoutEntry]]:
    """Yields (start, end, entry) in the kept text for the layout entries whose lines are kept."""
    before, after = extracted.split("\n"), kept.split("\n")
    begins = _begins(before)
    starts, ends = [entry["start"] for entry in layout], [entry["end"] for entry in layout]
    for number, (at, line, old) in enumerate(zip(_begins(after), after, align_lines(before, after), strict=True)):
        if old < 0:
            continue
        begin, end = begins[old], begins[old] + len(before[old])
        for entry in layout[bisect_right(ends, begin) : bisect_left(starts, end)]:
            if before[old] == after[number]:
                yield at + max(entry["start"] - begin, 0), at + min(entry["end"], end) - begin, entry
            else:
                yield at, at + len(line), entry


def _begins(lines: Sequence[str]) -> list[int]:
    begins, at = [], 0
    for line in lines:
        begins.append(at)
        at += len(line) + 1
    return begins


def align_lines(before: Sequence[str], after: Sequence[str]) -> list[int]:
    """Returns for each line of a changed text the number of its original line; -1 if unknown.

    Lines that occur exactly once in each text are the fixed points, as far as they are in the same order (patience
    diff); equal lines next to them follow; the rest between two fixed points is aligned if the numbers of lines are
    equal. Runs in linear time, except for the sorting of the fixed points.

    >>> align_lines(["a", "to ann@b.org", "x", "x", "b"], ["a", "to <email>", "x", "x", "b"])
    [0, 1, 2, 3, 4]
    >>> align_lines(["a", "gone", "x", "b"], ["a", "y", "b"])
    [0, -1, 3]
    """
    originals = [-1] * len(after)
    for (old, new), (old_end, new_end) in pairwise(
        [(-1, -1), *_fixed_points(before, after), (len(before), len(after))]
    ):
        first, last = (old + 1, new + 1), (old_end - 1, new_end - 1)
        if new >= 0:
            originals[new] = old
        while first[0] <= last[0] and first[1] <= last[1] and before[first[0]] == after[first[1]]:
            originals[first[1]] = first[0]
            first = first[0] + 1, first[1] + 1
        while first[0] <= last[0] and first[1] <= last[1] and before[last[0]] == after[last[1]]:
            originals[last[1]] = last[0]
            last = last[0] - 1, last[1] - 1
        if last[0] - first[0] == last[1] - first[1]:
            for offset in range(last[1] - first[1] + 1):
                originals[first[1] + offset] = first[0] + offset
    return originals


def _fixed_points(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the longest ascending sequence of (line before, line after) of lines that occur once in both texts."""
    counts, new_counts = Counter(before), Counter(after)
    places = {line: at for at, line in enumerate(before) if counts[line] == 1}
    pairs = [(places[line], at) for at, line in enumerate(after) if new_counts[line] == 1 and line in places]
    tops: list[int] = []  # smallest last line of an ascending sequence of each length
    ends: list[int] = []
    links: list[int] = []
    for number, (old, _) in enumerate(pairs):
        length = bisect_left(tops, old)
        links.append(ends[length - 1] if length else -1)
        tops[length : length + 1] = [old]
        ends[length : length + 1] = [number]
    chosen, at = [], ends[-1] if ends else -1
    while at >= 0:
        chosen.append(pairs[at])
        at = links[at]
    return chosen[::-1]
