"""One shared scan finds every candidate that separate scans would find."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.filters.recognisers import email_address, folding
from tasks.filters.recognisers.folding import DASHES, NO_WIDTH, SPACES, WIDE, WIDE_MARKS, Candidates, find_candidates
from tasks.filters.recognisers.postal_address import HOUSES
from tasks.filters.recognisers.scan import _NUMBERS, _number_matches

WORDS = (
    "0 1 12 40 64 123 1914 12345 4155550123 198.41.0.4 1.2.3.4 2606:4700::1 2001: 0D DE89 ab12 :: : . .. - -- ( ) + @ a"
    " de Aa IL EX1 2AB 75002 rue RUE Ru ſe ımp al. bis ter Street straße weg Platz lee tel Tel= SSN# IPv4 V6_ card, Fax"
    " e-mail www exp Exp _ x7 %40 &#64; &#x40; \\u0040 wa.me/ é 好 , ; | · – / # = £ th st (at) [AT] ( at ) (dot) jo"
)
PIECES = st.sampled_from(
    [
        *WORDS.split(),
        *(" ", " ", "  ", "\n", "\n\n", "\u00a0", "\u202f", "\u200b", "\u00ad", "\u2011", "\u2013", "\u2212", "’"),
        *("\uff11", "\uff08", "\uff0d", "\uff0b", "\uff20"),
    ]
)
TEXTS = st.lists(PIECES, max_size=24).map("".join)
# An independent definition of the characters that `folding` folds.
FOREIGN = re.compile(
    f"[{WIDE}]|[{WIDE_MARKS}](?=[0-9A-Za-z])|[{SPACES}](?=[0-9(+])|(?<=[0-9])[{SPACES}]|(?<=[0-9)])[{DASHES}](?=[0-9(])"
)
HIDDEN = re.compile(rf"(?<=[0-9A-Za-z@.+()-])[{NO_WIDTH}]{{1,8}}+(?=[0-9A-Za-z@.+()-])")
CODED = re.compile(r"%40|&#64;|&#[xX]40;|\\u0040|\bwa\.me/[1-9][0-9]{6}")


@given(TEXTS)
def test_every_house_number_is_examined(text: str) -> None:
    assert {found.start() for found in HOUSES.finditer(text)} <= set(find_candidates(text).digits)


@given(TEXTS)
def test_selective_folding_equals_folding_everything(text: str) -> None:
    everywhere = Candidates(list(range(len(text))), list(range(len(text))), True, find_candidates(text).foreign, True)
    some, all_ = folding.fold(text), folding.fold(text, everywhere)
    assert (some and some.text) == (all_ and all_.text)


@given(TEXTS)
def test_numbers_equal_those_of_a_separate_scan(text: str) -> None:
    places = [(found.span(), found.lastgroup) for found in _number_matches(text, find_candidates(text).digits)]
    alone = [(found.span(), found.lastgroup) for found in _NUMBERS.finditer(text)]
    # It may be missed inside a word of digits, where no IP address starts.
    assert [one for one in alone if one[1] != "ipv6" or not text[: one[0][0]][-1:].isdigit()] == [
        one for one in places if one[1] != "ipv6" or not text[: one[0][0]][-1:].isdigit()
    ]


@given(TEXTS)
def test_foldable_characters_are_detected(text: str) -> None:
    places = find_candidates(text)
    assert places.foreign == (FOREIGN.search(text) is not None)
    assert places.hidden or HIDDEN.search(text) is None
    assert places.coded or CODED.search(text) is None


@given(TEXTS)
def test_a_skipped_at_sign_is_in_no_address(text: str) -> None:
    seen = {mark.start() for mark in email_address.MARK.finditer(text)}
    for at in range(len(text)):
        if text[at] == "@" and at not in seen:
            assert list(email_address.find_email(text, at)) == []


@pytest.mark.parametrize("gap", ["", *"=#_/.,-"])
@pytest.mark.parametrize("bracket", ["", "+", "(", "+(", "(("])
@pytest.mark.parametrize("label", ["Tel", "telephone", "Telefax", "SSN", "ip", "IPv6", "addr", "amex", "HOST", "Card"])
def test_every_label_is_examined(label: str, bracket: str, gap: str) -> None:
    before = f" {label}{gap}{bracket}"
    assert folding._LABEL_BEFORE.search(before)
    assert folding._may_be_label(before[-5:])
