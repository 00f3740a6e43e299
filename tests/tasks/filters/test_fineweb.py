"""Contract of FineWeb's rules: a kept and a dropped text for each."""

import hashlib

import pytest

from tasks.filters.counting.words import SENTENCE_ENDS, SPLIT_ENDS
from tasks.filters.fineweb import Fineweb, FinewebMeasures

LONG = [f"Line {name} is a sentence that is longer than thirty characters." for name in "abcdefghijklmnopqrstuvwxy"]
OPEN = [line.rstrip(".") for line in LONG]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (LONG, None),
        (LONG[:3] + OPEN[3:], None),
        (LONG[:2] + OPEN[2:], "few_sentences"),
        ([*LONG, "Yes.", "Yes."], None),
        ([*LONG, LONG[0]], "duplicate_chars"),
        ([*LONG[:10], *(f"short {i} but in words." for i in range(20))], None),
        ([*LONG[:9], *(f"short {i} but in words." for i in range(20))], "short_lines"),
        ([f"{'abcdefghij'[i % 10]}{i} is a pneumonoultramicroscopicsilicovolcanoconiosis." for i in range(9)], None),
        ([f"Pneumonoultramicroscopicsilicovolcano{i}." for i in range(90)], "list"),
        ([], "empty"),
    ],
)
def test_each_rule_has_its_limit(lines: list[str], reason: str | None) -> None:
    assert Fineweb().verdict("\n".join(lines)) == (reason and f"fineweb_{reason}")


def test_the_share_of_short_lines_is_measured_and_has_a_limit() -> None:
    assert set(FinewebMeasures.model_fields) == {"short"}
    text = "\n".join(f"short line {i} of words." for i in range(20))
    assert Fineweb().verdict(text) == "fineweb_short_lines"
    assert Fineweb(max_short_lines=1.0).verdict(text) is None


@pytest.mark.parametrize("mark", ["។", "៖", "؝", "᭽", "\U00011f43", "\U00010f86", "⹓"])
def test_a_line_ends_as_a_sentence_at_a_mark_of_any_script(mark: str) -> None:
    text = "\n".join(f"ប្រាសាទ {line} is long enough not to be a short line{mark}" for line in LONG[:3])
    assert Fineweb().verdict(text) is None
    assert Fineweb().verdict(text.replace(mark, "")) == "fineweb_few_sentences"


def test_the_marks_are_those_of_datatrove_and_sentences_are_split_at_those_of_spacy() -> None:
    """Sets of 159 and 128 marks; the second is a subset of the first."""
    assert (len(SENTENCE_ENDS), len(SPLIT_ENDS), len(SENTENCE_ENDS | SPLIT_ENDS)) == (159, 128, 159)
    assert hashlib.sha256("".join(sorted(SENTENCE_ENDS)).encode()).hexdigest()[:16] == "223fdebf0f768738"
    assert hashlib.sha256("".join(sorted(SPLIT_ENDS)).encode()).hexdigest()[:16] == "d798d7bea611896b"
    assert "។" in SENTENCE_ENDS - SPLIT_ENDS
