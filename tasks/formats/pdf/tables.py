"""Tables: runs of lines whose cells stand below one another, as rows of text.

Pure functions. Found by alignment alone, because rulings are drawn in too many ways: at least three lines of two and
more cells, with a strip between the cells that no line enters.
"""

from collections.abc import Sequence

from tasks.formats.pdf.lines import Line

_MIN_ROWS = 3
_MIN_STRIP = 0.8
_MAX_INK = 0.8
SEPARATOR = " | "


def table_runs(found: Sequence[Line]) -> list[tuple[int, int]]:
    """Returns where tables lie among the lines of a region: first line, and the one behind the last."""
    runs = []
    at = 0
    while at < len(found):
        end = _run_end(found, at) if len(found[at].cells) > 1 else at
        rows = [line for line in found[at:end] if len(line.cells) > 1]
        if len(rows) >= _MIN_ROWS and strips(found[at:end]) and _ink(rows) < _MAX_INK:
            runs.append((at, end))
            at = end
        else:
            at += 1
    return runs


def _ink(rows: Sequence[Line]) -> float:
    """Returns the share of the width of lines that their cells fill; stretched lines of text fill more than tables."""
    filled = sum(cell.x1 - cell.x0 for line in rows for cell in line.cells)
    return filled / max(1.0, sum(line.x1 - line.x0 for line in rows))


def _run_end(found: Sequence[Line], start: int) -> int:
    """Returns the end of the lines with several cells; single ones of one cell between them belong to them."""
    end = at = start + 1
    while at < len(found) and at - end < 2 and found[at].y0 - found[at - 1].y1 < 2.5 * found[at].size:
        if len(found[at].cells) > 1:
            if not strips(found[start : at + 1]):
                break
            end = at + 1
        at += 1
    return end


def strips(rows: Sequence[Line]) -> list[float]:
    """Returns the x of the middles of the strips that are empty in all rows and divide cells in most of them."""
    cells = sorted((cell.x0, cell.x1, cell.size) for line in rows for cell in line.cells)
    found, right = [], cells[0][1]
    for x0, x1, size in cells[1:]:
        if x0 - right >= _MIN_STRIP * size:
            found.append((x0 + right) / 2)
        right = max(right, x1)
    return found


def rows_of(rows: Sequence[Line]) -> list[str]:
    """Returns each row as its cells, with `SEPARATOR` between columns; an empty cell is empty.

    A line that fills cells of the row before it, but not its first one, continues that row.
    """
    edges = strips(rows)
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
    return [SEPARATOR.join(columns).rstrip() for columns in made]
