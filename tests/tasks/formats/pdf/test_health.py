"""Readable text layers: code and any script are readable, permuted alphabets and mixed scripts are not."""

from collections.abc import Sequence

import pytest

from tasks.formats.pdf.characters import Char, Face, RawPage
from tasks.formats.pdf.health import NEEDS_OCR, health

FACE = Face(10.0)
PROSE = (
    "The harbour would be open until the first week of November, and that was what the owners believed as well. " * 4
)
CODE = "\\__pdffield_V_handler:nN{#1}\\l__pdffield_tmpa_str \\cs_if_exist:NTF \\l__pdfmgmt_ptxcb_str " * 8
JAPANESE = "これは文書です。使い方は次の通りです。" * 20


def page(text: str, unmapped: Sequence[bool] = ()) -> RawPage:
    """A page with a text; spaces as inserted by PDFium."""
    flags = unmapped or [False] * len(text)
    chars = [
        Char(ord(letter), 5.0 * at, 0, 5.0 * at + 5, 10, None if letter == " " else FACE, flag)
        for at, (letter, flag) in enumerate(zip(text, flags, strict=True))
    ]
    return RawPage(1, 600, 800, chars, objects=len(chars))


@pytest.mark.parametrize(
    "text",
    [PROSE, PROSE + CODE, JAPANESE + CODE, "Двери музея открываются в 9 часов, см. README.txt. " * 20],
    ids=["prose", "prose_and_code", "code_in_japanese", "russian"],
)
def test_code_and_text_in_any_script_are_readable(text: str) -> None:
    assert health(page(text)) < NEEDS_OCR


def test_an_alphabet_that_was_permuted_is_garbled() -> None:
    garbled = PROSE.lower().translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "qfghklmnbpqrstvwxdzaceiouy"))
    assert health(page(garbled)) >= NEEDS_OCR


# As in real files of XeTeX and ArabTeX.
@pytest.mark.parametrize("text", ["الAbب الtعlyمyة والأعAmل في الrwایAت ", "कЮम мराठी खाлणаसуधांतү ЙलखाणамयЬ "])
def test_words_of_letters_of_several_scripts_are_garbled(text: str) -> None:
    assert health(page(text * 8)) >= NEEDS_OCR


def test_unmapped_letters_count_as_garbled_unless_they_form_a_language() -> None:
    shifted = "".join(chr(ord(letter) - 29) if letter.isalpha() else letter for letter in PROSE)
    assert health(page(PROSE, [True] * len(PROSE))) < NEEDS_OCR
    assert health(page(shifted, [True] * len(shifted))) >= NEEDS_OCR
    glyphs = "ajAe bnfule sidnaA ifesmA enepeYi bAiRef rubAr pezivA blAna " * 8
    assert health(page(glyphs)) < NEEDS_OCR
    assert health(page(glyphs, [True] * len(glyphs))) >= NEEDS_OCR


TABLE = "".join(f"2026-11-{day:02} 05:52:{day}.061 {day}.50331 {day * 7}% [,1]\n" for day in range(10, 29))


def test_numbers_and_code_in_a_font_without_a_map_are_readable_and_the_same_in_wrong_codes_is_not() -> None:
    mixed = PROSE + TABLE + TABLE
    for text in (mixed, TABLE + "Open High Low Close "):
        flags = [not letter.isspace() for letter in text]
        assert health(page(text, flags)) < NEEDS_OCR
    letters = sorted({letter for letter in mixed if not letter.isspace()})
    for shift in range(1, len(letters)):
        wrong = dict(zip(letters, [*letters[shift:], *letters[:shift]], strict=True))
        garbled = "".join(wrong.get(letter, letter) for letter in mixed)
        assert health(page(garbled, [not letter.isspace() for letter in mixed])) >= NEEDS_OCR, shift


LISTED = (
    "Aliases: Tanimoto, Rogers\nType : binary\nFormula: (a + d) / (a + 2b + 2c + d)\nAliases: Euclidean, L2\n"
    "Type : metric\nFormula: sqrt(sum_i (x_i - y_i)^2))\n> tree <- read.tree(text = name)\n> plot(tree)\n" * 4
)
DOTS = "Introduction to the method " + ". " * 200 + "3\n"


@pytest.mark.parametrize("text", [LISTED, PROSE + DOTS, DOTS + LISTED], ids=["formulas", "contents", "both"])
def test_formulas_code_and_contents_in_a_font_without_a_map_are_readable_and_wrong_codes_are_not(text: str) -> None:
    flags = [not letter.isspace() for letter in text]
    assert health(page(text, flags)) < NEEDS_OCR
    letters = sorted({letter for letter in text if not letter.isspace()})
    wrong = dict(zip(letters, [*letters[7:], *letters[:7]], strict=True))
    assert health(page("".join(wrong.get(letter, letter) for letter in text), flags)) >= NEEDS_OCR


def test_dingbats_in_words_are_a_wrong_map_and_marks_before_words_are_not() -> None:
    assert health(page(PROSE.translate(str.maketrans("eotn", "\u2761\u2765\u2766\u2767")))) >= NEEDS_OCR
    assert health(page(PROSE.replace("the ", "\u2713 the "))) < NEEDS_OCR
