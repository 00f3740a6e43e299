"""Structure of a text: headings, code, tables and paragraphs, found in its lines or by the layout of its pages.

Pure functions. `blocks` reads a plain text. Headings and fences are those of CommonMark 0.31 (sections 4.2, 4.3, 4.5)
with three differences, since most texts are not Markdown: an underlined heading is a single line, an underline has at
least three characters, and a fence that nothing closes is text. A table is lines with bars over a delimiter row (GitHub
Flavored Markdown, section 4.10), or three and more lines with the same number of bars or tabs.

`Pages` reads the layout of a document of pages. It counts code points of the extracted text, and what is kept of that
may have masked stretches and lack lines: the lines of both are paired, and what stands in a line that has changed
counts as standing in all of it.
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

Piece = Mapping[str, Any]
"""An entry of a layout (`tasks.formats.documents.document`)."""


class Block(NamedTuple):
    """A block of a text: its code points, its kind (`formats.documents.chunks`), and of a heading level and title."""

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


def blocks(text: str) -> list[Block]:
    r"""Returns the blocks of a text in order; what is between them is white space.

    >>> [(one.kind, one.level, one.title) for one in blocks("# Doors #\nThey open.\n\n```\nopen()\n```")]
    [('heading', 1, 'Doors'), ('text', 0, ''), ('code', 0, '')]
    """
    return list(_Parser(text).blocks())


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines, at = list[_Line](), 0
        for line in text.split("\n"):
            self.lines.append(_Line(at, line))
            at += len(line) + 1
        self.unclosed: dict[str, int] = {}
        """Shortest fence of each character that nothing closes from where the parser is on."""

    def blocks(self) -> Iterator[Block]:
        held: list[_Line] = []  # of a paragraph
        at = 0
        while at < len(self.lines):
            found, size = self._structure(at, held)
            if found is None:
                if self.lines[at].text.strip():
                    held.append(self.lines[at])
                else:
                    yield from _paragraph(held)
                    held = []
                at += 1
                continue
            if not held or found.start > held[0].start:  # an underlined heading has its line already
                yield from _paragraph(held)
            yield found
            held = []
            at += size
        yield from _paragraph(held)

    def _structure(self, at: int, held: Sequence[_Line]) -> tuple[Block | None, int]:
        """Returns a block other than a paragraph that begins at a line, or ends with this underline; and its lines."""
        line = self.lines[at]
        if match := _HEADING.fullmatch(line.text):
            title = _CLOSING.sub("", match[2]).strip()
            return Block(line.start, line.end, HEADING, len(match[1]), title), 1
        if len(held) == 1 and (match := _UNDERLINE.fullmatch(line.text)) and "|" not in held[0].text:
            level = 1 if match[1][0] == "=" else 2
            return Block(held[0].start, line.end, HEADING, level, held[0].text.strip()), 1
        size = self._fenced(at)
        if size:
            return Block(line.start, self.lines[at + size - 1].end, CODE), size
        size = self._table(at)
        return (Block(line.start, self.lines[at + size - 1].end, TABLE), size) if size else (None, 0)

    def _fenced(self, at: int) -> int:
        """Returns how many lines a fenced block has that begins at a line; 0 where none begins, or ends."""
        match = _FENCE.fullmatch(self.lines[at].text)
        if match is None:
            return 0
        sign, length = match[1][0], len(match[1])
        if length >= self.unclosed.get(sign, length + 1):
            return 0  # looked for in vain before: no second pass over the text
        for number in range(at + 1, len(self.lines)):
            end = _FENCE.fullmatch(self.lines[number].text)
            if end and end[1][0] == sign and len(end[1]) >= length and not end[2].strip():
                return number - at + 1
        self.unclosed[sign] = length
        return 0

    def _table(self, at: int) -> int:
        """Returns how many lines a table has that begins at a line; 0 where none begins."""
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


def _paragraph(lines: Sequence[_Line]) -> Iterator[Block]:
    if lines:
        yield Block(lines[0].start, lines[-1].end, TEXT)


class Pages:
    """Where the stretches of a kept text stand.

    Args:
        extracted: the text that the layout counts code points of.
        kept: the text that is kept of it.
        layout: entries in order, without overlaps.
    """

    def __init__(self, extracted: str, kept: str, layout: Sequence[Piece]) -> None:
        self._kept = kept
        found = [(one["start"], one["end"], one) for one in layout]
        if extracted != kept:
            found = list(_moved(extracted, kept, layout))
        self._starts, self._ends = [start for start, _, _ in found], [end for _, end, _ in found]
        self._pieces = [piece for _, _, piece in found]

    def blocks(self) -> list[Block]:
        """Returns the blocks of the kept text: what is between blank lines, each of the kind that its layout says.

        The level of a heading is one more than the parts of its number ("2.1 Doors": 3). Without a number it is 1 for
        the first heading of the document, which is the title, and 2 for others.
        """
        found, titled = list[Block](), False
        for match in _PARAGRAPH.finditer(self._kept):
            pieces = self._of(*match.span())
            kind = _KINDS.get(pieces[0]["kind"], TEXT) if pieces else TEXT
            if kind == HEADING:
                title = " ".join(match[0].split())
                found.append(Block(*match.span(), kind, _level(title, titled), title))
                titled = True
            else:
                found.append(Block(*match.span(), kind))
        return found

    def boxes(self, start: int, end: int) -> list[dict[str, Any]]:
        """Returns page and box of each piece of the layout in a stretch of the kept text, each once, in order."""
        boxes = [tuple(piece[name] for name in _BOX) for piece in self._of(start, end)]
        return [dict(zip(_BOX, box, strict=True)) for box in dict.fromkeys(boxes)]

    def _of(self, start: int, end: int) -> list[Piece]:
        return self._pieces[bisect_right(self._ends, start) : bisect_left(self._starts, end)]


def _level(title: str, titled: bool) -> int:
    if number := _NUMBER.match(title):
        return number[1].count(".") + 2
    return 2 if titled else 1


def _moved(extracted: str, kept: str, layout: Sequence[Piece]) -> Iterator[tuple[int, int, Piece]]:
    """Yields (start, end, entry) in the kept text of the stretches of a layout whose lines are kept."""
    before, after = extracted.split("\n"), kept.split("\n")
    begins = _begins(before)
    starts, ends = [one["start"] for one in layout], [one["end"] for one in layout]
    for number, (at, line, old) in enumerate(zip(_begins(after), after, paired(before, after), strict=True)):
        if old < 0:
            continue
        begin, end = begins[old], begins[old] + len(before[old])
        for piece in layout[bisect_right(ends, begin) : bisect_left(starts, end)]:
            if before[old] == after[number]:
                yield at + max(piece["start"] - begin, 0), at + min(piece["end"], end) - begin, piece
            else:
                yield at, at + len(line), piece


def _begins(lines: Sequence[str]) -> list[int]:
    begins, at = [], 0
    for line in lines:
        begins.append(at)
        at += len(line) + 1
    return begins


def paired(before: Sequence[str], after: Sequence[str]) -> list[int]:
    """Returns for each line of a changed text which line it was; -1 where that is open.

    Lines that each text has once are the fixed points, as many as are in the same order (patience diff); equal lines
    beside them follow; what is left between two of them is paired if it is equally many lines. In time linear in the
    lines, but for the sorting of the fixed points.

    >>> paired(["a", "to ann@b.org", "x", "x", "b"], ["a", "to <email>", "x", "x", "b"])
    [0, 1, 2, 3, 4]
    >>> paired(["a", "gone", "x", "b"], ["a", "y", "b"])
    [0, -1, 3]
    """
    found = [-1] * len(after)
    for (old, new), (old_end, new_end) in pairwise([(-1, -1), *_fixed(before, after), (len(before), len(after))]):
        first, last = (old + 1, new + 1), (old_end - 1, new_end - 1)
        if new >= 0:
            found[new] = old
        while first[0] <= last[0] and first[1] <= last[1] and before[first[0]] == after[first[1]]:
            found[first[1]] = first[0]
            first = first[0] + 1, first[1] + 1
        while first[0] <= last[0] and first[1] <= last[1] and before[last[0]] == after[last[1]]:
            found[last[1]] = last[0]
            last = last[0] - 1, last[1] - 1
        if last[0] - first[0] == last[1] - first[1]:
            for offset in range(last[1] - first[1] + 1):
                found[first[1] + offset] = first[0] + offset
    return found


def _fixed(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the longest ascending sequence of (line before, line after) of lines that both have exactly once."""
    counts, again = Counter(before), Counter(after)
    places = {line: at for at, line in enumerate(before) if counts[line] == 1}
    pairs = [(places[line], at) for at, line in enumerate(after) if again[line] == 1 and line in places]
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
