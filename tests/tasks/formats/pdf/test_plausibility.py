"""Contract of tasks.formats.pdf.plausibility: text that cannot be that of a page is refused, and no text of a page is.

Real pages are drawn from files with a text layer, whose own text must pass.
"""

import math
import time
from pathlib import Path

import numpy as np
import pytest

from tasks.formats.pdf.plausibility import Ink, ink_of, refusal
from tasks.formats.pdf.reader import Limits, open_pdf, pages
from tasks.formats.pdf.render import Bitmap, render_page
from tests.tasks.stages.extract.made_pdf import lines, pdf, show

SENTENCES = (
    "The ship went to sea with a crew of nine, and none of them had seen the ice before that winter. They had been "
    "told that the harbour would be open until the first week of November, and that was what the owners believed. "
    "When the wind turned on the third day, the captain gave up the northern route and followed the coast instead. "
)
FULL = Ink(20_000.0, 18_000.0)
ROWS = [f"{number}. {SENTENCES[:70]}" for number in range(55)]


def drawn(content: str, dpi: int = 100) -> Bitmap:
    with open_pdf(pdf([content]), Limits()) as document:
        bitmap = render_page(document, 1, dpi)
    assert bitmap is not None
    return bitmap


def varied(words: int) -> str:
    """Text without repetitions."""
    letters = np.random.default_rng(1).choice(list("abcdefghijklmnopqrstuvwxyz"), (words, 6))
    return " ".join("".join(word) for word in letters)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("too_long", varied(30_000)),
        ("apology", "I'm sorry, but I can't read the text in this image."),
        ("apology", "As an AI language model, I do not see pictures."),
        ("apology", "The image shows a blank page."),
        (
            "prompt",
            "Sure! Read this page of a document and write all of its text in reading order, exactly as printed.",
        ),
        ("repetition", varied(100) + "\n" + "The end of the line\n" * 9),
        ("repetition", varied(100) + " and so they went on and on to" * 20),
        ("repetition", varied(100) + "海に出た船は氷を見たことがなかった。" * 40),
        (
            "scripts",
            varied(40) + " Никто из них не видел льда. 他们没见过冰,那年冬天之前。 لم يروا الجليد من قبل قط.",
        ),
        ("too_little_text", "A page."),
        ("too_little_text", ""),
    ],
)
def test_answers_that_cannot_be_the_text_of_a_page_are_refused(reason: str, text: str) -> None:
    prompt = "Read this page of a document and write all of its text in reading order, exactly as printed."
    assert refusal(text, "stop", FULL, prompt) == reason


def test_an_answer_that_was_cut_is_refused() -> None:
    assert refusal(SENTENCES, "length", FULL) == "length"
    assert refusal(SENTENCES, "stop", FULL) == ""


@pytest.mark.parametrize(
    "text",
    [
        SENTENCES + "Никто из них не видел льда. Πάντα ῥεῖ. 他们没有见过冰。",
        "\n".join(f"| {number} | 0.00 | 0.00 | 0.00 | 0.00 |" for number in range(200)),
        "\n".join(f"<tr><td></td><td></td><td></td><td>{word}</td></tr>" for word in varied(60).split()),
        "\n".join(f"{word} {'.' * 60} {number}" for number, word in enumerate(varied(60).split())),
        "I cannot say. " + varied(120),
    ],
    ids=["foreign words", "table of numbers", "empty cells", "contents", "a first person"],
)
def test_pages_that_resemble_such_answers_are_not(text: str) -> None:
    assert refusal(text, "stop", FULL) == ""


def test_a_page_may_have_the_words_of_a_short_prompt() -> None:
    assert refusal(f"OCR: {SENTENCES}", "stop", FULL, "OCR:") == ""


@pytest.mark.parametrize("dpi", [100, 200])
def test_the_length_of_the_text_must_fit_the_ink(dpi: int) -> None:
    blank, line = ink_of(drawn("", dpi)), ink_of(drawn(show(50, 700, SENTENCES[:60]), dpi))
    full = ink_of(drawn(lines(50, 780, ROWS), dpi))
    assert refusal("", "stop", blank) == ""
    assert refusal("Nothing is here.", "stop", blank) == "too_much_text"
    assert refusal(SENTENCES[:60], "stop", line) == ""
    assert refusal(varied(290), "stop", line) == "too_much_text"
    assert refusal(varied(600), "stop", full) == ""
    assert refusal("Ten letters", "stop", full) == "too_little_text"


def test_ink_is_measured_light_on_dark_too_and_pictures_are_not_strokes() -> None:
    bitmap = drawn(lines(50, 780, ROWS))
    inverted = Bitmap(255 - bitmap.pixels, bitmap.width, bitmap.height, bitmap.scale)
    assert ink_of(inverted) == ink_of(bitmap)
    picture = ink_of(drawn("50 50 400 300 re f"))
    assert picture.area == pytest.approx(400 * 300, rel=0.01)
    assert picture.strokes == 0


def test_the_text_of_real_pages_passes(shared_data: Path) -> None:
    read = 0
    for path in sorted((shared_data / "pdf/files").glob("*.pdf")):
        with open_pdf(path.read_bytes(), Limits()) as document:
            raw = next(iter(pages(document, Limits())))
            text = "".join("\n" if char.code < 0x20 else chr(char.code) for char in raw.chars)
            bitmap = render_page(document, 1, 72)
            assert bitmap is not None
            assert refusal(text, "stop", ink_of(bitmap)) == "", path.name
            read += 1
    assert read >= 10


def test_the_time_of_the_checks_grows_with_the_length_only() -> None:
    def seconds(text: str) -> float:
        start = time.process_time()
        refusal(text, "stop", Ink(math.inf, math.inf))
        return time.process_time() - start

    for piece in ("a", "<", "word "):
        assert seconds(piece * (199_000 // len(piece))) < 2
