"""Contract of tasks.formats.documents.text: the same split, form and hash everywhere."""

import re
import subprocess
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.formats.documents import text


def test_clean_unifies_line_ends_and_drops_control_characters() -> None:
    assert text.clean("a\r\nb\rc\u2028d\x00\x1b e \t\n\n\n\n  f\ufeff\n") == "a\nb\nc\nd e\n\n  f"


def test_clean_composes_accents_and_is_idempotent() -> None:
    once = text.clean(unicodedata.normalize("NFD", "Über  naïve\x0b") + " \n")
    assert once == "Über  naïve"
    assert text.clean(once) == once


@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u05b0\u0591", "\U0001d165\U0001e8d0", "\u0301\U0001d165"])
def test_clean_keeps_thirty_marks_on_a_letter_and_not_a_million(marks: str) -> None:
    assert len(unicodedata.normalize("NFD", text.clean("e" + marks * 500_000 + "!"))) <= 33
    assert text.clean("x" + marks * 5) == unicodedata.normalize("NFC", "x" + marks * 5)


def test_clean_removes_lone_surrogates_so_that_text_always_encodes() -> None:
    text.clean("a\ud800b\U0001f600").encode()
    assert text.clean("a\ud800b\U0001f600") == "ab\U0001f600"


SPECIAL = (
    "ab \t\n\r\x0b\x0c\x85\u2028\u2029\x00\x1f\x7f\x9f\ufeff\ufffe\uffff\ud800\udfff\u00a0\u2007\u202f\u3000\u2000"
    "\u00ad\u200b\u202e\u2060\ufe00\U000e0100\u212a\u0301\u0316\u0344\u05b0\u09c7\u09be\u1100\u1161\u11a8\uac00\U0001d165\U0001e8d0\U0001109b\U000110ba\U0002f800é"
)


# Always invisible; `test_invisible` covers characters that are sometimes visible (joiners, selectors, tags).
UNSEEN = {
    *(0xAD, 0x61C, 0x17B4, 0x17B5, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2070)),
    *(*range(0xFE00, 0xFE0E), *range(0xFFF0, 0xFFFC), *range(0xE0000, 0xE0020), *range(0xE0080, 0xE1000)),
}
SOMETIMES = re.compile("[\u034f\u180b-\u180f\u200c\u200d\ufe0e\ufe0f\U000e0020-\U000e007f]")


def plainly(sample: str) -> str:
    """A reference for `clean`: its steps in order on the whole text."""
    sample = re.sub("[\x0b\x0c\x85\u2028\u2029]", "\n", re.sub("\r\n?", "\n", sample))
    # Controls and surrogates, the byte order mark and noncharacters.
    sample = "".join(char for char in sample if char in "\t\n" or unicodedata.category(char) not in ("Cc", "Cs"))
    sample = re.sub("[\ufeff\ufffe\uffff]", "", sample)
    sample = "".join(char for char in sample if ord(char) not in UNSEEN)
    kept: list[str] = []
    marks = 0
    for char in sample:
        marks = marks + 1 if unicodedata.combining(char) else 0
        kept += char * (marks <= 30)
    sample = re.sub("[\u00a0\u2007\u202f]", " ", unicodedata.normalize("NFC", "".join(kept)))
    lines = "\n".join(line.rstrip() for line in sample.split("\n"))
    return re.sub("\n{3,}", "\n\n", lines).strip("\n")


@given(st.text(st.sampled_from(SPECIAL) | st.characters()) | st.text(st.sampled_from("ab \n\r\té\u00a0")))
def test_clean_applies_every_step_to_every_text(sample: str) -> None:
    sample = SOMETIMES.sub("", sample)
    assert text.clean(sample) == plainly(sample)


def test_clean_composes_every_ascii_composition_of_unicode() -> None:
    for point in range(0x80, 0x110000):
        parts = unicodedata.decomposition(chr(point)).split()
        if len(parts) == 2 and parts[0][0] != "<" and int(parts[0], 16) < 0x80:
            pair = "".join(chr(int(part, 16)) for part in parts)
            assert text.clean(f"x {pair} y") == f"x {unicodedata.normalize('NFC', pair)} y"


@given(st.text(st.sampled_from(SPECIAL)))
def test_cleaned_text_is_composed_after_removal_of_characters_before_a_mark(sample: str) -> None:
    found = text.clean(sample)
    assert unicodedata.is_normalized("NFC", found)
    assert text.clean(found) == found
    assert text.clean("e\0\u0301") == "é"


@pytest.mark.parametrize("sample", ["\u1100 a \u1161", "\u1100\u1161", "\u09c7 x\u09be", "\u09c7\u09be", "a\u212b"])
def test_clean_composes_only_adjacent_characters(sample: str) -> None:
    assert text.clean(sample) == unicodedata.normalize("NFC", sample)


def test_normalise_ignores_case_layout_punctuation_and_compatibility_forms() -> None:
    assert text.normalise("\ufb01ne, \u201cPRINT\u201d!\n") == "fine print" == text.normalise("Fine print")
    assert text.normalise("fine print") != text.normalise("print fine")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Stop. Go_on 3x!", ["stop", "go_on", "3x"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),  # marks are kept inside the word
        ("日本語 ok", ["日", "本", "語", "ok"]),  # no spaces between words: one letter each
        ("ที่นี่", ["ที่", "นี่"]),
        ("می‌روم", ["می‌روم"]),
        ("\U0001f600 hi \U0001d400", ["hi", "\U0001d400"]),
        ("", []),
    ],
)
def test_words_follow_the_script(given: str, expected: list[str]) -> None:
    assert text.words(given) == expected


@given(st.text())
def test_the_fast_path_splits_like_the_general_pattern(sample: str) -> None:
    assert text.words(sample) == text.words(sample + " \u0e01")[:-1]


def test_no_break_spaces_become_spaces() -> None:
    assert text.clean("a\u00a0b\u202fc \u00a0\n\u00a0d") == "a b c\n d"


def test_hashes_match_published_values() -> None:
    # Reference value of XXH3-64 for the empty input; the other fixes the byte encoding.
    assert text.hash64("") == 0x2D06800538D394C2
    assert text.digest128("é") == text.digest128("\u00e9") != text.digest128("e\u0301")
    assert len(text.digest128("")) == 32


def test_hashes_do_not_depend_on_the_process() -> None:
    code = (
        "from tasks.formats.documents import text;"
        "hashes = text.hash_words('one two three four five six'.split());"
        "print([runs.tolist() for _, runs in text.ngrams(hashes, [2, 5])])"
    )
    given = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    here = text.ngrams(text.hash_words(["one", "two", "three", "four", "five", "six"]), [2, 5])
    assert given.strip() == str([runs.tolist() for _, runs in here])


def ngrams(words: Sequence[str], width: int = 5) -> NDArray[np.uint64]:
    [(_, runs)] = text.ngrams(text.hash_words(words), [width])
    return runs


def test_ngrams_have_the_documented_shape_and_depend_on_order() -> None:
    assert ngrams([]).shape == ngrams(["a", "b"]).shape == (0,)
    assert ngrams(list("abcdefg")).shape == (3,)
    assert ngrams(list("abcdefg")).dtype == np.uint64
    assert ngrams(["a", "b"], 2)[0] != ngrams(["b", "a"], 2)[0]
    assert ngrams(["a"], 1)[0] != ngrams(["a"] * 2, 2)[0]


def test_equal_runs_of_words_share_hashes_at_any_position() -> None:
    assert len(np.intersect1d(ngrams(list("xxabcdeyy")), ngrams(list("abcdez")))) == 1


def test_hashes_of_ngrams_fill_all_64_bits_evenly() -> None:
    given = ngrams([f"w{i}" for i in range(4004)])
    share = [(given >> np.uint64(bit) & np.uint64(1)).mean() for bit in range(64)]
    assert min(share) > 0.45
    assert max(share) < 0.55
    assert len(np.unique(given)) == 4000
