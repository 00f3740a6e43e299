"""Paragraph breaks as seen by a reader: not at font changes, formulas, figures or numbers."""

import textwrap

import pytest

from tasks.formats.pdf.characters import Char, Face
from tasks.formats.pdf.document import PdfText, read_pdf
from tasks.formats.pdf.lines import lines as lines_of
from tasks.formats.pdf.segments import Segment, segments
from tests.tasks.stages.extract.made_pdf import COURIER, lines, pdf, show

PROSE = textwrap.wrap(
    "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. They had been "
    "told that the harbour would be open until the first week of November, and that was what the owners believed as "
    "well, since every year before had been like that and no letter had come.",
    70,
)
FLOWING = " ".join(PROSE)
STEMS = {"F4": ("LMRoman10-Regular", 151), "F5": ("LMRoman10-Italic", 109), "F6": ("LMRoman10-Bold", 124)}
STEMS |= {"F7": ("Cambria", 90), "F8": ("CMMI10", 72), "F9": ("Cambria,Strong", 160)}
"""Fonts by their stems, of which PDFium makes weights: 744, 545, 620, 450, 360 and 780."""
FONTS = " ".join(
    f"/{name} << /Type /Font /Subtype /Type1 /BaseFont /{base} /FirstChar 32 /LastChar 126 /Widths [{'500 ' * 95}]"
    f" /FontDescriptor << /Type /FontDescriptor /FontName /{base} /Flags 4 /StemV {stem} /Ascent 800 /Descent -200"
    " /ItalicAngle 0 /CapHeight 700 /FontBBox [0 -200 1000 800] >> >>"
    for name, (base, stem) in STEMS.items()
)


def kinds(found: PdfText) -> list[tuple[str, str]]:
    return [(one.kind, found.text[one.start : one.end]) for one in found.layout]


def read(*pages: str) -> PdfText:
    return read_pdf(pdf(pages, fonts=FONTS))


def paragraph(y: float, font: str = "F4", **others: str) -> str:
    """The lines of PROSE in one font, some in another: `others` are fonts by number of the line, such as l2="F5"."""
    return "".join(show(60, y - 12 * at, text, 10, others.get(f"l{at}", font)) for at, text in enumerate(PROSE))


def test_italic_lines_do_not_break_a_paragraph_with_a_heavy_regular_face() -> None:
    assert kinds(read(paragraph(700, "F4", l2="F5"))) == [("paragraph", FLOWING)]


def test_a_line_in_a_font_named_bold_is_a_heading_despite_a_heavier_regular_face() -> None:
    found = kinds(read(show(60, 718, "Of the winter", 10, "F6") + paragraph(700)))
    assert found == [("heading", "Of the winter"), ("paragraph", FLOWING)]


@pytest.mark.parametrize(("body", "kind"), [("F7", "heading"), ("F4", "paragraph")])
def test_a_weight_well_above_that_of_the_text_is_bold(body: str, kind: str) -> None:
    assert kinds(read(show(60, 640, "Of the winter", 10, "F9") + paragraph(700, body)))[-1] == (kind, "Of the winter")


def test_a_displayed_formula_does_not_end_its_paragraph() -> None:
    rest = textwrap.wrap(f"where x is what it was. {FLOWING}", 70)
    content = paragraph(700, "F7") + show(220, 630, "y = a + x - b", 10, "F8") + lines(60, 610, rest, 10, "F7")
    found = read(content)
    assert found.text == f"{FLOWING}\ny = a + x - b\n{' '.join(rest)}"
    assert [one.kind for one in found.layout] == ["paragraph", "formula", "paragraph"]


def test_an_indented_line_after_a_formula_starts_a_paragraph() -> None:
    rest = show(75, 610, PROSE[0], 10, "F7") + lines(60, 598, PROSE[1:], 10, "F7")
    found = read(paragraph(700, "F7") + show(220, 630, "y = a + x - b", 10, "F8") + rest)
    assert found.text == f"{FLOWING}\n\ny = a + x - b\n\n{FLOWING}"


def test_a_small_gap_after_a_sentence_starts_a_paragraph() -> None:
    full = [*PROSE[:-1], "and no letter had come to any of them since the end of the last winter."]
    first = lines(60, 700, full, 10, "F7")
    found = kinds(read(first + paragraph(700 - 12 * len(full) - 2.5, "F7")))
    assert found == [("paragraph", " ".join(full)), ("paragraph", FLOWING)]


def test_an_equation_number_at_the_start_of_a_line_is_not_a_list_item() -> None:
    text = [
        "What was said of the ice is what was said of the cold in the equation",
        "(6) of the book.",
        "(7) Behind it",
    ]
    found = kinds(read(lines(60, 700, text, 10, "F7")))
    assert found == [("paragraph", " ".join(text[:2])), ("item", text[2])]


def test_a_sentence_continues_after_figure_labels_on_the_next_page() -> None:
    labels = "".join(
        show(x, 760 - 20 * at, text, 6) for at, (x, text) in enumerate([(90, "Male"), (300, "Crew"), (90, "1st")])
    )
    first = lines(60, 300, [*PROSE, *PROSE[:3]], 10, "F7")
    second = lines(60, 600, [f"Northern {PROSE[3]}", *PROSE[4:]], 10, "F7")
    sentence = " ".join((*PROSE[:3], "Northern", *PROSE[3:]))
    assert read(first, labels + second).text == "\n\n".join((FLOWING, sentence, "Male", "Crew", "1st"))


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        ("English-", "to-German", "English-to-German"),
        ("state-of-", "the-art", "state-of-the-art"),
        ("state-of-the-", "art", "state-of-the-art"),
        ("com-", "puter-based", "computer-based"),
    ],
)
def test_the_hyphen_of_a_compound_is_kept_and_that_of_a_split_word_is_removed(
    before: str, after: str, word: str
) -> None:
    told = "English and German were what the state of the art was for a computer, and nothing else was said."
    text = [told, f"What they had seen of it in those years was {before}", f"{after} and no more than that."]
    assert f" {word} and" in read_pdf(pdf([lines(60, 700, text)])).text


def test_ligatures_of_unmapped_tex_fonts_become_letters() -> None:
    face = Face(10.0)
    chars = [Char(code, 10 + 5 * at, 100, 15 + 5 * at, 110, face) for at, code in enumerate((0x1C, *map(ord, "rst")))]
    assert [one.text for one in segments(chars)[0]] == ["first"]


def test_a_nested_exponent_is_not_a_line() -> None:
    whole = Segment("processes can be standardized by x and y alike", 60, 100, 300, 110, 10)
    after = Segment("for each of them, as before", 60, 112, 200, 122, 10)
    found = lines_of([whole, Segment("1", 220, 109, 223, 113, 5), after])
    assert [line.text for line in found] == ["processes can be standardized by 1 x and y alike", after.text]


def test_a_name_in_a_small_monospaced_font_does_not_break_a_paragraph() -> None:
    def mono(y: float, word: str) -> str:
        return f"BT /F3 9 Tf 60 {y} Td ({word}) Tj /F7 10 Tf ( is the name of it, and of another one as well,) Tj ET\n"

    content = (
        show(60, 712, PROSE[0], 10, "F7") + mono(700, "a_name_of_a_function") + lines(60, 688, PROSE[1:], 10, "F7")
    )
    found = read_pdf(pdf([content], fonts=f"{FONTS} {COURIER}"))
    assert [one.kind for one in found.layout] == ["paragraph"]


def test_a_document_with_more_listings_than_text_has_the_style_of_its_text() -> None:
    listing = lines(60, 600, ["read(path, mode, encoding, errors, newline)"] * 24, 9, "F3")
    found = read_pdf(pdf([lines(60, 700, PROSE) + listing], fonts=COURIER))
    assert [one.kind for one in found.layout] == ["paragraph", "code"]


def test_text_goes_on_after_a_figure_at_the_top_of_the_next_page() -> None:
    first, rest = PROSE[:2], PROSE[2:]
    figure = show(90, 780, "Crew") + show(300, 780, "Ice") + show(150, 740, "Figure 1: The crew.")
    content = lines(60, 700, PROSE) + lines(60, 600, first)
    found = read_pdf(pdf([content, figure + lines(60, 700, rest)]))
    assert found.text == f"{FLOWING}\n\n{FLOWING}\n\nCrew Ice\n\nFigure 1: The crew."


def test_a_formula_in_a_text_font_is_one_by_its_place_and_its_relation() -> None:
    line = "BT /F1 10 Tf 180 630 Td (H) Tj /F8 10 Tf ( : D) Tj /F1 10 Tf (\\(Y | X\\) = E\\(Y\\)) Tj ET\n"
    found = read(paragraph(700, "F1") + line + lines(60, 610, ["against what it is not."], 10))
    assert [one.kind for one in found.layout] == ["paragraph", "formula", "paragraph"]
