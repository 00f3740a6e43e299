"""Search for personal data: candidate positions are found in one pass and checked by recognisers; masking.

`find_candidates` finds the positions, at up to 350 million characters per second. If `fold` changes the text, the
folded text is scanned as well. Recognisers match ASCII digits; other digits are folded to these. Masked spans are
replaced with their kinds in angle brackets.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.filters.recognisers import (
    email_address,
    national_id,
    numbers,
    phone,
    postal_address,
    postcode_address,
    street_address,
)
from tasks.filters.recognisers.folding import GAPS, MIXED, Candidates, find_candidates, fold
from tasks.filters.recognisers.regions import COUNTRIES
from tasks.filters.recognisers.span import PiiSpan, resolve

KINDS = ("email", "phone", "ip", "ssn", "card", "iban", "national_id", "address")
# Tried at candidate positions, in this order: a national number with letters, the beginning of an IBAN or an IPv6
# address (consuming only the first digit of the three), an IPv4 address, a run of at least seven digits with the usual
# separators, an IPv4 address before too few digits for a run.
_NUMBERS = re.compile(
    r"[0-9](?:"
    rf"(?P<mixed>{MIXED})"
    r"|(?P<iban>(?<=[A-Za-z][A-Za-z][0-9])(?=[0-9][ ./_\n-]{0,2}[A-Za-z0-9]{4}))"
    r"|(?P<ipv6>(?<=[23])(?=[0-9A-Fa-f]{3}:[0-9A-Fa-f]{0,4}:))"
    r"|(?P<ipv4>[0-9]{0,2}(?:\.[0-9]{1,3}){3}(?![0-9]|[ .()/-]{1,2}[0-9]))"
    rf"|(?P<run>(?:{GAPS}[0-9]){{6,}}+)"
    r"|(?P<short>[0-9]{0,2}(?:\.[0-9]{1,3}){3}(?![0-9.]))"
    r")"
)

_NUMBER_KINDS = frozenset(("phone", "ip", "ssn", "card", "iban", "national_id"))
_BEYOND = 9
"""Number of characters after a run that its recognisers may examine, to exclude numbers that continue."""


_MIXED_LONGEST = 24
"""The same after the first digit of a national number with letters."""


def find(
    text: str,
    kinds: Sequence[str] = KINDS,
    countries: Sequence[str] = COUNTRIES,
    dots: bool | None = None,
    hints: Sequence[str] = (),
) -> list[PiiSpan]:
    """Returns the personal data in `text`, in text order and without overlap.

    Args:
        text: any text.
        kinds: which of KINDS to search for.
        countries: ISO 3166 codes of the countries whose national telephone numbers and addresses are searched for.
        dots: whether `folding.DOT` occurs in the text, ignoring case, if the caller knows; None: not known.
        hints: those of countries that the document is likely to be from (`regions.region_of_url`).

    >>> [span[:3] for span in find("Ann, ann@example.org, +1 415-555-0123")]
    [('email', 5, 20), ('phone', 22, 37)]
    """
    matches = list(all_matches(text, kinds, countries, dots, hints))
    return resolve(matches, text) if len(matches) > 1 else matches


def all_matches(
    text: str,
    kinds: Sequence[str] = KINDS,
    countries: Sequence[str] = COUNTRIES,
    dots: bool | None = None,
    hints: Sequence[str] = (),
) -> Iterator[PiiSpan]:
    """Yields the matches of all recognisers, unordered; they may overlap."""
    text = text.replace("\r\n", " \n")  # does not change positions
    candidates = find_candidates(text)
    yield from _matches(text, candidates, kinds, countries, hints)
    if folded := fold(text, candidates, dots):
        yield from map(folded.back, _matches(folded.text, folded.candidates, kinds, countries, hints))


def _matches(
    text: str, candidates: Candidates, kinds: Sequence[str], countries: Sequence[str], hints: Sequence[str]
) -> Iterator[PiiSpan]:
    if "email" in kinds and "@" in text:
        yield from _emails(text)
    if not _NUMBER_KINDS.isdisjoint(kinds):
        yield from _numbers(text, candidates.digits, kinds, countries, hints)
    if "address" in kinds:
        yield from postal_address.find_addresses(text, candidates.digits, countries)
        yield from postcode_address.find_by_postcode(text, candidates.digits, countries)
        yield from street_address.find_by_street(text, countries)


def _emails(text: str) -> Iterator[PiiSpan]:
    for mark in email_address.MARK.finditer(text):
        yield from email_address.find_email(text, mark.start())


def _numbers(
    text: str, starts: Sequence[int], kinds: Sequence[str], countries: Sequence[str], hints: Sequence[str]
) -> Iterator[PiiSpan]:
    for match in _number_matches(text, starts):
        start, form = match.start(), match.lastgroup
        if form == "run":
            yield from _run(text, start, match.end(), kinds, countries, hints)
        elif form in ("ipv4", "short") and "ip" in kinds:
            yield from numbers.find_ipv4(text, start, match.end())
        elif form == "ipv6" and "ip" in kinds:
            yield from numbers.find_ipv6(text, start)
        elif form in ("iban", "mixed"):
            if form == "iban" and "iban" in kinds:
                yield from numbers.find_iban(text, start - 2)
            yield from _mixed(text, start, form, kinds, countries)


def _mixed(text: str, start: int, form: str, kinds: Sequence[str], countries: Sequence[str]) -> Iterator[PiiSpan]:
    """Yields the national number with letters whose first digit is at `start`."""
    if "national_id" in kinds and (form == "mixed" or text[start - 2 : start].isupper()):
        yield from national_id.find_ids(text, start, start + _MIXED_LONGEST, countries)


def _number_matches(text: str, starts: Sequence[int]) -> Iterator[re.Match[str]]:
    end = 0
    for start in starts:
        at = start
        while at >= end and (match := _NUMBERS.match(text, at)):
            yield match
            at = end = match.end()  # after the first digit of an IBAN, the other digits may be a run


def _run(
    text: str, start: int, end: int, kinds: Sequence[str], countries: Sequence[str], hints: Sequence[str]
) -> Iterator[PiiSpan]:
    end += _BEYOND
    if "card" in kinds:
        yield from numbers.find_cards(text, start, end)
    if "ssn" in kinds:
        yield from numbers.find_ssns(text, start, end)
    if "national_id" in kinds:
        yield from national_id.find_ids(text, start, end, countries)
    if "ip" in kinds and text.count(".", start, end) >= 3:
        yield from numbers.find_ipv4(text, start, end)
    if "phone" in kinds:
        first = start
        while first > max(0, start - 3) and text[first - 1] in "+( ":
            first -= 1
        yield from phone.find_phones(text, first, end, countries, hints)


def without_personal_data(text: str) -> str:
    """Returns the text with personal data replaced by its kind.

    >>> without_personal_data("write to ann@example.org now")
    'write to <email> now'
    """
    return mask(text, [span._asdict() for span in find(text)])


def mask(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """Replaces each span with its kind in angle brackets.

    Overlapping spans become one placeholder with the kind of the longest, so that no part of a masked number remains if
    another recogniser matched only part of it.

    Args:
        text: the document's text.
        spans: `kind`, `start`, `end` (code points, end exclusive), in any order; spans of kind "" are removed.

    Raises:
        ValueError: a span is empty or outside the text.

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
            raise ValueError(f"the {kind} span {start}..{end} is outside the text of {length} characters")
        if not merged or start >= merged[-1][1]:
            merged.append((start, end, kind))
            longest = end - start
            continue
        first, last, name = merged[-1]
        merged[-1] = (first, max(last, end), kind if end - start > longest else name)
        longest = max(longest, end - start)
    return merged
