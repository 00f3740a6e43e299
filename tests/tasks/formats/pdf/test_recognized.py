"""Contract of tasks.formats.pdf.recognized: lines read from a bitmap become text in reading order, or are not kept.

The reader is played by the test, which knows what it has drawn: every line is a row of boxes with the height of small
letters.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tasks.formats.documents.layout import PageScore
from tasks.formats.pdf.document import BitmapReader, PdfText, read_pdf
from tasks.formats.pdf.reader import Limits, open_pdf, pages
from tasks.formats.pdf.recognized import Corners, ReadPage, TextLine, Unread, read_page, read_upright, skew_of
from tasks.formats.pdf.render import MAX_PIXELS, Bitmap, render_page
from tests.tasks.stages.extract.made_pdf import A4, IMAGE, SCANNED, image, pdf, show

SCAN = {"resources": IMAGE, "others": {1000: image()}}
SCALE = 200 / 72
LEFT = (
    "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. They had been "
    "told that the harbour would be open until the first week of November."
)
RIGHT = (
    "When the wind turned on the third day, the captain gave up the northern route and followed the coast instead. It "
    "was the longer way, but there were villages on it."
)


def line(text: str, x: float, y: float, size: float = 10, confidence: float = 0.99) -> tuple[TextLine, float]:
    """A line on the baseline `y`, in points, half a size wide per letter, with the coarse height of a detector."""
    width, height = 0.5 * size * len(text), size * (1.04, 1.24, 1.44)[len(text) % 3]
    middle = y - 0.26 * size
    corners = (
        (x, middle - height / 2),
        (x + width, middle - height / 2),
        (x + width, middle + height / 2),
        (x, middle + height / 2),
    )
    return TextLine(text, corners, confidence), size


def column(text: str, x: float, y: float, width: int = 40) -> list[tuple[TextLine, float]]:
    return [line(row, x, y + 12 * number) for number, row in enumerate(textwrap.wrap(text, width))]


def drawn(lines: Sequence[tuple[TextLine, float]], degrees: float = 0.0) -> tuple[list[TextLine], Bitmap]:
    """The lines in pixels, and a page of A4 with their letters; both turned about its center."""
    pixels = np.full((int(A4[1] * SCALE), int(A4[0] * SCALE), 3), 255, dtype=np.uint8)
    turned = []
    for one, size in lines:
        x0, x1, middle = one.corners[0][0], one.corners[1][0], (one.corners[0][1] + one.corners[3][1]) / 2
        baseline = middle + 0.26 * size
        letters = np.concatenate([np.arange(at, at + 0.35 * size, 0.3) for at in np.arange(x0, x1, 0.5 * size)])
        xs, ys = np.meshgrid(letters, np.arange(baseline - 0.44 * size, baseline, 0.3))
        columns, rows = _turn(xs, ys, degrees)
        pixels[(rows * SCALE).astype(int), (columns * SCALE).astype(int)] = 0
        corners = [_turn(x, y, degrees) for x, y in one.corners]
        first, second, third, fourth = ((x * SCALE, y * SCALE) for x, y in corners)
        turned.append(TextLine(one.text, (first, second, third, fourth), one.confidence))
    return turned, Bitmap(pixels, *A4, SCALE)


def _turn(x: Any, y: Any, degrees: float) -> tuple[Any, Any]:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = x - A4[0] / 2, y - A4[1] / 2
    return A4[0] / 2 + x * cos - y * sin, A4[1] / 2 + x * sin + y * cos


def read(lines: Sequence[tuple[TextLine, float]], degrees: float = 0.0) -> PdfText:
    """The text of a scanned page whose reader finds these lines."""
    found, bitmap = drawn(lines, degrees)
    return read_pdf(pdf([SCANNED], **SCAN), bitmaps=BitmapReader(lambda _: read_page(found, bitmap)))


PAGE = [
    line("A voyage along the northern coast", 160, 80, size=16),
    *[one for pair in zip(column(LEFT, 50, 120), column(RIGHT, 310, 120), strict=False) for one in pair],
]


@pytest.mark.parametrize("degrees", [0.0, -5.0, 3.0])
def test_columns_of_a_skewed_page_are_paragraphs_in_reading_order(degrees: float) -> None:
    found = read(PAGE, degrees)
    kinds = [(span.kind, found.text[span.start : span.end]) for span in found.layout]
    assert kinds == [
        ("heading", "A voyage along the northern coast"),
        ("paragraph", LEFT),
        ("paragraph", RIGHT),
    ]
    assert found.title == "A voyage along the northern coast"


def test_boxes_are_those_of_the_page_as_displayed() -> None:
    heading = line("A voyage along the northern coast", 160, 80, size=16)
    straight, turned = (read([heading, *column(LEFT, 50, 120)], degrees).layout[0].box for degrees in (0.0, 3.0))
    assert straight == pytest.approx((160, 68, 424, 83.5), abs=1.5)
    corners = [_turn(x, y, 3.0) for x in straight[::2] for y in straight[1::2]]
    assert turned[:2] == pytest.approx((min(x for x, _ in corners), min(y for _, y in corners)), abs=1.5)


def test_the_page_is_no_longer_missing_and_has_the_confidence_of_its_letters() -> None:
    (page,) = read(PAGE).pages
    assert (page.score, page.needs_ocr) == (1.0, False)
    assert page.confidence == pytest.approx(0.99)


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_a_page_on_its_side_or_upside_down_is_turned_and_its_boxes_are_not(turn: int) -> None:
    upright, bitmap = drawn(PAGE)
    pixels = np.rot90(bitmap.pixels, turn)
    size = A4[::-1] if turn % 2 else A4

    def find(shown: Bitmap) -> list[TextLine]:
        if np.array_equal(shown.pixels, bitmap.pixels):
            return upright
        if shown.pixels.shape == bitmap.pixels.shape:
            return [TextLine(one.text, one.corners, 0.5) for one in upright]
        return [TextLine(one.text, _on_its_side(one.corners), 0.5) for one in upright]

    page = read_upright(Bitmap(np.ascontiguousarray(pixels), *size, SCALE), find)
    assert page.turn == turn
    assert page.segments[0].text == "A voyage along the northern coast"
    x0, y0, x1, y1 = page.displayed((10, 20, 110, 40))
    assert (x0, y0, x1, y1) == {
        0: (10, 20, 110, 40),
        1: (20, 485, 40, 585),
        2: (485, 802, 585, 822),
        3: (802, 10, 822, 110),
    }[turn]


def _on_its_side(corners: Corners) -> Corners:
    first, second, third, fourth = ((y, x) for x, y in corners)
    return first, fourth, third, second


def test_an_uncertain_line_is_dropped_and_an_uncertain_page_is_not_read() -> None:
    smudge = line("Smudge of ink", 50, 700, confidence=0.5)
    assert "Smudge" not in read([*PAGE, smudge]).text
    uncertain = read([line(one.text, *_place(one), confidence=0.85) for one, _ in PAGE])
    assert uncertain.text == ""
    assert uncertain.pages == (PageScore(1, 1.0, needs_ocr=True, unread="ocr_uncertain"),)


def _place(one: TextLine) -> tuple[float, float]:
    return one.corners[0][0], one.corners[3][1]


def test_lines_of_an_unknown_script_are_not_read_although_their_commas_are_certain() -> None:
    wide = line("x" * 60, 50, 100)[0].corners
    with pytest.raises(Unread, match="uncertain"):
        read_page([TextLine("  ,  -  , ", wide, 0.95)], drawn([])[1])


def test_a_page_without_lines_still_needs_ocr() -> None:
    assert read([]).pages == (PageScore(1, 1.0, needs_ocr=True, unread="ocr_no_lines"),)


def test_pages_with_text_are_not_read_from_bitmaps_and_the_number_of_others_is_limited() -> None:
    seen: list[Bitmap] = []

    def reader(bitmap: Bitmap) -> ReadPage:
        seen.append(bitmap)
        return read_page(*drawn(PAGE))

    data = pdf([SCANNED, show(50, 700, LEFT[:60]), SCANNED, SCANNED], **SCAN)
    found = read_pdf(data, bitmaps=BitmapReader(reader, dpi=72, max_pages=2))
    assert [page.rejection for page in found.pages] == ["", "", "", "needs_ocr"]
    assert [(one.pixels.shape, one.width, one.height) for one in seen] == [((842, 595, 3), 595, 842)] * 2


def test_a_huge_page_is_drawn_with_fewer_dots() -> None:
    import pypdfium2

    document = pypdfium2.PdfDocument(pdf([SCANNED], **SCAN).replace(b"[0 0 595 842]", b"[0 0 14000 14000]"))
    bitmap = render_page(document.raw, 1, 200)
    assert bitmap is not None
    assert bitmap.pixels.shape == (4000, 4000, 3)
    assert MAX_PIXELS == 4000 * 4000
    assert (bitmap.width, bitmap.scale) == (14000, pytest.approx(4000 / 14000))


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_page_is_drawn_as_displayed_after_its_text_was_read(rotation: int) -> None:
    with open_pdf(pdf([show(50, 700, LEFT[:60])], page=f"/Rotate {rotation}"), Limits()) as document:
        before = render_page(document, 1, 72)
        list(pages(document, Limits()))
        after = render_page(document, 1, 72)
    assert before is not None
    assert after is not None
    assert after.pixels.shape == ((595, 842, 3) if rotation % 180 else (842, 595, 3))
    assert np.array_equal(after.pixels, before.pixels)


def test_a_single_steep_line_does_not_turn_the_page() -> None:
    steep: Corners = ((0.0, 0.0), (400.0, 100.0), (398.0, 110.0), (-2.0, 10.0))
    found, _ = drawn(PAGE)
    assert skew_of([*found, TextLine("along the edge", steep, 0.99)]) == pytest.approx(0.0)
    assert skew_of([TextLine("along the edge", steep, 0.99)]) == 0.0
