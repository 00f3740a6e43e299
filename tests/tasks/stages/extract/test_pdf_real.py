"""Real PDF files: the words of the gold are in the text, and two columns are in their order."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tasks.formats.pdf.document import PdfText, read_pdf

NAMES = ("dolma-datasheet", "earth", "granite-docling", "icwsm-poster", "mars", "pii-invoice", "spam", "lorem-ipsum")


def words(text: str) -> Counter[str]:
    """Words in lower case; a hyphen at a line end (PDFium writes U+FFFE) is undone."""
    return Counter(re.findall(r"\w+", text.replace("\ufffe", "").lower()))


def read(shared_data: Path, name: str) -> PdfText:
    return read_pdf((shared_data / "pdf" / "files" / f"{name}.pdf").read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_nearly_all_words_are_there_and_no_others(shared_data: Path, name: str) -> None:
    found, gold = (
        words(read(shared_data, name).text),
        words((shared_data / "pdf" / "silver_text" / f"{name}.txt").read_text()),
    )
    assert 2 * (found & gold).total() / (found.total() + gold.total()) >= 0.97


def test_two_columns_of_a_paper_are_read_in_order(shared_data: Path) -> None:
    text = read(shared_data, "granite-docling").text
    # Heads of sections, and sentences that begin at the lower end of a column and end at the upper end of the next one.
    marks = [
        "Abstract",
        "1 Introduction",
        "proprietary solutions.",
        "With Docling, we recently",
        "2 State of the Art",
        "Additionally, Docling offers",
        "3 Design and Architecture",
        "3.1 Docling Document",
        "3.2 Parser Backends",
        "(e.g., pymupdf (pym 2024))",
        "3.3 Pipelines",
        "4 PDF Conversion Pipeline",
        "4.1 AI Models",
        "5 Performance",
        "5.4 Results",
        "6 Applications",
    ]
    places = [text.find(mark) for mark in marks]
    assert -1 not in places
    assert places == sorted(places)
