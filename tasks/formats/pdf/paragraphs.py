"""Blocks of a region: paragraphs, headings, list items, captions, footnotes, formulas and tables.

Pure functions over the lines of a region.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from tasks.formats.layout import Box
from tasks.formats.pdf.lines import Line
from tasks.formats.pdf.tables import rows_of, table_runs

KINDS = ("paragraph", "heading", "item", "caption", "footnote", "formula", "table", "turned")

_BULLET = re.compile(r"[•◦▪‣∙●○■]\s?|[–—*-]\s|\(?[0-9]{1,3}[.)]\s|\[[0-9]{1,3}\]\s|\([a-z]\)\s")
_CAPTION = re.compile(r"(?:Figure|Fig\.|Table|Tab\.|Abbildung|Abb\.|Tabelle|Algorithm)\s*[0-9A-Z]{1,3}[.:\s]")
_NOTE = re.compile(r"(?:[0-9]{1,3}|[*†‡§¶∗])\s?[^\W\d_]")
_NUMBERED = re.compile(r"(?:[0-9]{1,2}(?:\.[0-9]{1,2}){0,3}\.?|[A-Z]\.|[IVX]{1,5}\.)\s+[^\W\d_]")
_MATH = re.compile(r"[∀-⋿=+±×÷∑∏∫√∞≈≠≤≥α-ωΑ-Ω]")
_ENDS = (".", ",", ";", "!", "?")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of one region: its lines of text with one kind, and its box on a page."""

    kind: str
    lines: tuple[str, ...]
    page: int
    box: Box
    size: float


def blocks(found: Sequence[Line], page: int, height: float, body: float) -> Iterator[Block]:
    """Yields the blocks of a region from top to bottom.

    Args:
        found: its lines.
        page: number of the page.
        height: height of the page in points.
        body: font size of the text of the document.
    """
    at = 0
    for start, end in [*table_runs(found), (len(found), len(found))]:
        noted = False
        for group in _groups(found[at:start]):
            kind = _kind(group, height, body)
            noted = kind == "footnote" or (noted and kind == "paragraph" and group[0].size < 0.93 * body)
            yield _block("footnote" if noted else kind, [line.text for line in group], group, page)
        if end > start:
            rows = found[start:end]
            yield _block("table", rows_of(rows), rows, page)
        at = end


def _block(kind: str, texts: Sequence[str], group: Sequence[Line], page: int) -> Block:
    box = (
        min(line.x0 for line in group),
        min(cell.y0 for line in group for cell in line.cells),
        max(line.x1 for line in group),
        max(cell.y1 for line in group for cell in line.cells),
    )
    return Block(kind, tuple(texts), page, box, median(line.size for line in group))


def _groups(found: Sequence[Line]) -> Iterator[list[Line]]:
    """Yields the lines of each paragraph."""
    if not found:
        return
    steps = [after.y1 - before.y1 for before, after in pairwise(found) if _alike(before, after)]
    step = median(steps) if steps else 1.3 * found[0].size
    left = median(line.x0 for line in found)
    right = max(line.x1 for line in found)
    group = [found[0]]
    for line in found[1:]:
        if _begins(line, group, step, left, right):
            yield group
            group = []
        group.append(line)
    yield group


def _alike(before: Line, after: Line) -> bool:
    return abs(before.size - after.size) < 0.08 * before.size


def _begins(line: Line, group: Sequence[Line], step: float, left: float, right: float) -> bool:
    """Returns whether a line begins another paragraph than that of `group`."""
    last = group[-1]
    if not _alike(last, line) or (line.bold != last.bold and (line.bold or all(one.bold for one in group))):
        return True
    if line.y1 - last.y1 > 1.25 * max(step, line.size) or _BULLET.match(line.text):
        return True
    indent = 0.8 * line.size
    if len(group) == 1 or abs(group[0].x0 - last.x0) < indent / 2:
        # Level so far: an indent begins a paragraph, unless what went before hangs.
        if indent < line.x0 - last.x0 < 6 * indent and not (len(group) == 1 and _BULLET.match(last.text)):
            return last.x0 <= left + indent / 2 and not _hangs(group)
    elif group[0].x0 < last.x0 - indent / 2 and line.x0 < last.x0 - indent / 2:
        return True  # the next item of a hanging list
    elif group[0].x0 > last.x0 + indent / 2 and line.x0 > last.x0 + indent:
        return True
    return (
        last.x1 < right - 0.3 * (right - left) and last.text.endswith((".", "!", "?", ":")) and last.x0 <= left + indent
    )


def _hangs(group: Sequence[Line]) -> bool:
    return len(group) == 1 and not group[0].text.endswith(".")


def _kind(group: Sequence[Line], height: float, body: float) -> str:
    text = " ".join(line.text for line in group)
    size = median(line.size for line in group)
    if _is_formula(group, text):
        return "formula"
    if _CAPTION.match(text):
        return "caption"
    if size < 0.93 * body and group[0].y0 > height / 2 and _NOTE.match(text):
        return "footnote"
    if _is_heading(group, text, size, body):
        return "heading"
    return "item" if _BULLET.match(text) else "paragraph"


def _is_heading(group: Sequence[Line], text: str, size: float, body: float) -> bool:
    if len(group) > 3 or len(text) > 200 or not any(letter.isalpha() for letter in text):
        return False
    if size >= 1.15 * body:
        return True
    if len(group) > 2 or size < 0.95 * body or text.endswith(_ENDS):
        return False
    bold = all(line.bold for line in group)
    return bold or (len(group) == 1 and len(text) < 80 and _NUMBERED.match(text) is not None and text.isupper())


def _is_formula(group: Sequence[Line], text: str) -> bool:
    """Returns whether most of a short block are signs and letters of formulas."""
    if len(text) > 300:
        return False
    signs = len(_MATH.findall(text))
    words = len(re.findall(r"[^\W\d_]{3,}", text))
    math = sum(line.math * len(line.text) for line in group) / max(1, sum(len(line.text) for line in group))
    return words <= 3 and ((math > 0.3 and signs > 0) or (signs >= 2 and signs > 0.08 * len(text)))
