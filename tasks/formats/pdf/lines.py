"""Lines of a region: segments at the same height, joined to cells that wide gaps separate.

Pure functions. The cells of a line are in reading order.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.formats.pdf.bidi import has_right_to_left
from tasks.formats.pdf.segments import SMALL, WIDE, Segment

_FRAGMENT_CHARS = 8
"""Maximum number of characters of a row of exponents and indices."""
_MARKER = re.compile(r"[•◦▪‣·*–—-]|\(?[0-9]{1,3}[.)]?|\(?[a-zA-Z][.)]|\[[0-9A-Za-z+]{1,8}\]|[IVXivx]{1,5}[.)]")


@dataclass(slots=True)
class Line:
    """One line of a column as cells; a line of running text has one cell."""

    cells: list[Segment]
    from_right: bool = False
    """Whether the column is read from right to left."""

    @property
    def text(self) -> str:
        """Text of the line, with a space between cells."""
        return " ".join(cell.text for cell in self.cells)

    @property
    def x0(self) -> float:
        """Left edge."""
        return min(cell.x0 for cell in self.cells)

    @property
    def x1(self) -> float:
        """Right edge."""
        return max(cell.x1 for cell in self.cells)

    @property
    def begin(self) -> float:
        """Start of the line, in points that grow in reading direction."""
        return -self.x1 if self.from_right else self.x0

    @property
    def end(self) -> float:
        """End of the line, in points that grow in reading direction."""
        return -self.x0 if self.from_right else self.x1

    @property
    def y0(self) -> float:
        """Top of its largest cells; exponents extend beyond it."""
        return min(cell.y0 for cell in self.cells if cell.size >= self.size - 0.2)

    @property
    def y1(self) -> float:
        """Bottom of its largest cells."""
        return max(cell.y1 for cell in self.cells if cell.size >= self.size - 0.2)

    @property
    def size(self) -> float:
        """Font size of its longest cell."""
        return max(self.cells, key=lambda cell: len(cell.text)).size

    @property
    def bold(self) -> bool:
        """Whether all cells are bold."""
        return all(cell.bold for cell in self.cells)

    @property
    def begins_bold(self) -> bool:
        """Whether its first character is bold."""
        return self.cells[0].begins_bold

    @property
    def ends_bold(self) -> bool:
        """Whether its last character is bold."""
        return self.cells[-1].ends_bold

    @property
    def math(self) -> float:
        """Share of its characters in math fonts."""
        return self._share([cell.math for cell in self.cells])

    @property
    def mono(self) -> float:
        """Share of its characters in monospaced fonts."""
        return self._share([cell.mono for cell in self.cells])

    def _share(self, of_cells: Sequence[float]) -> float:
        count = sum(len(cell.text) for cell in self.cells)
        weighted = sum(share * len(cell.text) for share, cell in zip(of_cells, self.cells, strict=True))
        return weighted / max(1, count)


def lines(region: Sequence[Segment]) -> list[Line]:
    """Returns the lines of a region from top to bottom."""
    rows: list[list[Segment]] = []
    for segment in sorted(region, key=lambda segment: (segment.middle, segment.x0)):
        row = next((row for row in reversed(rows[-3:]) if _belongs_to_row(row, segment)), None)
        if row is None:
            rows.append([segment])
        else:
            row.append(segment)
    rows = _attach_fragments(rows)
    from_right = 2 * sum(has_right_to_left(segment.text) for segment in region) > len(region)
    return [
        _line(row, from_right=from_right or any(has_right_to_left(segment.text) for segment in row)) for row in rows
    ]


def _attach_fragments(rows: list[list[Segment]]) -> list[list[Segment]]:
    """Merges rows that consist only of exponents and indices into the lines to which they belong.

    PDFium begins a new line where one exponent or index is drawn above another, as in an inverted root.
    """
    full_rows: list[list[Segment]] = []
    fragments: list[list[Segment]] = []
    for row in rows:
        is_fragment = sum(len(segment.text) for segment in row) <= _FRAGMENT_CHARS
        (fragments if is_fragment else full_rows).append(row)
    for row in fragments:
        small = max(segment.size for segment in row)
        candidates = [
            (max(row[0].y0 - cell.y1, cell.y0 - row[0].y1), row_index, cell_index)
            for row_index, cells in enumerate(full_rows)
            for cell_index, cell in enumerate(cells)
            if small < SMALL * cell.size and all(cell.x0 <= segment.x0 and segment.x1 <= cell.x1 for segment in row)
        ]
        gap, row_index, cell_index = min(candidates, default=(small, 0, 0))
        if gap < 0.2 * small:
            full_rows[row_index][cell_index] = _insert_fragment(full_rows[row_index][cell_index], row)
        else:
            full_rows.append(row)
    return sorted(full_rows, key=lambda row: row[0].middle) if fragments else rows


def _insert_fragment(line: Segment, fragment: Sequence[Segment]) -> Segment:
    """Inserts a fragment into a line, after the word at the fragment's estimated position."""
    estimate = round(len(line.text) * (fragment[0].x0 - line.x0) / max(1.0, line.x1 - line.x0))
    end = line.text.find(" ", estimate)
    end = len(line.text) if end < 0 else end
    text = " ".join((line.text[:end], *(segment.text for segment in fragment))) + line.text[end:]
    return replace(line, text=text)


def _belongs_to_row(row: Sequence[Segment], segment: Segment) -> bool:
    """Returns whether a segment belongs to a row: at the same height, without overlapping its segments."""
    if segment.table is not None or row[0].table is not None:
        return False
    anchor = max(row, key=lambda other: other.size)
    shared = min(anchor.y1, segment.y1) - max(anchor.y0, segment.y0)
    if shared < 0.5 * min(anchor.y1 - anchor.y0, segment.y1 - segment.y0):
        return False
    return all(
        min(other.x1, segment.x1) - max(other.x0, segment.x0) < 0.5 * min(other.size, segment.size) for other in row
    )


def _line(row: list[Segment], *, from_right: bool) -> Line:
    row.sort(key=lambda segment: segment.x0)
    cells = [row[0]]
    for segment in row[1:]:
        last = cells[-1]
        gap = segment.x0 - last.x1
        if gap < WIDE * max(last.size, segment.size) or _is_marker(last, len(cells)):
            cells[-1] = _join_segments(last, segment, gap, from_right=from_right)
        else:
            cells.append(segment)
    return Line(cells[::-1] if from_right else cells, from_right)


def _is_marker(cell: Segment, count: int) -> bool:
    return count == 1 and _MARKER.fullmatch(cell.text) is not None


def _join_segments(left: Segment, right: Segment, gap: float, *, from_right: bool) -> Segment:
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
        (first.end_weights[0], second.end_weights[1]),
        first.begins_bold,
        second.ends_bold,
    )
