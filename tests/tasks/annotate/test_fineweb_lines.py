"""Contract of FineWeb's line rules: for each a text that stays and a text that goes."""

import pytest

from tasks.annotate.fineweb_lines import FinewebLines
from tasks.annotate.view import View

LONG = [f"Line {name} is a sentence that is longer than thirty characters." for name in "abcdefghijklmnopqrstuvwxy"]
OPEN = [line.rstrip(".") for line in LONG]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (LONG, None),
        (LONG[:4] + OPEN[4:], None),
        (LONG[:3] + OPEN[3:], "few_sentences"),
        ([*LONG, LONG[0], LONG[1]], None),
        ([*LONG, LONG[0], LONG[1], LONG[2]], "duplicate_chars"),
        ([*LONG[:10], *(f"short {i}." for i in range(20))], None),
        ([*LONG[:9], *(f"short {i}." for i in range(20))], "short"),
        ([], "empty"),
    ],
)
def test_each_rule_has_its_limit(lines: list[str], reason: str | None) -> None:
    assert FinewebLines().verdict(View("\n".join(lines))) == (reason and f"fineweb_lines_{reason}")


def test_limits_are_settings() -> None:
    assert FinewebLines(short=10).verdict(View("\n".join(f"short line {i}." for i in range(20)))) is None
