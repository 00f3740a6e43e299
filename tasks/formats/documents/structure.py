r"""Structure of a document: its blocks, and the two texts that are written from them, plain text and Markdown.

Pure functions. Readers of pages and files give `Block`s in reading order. `plain` writes their text alone; `markdown`
adds the marks of CommonMark 0.31 and, for tables, of GitHub Flavored Markdown (section 4.10), so that headings, lists,
tables and code are visible to a model. Text is not escaped: it is for a model to read, not for a program to render.

`without_marks` removes the marks again. Filters measure the result, so their limits mean the same for both texts:

    >>> blocks = [Block("heading", "Doors", level=2), Block("table", rows=(("Part", "Mass"), ("Hinge", "3 kg")))]
    >>> print(markdown(blocks))
    ## Doors
    <BLANKLINE>
    | Part | Mass |
    | --- | --- |
    | Hinge | 3 kg |
    >>> without_marks(markdown(blocks)) == plain(blocks)
    True
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tasks.formats.documents.layout import LayoutSpan
from tasks.formats.documents.text import clean

Kind = Literal[
    "heading", "paragraph", "item", "quote", "code", "table", "formula", "caption", "footnote", "term", "definition"
]
Form = Literal["plain", "markdown"]

CELL, LINE, BLANK = range(3)
_GAPS = ("\t", "\n", "\n\n")
_APART = frozenset(("heading", "quote", "code", "table"))
_INDENT = "  "
_DEEPEST = 9  # levels of a list; deeper items are written at this depth
_FENCE = re.compile(r"^ {0,3}(`{3,})[^`\n]*$", re.MULTILINE)
_RUN = re.compile(r"`{3,}")
_MARKS = re.compile(
    r"^(?:[ ]*+(?:#{1,6}[ ]+|(?:>[ ]?)+)?+(?:(?:-|\d{1,9}\.|:)[ ]+)?+)(?=\S)|^>[ ]*$",
    re.MULTILINE,
)
_DELIMITER = re.compile(r"^(?:\|(?:  \|)++\n)?\|(?: --- \|)++\n", re.MULTILINE)  # with an empty header
_ROW = re.compile(r"^\| .*\|$", re.MULTILINE)
_BAR = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a document.

    Attributes:
        kind: what it is.
        text: its text, clean (`tasks.formats.documents.text`), with line breaks; empty for a table.
        level: of a heading, from 1 to 6; of an item, the number of lists around its own.
        number: number of an item in an ordered list; None in others.
        language: programming language of code, or "".
        rows: rows of a table from top to bottom, each with its cells from left to right; cells are cleaned when they
            are written.
        header: whether the first row of a table names its columns.
        gap: what separates it from the previous block: `CELL` (a tab), `LINE` (a line break) or `BLANK` (a blank
            line). Headings, quotes, tables and code always have blank lines around them.
        pieces: of a paged file, where the parts of the text are on its pages; offsets are code points of `text`.
    """

    kind: Kind
    text: str = ""
    level: int = 0
    number: int | None = None
    language: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    header: bool = True
    gap: int = BLANK
    pieces: tuple[LayoutSpan, ...] = ()


def more_rows(number: int) -> tuple[str, ...]:
    """Returns the last row of a table that has lost so many rows."""
    return (f"({number:,} more rows)",)


def with_first_rows(block: Block, most: int | None) -> Block:
    """Returns a block; of a table with more than `most` rows it has the first of them and a row that counts the others.

    >>> with_first_rows(Block("table", rows=(("Part",), ("Hinge",), ("Door",), ("Lock",))), 2).rows
    (('Part',), ('Hinge',), ('(2 more rows)',))
    """
    if most is None or len(block.rows) <= most:
        return block
    return replace(block, rows=(*block.rows[:most], more_rows(len(block.rows) - most)))


def write(blocks: Iterable[Block], form: Form) -> str:
    """Returns the text of the blocks in the given form."""
    return written(blocks, form)[0]


def plain(blocks: Iterable[Block]) -> str:
    r"""Returns the text of the blocks: rows are lines, and cells are separated by tabs.

    >>> plain([Block("item", "one"), Block("item", "two", gap=LINE), Block("table", rows=(("a", "b"),))])
    'one\ntwo\n\na\tb'
    """
    return write(blocks, "plain")


def markdown(blocks: Iterable[Block]) -> str:
    r"""Returns the blocks as Markdown.

    >>> markdown([Block("item", "one"), Block("item", "two", 1, gap=LINE), Block("code", "f()", language="r")])
    '- one\n  - two\n\n```r\nf()\n```'
    """
    return write(blocks, "markdown")


def written(blocks: Iterable[Block], form: Form) -> tuple[str, tuple[LayoutSpan, ...]]:
    """Returns the text of the blocks in the given form, and the pieces of all blocks with their offsets in it.

    A piece of a block whose text is changed, such as a table, has the whole text of the block.
    """
    text_of = _marked if form == "markdown" else _unmarked_block
    parts: list[str] = []
    layout: list[LayoutSpan] = []
    before, offset = None, 0
    for block in blocks:
        if not (text := text_of(block)):
            continue
        if before is not None:
            parts.append(_GAPS[BLANK if block.kind in _APART or before.kind in _APART else block.gap])
            offset += len(parts[-1])
        parts.append(text)
        inside = offset + len(text) - len(block.text) if block.text and text.endswith(block.text) else -1
        for piece in block.pieces:
            start, end = (piece.start + inside, piece.end + inside) if inside >= 0 else (offset, offset + len(text))
            layout.append(replace(piece, start=start, end=end))
        before, offset = block, offset + len(text)
    return "".join(parts), tuple(layout)


def _unmarked_block(block: Block) -> str:
    if block.kind == "table":
        return _plain_rows(block.rows)
    return " ".join(block.text.split()) if block.kind == "heading" else block.text


def _marked(block: Block) -> str:
    """Returns the Markdown of one block."""
    text = block.text
    if block.kind == "table":
        return _table(block.rows, header=block.header)
    if not text:
        return ""
    if block.kind == "code":
        fence = "`" * max(3, 1 + max(map(len, _RUN.findall(text)), default=0))
        return f"{fence}{block.language}\n{text}\n{fence}"
    if block.kind == "heading":
        return f"{'#' * min(max(block.level, 1), 6)} {' '.join(text.split())}"
    if block.kind == "item":
        indent = _INDENT * min(block.level, _DEEPEST)
        mark = "- " if block.number is None else f"{block.number}. "
        return indent + mark + text.replace("\n", "\n" + indent + " " * len(mark))
    if block.kind == "quote":
        return "> " + text.replace("\n", "\n> ")
    return f": {text}" if block.kind == "definition" else text


def _cell(text: str) -> str:
    return " ".join(clean(text).split())


def _plain_rows(rows: Sequence[Sequence[str]]) -> str:
    lines = [_GAPS[CELL].join([_cell(cell) for cell in row]).strip(_GAPS[CELL]) for row in rows]
    return "\n".join([line for line in lines if line])


def _table(rows: Sequence[Sequence[str]], *, header: bool) -> str:
    """Returns a table; without a header, or other rows, its first row is empty: Markdown has no table without one."""
    width = max(map(len, rows), default=0)
    if not width:
        return ""
    cells = [[_cell(cell).replace("|", r"\|") for cell in row] + [""] * (width - len(row)) for row in rows]
    if not header or len(cells) == 1:
        cells.insert(0, [""] * width)
    lines = [f"| {' | '.join(row)} |" for row in cells]
    lines.insert(1, f"|{' --- |' * width}")
    return "\n".join(lines)


def without_marks(text: str) -> str:
    r"""Returns the plain text of a text that `markdown` wrote.

    A line of the text that looks like a mark loses it as well, so the result is for measuring, not for storing.

    >>> without_marks("# A\n\n- one\n  1. two\n\n> said\n\n| a | b |\n| --- | --- |\n| c | d |")
    'A\n\none\ntwo\n\nsaid\n\na\tb\nc\td'
    """
    if "```" not in text:
        return _unmarked(text)
    parts: list[str] = []
    at, open_at, fence = 0, -1, ""
    for match in _FENCE.finditer(text):
        if open_at < 0:
            parts.append(_unmarked(text[at : match.start()]))
            open_at, fence = match.end() + 1, match[1]
        elif match[0].strip() == match[1] and len(match[1]) >= len(fence):
            parts.append(text[open_at : match.start()].removesuffix("\n") + "\n" * (match.end() < len(text)))
            at, open_at = match.end() + 1, -1
    rest = text[at:] if open_at < 0 else text[open_at:]
    return "".join([*parts, _unmarked(rest) if open_at < 0 else rest])


def _unmarked(text: str) -> str:
    """Removes the marks of text without fenced code."""
    if "\n| " in text or text.startswith("| "):
        text = _ROW.sub(_unmarked_row, _DELIMITER.sub("", text))
    return _MARKS.sub("", text)


def _unmarked_row(row: re.Match[str]) -> str:
    cells = [cell.strip().replace(r"\|", "|") for cell in _BAR.split(row[0])[1:-1]]
    return _GAPS[CELL].join(cells).strip(_GAPS[CELL])
