"""Blocks of a region: paragraphs, headings, list items, captions, footnotes, formulas, tables, listings and contents.

Pure functions over the lines of a region. Tables are runs of lines whose cells stand below one another: at least three
lines of two and more cells, with a strip between the cells that no line enters. They are found by alignment alone,
because rulings are drawn in too many ways. Listings are lines in a font of one width, such as source code, and keep
their line ends and indents; of a document that is set in such a font as a whole nothing is taken for a listing.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tasks.formats.documents.layout import Box
from tasks.formats.pdf.characters import NAMED
from tasks.formats.pdf.lines import Line

_LISTING_MONO = 0.75
_LISTING_APART = 0.35
_LISTING_BLANK = 0.7
"""Gaps between lines, in font sizes: beside a listing of one line at least, and for a blank line at least."""
_LISTING_FARTHEST = 3.0
_LISTING_COLUMNS = 200

_TABLE_ROWS = 3
_TABLE_STRIP = 0.8
_TABLE_INK = 0.8
_SEPARATOR = " | "

KINDS = ("paragraph", "heading", "item", "caption", "footnote", "formula", "table", "code", "contents", "turned")

_BULLET = re.compile(r"[•◦▪‣∙●○■]\s?|[–—*-]\s|\(?[0-9]{1,3}[.)]\s|\[[0-9]{1,3}\]\s|\([a-z]\)\s")
_CAPTION = re.compile(
    r"(?:Figure|Fig\.|Table|Tab\.|Abbildung|Abb\.|Tabelle|Algorithm)\s*[0-9A-Z]{1,3}(?:[.:]|\s+[^\sa-z])"
)
_NOTE = re.compile(r"(?:[0-9]{1,3}|[*†‡§¶∗])\s?[^\W\d_]")
_NUMBERED = re.compile(r"(?:[0-9]{1,2}(?:\.[0-9]{1,2}){0,3}\.?|[A-Z]\.|[IVX]{1,5}\.)\s+[^\W\d_]")
_MATH = re.compile(r"[∀-⋿=+±×÷∑∏∫√∞≈≠≤≥α-ωΑ-Ω]")
_DIVIDED = re.compile(r"[^\W\d_]-$")
_WORDS = re.compile(r"[^\W\d_]{3,}")
_FEW, _LITTLE, _MATHS = 3, 0.4, 0.25
"""Words of a formula at most, or the share of its characters in words; and that in fonts of formulas at least."""
_MIN_LINES = 4
_LEADER = re.compile(r"(?:\s?[.·…]){4,}\s?")
_ENTRY = re.compile(_LEADER.pattern + r"\S{1,8}$")
"""A line of a table of contents: dots from its title to the number of a page."""
_ENDS = (".", ",", ";", "!", "?")
_SENTENCE_END = re.compile(r"[.!?:;。؟۔][)\]\"'”’»]*$")
_SLIGHTLY, _APART, _FAR = 1.12, 1.25, 1.8
"""Distance of lines, in that of the lines of a paragraph, from which on another one begins: behind the end of a
sentence, anywhere, and in text with formulas."""
_TAGGED, _TAG_CHARS = 2.0, 24
_BOLD_WEIGHT, _BOLDER = 600, 1.3
END = "\n"
"""Before a line that begins anew, since there was room for its first word on the one before."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of one region: its lines of text with one kind, and its box on a page.

    Lines flow into one another, but for those that begin with `END`, and those of tables, listings and contents.
    """

    kind: str
    lines: tuple[str, ...]
    page: int
    box: Box
    size: float
    runs_on: bool = False
    """Whether its last line reaches the end of lines in the middle of a sentence."""
    indented: bool = False
    """Whether its first line begins behind the others."""


@dataclass(frozen=True)
class Body:
    """What most characters of a document have: font size, weight, and whether they are of a font of one width."""

    size: float = 10.0
    weight: int = 0
    mono: bool = False

    @property
    def heavy(self) -> float:
        """The least weight that is bold beside it; where the text itself is bold by name, nothing is."""
        return min(max(_BOLD_WEIGHT, _BOLDER * self.weight), NAMED) if self.weight < NAMED else math.inf


def blocks(found: Sequence[Line], page: int, height: float, body: Body) -> Iterator[Block]:
    """Yields the blocks of a region from top to bottom.

    Args:
        found: its lines.
        page: number of the page.
        height: height of the page in points.
        body: most of the text of the document.
    """
    at = 0
    for start, end in [*([] if body.mono else _listing_runs(found)), (len(found), len(found))]:
        yield from _text_blocks(found[at:start], page, height, body)
        if end > start:
            yield _block("code", _listed(found[start:end]), found[start:end], page)
        at = end


def _text_blocks(found: Sequence[Line], page: int, height: float, body: Body) -> Iterator[Block]:
    at = 0
    tables = [run for run in _table_runs(found) if not _are_formulas(found[slice(*run)])]
    for start, end in [*tables, (len(found), len(found))]:
        noted = False
        right = max((line.end for line in found), default=0.0)
        for group in _groups(found[at:start]):
            kind = _kind(group, height, body)
            noted = kind == "footnote" or (noted and kind == "paragraph" and group[0].size < 0.93 * body.size)
            kind = "footnote" if noted else kind
            runs_on = len(found) >= _MIN_LINES and _flows(group[-1], right)
            yield _block(kind, _texts(group, kind, right), group, page, runs_on=runs_on)
        if end > start:
            rows = found[start:end]
            yield _block("table", _table_rows(rows), rows, page)
        at = end


def _texts(group: Sequence[Line], kind: str, right: float) -> list[str]:
    """Returns the lines of a group, those that begin anew with `END`; `right` is where the lines of the region end."""
    if kind == "contents":
        return _entries(group)
    texts = [line.text for line in group]
    if kind not in ("paragraph", "item", "footnote"):
        return texts
    most, longest = max(line.end for line in group), max(len(text) for text in texts)
    ends = [
        at
        for at in range(1, len(group))
        # Lines of equally many characters were divided by a program that does not look at widths.
        if _has_room(group, at, most) and len(texts[at - 1]) + 1 + _word(texts[at]) <= longest
    ]
    if 3 * len(ends) >= 2 * (len(group) - 1):  # a list without bullets: the longest of its lines ends, too
        ends = [at for at in range(1, len(group)) if _has_room(group, at, right)]
    return [END * (at in ends) + text for at, text in enumerate(texts)]


def _has_room(group: Sequence[Line], at: int, most: float) -> bool:
    """Returns whether the line before had room for the first word of this one, were `most` the end of full lines.

    Lines that end where a neighbour does are full: they are justified, or beside a figure. So is one with a hyphen.
    """
    before, line = group[at - 1], group[at]
    if _DIVIDED.search(before.text):
        return False
    room = most - before.end - (_word(line.text) + 1) * (line.x1 - line.x0) / max(1, len(line.text))
    beside = (*group[max(0, at - 2) : at - 1], line)
    return room > before.size and all(abs(before.end - other.end) >= 0.1 * before.size for other in beside)


def _word(text: str) -> int:
    """Returns how many characters of a line cannot be divided at its beginning."""
    return 1 if _without_words(text[0]) else len(text.split(" ", 1)[0])


def _without_words(letter: str) -> bool:
    """Returns whether a letter is of a script that may be divided anywhere."""
    return "\u0e00" <= letter <= "\u0eff" or "\u3000" <= letter <= "\u9fff" or "\uac00" <= letter <= "\ud7a3"


def _entries(group: Sequence[Line]) -> list[str]:
    """Returns the entries of contents, with few dots in each; an entry may begin in the lines before that with dots."""
    entries = [""]
    for line in group:
        entries[-1] = f"{entries[-1]} {_LEADER.sub(' ..... ', line.text)}".strip()
        if _ENTRY.search(line.text):
            entries.append("")
    return [entry for entry in entries if entry]


def _block(kind: str, texts: Sequence[str], group: Sequence[Line], page: int, *, runs_on: bool = False) -> Block:
    box = (
        min(line.x0 for line in group),
        min(cell.y0 for line in group for cell in line.cells),
        max(line.x1 for line in group),
        max(cell.y1 for line in group for cell in line.cells),
    )
    indented = group[0].begin > min(line.begin for line in group) + 0.8 * group[0].size
    return Block(kind, tuple(texts), page, box, median(line.size for line in group), runs_on, indented)


def _groups(found: Sequence[Line]) -> Iterator[list[Line]]:
    """Yields the lines of each paragraph."""
    if not found:
        return
    steps = _steps(found)
    left = median(line.begin for line in found)
    right = max(line.end for line in found)
    apart = _displayed(found, left)
    group = [found[0]]
    for at, line in enumerate(found[1:], 1):
        if apart[at - 1] or apart[at]:
            begins = not (apart[at - 1] and apart[at])
        else:
            begins = _begins(line, group, steps.get(round(line.size), 1.3 * line.size), left, right)
        if begins:
            yield group
            group = []
        group.append(line)
    yield group


def _displayed(found: Sequence[Line], left: float) -> list[bool]:
    """Returns of each line whether it is one of a displayed formula, or a limit, a numerator or the like beside one.

    Formulas are indented, nearly without words, and in fonts of formulas.
    """
    anywhere = len(found) < _MIN_LINES  # what lies between formulas of a page says little about where its lines begin
    bare = [
        (anywhere or line.begin > left + 1.5 * line.size) and _is_wordless(line.text) and not _BULLET.match(line.text)
        for line in found
    ]
    apart = [one and line.math > _MATHS for one, line in zip(bare, found, strict=True)]
    for order in (range(1, len(found)), range(len(found) - 2, -1, -1)):
        step = 1 if order.step > 0 else -1
        for at in order:
            near = found[at].y0 - found[at - 1].y1 if step > 0 else found[at + 1].y0 - found[at].y1
            short = bare[at] and not _WORDS.search(found[at].text) and near < 0.3 * found[at].size
            apart[at] = apart[at] or (short and apart[at - step])
    return apart


def _are_formulas(rows: Sequence[Line]) -> bool:
    """Returns whether what stands in rows and columns is a formula, such as a matrix."""
    math = sum(line.math * len(line.text) for line in rows) / max(1, sum(len(line.text) for line in rows))
    return math > _MATHS and all(_is_wordless(line.text) for line in rows)


def _is_wordless(text: str) -> bool:
    """Returns whether a text has few words, or little in words: "log" and the like are in formulas."""
    found = _WORDS.findall(text)
    return len(found) <= _FEW or sum(map(len, found)) < _LITTLE * len(text.replace(" ", ""))


def _steps(found: Sequence[Line]) -> dict[int, float]:
    """Returns the distance of lines within paragraphs by font size.

    It is a low one of all distances, since on some pages most lines begin a paragraph.
    """
    steps: dict[int, list[float]] = {}
    for before, after in pairwise(found):
        step = after.y1 - before.y1
        if _alike(before, after) and 0.9 * after.size < step < 2.5 * after.size:
            steps.setdefault(round(after.size), []).append(step)
    return {size: sorted(those)[len(those) // 4] for size, those in steps.items()}


def _alike(before: Line, after: Line) -> bool:
    return abs(before.size - after.size) < 0.08 * before.size


def _begins(line: Line, group: Sequence[Line], step: float, left: float, right: float) -> bool:
    """Returns whether a line begins another paragraph than that of `group`."""
    last = group[-1]
    if (
        not _alike(last, line)
        or _is_tagged(last)
        or (line.bold != last.bold and (line.bold or all(one.bold for one in group)))
    ):
        return True
    if _stands_apart(line, last, step, right):
        return True
    if _ENTRY.search(last.text) or _ENTRY.search(line.text):
        return not (_ENTRY.search(group[0].text) or len(group) == 1)
    if _BULLET.match(line.text) and not (_flows(last, right) and abs(line.begin - last.begin) < 0.1 * line.size):
        return True
    indent = 0.8 * line.size
    if len(group) == 1 or abs(group[0].begin - last.begin) < indent / 2:
        # Level so far: an indent begins a paragraph, unless what went before hangs.
        if indent < line.begin - last.begin < 6 * indent and not (len(group) == 1 and _BULLET.match(last.text)):
            return last.begin <= left + indent / 2 and not _hangs(group)
    elif group[0].begin < last.begin - indent / 2 and line.begin < last.begin - indent / 2:
        return True  # the next item of a hanging list
    elif group[0].begin > last.begin + indent / 2 and line.begin > last.begin + indent:
        return True
    return (
        last.end < right - 0.3 * (right - left)
        and last.text.endswith((".", "!", "?", ":", "؟", "۔", "。"))
        and last.begin <= left + indent
    )


def _is_tagged(line: Line) -> bool:
    """Returns whether a line ends with something put to the right end: "[Function]", the number of a formula."""
    if len(line.cells) != 2 or len(line.cells[1].text) > _TAG_CHARS:
        return False
    return abs(line.cells[1].x0 - line.cells[0].x1) > _TAGGED * line.size


def _stands_apart(line: Line, last: Line, step: float, right: float) -> bool:
    """Returns whether a line is farther below the last one than lines of a paragraph are."""
    gap = (line.y1 - last.y1) / max(step, line.size)
    if line.math or last.math:  # a sum or a fraction in the text
        return gap > (_FAR if _flows(last, right) else _APART)
    return gap > _APART or (gap > _SLIGHTLY and not _flows(last, 0.0) and not line.text[0].islower())


def _flows(last: Line, right: float) -> bool:
    """Returns whether a line reaches the right end of its region, in the middle of a sentence."""
    return last.end > right - 3 * last.size and not _SENTENCE_END.search(last.text)


def _hangs(group: Sequence[Line]) -> bool:
    return len(group) == 1 and not group[0].text.endswith(".")


def _kind(group: Sequence[Line], height: float, body: Body) -> str:
    text = " ".join(line.text for line in group)
    size = median(line.size for line in group)
    if 2 * sum(_ENTRY.search(line.text) is not None for line in group) >= len(group):
        return "contents"
    if _is_formula(group, text):
        return "formula"
    if _CAPTION.match(text):
        return "caption"
    if size < 0.93 * body.size and group[0].y0 > height / 2 and _NOTE.match(text):
        return "footnote"
    if _is_heading(group, text, size, body):
        return "heading"
    return "item" if _BULLET.match(text) else "paragraph"


def _is_heading(group: Sequence[Line], text: str, size: float, body: Body) -> bool:
    if len(group) > 3 or len(text) > 200 or not any(letter.isalpha() for letter in text):
        return False
    if size >= 1.15 * body.size:
        return True
    if len(group) > 2 or size < 0.95 * body.size or text.endswith(_ENDS):
        return False
    bold = all(line.bold for line in group)
    return bold or (len(group) == 1 and len(text) < 80 and _NUMBERED.match(text) is not None and text.isupper())


def _is_formula(group: Sequence[Line], text: str) -> bool:
    """Returns whether most of a short block are signs and letters of formulas."""
    if len(text) > 300:
        return False
    signs = len(_MATH.findall(text))
    words = len(_WORDS.findall(text))
    math = sum(line.math * len(line.text) for line in group) / max(1, sum(len(line.text) for line in group))
    return words <= _FEW and (math > 0.5 or (math > 0.3 and signs > 0) or (signs >= 2 and signs > 0.08 * len(text)))


def _table_runs(found: Sequence[Line]) -> list[tuple[int, int]]:
    """Returns where tables lie among the lines of a region: first line, and the one behind the last."""
    runs = []
    at = 0
    while at < len(found):
        end = _table_end(found, at) if len(found[at].cells) > 1 else at
        rows = [line for line in found[at:end] if len(line.cells) > 1]
        if len(rows) >= _TABLE_ROWS and _strips(found[at:end]) and _table_ink(rows) < _TABLE_INK:
            runs.append((at, end))
            at = end
        else:
            at += 1
    return runs


def _table_ink(rows: Sequence[Line]) -> float:
    """Returns the share of the width of lines that their cells fill; stretched lines of text fill more than tables."""
    filled = sum(cell.x1 - cell.x0 for line in rows for cell in line.cells)
    return filled / max(1.0, sum(line.x1 - line.x0 for line in rows))


def _table_end(found: Sequence[Line], start: int) -> int:
    """Returns the end of the lines with several cells; single ones of one cell between them belong to them."""
    end = at = start + 1
    while at < len(found) and at - end < 2 and found[at].y0 - found[at - 1].y1 < 2.5 * found[at].size:
        if len(found[at].cells) > 1:
            if not _strips(found[start : at + 1]):
                break
            end = at + 1
        at += 1
    return end


def _strips(rows: Sequence[Line]) -> list[float]:
    """Returns the x of the middles of the strips that are empty in all rows and divide cells in most of them."""
    cells = sorted((cell.x0, cell.x1, cell.size) for line in rows for cell in line.cells)
    found, right = [], cells[0][1]
    for x0, x1, size in cells[1:]:
        if x0 - right >= _TABLE_STRIP * size:
            found.append((x0 + right) / 2)
        right = max(right, x1)
    return found


def _table_rows(rows: Sequence[Line]) -> list[str]:
    """Returns each row as its cells, with `_SEPARATOR` between columns; an empty cell is empty.

    A line that fills cells of the row before it, but not its first one, continues that row.
    """
    edges = _strips(rows)
    made: list[list[str]] = []
    for number, line in enumerate(rows):
        columns = [""] * (len(edges) + 1)
        for cell in line.cells:
            at = sum(cell.x0 > edge for edge in edges)
            at = len(edges) - at if line.from_right else at
            columns[at] = f"{columns[at]} {cell.text}".strip()
        close = number > 0 and line.y0 - rows[number - 1].y1 < 0.3 * line.size
        if made and not columns[0] and close and len(line.cells) == 1:
            made[-1] = [f"{old} {new}".strip() for old, new in zip(made[-1], columns, strict=True)]
        else:
            made.append(columns)
    return [_SEPARATOR.join(columns).rstrip() for columns in made]


def _listing_runs(found: Sequence[Line]) -> list[tuple[int, int]]:
    """Returns where listings lie among the lines of a region: first line, and the one behind the last.

    A single line is one only if it stands apart from the lines around it: running text has such lines, too.
    """
    runs, at = [], 0
    while at < len(found):
        end = at
        while (
            end < len(found)
            and found[end].mono >= _LISTING_MONO
            and (end == at or _gap_above(found, end) < _LISTING_FARTHEST)
        ):
            end += 1
        if end - at > 1 or (
            end > at and _gap_above(found, at) >= _LISTING_APART and _gap_above(found, end) >= _LISTING_APART
        ):
            runs.append((at, end))
        at = max(end, at + 1)
    return runs


def _gap_above(found: Sequence[Line], at: int) -> float:
    """Returns the gap above a line in font sizes; a large number above the first one and below the last one."""
    if not 0 < at < len(found):
        return 100.0
    return (found[at].y0 - found[at - 1].y1) / max(1.0, found[at - 1].size)


def _listed(run: Sequence[Line]) -> list[str]:
    """Returns the lines of a listing, each character in the column that it stands in."""
    widths = [(cell.x1 - cell.x0) / len(cell.text) for line in run for cell in line.cells if cell.text]
    width = max(1.0, median(widths))
    left = min(line.x0 for line in run)
    texts: list[str] = []
    for at, line in enumerate(run):
        if at and _gap_above(run, at) > _LISTING_BLANK:
            texts.append("")
        text = ""
        for cell in line.cells:
            column = min(_LISTING_COLUMNS, round((cell.x0 - left) / width))
            text = (text + " " * bool(text)).ljust(column) + cell.text
        texts.append(text)
    return texts
