"""Intended lines are kept: listings, contents, and deliberate line breaks. Running headers are removed."""

import textwrap

import pytest

from tasks.formats.pdf.document import PdfText, read_pdf
from tests.tasks.stages.extract.made_pdf import COURIER, lines, pdf, show, stream

PROSE = textwrap.wrap(
    "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. They had been "
    "told that the harbour would be open until the first week of November, and that was what the owners believed as "
    "well.",
    70,
)
FLOWING = " ".join(PROSE)


def kinds(found: PdfText) -> list[tuple[str, str]]:
    return [(one.kind, found.text[one.start : one.end]) for one in found.layout]


def test_a_code_listing_keeps_its_lines_and_indentation() -> None:
    code = [(0, "def read(path):"), (4, "with open(path) as file:"), (8, "return file.read()"), (0, ""), (0, "read(1)")]
    listed = "".join(show(60 + 5.4 * at, 640 - 11 * row, text, 9, "F3") for row, (at, text) in enumerate(code) if text)
    found = read_pdf(pdf([lines(60, 700, PROSE) + listed + lines(60, 560, PROSE)], fonts=COURIER))
    text = "def read(path):\n    with open(path) as file:\n        return file.read()\n\nread(1)"
    assert kinds(found) == [("paragraph", FLOWING), ("code", text), ("paragraph", FLOWING)]


def test_a_monospaced_document_is_not_a_listing() -> None:
    found = read_pdf(pdf([lines(60, 700, PROSE, 9, "F3")], fonts=COURIER))
    assert kinds(found) == [("paragraph", FLOWING)]


def test_a_table_of_contents_has_a_line_per_entry() -> None:
    entries = [f"{number}. Chapter of the {word} {'. ' * 30}{number * 7}" for number, word in enumerate("abcde", 1)]
    entries.insert(2, "A title that is so long that it goes on in the next line and then ends")
    found = read_pdf(pdf([lines(60, 760, PROSE) + lines(60, 660, entries)]))
    (_, prose), (kind, text) = kinds(found)
    assert (prose, kind) == (FLOWING, "contents")
    assert text.split("\n") == [
        "1. Chapter of the a ..... 7",
        "2. Chapter of the b ..... 14",
        f"{entries[2]} 3. Chapter of the c ..... 21",
        "4. Chapter of the d ..... 28",
        "5. Chapter of the e ..... 35",
    ]


def test_intended_line_breaks_are_kept_and_others_are_joined() -> None:
    bare = [
        "runs on every machine",
        "is free",
        "needs no network at all and no account of any kind",
        "starts fast and ends fast",
    ]
    found = read_pdf(pdf([lines(60, 760, PROSE) + lines(60, 660, bare)]))
    assert [text for _, text in kinds(found)] == [FLOWING, "\n".join(bare)]


@pytest.mark.parametrize("roman", [False, True])
def test_headers_with_page_numbers_are_running_headers_although_all_differ(roman: bool) -> None:
    numbers = ("iii", "iv", "v", "vi", "vii") if roman else ("3", "4", "5", "6", "7")
    pages = [
        show(60, 810, f"Of the {word} sea {number}") + lines(60, 700, [f"Here {word}.", *PROSE])
        for number, word in zip(numbers, ("cold", "wide", "old", "calm", "deep"), strict=True)
    ]
    text = read_pdf(pdf(pages)).text
    assert "Of the" not in text
    assert text.count("November") == 5


def test_slide_titles_are_not_running_headers() -> None:
    titles = ["The model"] * 4 + [f"Part {word}" for word in "abcdefghijklmnopqrstuvwxyz"]
    pages = [show(60, 790, title, size=20) + lines(60, 700 - 9 * at, PROSE) for at, title in enumerate(titles)]
    assert [text for kind, text in kinds(read_pdf(pdf(pages))) if kind == "heading"] == titles


def test_values_of_form_fields_are_text() -> None:
    shown = stream(b"BT /F1 10 Tf 2 4 Td (Ann Example) Tj ET", "/Type /XObject /Subtype /Form /BBox [0 0 200 20]")
    shown = shown.replace(
        b"/BBox", b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> /BBox"
    )
    field = b"<< /Type /Annot /Subtype /Widget /FT /Tx /T (n) /F 4 /Rect [100 696 300 716] /AP << /N 1001 0 R >> >>"
    data = pdf([show(60, 700, "Name:")], page="/Annots [1000 0 R]", others={1000: field, 1001: shown})
    assert read_pdf(data).text == "Name: Ann Example"
