"""Lines of a region: segments at one height, joined, and their cells where wide gaps divide them.

Pure functions.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.formats.pdf.segments import WIDE, Segment

_MARKER = re.compile(r"[•◦▪‣·*–—-]|\(?[0-9]{1,3}[.)]?|\(?[a-zA-Z][.)]|\[[0-9A-Za-z+]{1,8}\]|[IVXivx]{1,5}[.)]")
_RIGHT_TO_LEFT = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")


@dataclass(slots=True)
class Line:
    """One line of a column, as its cells from left to right; a line of running text has one."""

    cells: list[Segment]

    @property
    def text(self) -> str:
        """Its text, cells divided by spaces."""
        return " ".join(cell.text for cell in self.cells)

    @property
    def x0(self) -> float:
        """Left end."""
        return self.cells[0].x0

    @property
    def x1(self) -> float:
        """Right end."""
        return self.cells[-1].x1

    @property
    def y0(self) -> float:
        """Upper end of its largest cell, since exponents stand out."""
        return min(cell.y0 for cell in self.cells if cell.size >= self.size - 0.2)

    @property
    def y1(self) -> float:
        """Lower end of its largest cell."""
        return max(cell.y1 for cell in self.cells if cell.size >= self.size - 0.2)

    @property
    def size(self) -> float:
        """Font size of its longest cell."""
        return max(self.cells, key=lambda cell: len(cell.text)).size

    @property
    def bold(self) -> bool:
        """Whether all of it is bold."""
        return all(cell.bold for cell in self.cells)

    @property
    def math(self) -> float:
        """Share of its characters in fonts of formulas."""
        count = sum(len(cell.text) for cell in self.cells)
        return sum(cell.math * len(cell.text) for cell in self.cells) / max(1, count)


def lines(region: Sequence[Segment]) -> list[Line]:
    """Returns the lines of a region from top to bottom."""
    rows: list[list[Segment]] = []
    for one in sorted(region, key=lambda one: (one.middle, one.x0)):
        row = next((row for row in reversed(rows[-3:]) if _beside(row, one)), None)
        if row is None:
            rows.append([one])
        else:
            row.append(one)
    return [_line(row) for row in rows]


def _beside(row: Sequence[Segment], one: Segment) -> bool:
    """Returns whether a segment stands in the row: at its height, and over none of it."""
    anchor = max(row, key=lambda other: other.size)
    shared = min(anchor.y1, one.y1) - max(anchor.y0, one.y0)
    if shared < 0.5 * min(anchor.y1 - anchor.y0, one.y1 - one.y0):
        return False
    return all(min(other.x1, one.x1) - max(other.x0, one.x0) < 0.5 * min(other.size, one.size) for other in row)


def _line(row: list[Segment]) -> Line:
    row.sort(key=lambda one: one.x0)
    cells = [row[0]]
    for one in row[1:]:
        last = cells[-1]
        gap = one.x0 - last.x1
        if gap < WIDE * max(last.size, one.size) or _is_marker(last, len(cells)):
            cells[-1] = _joined(last, one, gap)
        else:
            cells.append(one)
    if _RIGHT_TO_LEFT.search("".join(cell.text for cell in cells)):
        cells.reverse()
    return Line(cells)


def _is_marker(cell: Segment, count: int) -> bool:
    return count == 1 and _MARKER.fullmatch(cell.text) is not None


def _joined(left: Segment, right: Segment, gap: float) -> Segment:
    first, second = (right, left) if _RIGHT_TO_LEFT.search(left.text) else (left, right)
    longer = left if len(left.text) >= len(right.text) else right
    count = len(left.text) + len(right.text)
    return Segment(
        first.text + ("" if gap < 0.12 * longer.size else " ") + second.text,
        left.x0,
        min(left.y0, right.y0),
        max(left.x1, right.x1),
        max(left.y1, right.y1),
        longer.size,
        left.bold and right.bold,
        (left.math * len(left.text) + right.math * len(right.text)) / max(1, count),
    )
