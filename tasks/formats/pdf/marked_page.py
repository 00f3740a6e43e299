r"""Markdown of a page, as a vision model writes it, as blocks.

Pure functions over text that may be anything. Reads the marks of CommonMark 0.31 that models use: headings with #,
items, fenced code, tables of GitHub Flavored Markdown (section 4.10), and tables in HTML, which models write for cells
over several columns or rows. Formulas stay TeX between dollar signs; those on lines of their own are blocks. Marks
within a line (emphasis, escapes, links, pictures) are removed, because PDF files have none; code and formulas keep
theirs.

    >>> for block in blocks_of("# Ice\n\nThe *thick* ice.\n\n$$\na = b\n$$", (0.0, 0.0, 1.0, 1.0)):
    ...     print(block.kind, block.lines)
    heading ('Ice',)
    paragraph ('The thick ice.',)
    formula ('$$a = b$$',)
"""

import html
import re
from collections.abc import Iterator, Sequence

from tasks.formats.documents.layout import Box
from tasks.formats.documents.table_cells import Cell, placed
from tasks.formats.documents.table_cells import cell as cell_of
from tasks.formats.pdf.blocks import END, LEVELS, PdfBlock
from tasks.formats.pdf.segments import Table

_SIZE = 10.0
_LARGER = 2.0
"""Font sizes in points: of text, and how much larger each level of headings is. They only rank headings."""
_MOST_CELLS = 20_000

_HEADING = re.compile(r"[ ]{0,3}(#{1,6})[ \t]++(.*)")
_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[^`]*")
_ITEM = re.compile(r"[ \t]*+(?:[-*+•]|\(?\d{1,4}[.)])[ \t]++\S")
_RULE = re.compile(r"[ ]{0,3}([-*_])[ \t]*+(?:\1[ \t]*+){2,}+")
_DELIMITER = re.compile(r"[ ]*+\|?[ ]*+:?-++:?[ ]*+(?:\|[ ]*+:?-++:?[ ]*+)*+\|?[ ]*+")
_BAR = re.compile(r"(?<!\\)\|")
_FORMULA_ENDS = {"$$": "$$", r"\[": r"\]"}
_NUMBER = re.compile(r"[.,;]?+[ \t]*+(?:\([^\s()]{1,12}+\))?+[.,;]?+")
"""What may follow a formula on its line: its number, such as "(1)", and a punctuation mark."""
_TABLE = re.compile(r"[ \t]*+<table\b", re.IGNORECASE)
_AROUND_TABLE = re.compile(r"(?<=</table>)(?!\Z)|(?<!\A)(?=<table\b)", re.IGNORECASE)
_TABLE_TAG = re.compile(r"<(/?)(table|caption|thead|tbody|tfoot|tr|td|th)\b([^<>]*+)>", re.IGNORECASE)
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
_RAISED = re.compile(r"<sup>([^<\n]{1,100}+)</sup>", re.IGNORECASE)
_TAG = re.compile(r"</?(?:b|i|u|em|strong|sub|sup|span|p|div|center|table)(?:\s[^<>\n]{0,200}+)?>", re.IGNORECASE)
_BREAK = re.compile(r"<br\s*+/?>", re.IGNORECASE)
_NO_REFERENCE = re.compile(r"&#[0-9]{8,}+;?")
"""A decimal reference of more digits than CommonMark 0.31 has (section 2.5); `int` refuses thousands of them."""


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
    return list(_Reader(_lines_of(text), box).blocks())


def _lines_of(text: str) -> list[str]:
    """Returns the lines of a text; a table in HTML begins a line, and nothing follows it on its last one."""
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        in_code ^= _FENCE.fullmatch(line) is not None
        is_plain = in_code or "table" not in line.lower()
        lines += [line] if is_plain else _AROUND_TABLE.split(line.strip())
    return lines


class _Reader:
    """Reads the lines of a page from top to bottom; each line is looked at once or twice."""

    def __init__(self, lines: Sequence[str], box: Box) -> None:
        self._lines = list(lines)
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
                yield from self._formula()
            elif self._begins_table():
                yield from self._table()
            elif _TABLE.match(line):
                yield from self._html_table()
            else:
                yield from self._paragraph()

    def _heading(self, level: int, marked: str) -> Iterator[PdfBlock]:
        text = marked.rstrip()
        if not (unmarked := text.rstrip("#")) or unmarked[-1].isspace():  # else its last word has the signs
            text = unmarked
        if text := _plain(text).replace(END, " ").strip():
            size = _SIZE + _LARGER * (LEVELS + 1 - level)
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

    def _formula(self) -> Iterator[PdfBlock]:
        """Reads a formula to its end, or to the next blank line if it has none; text after its end is read next."""
        line = self._lines[self._at].strip()
        end = _FORMULA_ENDS[line[:2]]
        tex, found, rest = line[2:].partition(end)
        if found and not _NUMBER.fullmatch(rest.strip()):
            yield from self._paragraph()  # a sentence that begins with a formula
            return
        self._at += 1
        parts = [tex]
        while not found and self._at < len(self._lines) and self._lines[self._at].strip():
            tex, found, rest = self._lines[self._at].partition(end)
            parts.append(tex)
            self._at += 1
        if not _NUMBER.fullmatch(rest := rest.strip()):
            self._at -= 1
            self._lines[self._at], rest = rest, ""
        if tex := " ".join(" ".join(parts).split()):
            yield PdfBlock("formula", (f"$${tex}$$ {rest}".rstrip(),), 1, self._box, _SIZE)

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
        """Reads a table to its end tag, or to the next blank line if it has none; its text outside of cells is kept."""
        start, end = self._at, self._table_end()
        self._at = end
        table = _HtmlTable("\n".join(self._lines[start:end]))
        yield from self._text("paragraph", table.before)
        yield from self._rows([[_cell(cell) for cell in row] for row in table.rows], head=table.head)
        yield from self._text("paragraph", table.after)

    def _table_end(self) -> int:
        """Returns the end of the lines of a table.

        A table without an end tag, which ends at the next blank line, is told by the one that begins after that line.
        """
        at, depth, passed_blank = self._at, 0, False
        while at < len(self._lines):
            line = self._lines[at].strip()
            begins = _TABLE.match(line) is not None
            passed_blank = passed_blank or not line
            if begins and passed_blank:
                break
            depth += begins - line.lower().endswith("</table>")
            at += 1
            if depth <= 0:
                return at
        return next((at for at in range(self._at, len(self._lines)) if not self._lines[at].strip()), len(self._lines))

    def _rows(self, rows: Sequence[Sequence[str]], *, head: bool) -> Iterator[PdfBlock]:
        filled = [row for row in rows if any(row)]
        width = max((at + 1 for row in filled for at, cell in enumerate(row) if cell), default=0)
        if not 0 < width * len(filled) <= _MOST_CELLS:
            return
        table = Table(tuple((*row[:width], *[""] * (width - len(row))) for row in filled), int(head))
        yield PdfBlock("table", table.lines, 1, self._box, _SIZE, rows=table.rows, header_rows=table.header_rows)

    def _paragraph(self) -> Iterator[PdfBlock]:
        kind = "item" if _ITEM.match(self._lines[self._at]) else "paragraph"
        lines = [self._lines[self._at]]
        self._at += 1
        while self._at < len(self._lines) and not self._ends_paragraph(self._lines[self._at]):
            lines.append(self._lines[self._at])
            self._at += 1
        yield from self._text(kind, "\n".join(line.strip() + (END if line.endswith("  ") else "") for line in lines))

    def _text(self, kind: str, marked: str) -> Iterator[PdfBlock]:
        if lines := _soft_lines(_plain(marked)):
            yield PdfBlock(kind, lines, 1, self._box, _SIZE)

    def _ends_paragraph(self, line: str) -> bool:
        return bool(
            not line.strip()
            or _RULE.fullmatch(line)
            or _HEADING.fullmatch(line)
            or _ITEM.match(line)
            or _FENCE.fullmatch(line)
            or line.lstrip().startswith(tuple(_FORMULA_ENDS))
            or _TABLE.match(line)
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
    return _unescaped(_ESCAPE.sub(r"\1", _TAG.sub("", part)))


def _unescaped(text: str) -> str:
    return html.unescape(_NO_REFERENCE.sub("\ufffd", text))


class _HtmlTable:
    """A table in HTML, of tags that need not be closed; other tags and references are left in its texts.

    Attributes:
        rows: its rows, each with its cells.
        head: whether the first row is a head.
        before: text before the first cell, such as a caption.
        after: other text outside of cells.
    """

    def __init__(self, markup: str) -> None:
        self._cells: list[list[Cell]] = []
        self._in_row = False
        outside: tuple[list[str], list[str]] = ([], [])
        at, cell = 0, None
        for tag in _TABLE_TAG.finditer(markup):
            self._add(cell, markup[at : tag.start()], outside)
            at, name = tag.end(), tag[2].lower()
            cell = tag if name in ("td", "th") and not tag[1] else None
            if name == "tr":
                self._in_row = not tag[1]
                if self._in_row:
                    self._cells.append([])
        self._add(cell, markup[at:], outside)
        self.rows = placed(self._cells, _MOST_CELLS) or [[one.text for one in row] for row in self._cells]
        self.head = any(one.is_header for one in next(filter(None, self._cells), ()))
        self.before, self.after = ("\n".join(parts) for parts in outside)

    def _add(self, cell: re.Match[str] | None, text: str, outside: tuple[list[str], list[str]]) -> None:
        if cell is None:
            if text.strip():
                outside[any(self._cells)].append(text.strip())
            return
        if not self._in_row:
            self._cells.append([])
            self._in_row = True
        self._cells[-1].append(cell_of(cell[2].lower(), cell[3], text))
