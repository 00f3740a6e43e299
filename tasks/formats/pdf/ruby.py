"""Ruby: small kana beside ideographs that say how these are read.

Pure functions. They are left out, since in the text they would divide the words that they explain.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from tasks.formats.pdf.segments import Segment

_SMALL = 0.62
_FARTHEST = 1.4
"""Size against that of its line, and how many sizes of the line its middle may stand above that line's."""


def without_ruby(found: Sequence[Segment]) -> list[Segment]:
    """Returns the segments without those of small kana above a line of twice their size, and over a part of it."""
    lines = sorted(found, key=lambda one: one.middle)
    heights = [one.middle for one in lines]
    kept = []
    for one in found:
        if _is_kana(one.text):
            reach = _FARTHEST * one.size / _SMALL * 2
            below = lines[bisect_right(heights, one.middle) : bisect_left(heights, one.middle + reach)]
            if any(_is_over(one, line) for line in below):
                continue
        kept.append(one)
    return kept


def _is_kana(text: str) -> bool:
    return all("\u3040" <= letter <= "\u30ff" or letter == " " for letter in text)


def _is_over(one: Segment, line: Segment) -> bool:
    close = line.middle - one.middle < _FARTHEST * line.size
    shared = min(one.x1, line.x1) - max(one.x0, line.x0)
    return close and one.size < _SMALL * line.size and shared > 0.5 * (one.x1 - one.x0)
