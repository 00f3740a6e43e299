"""If recognisers disagree about a span, every character that any of them matched is masked."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.filters.recognisers.scan import all_matches, find, mask
from tasks.filters.recognisers.span import Evidence, PiiSpan, resolve

VALUES = (
    "jo@example.org",
    "+1 415-555-0123",
    "(415) 555-2671",
    "call 4155552671",
    "Tel. 030 23125 123",
    "0171 2345678",
    "93.184.215.14",
    "2606:4700:4700::1111",
    "123-45-6789",
    "SSN 123 45 6789",
    "4111 1111 1111 1111",
    "Amex 3782 822463 10005",
    "DE89 3704 0044 0532 0130 00",
    "123 Elm Street, Apt 45, Springfield, IL 62704",
    "P.O. Box 123, Springfield, IL 62704",
    "10 Downing Street, London SW1A 2AA",
    "12 rue de la Paix, 75002 Paris",
    "Hauptstraße 5, 10115 Berlin",
    "Via Roma 12, 00184 Roma",
    "Calle Mayor 5, 28013 Madrid",
    "Tel#+1 415\u2011555\u20110123Fax",
    "SSN#\uff11\uff12\uff13-45-6789",
    "jane\u200b%40example.org",
    "de89 3704\u00a00044 0532 0130 00BIC",
    "4111 1111 1111 1111 123",
)
BETWEEN = (" ", ", ", "\n", " | ", "-", "/", ". ", ": ", "", ", tel ", " / ")
MIXES = st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(BETWEEN)), min_size=2, max_size=4).map(
    lambda pairs: "".join(value + between for value, between in pairs)
)


def masked(text: str) -> str:
    return mask(text, [{"kind": span.kind, "start": span.start, "end": span.end} for span in find(text)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Please call 4155552671. 12 rue de la Paix, 75002 Paris", "Please call <phone>. <address>"),
        ("Tel. 030 23125 123 10 Downing Street, London SW1A 2AA", "Tel. <phone> <address>"),
    ],
)
def test_a_number_adjacent_to_an_address_is_masked_too(text: str, expected: str) -> None:
    assert masked(text) == expected


@given(MIXES)
@example("Please call 4155552671. 12 rue de la Paix, 75002 Paris")
def test_every_letter_and_digit_matched_by_a_recogniser_is_masked(text: str) -> None:
    hidden = {place for span in find(text) for place in range(span.start, span.end)}
    for span in all_matches(text):
        left = [place for place in range(span.start, span.end) if place not in hidden and text[place].isalnum()]
        assert not left, (span, text[span.start : span.end], "".join(text[place] for place in left))


SPANS = st.lists(
    st.builds(
        lambda kind, start, length, evidence: PiiSpan(kind, start, start + length, evidence),
        st.sampled_from(("phone", "card", "address")),
        st.integers(0, 20),
        st.integers(1, 12),
        st.sampled_from(Evidence),
    ),
    max_size=8,
)


@given(SPANS, st.text("a1 .,+(", min_size=32, max_size=32))
def test_every_character_belongs_to_the_best_span_that_covers_it(spans: list[PiiSpan], text: str) -> None:
    resolved = resolve(spans, text)
    assert all(one.end <= other.start for one, other in pairwise(resolved))
    for place in (place for place in range(len(text)) if text[place].isalnum()):
        holding = [span for span in spans if span.start <= place < span.end]
        best = min(
            holding, key=lambda span: (-span.evidence, span.start - span.end, span.start, span.kind), default=None
        )
        kinds = [span.kind for span in resolved if span.start <= place < span.end]
        assert kinds == ([best.kind] if best else [])


def test_the_order_of_the_spans_does_not_matter() -> None:
    text = "call 4155552671. 12 rue de la Paix, 75002 Paris"
    found = list(all_matches(text))
    assert len(found) > 1
    assert resolve(found, text) == resolve(reversed(found), text)
