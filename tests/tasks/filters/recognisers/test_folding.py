"""Unicode variants do not hide a number from ASCII rules, and every span refers to the original text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.filters.recognisers.folding import fold
from tasks.filters.recognisers.scan import find
from tasks.filters.recognisers.span import Evidence, PiiSpan


def found(text: str) -> list[tuple[str, str]]:
    return [(span.kind, text[span.start : span.end]) for span in find(text)]


def wide(text: str) -> str:
    return "".join(chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character for character in text)


NUMBERS = [
    ("phone", "Phone {}", "415-555-0123"),
    ("phone", "{}", "(415) 555-0123"),
    ("phone", "{}", "+49 30 23125-123"),
    ("phone", "Call {}", "415 555 0123"),
    ("phone", "{}", "01 99 00 12 34"),
    ("ssn", "SSN {}", "123-45-6789"),
    ("ssn", "SSN {}", "123 45 6789"),
    ("card", "Card {}", "4111 1111 1111 1111"),
    ("card", "Card {}", "4111-1111-1111-1111"),
    ("ip", "IP {}", "198.41.0.4"),
    ("email", "{}", "jane@example.org"),
    ("iban", "{}", "DE89 3704 0044 0532 0130 00"),
]


@pytest.mark.parametrize(("kind", "text", "number"), NUMBERS)
def test_full_width_is_read_as_ascii(kind: str, text: str, number: str) -> None:
    assert found(text.format(wide(number))) == [(kind, wide(number))]


@pytest.mark.parametrize("space", "\u00a0\u2007\u2009\u202f\u3000")
@pytest.mark.parametrize(("kind", "text", "number"), NUMBERS)
def test_a_no_break_space_is_a_space(kind: str, text: str, number: str, space: str) -> None:
    assert found(text.format(number).replace(" ", space)) == [(kind, number.replace(" ", space))]


@pytest.mark.parametrize("dash", "\u2010\u2011\u2012\u2013\u2212")
@pytest.mark.parametrize(("kind", "text", "number"), NUMBERS)
def test_a_dash_between_digits_is_a_hyphen(kind: str, text: str, number: str, dash: str) -> None:
    assert found(text.format(number.replace("-", dash))) == [(kind, number.replace("-", dash))]


@pytest.mark.parametrize("nothing", ["\u200b", "\u00ad", "\u2060", "\ufeff", "\u200e\u200b"])
@pytest.mark.parametrize(("kind", "text", "number"), NUMBERS)
def test_zero_width_characters_are_dropped(kind: str, text: str, number: str, nothing: str) -> None:
    hidden = nothing.join(number.replace(" ", "-") if kind in ("card", "ssn") else number.replace(" ", ""))
    if kind == "phone":
        hidden, text = nothing.join("+14155550123"), "Tel {}"
    assert found(text.format(hidden)) == [(kind, hidden)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tel415-555-0123", ("phone", "415-555-0123")),
        ("Phone=415-555-0123", ("phone", "415-555-0123")),
        ("Phone#415-555-0123", ("phone", "415-555-0123")),
        ("Tel(415)555-0123", ("phone", "(415)555-0123")),
        ("415-555-0123Fax", ("phone", "415-555-0123")),
        ("030/23125123Fax", ("phone", "030/23125123")),
        ("SSN123-45-6789", ("ssn", "123-45-6789")),
        ("SSN#123-45-6789", ("ssn", "123-45-6789")),
        ("IP198.41.0.4", ("ip", "198.41.0.4")),
        ("ip2606:4700:4700::1111", ("ip", "2606:4700:4700::1111")),
        ("Card4111111111111111", ("card", "4111111111111111")),
        ("PAN4111111111111111", ("card", "4111111111111111")),
    ],
)
def test_a_number_adjacent_to_a_word_is_found(text: str, expected: tuple[str, str]) -> None:
    assert found(text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tel +1 415\n555 0123", ("phone", "+1 415\n555 0123")),
        ("(415)\n555-0123", ("phone", "(415)\n555-0123")),
        ("415-\n555-0123", ("phone", "415-\n555-0123")),
        ("SSN 123-45-\n6789", ("ssn", "123-45-\n6789")),
        ("Card 4111-1111-\n1111-1111", ("card", "4111-1111-\n1111-1111")),
    ],
)
def test_a_number_can_continue_on_the_next_line(text: str, expected: tuple[str, str]) -> None:
    assert found(text) == [expected]


def test_a_complete_number_does_not_continue_on_the_next_line() -> None:
    assert found("+49 30 23125123\n12 of them") == [("phone", "+49 30 23125123")]


@pytest.mark.parametrize(
    "text",
    [
        "the years 1914\u20131918, 10\u00a0000\u00a0000 of 1\u202f234\u202f567\u202f890",
        "utf8 sha256 x4111111111111111 hotel4155550123 i18n 415-555-0123y456",
        "mp3player1234567",
    ],
)
def test_folding_does_not_create_numbers(text: str) -> None:
    assert found(text) == []


PIECES = st.sampled_from(
    [
        *(
            "Tel",
            "SSN#",
            "IP",
            "Fax",
            "415",
            "555",
            "0123",
            "4111",
            "de89",
            "jane",
            "@",
            "%40",
            "&#64;",
            "wa.me/",
            "a.org",
        ),
        *(
            "\u200b",
            "\u00ad",
            "\u00a0",
            "\u2011",
            "\u2013",
            "\uff11",
            "\uff0b",
            "\uff20",
            "\r\n",
            "-\n",
            "\n",
            " ",
            "-",
        ),
        *("+1", "(", ")", ".", "=", "_"),
    ]
)


@given(st.lists(PIECES, max_size=40).map("".join))
def test_every_folded_position_maps_back_to_the_text(text: str) -> None:
    folded = fold(text)
    if folded is None:
        return
    ends = [folded.back(PiiSpan("phone", at, at + 1, Evidence.PATTERN)).end for at in range(len(folded.text))]
    assert ends == sorted(ends)
    assert all(0 <= end <= len(text) for end in ends)
    for at, character in enumerate(folded.text):
        if character.isalnum():
            before = text[folded.back(PiiSpan("phone", at, at + 1, Evidence.PATTERN)).start]
            assert before == character or ord(before) - 0xFEE0 == ord(character)


@given(st.lists(PIECES, max_size=40).map("".join))
def test_spans_are_ordered_disjoint_and_within_the_text(text: str) -> None:
    end = 0
    for span in find(text):
        assert end <= span.start < span.end <= len(text)
        end = span.end
