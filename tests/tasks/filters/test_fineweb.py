"""Contract of FineWeb's rules: for each a text that stays and a text that goes."""

import pytest

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


def test_what_counts_as_short_is_measured_and_how_many_may_be_is_a_limit() -> None:
    assert set(FinewebMeasures.model_fields) == {"short"}
    text = "\n".join(f"short line {i} of words." for i in range(20))
    assert Fineweb().verdict(text) == "fineweb_short_lines"
    assert Fineweb(max_short_lines=1.0).verdict(text) is None
