"""Recognized lines of a page as segments, for the layout code that also reads text layers.

Pure functions over lines with four corners in pixels, and the bitmap that they were read from. A skewed page is turned
upright by the angle of its lines. Detectors return the heights of lines in coarse steps (10.4, 12.2 and 14.4 points for
one font of 10 points), so font size and baseline are measured in the bitmap: the rows between the tops of the small
letters and the baseline have more ink than the others.
"""

import contextlib
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from tasks.formats.documents.layout import Box
from tasks.formats.documents.text import clean
from tasks.formats.pdf.blocks import PdfBlock
from tasks.formats.pdf.characters import RawPage, displayed
from tasks.formats.pdf.render import Bitmap
from tasks.formats.pdf.segments import Segment

Point = tuple[float, float]
Corners = tuple[Point, Point, Point, Point]

_MIN_CONFIDENCE = 0.8
"""Certainty from which a line is kept: nine in ten lines of scripts that the models do not know are below it."""
_MIN_MEAN_CONFIDENCE = 0.9
"""Mean certainty of all letters from which a page counts as read: clean pages in five languages have 0.99 or more,
pages in Greek, Hebrew, Korean and Hindi 0.82, 0.73, 0.69 and 0.67."""
_WIDEST = 2.0
"""Width of a line in font sizes per letter, from which letters are missing: models omit letters that they do not know,
and are certain of the commas between them."""
_MAX_SKEW = math.radians(6)
_LONG = 3.0
"""Width of a line, in heights, from which its angle is measured."""
_STEEP = math.radians(30)
_SAME = 1.08
"""Ratio of sizes up to which two lines have the same font size: they are measured with an error of 6 %."""
_CORE = 0.6
"""Share of the ink of its fullest row that the rows of the small letters have."""
_SMALL, _CAPITAL, _SQUARE = 0.44, 0.67, 0.84
"""Height of these rows in font sizes: small letters, capitals and digits, and ideographs."""
_ASCENT, _DESCENT = 0.75, 0.22
_SQUARE_DESCENT = 0.08
_LEAST_CONTRAST = 24
_HEIGHT_OF_SIZE = 1.2
"""Height of the box of a line in font sizes, where ink cannot be measured."""
_LEAST_RATIO, _LARGEST_RATIO = 0.65, 1.5


@dataclass(frozen=True, slots=True)
class TextLine:
    """A recognized line.

    Attributes:
        text: its characters.
        corners: upper left, upper right, lower right and lower left corner in the bitmap, in pixels.
        confidence: mean probability of its characters, 0 to 1.
    """

    text: str
    corners: Corners
    confidence: float


class Unread(Exception):
    """A page gives no text.

    Attributes:
        reason: why, as an identifier: "no_lines" or "uncertain" of recognition; "not_drawn" of a page that PDFium
            cannot draw; "no_answer" or a reason of `plausibility.refusal` of a vision model.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class ReadPage:
    """What was read on a page.

    Attributes:
        confidence: mean certainty of all letters, including those of lines that were dropped; None if unknown.
        segments: lines of text, upright; boxes in points.
        blocks: blocks of readers that return these; their page numbers do not count.
        skew: angle in radians by which the lines of the page fall to the right, which segments do not.
        turn: clockwise quarter turns that make the page as displayed upright.
        width, height: size of the upright page in points.
    """

    confidence: float | None
    segments: list[Segment] = field(default_factory=list)
    blocks: Sequence[PdfBlock] = ()
    skew: float = 0.0
    turn: int = 0
    width: float = 0.0
    height: float = 0.0

    def displayed(self, box: Box) -> Box:
        """Returns the box around a box of the upright page on the page as displayed."""
        x0, y0, x1, y1 = box
        turned = [self._turn(x, y) for x in (x0, x1) for y in (y0, y1)]
        xs, ys = [x for x, _ in turned], [y for _, y in turned]
        page = RawPage(0, self.width, self.height, turned=self.turn)
        return displayed((min(xs), min(ys), max(xs), max(ys)), page)

    def _turn(self, x: float, y: float) -> Point:
        return _turned(x, y, self.skew, self.width / 2, self.height / 2)


def read_upright(bitmap: Bitmap, find: Callable[[Bitmap], list[TextLine]]) -> ReadPage:
    """Returns the lines of a page, which may be sideways or upside down.

    Lines that run down the page are found, too, so that only two of four turns need to be read: upside down, lines are
    uncertain.

    Args:
        bitmap: the page as displayed.
        find: finds and reads the lines of a bitmap.

    Raises:
        Unread: the page has no lines, or they are uncertain in each turn.
    """
    lines = find(bitmap)
    if not lines:
        raise Unread("no_lines")
    for turn in (1, 3) if _are_sideways(lines) else (0, 2):
        turned = replace(bitmap, pixels=np.ascontiguousarray(np.rot90(bitmap.pixels, -turn)))
        if turn % 2:
            turned = replace(turned, width=bitmap.height, height=bitmap.width)
        with contextlib.suppress(Unread):
            return replace(read_page(find(turned) if turn else lines, turned), turn=turn)
    raise Unread("uncertain")


def _are_sideways(lines: Sequence[TextLine]) -> bool:
    shapes = [(width, height) for width, height, _ in map(_shape, lines)]
    return sum(height for width, height in shapes if height > width) > sum(
        width for width, height in shapes if width >= height
    )


def read_page(lines: Sequence[TextLine], bitmap: Bitmap) -> ReadPage:
    """Returns the lines of a page as segments.

    Args:
        lines: all lines, also uncertain ones.
        bitmap: the page that they were read from.

    Raises:
        Unread: the page has no lines, or too many of its letters are uncertain.
    """
    lines = [line for line in lines if clean(line.text)]
    weights = [max(_letters(line.text), _fewest_letters(line)) for line in lines]
    certain = sum(weight * certainty(line) for weight, line in zip(weights, lines, strict=True))
    if not lines:
        raise Unread("no_lines")
    if certain < _MIN_MEAN_CONFIDENCE * sum(weights):
        raise Unread("uncertain")
    kept = [line for line in lines if certainty(line) >= _MIN_CONFIDENCE]
    skew = skew_of(kept)
    grey = bitmap.pixels[:, :, 1]
    measured = [_measured(line, skew, grey, bitmap) for line in kept]
    segments = [segment for segment in measured if segment is not None]
    _with_common_sizes(segments)
    return ReadPage(certain / sum(weights), segments, skew=skew, width=bitmap.width, height=bitmap.height)


def certainty(line: TextLine) -> float:
    """Returns the confidence of a line times the share of its letters that were read, by its width."""
    return line.confidence * min(1.0, _letters(line.text) / _fewest_letters(line))


def _letters(text: str) -> int:
    return sum(not letter.isspace() for letter in text)


def _fewest_letters(line: TextLine) -> float:
    """Returns the number of letters that a line of this width has at least; 1 or more."""
    width, height, _ = _shape(line)
    return max(1.0, width * _HEIGHT_OF_SIZE / max(1.0, height) / _WIDEST)


def skew_of(lines: Sequence[TextLine]) -> float:
    """Returns the angle in radians by which the lines of a page fall to the right; 0 if it is above `_MAX_SKEW`.

    It is the median of long lines, each counted by its width.
    """
    angles: list[tuple[float, float]] = []
    for line in lines:
        width, height, angle = _shape(line)
        if width > _LONG * height and abs(angle) < _STEEP:
            angles.append((angle, width))
    half, passed = sum(width for _, width in angles) / 2, 0.0
    for angle, width in sorted(angles):
        passed += width
        if passed >= half:
            return angle if abs(angle) <= _MAX_SKEW else 0.0
    return 0.0


def _shape(line: TextLine) -> tuple[float, float, float]:
    """Returns width, height and angle of a line, in pixels and radians."""
    first, second, third, fourth = line.corners
    right = (second[0] - first[0] + third[0] - fourth[0]) / 2, (second[1] - first[1] + third[1] - fourth[1]) / 2
    down = (fourth[0] - first[0] + third[0] - second[0]) / 2, (fourth[1] - first[1] + third[1] - second[1]) / 2
    return math.hypot(*right), math.hypot(*down), math.atan2(right[1], right[0])


def _turned(x: float, y: float, angle: float, center_x: float, center_y: float) -> Point:
    """Rotates a point clockwise on the page, whose y grows downward."""
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = x - center_x, y - center_y
    return center_x + x * cos - y * sin, center_y + x * sin + y * cos


def _measured(line: TextLine, skew: float, grey: npt.NDArray[np.uint8], bitmap: Bitmap) -> Segment | None:
    """Returns a line as a segment of the upright page; None for lines that run down the page."""
    width, height, angle = _shape(line)
    if abs(angle) > _STEEP or (height > 1.5 * width and len(line.text) > 1):
        return None
    scale = bitmap.scale
    upright = [_turned(x / scale, y / scale, -skew, bitmap.width / 2, bitmap.height / 2) for x, y in line.corners]
    x0, x1 = (upright[0][0] + upright[3][0]) / 2, (upright[1][0] + upright[2][0]) / 2
    middle = sum(y for _, y in upright) / 4
    core, square = _core_height(line.text)
    descent = _SQUARE_DESCENT if square else _DESCENT
    band = _core_rows(line, grey)
    size = height / scale / _HEIGHT_OF_SIZE
    baseline = middle + (_ASCENT - _DESCENT) / 2 * size
    if band is not None:
        measured = (band[1] - band[0]) / scale / core
        if _LEAST_RATIO * size < measured < _LARGEST_RATIO * size:  # a dash and the like have other rows
            size, baseline = measured, middle + band[1] / scale
    return Segment(clean(line.text), x0, baseline - _ASCENT * size, x1, baseline + descent * size, size)


def _core_height(text: str) -> tuple[float, bool]:
    """Returns the height of most letters of a text in font sizes, and whether they are ideographs or kana."""
    small = sum(letter.islower() for letter in text)
    square = sum("\u3000" <= letter <= "\u9fff" or "\uac00" <= letter <= "\ud7a3" for letter in text)
    capital = sum(unicodedata.category(letter) in ("Lu", "Nd") for letter in text)
    if square and 2 * square >= small + capital:
        return _SQUARE, True
    return (_CAPITAL, False) if capital > 2 * small else (_SMALL, False)


def _core_rows(line: TextLine, grey: npt.NDArray[np.uint8]) -> tuple[float, float] | None:
    """Returns top and bottom of the rows with most ink, in pixels from the middle of a line; None without contrast."""
    width, height, angle = _shape(line)
    columns, half = max(1, int(width * math.cos(angle))), max(2, round(0.75 * height))
    (left, top), (_, bottom) = line.corners[0], line.corners[3]
    xs = np.clip(np.arange(columns) + round(left), 0, grey.shape[1] - 1)
    falls = math.tan(angle) * np.arange(columns) + (top + bottom) / 2
    ys = np.clip(np.rint(falls).astype(np.int64)[None, :] + np.arange(-half, half + 1)[:, None], 0, grey.shape[0] - 1)
    dark = 255.0 - grey[ys, xs[None, :]]
    low, high = np.percentile(dark, (20, 99))
    if high - low < _LEAST_CONTRAST:
        return None
    ink = (dark > (low + high) / 2).sum(axis=1).astype(np.float64)
    return _band(ink, half)


def _band(ink: npt.NDArray[np.float64], half: int) -> tuple[float, float] | None:
    """Returns the edges of the rows that have `_CORE` of the ink of the fullest one, between rows by proportion.

    Args:
        ink: ink of the rows of a line and its neighbors.
        half: index of the row in the middle.
    """
    reach = round(0.6 * half)  # without the neighbors
    limit = _CORE * ink[half - reach : half + reach + 1].max()
    if limit <= 0:
        return None
    rows = np.flatnonzero(ink[half - reach : half + reach + 1] >= limit) + half - reach
    first, last = int(rows[0]), int(rows[-1])
    above = (ink[first] - limit) / max(1.0, ink[first] - (ink[first - 1] if first else 0.0))
    below = (ink[last] - limit) / max(1.0, ink[last] - (ink[last + 1] if last < len(ink) - 1 else 0.0))
    return first - half - min(1.0, above), last - half + min(1.0, below)


def _with_common_sizes(segments: Sequence[Segment]) -> None:
    """Gives segments of about the same size the same: the size that most letters have is found first."""
    waiting = sorted(segments, key=lambda segment: segment.size)
    while waiting:
        start, end = _fullest_window(waiting)
        size = round(median(segment.size for segment in waiting[start:end]), 1)
        for segment in waiting[start:end]:
            segment.size = max(size, 0.1)
        waiting = waiting[:start] + waiting[end:]


def _fullest_window(sizes: Sequence[Segment]) -> tuple[int, int]:
    """Returns the range of segments, sorted by size, with most letters and sizes within `_SAME` squared."""
    best = (0, 0, 0)
    start = letters = 0
    for end, segment in enumerate(sizes):
        letters += len(segment.text)
        while segment.size > _SAME * _SAME * sizes[start].size:
            letters -= len(sizes[start].text)
            start += 1
        best = max(best, (letters, start, end + 1))
    return best[1], best[2]
