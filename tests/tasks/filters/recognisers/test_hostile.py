"""Hostile text: every recogniser examines a bounded context, so any megabyte terminates.

With one unbounded repetition these would run for hours; the time-out is a safety net, not a measurement.
Most megabytes are soak: run them after a change of the recognisers or of a pattern in them.
"""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.filters.recognisers.scan import KINDS, find
from tests.soak import soak_but

MEGABYTE = 1_000_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit", soak_but([0, 1], ["1", "a@a@a@", "@", ".", "1 ", "1.1.1.1 ", "+", "0.", "a.", "DE89", "2001:"])
)
def test_a_megabyte_of_one_repeated_pattern_terminates(unit: str) -> None:
    text = (unit * (MEGABYTE // len(unit) + 1))[:MEGABYTE]
    assert len(find(text)) <= 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    soak_but(
        [0, 3],
        [
            "tel 12345678 ",
            "+49 30 23125 ",
            "1 Aa Aa, ",
            "12 rue a a ",
            "12 rue " + "a" * 145 + " ",
            "1 place " + "_" * 160 + " ",
            "A-" * 29 + "A 1 12345 Aa ",
            "Calle " + "A" * 50 + "! 1 28001 Madrid ",
            "Straße 1, 12345 Aa ",
            "call (1",
            "1 of the A A ",
            "a-@a-a.",
        ],
    ),
)
def test_many_prefixes_of_personal_data_terminate(unit: str) -> None:
    text = unit * (MEGABYTE // 5 // len(unit))
    assert all(0 <= span.start < span.end <= len(text) for span in find(text))


@pytest.mark.parametrize("unit", ["a\u200b", "1\u200b", "1\u200b1\u200b ", "\uff11\u200b"])
def test_folded_text_takes_few_bytes(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    find("1\u200b1")  # loads what is loaded once
    tracemalloc.start()
    try:
        assert find(text) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 * len(text)


WORDS = (
    "0 1 12 415 555 0123 2001 :: : . .. - -- ( ) + @ a Aa DE89 GB29 , / # rue Street Straße IL 62704 EX1 2AB tel SSN"
    " é 好"
)
PIECES = st.sampled_from([*WORDS.split(), " ", "  ", "\n"])


@given(st.lists(PIECES, max_size=60).map("".join))
def test_spans_are_ordered_disjoint_and_within_the_text(text: str) -> None:
    end = 0
    for span in find(text):
        assert span.kind in KINDS
        assert end <= span.start < span.end <= len(text)
        end = span.end
