"""Running heads, running feet and page numbers: lines that repeat at the same place from page to page.

Pure functions over the segments of all pages.
"""

import re
from collections import Counter
from collections.abc import Sequence

from tasks.formats.pdf.segments import Segment

_OUTERMOST = 3
_EDGE = 0.14
"""Share of a page's height, from its upper and lower end, in which they stand."""
_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(
    r"(?i)(?:page|seite|p\.)?\s*[-–|]?\s*([0-9]{1,4}|[ivxl]{1,7})\s*[-–|]?(?:\s*(?:of|von|/)\s*[0-9]+)?"
)


def without_running(pages: Sequence[list[Segment]], heights: Sequence[float]) -> list[list[Segment]]:
    """Returns the segments of each page without those that run.

    Args:
        pages: segments of each page.
        heights: height of each page in points.

    A line runs if the same text, digits aside, stands at the same height on two pages of up to four, on three of up
    to fifteen, and on a fifth of more. Numbers alone run from two pages on, and "Page 1 of 1" on one.
    """
    filled = sum(map(bool, pages))
    needed = 2 if filled <= 4 else max(3, filled // 5)
    outer = [_outermost(page, height) for page, height in zip(pages, heights, strict=True)]
    counts = Counter(key for rows in outer for key in {_key(row) for row in rows})
    numbered = sum(any(_is_number(row) for row in rows) for rows in outer)
    kept = []
    for page, rows in zip(pages, outer, strict=True):
        gone = {
            id(one)
            for row in rows
            if counts[_key(row)] >= needed or (_is_number(row) and (numbered > 1 or " " in _text(row)))
            for one in row
        }
        kept.append([one for one in page if id(one) not in gone])
    return kept


def _outermost(page: Sequence[Segment], height: float) -> list[list[Segment]]:
    """Returns the uppermost and lowermost rows near the ends of a page."""
    rows: list[list[Segment]] = []
    for one in sorted(page, key=lambda one: one.middle):
        if rows and abs(rows[-1][0].middle - one.middle) < 0.4 * one.size:
            rows[-1].append(one)
        else:
            rows.append([one])
    at_top = [row for row in rows[:_OUTERMOST] if row[0].middle < _EDGE * height]
    at_bottom = [row for row in rows[-_OUTERMOST:] if row[0].middle > (1 - _EDGE) * height]
    return [sorted(row, key=lambda one: one.x0) for row in (*at_top, *at_bottom)]


def _text(row: Sequence[Segment]) -> str:
    return " ".join(one.text for one in row)


def _key(row: Sequence[Segment]) -> tuple[str, int]:
    return _DIGITS.sub("#", _text(row)), round(row[0].middle / 6)


def _is_number(row: Sequence[Segment]) -> bool:
    return _NUMBER.fullmatch(_text(row)) is not None
