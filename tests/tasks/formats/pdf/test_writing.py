"""Text in any writing direction is extracted in reading order, with boxes of the displayed page."""

import pytest

from tasks.formats.documents.layout import Box
from tasks.formats.pdf.document import PdfText, read_pdf
from tasks.formats.pdf.reader import Limits, open_pdf, pages
from tests.tasks.stages.extract.made_pdf import A4, ANY, Letters, pdf, show

JAPANESE = ("吾輩は猫である。名前はまだ無い。", "どこで生れたかとんと見当がつかぬ。")


def written(font: Letters, content: str) -> PdfText:
    return read_pdf(pdf([content], fonts=ANY, others=font.others))


# In page order, from left to right. Some programs write brackets visually, some logically.
@pytest.mark.parametrize("stands", [".ו Linux 6.1 (17 הד) גבא", ".ו Linux 6.1 )17 הד( גבא"], ids=["look", "meant"])
def test_hebrew_is_read_right_to_left_with_embedded_left_to_right_text(stands: str) -> None:
    font = Letters(stands)
    assert written(font, font.show(60, 700, stands)).text == "אבג (דה 17) Linux 6.1 ו."


def test_an_arabic_word_keeps_its_position_in_english_text() -> None:
    font = Letters("The word is a bookكتاب")
    assert written(font, font.show(60, 700, "The word باتك is a book")).text == "The word كتاب is a book"


def test_vertical_lines_are_read_from_the_right_with_correct_boxes() -> None:
    font = Letters("".join(JAPANESE))
    places = [
        (400 - 24 * line, 700 - 12 * at, text[at]) for line, text in enumerate(JAPANESE) for at in range(len(text))
    ]
    found = written(font, "".join(font.show(x, y, letter, 12) for x, y, letter in places))
    assert found.text == "".join(JAPANESE)
    (piece,) = found.layout
    x0, y0, x1, y1 = piece.box
    assert 370 < x0 < 380 < 400 < x1 < 412
    assert 842 - 712 < y0 < 842 - 700 < 842 - 700 + 12 * 16 <= y1 + 1


def test_ruby_next_to_a_word_does_not_split_it() -> None:
    font = Letters("".join(JAPANESE) + "わがはい")
    shown = (
        font.show(60, 700, JAPANESE[0], 12) + font.show(60, 711, "わがはい", 3) + font.show(60, 684, JAPANESE[1], 12)
    )
    assert written(font, shown).text == "".join(JAPANESE)


def box_of(rotation: int, matrix: str) -> tuple[str, Box]:
    found = read_pdf(pdf([f"q {matrix} cm {show(60, 700, 'The door is open')} Q"], page=f"/Rotate {rotation}"))
    (piece,) = found.layout
    return found.text, piece.box


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_boxes_match_the_displayed_page_at_any_rotation(rotation: int) -> None:
    upright, (x0, y0, x1, y1) = box_of(0, "1 0 0 1 0 0")
    width, height = A4
    places = {
        0: (x0, y0, x1, y1),
        90: (height - y1, x0, height - y0, x1),
        180: (width - x1, height - y1, width - x0, height - y0),
        270: (y0, width - x1, y1, width - x0),
    }
    text, box = box_of(rotation, "1 0 0 1 0 0")
    assert text == upright == "The door is open"
    assert box == pytest.approx(places[rotation], abs=0.1)


def test_a_rotated_page_has_the_boxes_of_the_displayed_text() -> None:
    # The text runs upwards on the sheet, and the viewer rotates the sheet: it is at the upper left again.
    text, box = box_of(90, f"0 1 -1 0 {A4[0]} 0")
    assert text == "The door is open"
    assert box[0] == pytest.approx(60, abs=1)
    assert box[2] - box[0] > 3 * (box[3] - box[1])


def test_actual_text_for_several_glyph_runs_appears_once() -> None:
    # The third fragment is drawn after the following text, so PDFium treats it as separate text.
    spelt = "/Span << /ActualText (\\351) >> BDC (e) Tj 0 0 Td (') Tj 7 0 Td (.) Tj EMC"
    shown = f"BT /F1 10 Tf 60 700 Td (The caf) Tj 34 0 Td {spelt} -2 0 Td (s are open) Tj ET\n"
    assert read_pdf(pdf([shown])).text == "The cafés are open"


def test_pdfium_finds_the_same_lines_on_an_upside_down_page() -> None:
    rows = [("The doors of the ", "museum open at "), ("nine, and the last ", "guests leave at ten.")]
    shown = "".join(
        f"BT /F1 10 Tf 60 {700 - 12 * number} Td ({left}) Tj ({right}) Tj ET\n"
        for number, (left, right) in enumerate(rows)
    )
    for rotation in (0, 180):
        with open_pdf(pdf([shown], page=f"/Rotate {rotation}"), Limits()) as document:
            (page,) = pages(document, Limits())
        read = "".join(chr(char.code) for char in page.chars)
        assert " ".join(read.split()) == "".join(left + right for left, right in rows)
