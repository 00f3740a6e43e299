r"""Markdown of a page, as a vision model writes it, as blocks.

Pure functions over text that may be anything. Reads the marks of CommonMark 0.31 that models use: headings with #,
items, fenced code, tables of GitHub Flavored Markdown (section 4.10), and tables in HTML, which models write for cells
over several columns. Formulas stay TeX between dollar signs; those on lines of their own are blocks. Marks within a
line (emphasis, escapes, links, pictures) are removed, because PDF files have none; code and formulas keep theirs.

    >>> for block in blocks_of("# Ice\n\nThe *thick* ice.\n\n$$\na = b\n$$", (0.0, 0.0, 1.0, 1.0)):
    ...     print(block.kind, block.lines)
    heading ('Ice',)
    paragraph ('The thick ice.',)
    formula ('$$a = b$$',)
"""

import html
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser

from tasks.formats.documents.layout import Box
from tasks.formats.pdf.blocks import END, PdfBlock

_SIZE = 10.0
_LARGER = 2.0
"""Font sizes in points: of text, and how much larger each level of headings is. They only rank headings."""
_LEVELS = 6
_MOST_CELLS = 20_000

_HEADING = re.compile(r"[ ]{0,3}(#{1,6})[ \t]++(.*)")
_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[^`]*")
_ITEM = re.compile(r"[ \t]*+(?:[-*+•]|\(?\d{1,4}[.)])[ \t]++\S")
_RULE = re.compile(r"[ ]{0,3}([-*_])[ \t]*+(?:\1[ \t]*+){2,}+")
_DELIMITER = re.compile(r"[ ]*+\|?[ ]*+:?-++:?[ ]*+(?:\|[ ]*+:?-++:?[ ]*+)*+\|?[ ]*+")
_BAR = re.compile(r"(?<!\\)\|")
_FORMULA_ENDS = {"$$": "$$", r"\[": r"\]"}
_FRONT = re.compile(r"\A---\n(?:[a-z_]++:[^\n]*+\n)++---(?:\n|\Z)")
_ALL_FENCED = re.compile(r"\A```(?:markdown|md)?[ ]*+\n(.*?)\n```\Z", re.DOTALL)

_KEPT = re.compile(r"(\$\$[^$]++\$\$|\$(?=\S)[^$\n]++(?<=\S)\$(?!\d)|`[^`\n]++`|\\\([^\n]{1,500}?\\\))")
_PICTURE = re.compile(r"!\[[^\]\n]{0,500}+\]\([^)\n]{0,500}+\)")
_LINK = re.compile(r"\[([^\]\n]{1,500}+)\]\((?:https?:|mailto:|#)[^)\s]{0,500}+\)")
_STRONG = re.compile(r"(\*\*|__)(?=\S)([^*_\n]{1,2000}+)(?<=\S)\1")
_EMPHASIS = re.compile(
    r"(?<![\w*])\*(?=[^\s*])([^*\n]{1,2000}+)(?<=\S)\*(?![\w*])|(?<!\w)_(?=\S)([^_\n]{1,2000}+)(?<=\S)_(?!\w)"
)
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>~$-])")
_RAISED = re.compile(r"<sup>([^<\n]{1,100}+)</sup>")
_TAG = re.compile(r"</?(?:b|i|u|em|strong|sub|sup|span|p|div|center)(?:\s[^<>\n]{0,200}+)?>")
_BREAK = re.compile(r"<br\s*+/?>")


def text_of(answer: str) -> str:
    """Returns the Markdown of an answer, without the fence or the front matter in which models wrap it."""
    text = answer.replace("\r\n", "\n").strip()
    text = _FRONT.sub("", text).strip()
    if text.count("```") == 2 and (fenced := _ALL_FENCED.match(text)):
        return fenced[1].strip("\n")
    return text


def blocks_of(text: str, box: Box) -> list[PdfBlock]:
    """Returns the blocks of a page in order, as blocks of page 1.

    Args:
        text: Markdown.
        box: box of the page, which all blocks get: models do not tell where a text is.
    """
    return list(_Reader(text.splitlines(), box).blocks())


class _Reader:
    """Reads the lines of a page from top to bottom; each line is looked at once or twice."""

    def __init__(self, lines: Sequence[str], box: Box) -> None:
        self._lines = lines
        self._box = box
        self._at = 0

    def blocks(self) -> Iterator[PdfBlock]:
        """Yields the blocks with text."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not line.strip() or _RULE.fullmatch(line):
                self._at += 1
            elif heading := _HEADING.fullmatch(line):
                self._at += 1
                yield from self._heading(len(heading[1]), heading[2])
            elif _FENCE.fullmatch(line):
                yield from self._code()
            elif line.lstrip().startswith(tuple(_FORMULA_ENDS)):
                yield self._formula()
            elif self._begins_table():
                yield from self._table()
            elif line.lstrip().lower().startswith("<table"):
                yield from self._html_table()
            else:
                yield from self._paragraph()

    def _heading(self, level: int, marked: str) -> Iterator[PdfBlock]:
        if text := _plain(marked.rstrip().rstrip("#")).replace(END, " ").strip():
            size = _SIZE + _LARGER * (_LEVELS + 1 - level)
            yield PdfBlock("heading", (text,), 1, self._box, size, level=level)

    def _code(self) -> Iterator[PdfBlock]:
        fence = self._lines[self._at].strip()
        mark = fence[: len(fence) - len(fence.lstrip(fence[0]))]
        self._at += 1
        code = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if line.strip().startswith(mark) and not line.strip().strip(mark[0]):
                break
            code.append(line)
        if any(map(str.strip, code)):
            yield PdfBlock("code", tuple(code), 1, self._box, _SIZE)

    def _formula(self) -> PdfBlock:
        """Reads a formula to its end, or to the next blank line if it has none."""
        line = self._lines[self._at].strip()
        mark = line[:2]
        end, parts = _FORMULA_ENDS[mark], [line[2:]]
        while not (parts[-1].rstrip().endswith(end)):
            self._at += 1
            if self._at >= len(self._lines) or not self._lines[self._at].strip():
                break
            parts.append(self._lines[self._at])
        self._at += 1
        tex = " ".join(" ".join(parts).strip().removesuffix(end).split())
        return PdfBlock("formula", (f"$${tex}$$",), 1, self._box, _SIZE)

    def _begins_table(self) -> bool:
        if self._at + 1 >= len(self._lines) or "|" not in self._lines[self._at]:
            return False
        below = self._lines[self._at + 1]
        return "|" in below and _DELIMITER.fullmatch(below) is not None

    def _table(self) -> Iterator[PdfBlock]:
        rows = [_cells(self._lines[self._at])]
        self._at += 2
        while self._at < len(self._lines) and "|" in self._lines[self._at]:
            rows.append(_cells(self._lines[self._at]))
            self._at += 1
        yield from self._rows(rows, head=any(rows[0]))

    def _html_table(self) -> Iterator[PdfBlock]:
        start = self._at
        while self._at < len(self._lines):
            self._at += 1
            if "</table" in self._lines[self._at - 1].lower():
                break
        parser = _TableParser()
        parser.feed("\n".join(self._lines[start : self._at]))
        yield from self._rows([[_cell(cell) for cell in row] for row in parser.rows], head=parser.head)

    def _rows(self, rows: Sequence[Sequence[str]], *, head: bool) -> Iterator[PdfBlock]:
        filled = [row for row in rows if any(row)]
        width = max(map(len, filled), default=0)
        if not 0 < width * len(filled) <= _MOST_CELLS:
            return
        even = tuple((*row, *[""] * (width - len(row))) for row in filled)
        lines = tuple(" | ".join(row) for row in even)
        yield PdfBlock("table", lines, 1, self._box, _SIZE, rows=even, header_rows=int(head))

    def _paragraph(self) -> Iterator[PdfBlock]:
        kind = "item" if _ITEM.match(self._lines[self._at]) else "paragraph"
        lines = [self._lines[self._at]]
        self._at += 1
        while self._at < len(self._lines) and not self._ends_paragraph(self._lines[self._at]):
            lines.append(self._lines[self._at])
            self._at += 1
        text = _plain("\n".join(line.strip() + (END if line.endswith("  ") else "") for line in lines))
        if kept := _soft_lines(text):
            yield PdfBlock(kind, kept, 1, self._box, _SIZE)

    def _ends_paragraph(self, line: str) -> bool:
        return bool(
            not line.strip()
            or _HEADING.fullmatch(line)
            or _ITEM.match(line)
            or _FENCE.fullmatch(line)
            or line.lstrip().startswith((*_FORMULA_ENDS, "<table"))
            or self._begins_table()
        )


def _soft_lines(text: str) -> tuple[str, ...]:
    """Returns the lines of a paragraph; those after an empty one begin with `END`, as hard line breaks do."""
    lines: list[str] = []
    hard = False
    for line in text.split("\n"):
        if line.strip():
            lines.append((END if hard and lines else "") + line.strip())
        hard = not line.strip()
    return tuple(lines)


def _cells(line: str) -> list[str]:
    cells = _BAR.split(line.strip())
    if cells and not cells[0].strip():
        cells = cells[1:]
    if cells and not cells[-1].strip():
        cells = cells[:-1]
    return [_cell(cell.replace(r"\|", "|")) for cell in cells]


def _cell(marked: str) -> str:
    return " ".join(_plain(marked).split())


def _plain(marked: str) -> str:
    """Returns a text without the marks within its lines; code in a line and formulas are as they were."""
    return "".join(part if number % 2 else _unmarked(part) for number, part in enumerate(_KEPT.split(marked)))


def _unmarked(part: str) -> str:
    part = _LINK.sub(r"\1", _PICTURE.sub("", part))
    part = _EMPHASIS.sub(lambda match: match[1] or match[2], _STRONG.sub(r"\2", part))
    part = _RAISED.sub(r"^{\1}", _BREAK.sub("\n\n", part))
    return html.unescape(_ESCAPE.sub(r"\1", _TAG.sub("", part)))


class _TableParser(HTMLParser):
    """Rows of a table in HTML; a cell over several columns is in the first of them.

    Attributes:
        rows: its rows, each with its cells.
        head: whether the first row is a head.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.head = False
        self._open = False
        self._spanned = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
            self._open = False
        elif tag in ("td", "th") and self.rows:
            self.head = self.head or (tag == "th" and len(self.rows) == 1)
            self.rows[-1].append("")
            self._open = True
            span = dict(attrs).get("colspan") or "1"
            self._spanned = min(int(span), 100) - 1 if span.isascii() and span.isdecimal() and len(span) < 4 else 0

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._open:
            self.rows[-1] += [""] * self._spanned
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data
