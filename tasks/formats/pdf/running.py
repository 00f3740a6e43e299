"""Running heads, running feet and page numbers: lines that repeat at the same place from page to page.

Pure functions over the segments of all pages.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tasks.formats.pdf.segments import Segment

_OUTERMOST = 3
_REPEATED = 3
_EDGE = 0.14
"""Share of a page's height, from its upper and lower end, in which they stand."""
_DIGITS = re.compile(r"[0-9]+")
_ROMAN = r"[ivxlc]{1,7}"
_NUMBER = re.compile(
    rf"(?i)(?:page|seite|p\.)?\s*[-–|]?\s*([0-9]{{1,4}}|{_ROMAN})\s*[-–|]?(?:\s*(?:of|von|/)\s*[0-9]+)?"
)
_AT_END = re.compile(rf"(?:^([0-9]{{1,4}}|{_ROMAN})\b)|(?:\b([0-9]{{1,4}}|{_ROMAN})$)", re.IGNORECASE)
_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}


def without_running(pages: Sequence[list[Segment]], heights: Sequence[float], body: float) -> list[list[Segment]]:
    """Returns the segments of each page without those that run.

    Args:
        pages: segments of each page.
        heights: height of each page in points.
        body: font size of most of the text.

    A line runs if the same text, digits aside, stands at the same height on two pages of up to four, on three of up
    to fifteen, and on a fifth of more. The first and the last line of a page run if a part of them does so on three,
    unless it is larger than the text, as titles of slides are; or if they begin or end with the number of the page: one
    that grows with the pages, at the same height of three of them and of a twentieth of all. Numbers alone run from
    two pages on, and "Page 1 of 1" on one.
    """
    filled = sum(map(bool, pages))
    needed = 2 if filled <= 4 else max(3, filled // 5)
    outer = [_outermost(page, height) for page, height in zip(pages, heights, strict=True)]
    counts = Counter(key for rows in outer for key in {_key(row) for row in rows})
    ends = Counter(key for rows in outer for key in {key for row in _ends(rows) for key in _parts(row, body)})
    numbered = sum(any(_is_number(row) for row in rows) for rows in outer)
    offsets = Counter(
        one for at, rows in enumerate(outer) for one in {one for row in _ends(rows) for one in _offsets(row, at)}
    )
    agreed = {one for one, count in offsets.items() if count >= max(3, filled // 20)}
    kept = []
    for at, (page, rows) in enumerate(zip(pages, outer, strict=True)):
        running = [
            *(row for row in rows if counts[_key(row)] >= needed),
            *(row for row in rows if _is_number(row) and (numbered > 1 or " " in _text(row))),
            *(row for row in _ends(rows) if agreed & _offsets(row, at)),
            *(row for row in _ends(rows) if any(ends[key] >= _REPEATED for key in _parts(row, body))),
        ]
        gone = {id(one) for row in running for one in row}
        kept.append([one for one in page if id(one) not in gone])
    return kept


def _ends(rows: list[list[Segment]]) -> list[list[Segment]]:
    """Returns the first and the last row of a page, where a footnote is followed by the page's number."""
    return rows[:1] + rows[1:][-1:]


def _parts(row: Sequence[Segment], body: float) -> Iterator[tuple[str, int, int]]:
    """Yields what names each segment of a row, if it is no larger than the text."""
    for one in row:
        if one.size < 1.1 * body and any(letter.isalpha() for letter in one.text):
            yield one.text, round(one.middle / 6), round(one.x0 / 6)


def _offsets(row: Sequence[Segment], page: int) -> set[tuple[int, bool, int]]:
    """Returns by how much the numbers at the ends of a row exceed its page, with the numerals, and about the height."""
    found = set()
    for match in _AT_END.finditer(_text(row)):
        written = (match[1] or match[2]).lower()
        value = int(written) if written.isdecimal() else _roman(written)
        found.add((value - page, written.isdecimal(), round(row[0].middle / 12)))
    return found


def _roman(written: str) -> int:
    values = [_VALUES[letter] for letter in written]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))


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
