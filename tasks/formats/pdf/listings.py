"""Listings: lines in a font of one width, such as source code, with their line ends and indents.

Pure functions. Of a document that is set in such a font as a whole nothing is taken for a listing.
"""

from collections.abc import Sequence
from statistics import median

from tasks.formats.pdf.lines import Line

_MONO = 0.75
_APART = 0.35
_BLANK = 0.7
"""Gaps between lines, in font sizes: beside a listing of one line at least, and for a blank line at least."""
_FARTHEST = 3.0
_MOST_COLUMNS = 200


def listing_runs(found: Sequence[Line]) -> list[tuple[int, int]]:
    """Returns where listings lie among the lines of a region: first line, and the one behind the last.

    A single line is one only if it stands apart from the lines around it: running text has such lines, too.
    """
    runs, at = [], 0
    while at < len(found):
        end = at
        while end < len(found) and found[end].mono >= _MONO and (end == at or _gap(found, end) < _FARTHEST):
            end += 1
        if end - at > 1 or (end > at and _gap(found, at) >= _APART and _gap(found, end) >= _APART):
            runs.append((at, end))
        at = max(end, at + 1)
    return runs


def _gap(found: Sequence[Line], at: int) -> float:
    """Returns the gap above a line in font sizes; a large number above the first one and below the last one."""
    if not 0 < at < len(found):
        return 100.0
    return (found[at].y0 - found[at - 1].y1) / max(1.0, found[at - 1].size)


def listed(run: Sequence[Line]) -> list[str]:
    """Returns the lines of a listing, each character in the column that it stands in."""
    widths = [(cell.x1 - cell.x0) / len(cell.text) for line in run for cell in line.cells if cell.text]
    width = max(1.0, median(widths))
    left = min(line.x0 for line in run)
    texts: list[str] = []
    for at, line in enumerate(run):
        if at and _gap(run, at) > _BLANK:
            texts.append("")
        text = ""
        for cell in line.cells:
            column = min(_MOST_COLUMNS, round((cell.x0 - left) / width))
            text = (text + " " * bool(text)).ljust(column) + cell.text
        texts.append(text)
    return texts
