"""Postal addresses: house number and street, with further evidence.

A street line alone ("10 Downing Street") names a place; with a postcode and town, a flat, or a label
beside it, it is personal data. The forms and their sources are in `address_forms`.
"""

import re
from collections.abc import Iterator, Sequence

from tasks.filters.recognisers import us_address
from tasks.filters.recognisers.address_forms import (
    FR,
    GB,
    GB_CODE,
    GB_FLAT_BEFORE,
    HOUSES,
    POSTCODE_HINT,
    STREET_BEFORE,
    TAIL,
)
from tasks.filters.recognisers.span import Evidence, Labels, Span

_LABELS = Labels(
    r"address|liv(?:es?|ed|ing) (?:at|in|on)|resid(?:es|ed|ing|ence|ents? (?:of|at))|located at|ship(?:ped|ping)? to"
    r"|deliver|mail(?:ing)?\b|homes?\b|house\b|households?\b|apartment|flat (?:at|in)|moved (?:in)?to"
    r"|stay(?:s|ed|ing) at|born at|died at|(?:found|arrested|shot|killed) (?:dead )?at|visit us|office"
    r"|adresse|anschrift|wohnhaft|wohnt|lieferung|domicili|demeurant|habite|résidant|livr",
    r"chapter|page|figure|table|section|white house|opera house|house of",
)
# A residence, as in newspapers and registers: "Jo Doe, 34, of 12 Elm Street".
_PERSON_OF = re.compile(r"(?:[^\W\d_]|[0-9]{2}), (?:formerly |late )?of \Z")
_LOOK_BACK = 60
_LONGEST = 130


def find_addresses(text: str, starts: Sequence[int], countries: Sequence[str]) -> Iterator[Span]:
    """Yields the addresses whose house number or postcode is at one of `starts`; one may match in several ways.

    >>> text = "Ship to 123 Elm Street, Apt 45, Springfield, IL 62704 today"
    >>> sorted({text[a:b] for _, a, b, _ in find_addresses(text, [8, 48], ["US"])})
    ['123 Elm Street, Apt 45, Springfield, IL', '123 Elm Street, Apt 45, Springfield, IL 62704']
    """
    american = "US" in countries or "CA" in countries
    if american:
        yield from us_address.find_american(text, starts, countries)
    for start in starts:
        house = HOUSES.match(text, start)
        if house is None:
            continue
        like = house.lastgroup
        if like == "DE":
            for country in STREET_BEFORE:
                if country in countries:
                    yield from _street_first(text, start, country)
        if like == "FR" and "FR" in countries:
            yield from _street(text, start, FR)
        if american:
            yield from _street(text, start, us_address.STREET)
        if "GB" in countries and POSTCODE_HINT.search(text, start + 1, start + _LONGEST):
            yield from _british(text, start)


def _british(text: str, start: int) -> Iterator[Span]:
    code = GB_CODE.search(text, start, start + _LONGEST)
    if code and (found := GB.fullmatch(text, start, code.end())):
        flat = GB_FLAT_BEFORE.search(text, max(0, start - _LOOK_BACK), start)
        yield Span("address", flat.start() if flat else start, found.end(), Evidence.PATTERN)


def _street(text: str, start: int, form: re.Pattern[str]) -> Iterator[Span]:
    found = form.match(text, start)
    if found is None:
        return
    if found["town"] or found.groupdict().get("unit"):
        yield Span("address", start, found.end(), Evidence.PATTERN)
    elif _LABELS.of(text, start, found.end()) or _PERSON_OF.search(text, max(0, start - 20), start):
        yield Span("address", start, found.end(), Evidence.CONTEXT)


def _street_first(text: str, start: int, country: str) -> Iterator[Span]:
    found = TAIL[country].match(text, start)
    street = STREET_BEFORE[country].search(text, max(0, start - _LOOK_BACK), start) if found else None
    if found is None or street is None:
        return
    if found["town"]:
        yield Span("address", street.start(), found.end(), Evidence.PATTERN)
    elif _LABELS.of(text, street.start(), found.end()):
        yield Span("address", street.start(), found.end(), Evidence.CONTEXT)
