"""Tables by alignment: runs of lines with aligned cells, and their rows.

Pure functions over lines. A table without rulings is at least three lines of two or more cells, with a strip between
the cells that no line enters. The text of a cell may go on in the next line.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from tasks.formats.pdf.formulas import is_matrix, is_numbered, is_tag
from tasks.formats.pdf.lines import Line
from tasks.formats.pdf.segments import Table

_ROWS = 3
_STRIP = 0.8
_INK = 0.8
_CLOSE = 0.3
_CLOSER = 0.7
"""Maximum gap above a line that continues cells, in font sizes, and relative to the usual gap between rows."""


def table_runs(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Returns the ranges of lines (first, end) of a region that are tables."""
    runs = []
    index = 0
    while index < len(lines):
        end = _end(lines, index) if _has_cells(lines[index]) else index
        rows = [line for line in lines[index:end] if _has_cells(line)]
        if len(rows) >= _ROWS and _column_gaps(lines[index:end]) and _ink(rows) < _INK:
            if not is_matrix(lines[index:end]) and not _are_numbered_formulas(lines[index:end]):
                runs.append((index, end))
            index = end
        else:
            index += 1
    return runs


def table_of(lines: Sequence[Line]) -> Table:
    """Returns the table of a run of lines; a first row in bold before rows that are not is its head."""
    rows = rows_of(lines)
    is_head = lines[0].bold and not any(line.bold for line in lines[1:])
    return Table(rows, int(is_head))


def _has_cells(line: Line) -> bool:
    """Returns whether a line has several cells, apart from the number of a formula."""
    return len(line.cells) > (2 if is_numbered(line) else 1)


def _are_numbered_formulas(lines: Sequence[Line]) -> bool:
    """Returns whether the only column beside the first one has numbers of formulas."""
    strips = _column_gaps(lines)
    beside = [cell.text for line in lines for cell in line.cells if cell.x0 > strips[0]]
    return len(strips) == 1 and all(is_tag(text) for text in beside)


def _ink(rows: Sequence[Line]) -> float:
    """Returns the share of the width of lines filled by cells; it is higher for justified text than for tables."""
    filled = sum(cell.x1 - cell.x0 for line in rows for cell in line.cells)
    return filled / max(1.0, sum(line.x1 - line.x0 for line in rows))


def _end(lines: Sequence[Line], start: int) -> int:
    """Returns the end of the lines with several cells, which may include single lines of one cell."""
    end = index = start + 1
    while index < len(lines) and index - end < 2 and lines[index].y0 - lines[index - 1].y1 < 2.5 * lines[index].size:
        if _has_cells(lines[index]):
            if not _column_gaps(lines[start : index + 1]):
                break
            end = index + 1
        index += 1
    return end


def _column_gaps(rows: Sequence[Line]) -> list[float]:
    """Returns the horizontal centers of the strips that are empty in all rows."""
    cells = sorted((cell.x0, cell.x1, cell.size) for line in rows for cell in line.cells)
    strips, right = [], cells[0][1]
    for x0, x1, size in cells[1:]:
        if x0 - right >= _STRIP * size:
            strips.append((x0 + right) / 2)
        right = max(right, x1)
    return strips


def rows_of(lines: Sequence[Line], edges_of: Sequence[Line] | None = None) -> tuple[tuple[str, ...], ...]:
    """Returns the rows of lines, each with a cell per column, in reading direction.

    A line that is close to the previous line continues its row if its first column is empty, and it has a single cell
    or is closer than rows are; or if it begins with a small letter and has fewer cells.

    Args:
        lines: lines of the table.
        edges_of: lines whose gaps are the columns, instead of all lines: those without the head, whose cells may span.
    """
    edges = _column_gaps(edges_of or lines)
    gaps = [after.y0 - before.y1 for before, after in pairwise(lines)]
    usual = median(gaps) if gaps else 0.0
    rows: list[list[str]] = []
    for number, line in enumerate(lines):
        columns = [""] * (len(edges) + 1)
        for cell in line.cells:
            column = bisect_left(edges, cell.x0)
            column = len(edges) - column if line.from_right else column
            columns[column] = ordered(columns[column], cell.text)
        if rows and _continues_row(line, gaps[number - 1], usual, rows[-1], columns):
            rows[-1] = [ordered(old, new) for old, new in zip(rows[-1], columns, strict=True)]
        else:
            rows.append(columns)
    return tuple(map(tuple, rows))


def _continues_row(line: Line, gap: float, usual: float, row: Sequence[str], columns: Sequence[str]) -> bool:
    if gap >= _CLOSE * line.size:
        return False
    if columns[0]:
        return columns[0][0].islower() and sum(map(bool, columns)) < sum(map(bool, row)) and bool(row[0])
    closer = gap < _CLOSER * usual and all(old or not new for old, new in zip(row, columns, strict=True))
    return len(line.cells) == 1 or closer


def ordered(before: str, text: str) -> str:
    """Returns the text of a cell with a further part; a word divided between small letters is joined."""
    if before.endswith("-") and before[-2:-1].islower() and text[:1].islower():
        return before[:-1] + text
    return f"{before} {text}".strip()
