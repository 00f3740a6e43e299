r"""Structure of a plain text: its headings, fenced code, tables and paragraphs.

Pure functions. Headings and fences are those of CommonMark 0.31 (sections 4.2, 4.3, 4.5) with three differences, since
most texts are not Markdown: an underlined heading is a single line, an underline has at least three characters, and a
fence that nothing closes is text. A table is lines with bars over a delimiter row (GitHub Flavored Markdown, section
4.10), or three and more lines with the same number of bars or tabs.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tasks.formats.chunks import CODE, HEADING, TABLE, TEXT

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_CLOSING = re.compile(r"[ \t]+#+[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(={3,}|-{3,})[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})(.*)")
_DELIMITER = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*")
_TABLE_LINES = 3


class Block(NamedTuple):
    """A block of a text: its code points, its kind (`tasks.formats.chunks`), and of a heading level and title."""

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
