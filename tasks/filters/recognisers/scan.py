"""Candidate positions are found in one pass, recognisers decide about them, and what they find can be masked.

`look` finds the positions, at up to 350 million characters per second. Where `fold` changes the text, the folded text
is scanned, too. Digits are ASCII digits; others are folded. Masked spans give way to their kinds in angle
brackets.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.filters.recognisers import email_address, numbers, phone, postal_address
from tasks.filters.recognisers.folding import GAPS, Places, fold, look
from tasks.filters.recognisers.span import PiiSpan, resolve

KINDS = ("email", "phone", "ip", "ssn", "card", "iban", "address")
# Tried at those places, in this order: where an IBAN or an IPv6 address begins (nothing is consumed but its first
# digit), an IPv4 address, a run of at least seven digits with the usual separators between them, an IPv4 address
# before too few digits for a run.
_NUMBERS = re.compile(
    r"[0-9](?:"
    r"(?P<iban>(?<=[A-Za-z][A-Za-z][0-9])(?=[0-9][ ./_\n-]{0,2}[A-Za-z0-9]{4}))"
    r"|(?P<ipv6>(?<=[23])(?=[0-9A-Fa-f]{3}:[0-9A-Fa-f]{0,4}:))"
    r"|(?P<ipv4>[0-9]{0,2}(?:\.[0-9]{1,3}){3}(?![0-9]|[ .()/-]{1,2}[0-9]))"
    rf"|(?P<run>(?:{GAPS}[0-9]){{6,}}+)"
    r"|(?P<short>[0-9]{0,2}(?:\.[0-9]{1,3}){3}(?![0-9.]))"
    r")"
)

_NUMBER_KINDS = frozenset(("phone", "ip", "ssn", "card", "iban"))
_BEYOND = 9
"""Characters behind a run that its recognisers may read: a number that continues as something else does not count."""


def find(
    text: str, kinds: Sequence[str] = KINDS, countries: Sequence[str] = phone.COUNTRIES, dots: bool | None = None
) -> list[PiiSpan]:
    """Returns the personal data in `text`, in text order and without overlap.

    Args:
        text: any text.
        kinds: which of KINDS to search for.
        countries: ISO 3166 codes of the countries whose national telephone numbers and addresses are searched for.
        dots: whether `folding.DOT` occurs in the text in any case, where computed for many texts at once; None: look.

    >>> [span[:3] for span in find("Ann, ann@example.org, +1 415-555-0123")]
    [('email', 5, 20), ('phone', 22, 37)]
    """
    found = list(readings(text, kinds, countries, dots))
    return resolve(found, text) if len(found) > 1 else found


def readings(
    text: str, kinds: Sequence[str] = KINDS, countries: Sequence[str] = phone.COUNTRIES, dots: bool | None = None
) -> Iterator[PiiSpan]:
    """Yields what each recogniser finds, in no order: several may read the same stretch, or parts of it."""
    text = text.replace("\r\n", " \n")  # no place moves
    places = look(text)
    yield from _reading(text, places, kinds, countries)
    if folded := fold(text, places, dots):
        yield from map(folded.back, _reading(folded.text, folded.places, kinds, countries))


def _reading(text: str, places: Places, kinds: Sequence[str], countries: Sequence[str]) -> Iterator[PiiSpan]:
    if "email" in kinds and "@" in text:
        yield from _emails(text)
    if not _NUMBER_KINDS.isdisjoint(kinds):
        yield from _numbers(text, places.digits, kinds, countries)
    if "address" in kinds:
        yield from postal_address.find_addresses(text, places.digits, countries)


def _emails(text: str) -> Iterator[PiiSpan]:
    for mark in email_address.MARK.finditer(text):
        yield from email_address.find_email(text, mark.start())


def _numbers(text: str, starts: Sequence[int], kinds: Sequence[str], countries: Sequence[str]) -> Iterator[PiiSpan]:
    for place in _number_places(text, starts):
        start = place.start()
        if place.lastgroup == "iban":
            if "iban" in kinds:
                yield from numbers.find_iban(text, start - 2)
        elif place.lastgroup == "ipv6":
            if "ip" in kinds:
                yield from numbers.find_ipv6(text, start)
        elif place.lastgroup in ("ipv4", "short"):
            if "ip" in kinds:
                yield from numbers.find_ipv4(text, start, place.end())
        else:
            yield from _run(text, start, place.end(), kinds, countries)


def _number_places(text: str, starts: Sequence[int]) -> Iterator[re.Match[str]]:
    end = 0
    for start in starts:
        at = start
        while at >= end and (place := _NUMBERS.match(text, at)):
            yield place
            at = end = place.end()  # behind the first digit of an IBAN its others may still be a run


def _run(text: str, start: int, end: int, kinds: Sequence[str], countries: Sequence[str]) -> Iterator[PiiSpan]:
    end += _BEYOND
    if "card" in kinds:
        yield from numbers.find_cards(text, start, end)
    if "ssn" in kinds:
        yield from numbers.find_ssns(text, start, end)
    if "ip" in kinds and text.count(".", start, end) >= 3:
        yield from numbers.find_ipv4(text, start, end)
    if "phone" in kinds:
        first = start
        while first > max(0, start - 3) and text[first - 1] in "+( ":
            first -= 1
        yield from phone.find_phones(text, first, end, countries)


def without_personal_data(text: str) -> str:
    """Returns a text with the personal data in it replaced by its kind.

    >>> without_personal_data("write to ann@example.org now")
    'write to <email> now'
    """
    return mask(text, [span._asdict() for span in find(text)])


def mask(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """Replaces each span by its kind in angle brackets.

    Overlapping spans become one placeholder with the kind of the longest, so that no part of a masked number remains
    because another recogniser matched only half of it.

    Args:
        text: the document's text.
        spans: `kind`, `start`, `end` (code points, end exclusive), in any order; the kind "" gives no placeholder.

    Raises:
        ValueError: a span is empty or lies outside the text.

    >>> mask("write to ann@example.org now", [{"kind": "email", "start": 9, "end": 24}])
    'write to <email> now'
    """
    pieces, at = [], 0
    for start, end, kind in _regions(spans, len(text)):
        pieces += [text[at:start], f"<{kind}>" if kind else ""]
        at = end
    return "".join([*pieces, text[at:]])


def _regions(spans: Sequence[Mapping[str, Any]], length: int) -> list[tuple[int, int, str]]:
    """Merges overlapping spans; returns (start, end, kind) in text order."""
    merged: list[tuple[int, int, str]] = []
    longest = 0
    for start, end, kind in sorted((span["start"], span["end"], span["kind"]) for span in spans):
        if not 0 <= start < end <= length:
            raise ValueError(f"the {kind} span {start}..{end} lies outside a text of {length} characters")
        if not merged or start >= merged[-1][1]:
            merged.append((start, end, kind))
            longest = end - start
            continue
        first, last, name = merged[-1]
        merged[-1] = (first, max(last, end), kind if end - start > longest else name)
        longest = max(longest, end - start)
    return merged
