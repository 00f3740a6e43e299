"""Lines of a region: segments at one height, joined, and their cells where wide gaps divide them.

Pure functions. The cells of a line are in the order in which they are read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.formats.pdf.bidi import has_right_to_left
from tasks.formats.pdf.segments import SMALL, WIDE, Segment

_CRUMBS = 8
"""Characters of a row of exponents and indices at most."""
_MARKER = re.compile(r"[•◦▪‣·*–—-]|\(?[0-9]{1,3}[.)]?|\(?[a-zA-Z][.)]|\[[0-9A-Za-z+]{1,8}\]|[IVXivx]{1,5}[.)]")


@dataclass(slots=True)
class Line:
    """One line of a column, as its cells; a line of running text has one."""

    cells: list[Segment]
    from_right: bool = False
    """Whether the column is read from right to left."""

    @property
    def text(self) -> str:
        """Its text, cells divided by spaces."""
        return " ".join(cell.text for cell in self.cells)

    @property
    def x0(self) -> float:
        """Left end."""
        return min(cell.x0 for cell in self.cells)

    @property
    def x1(self) -> float:
        """Right end."""
        return max(cell.x1 for cell in self.cells)

    @property
    def begin(self) -> float:
        """Where it begins, in points that grow as it is read."""
        return -self.x1 if self.from_right else self.x0

    @property
    def end(self) -> float:
        """Where it ends, in the same points."""
        return -self.x0 if self.from_right else self.x1

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
        return self._share([cell.math for cell in self.cells])

    @property
    def mono(self) -> float:
        """Share of its characters in fonts whose characters have one width."""
        return self._share([cell.mono for cell in self.cells])

    def _share(self, of_cells: Sequence[float]) -> float:
        count = sum(len(cell.text) for cell in self.cells)
        found = sum(share * len(cell.text) for share, cell in zip(of_cells, self.cells, strict=True))
        return found / max(1, count)


def lines(region: Sequence[Segment]) -> list[Line]:
    """Returns the lines of a region from top to bottom."""
    rows: list[list[Segment]] = []
    for one in sorted(region, key=lambda one: (one.middle, one.x0)):
        row = next((row for row in reversed(rows[-3:]) if _beside(row, one)), None)
        if row is None:
            rows.append([one])
        else:
            row.append(one)
    rows = _with_crumbs(rows)
    from_right = 2 * sum(has_right_to_left(one.text) for one in region) > len(region)
    return [_line(row, from_right=from_right or any(has_right_to_left(one.text) for one in row)) for row in rows]


def _with_crumbs(rows: list[list[Segment]]) -> list[list[Segment]]:
    """Returns the rows with those that are nothing but exponents and indices in the line that they belong to.

    Where one is drawn above another one, as in an inverted root, PDFium begins a line.
    """
    kept: list[list[Segment]] = []
    crumbs: list[list[Segment]] = []
    for row in rows:
        few = sum(len(one.text) for one in row) <= _CRUMBS
        (crumbs if few else kept).append(row)
    for row in crumbs:
        small = max(one.size for one in row)
        near = [
            (max(row[0].y0 - of.y1, of.y0 - row[0].y1), at, where)
            for at, other in enumerate(kept)
            for where, of in enumerate(other)
            if small < SMALL * of.size and all(of.x0 <= one.x0 and one.x1 <= of.x1 for one in row)
        ]
        gap, at, where = min(near, default=(small, 0, 0))
        if gap < 0.2 * small:
            kept[at][where] = _with_crumb(kept[at][where], row)
        else:
            kept.append(row)
    return sorted(kept, key=lambda row: row[0].middle) if crumbs else rows


def _with_crumb(line: Segment, crumb: Sequence[Segment]) -> Segment:
    """Returns a line with a crumb behind the word at its place, reckoned from the width of the line."""
    about = round(len(line.text) * (crumb[0].x0 - line.x0) / max(1.0, line.x1 - line.x0))
    at = line.text.find(" ", about)
    at = len(line.text) if at < 0 else at
    text = " ".join((line.text[:at], *(one.text for one in crumb))) + line.text[at:]
    return replace(line, text=text)


def _beside(row: Sequence[Segment], one: Segment) -> bool:
    """Returns whether a segment stands in the row: at its height, and over none of it."""
    anchor = max(row, key=lambda other: other.size)
    shared = min(anchor.y1, one.y1) - max(anchor.y0, one.y0)
    if shared < 0.5 * min(anchor.y1 - anchor.y0, one.y1 - one.y0):
        return False
    return all(min(other.x1, one.x1) - max(other.x0, one.x0) < 0.5 * min(other.size, one.size) for other in row)


def _line(row: list[Segment], *, from_right: bool) -> Line:
    row.sort(key=lambda one: one.x0)
    cells = [row[0]]
    for one in row[1:]:
        last = cells[-1]
        gap = one.x0 - last.x1
        if gap < WIDE * max(last.size, one.size) or _is_marker(last, len(cells)):
            cells[-1] = _joined(last, one, gap, from_right=from_right)
        else:
            cells.append(one)
    return Line(cells[::-1] if from_right else cells, from_right)


def _is_marker(cell: Segment, count: int) -> bool:
    return count == 1 and _MARKER.fullmatch(cell.text) is not None


def _joined(left: Segment, right: Segment, gap: float, *, from_right: bool) -> Segment:
    first, second = (right, left) if from_right else (left, right)
    longer = left if len(left.text) >= len(right.text) else right
    count = len(left.text) + len(right.text)
    return Segment(
        first.text + ("" if gap < 0.12 * longer.size else " ") + second.text,
        left.x0,
        min(left.y0, right.y0),
        max(left.x1, right.x1),
        max(left.y1, right.y1),
        longer.size,
        min(left.weight, right.weight),
        left.bold and right.bold,
        (left.math * len(left.text) + right.math * len(right.text)) / max(1, count),
        (left.mono * len(left.text) + right.mono * len(right.text)) / max(1, count),
    )
