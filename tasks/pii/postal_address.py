"""Postal addresses: house number and street, with what makes them one.

Called by `scan`. A street line alone ("10 Downing Street") names a place; with a postcode and town, a flat, or a label
beside it, it is where somebody lives. The forms and their sources are in `address_forms`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from tasks.pii.address_forms import (
    FR,
    GB,
    GB_CODE,
    GB_FLAT_BEFORE,
    HOUSES,
    POSTCODE_HINT,
    STREET_BEFORE,
    TAIL,
    US,
    US_BOX,
    US_BOX_BEFORE,
    US_LINES,
)
from tasks.pii.context import Labels
from tasks.pii.span import Evidence, Span

_LABELS = Labels(
    r"address|lives? (?:at|in)|lived at|resid(?:es|ing|ence)|located at|ship(?:ped|ping)? to|deliver|mail(?:ing)?\b"
    r"|home\b|visit us|office|adresse|anschrift|wohnhaft|wohnt|lieferung|domicili|demeurant|habite|résidant|livr",
    r"chapter|page|figure|table|section",
)
_LOOK_BACK = 60
_LONGEST = 130


def find(text: str, starts: Iterable[int], countries: Sequence[str]) -> Iterator[Span]:
    """Yields the addresses whose house number begins at one of `starts`; of one place there may be several readings.

    >>> text = "Ship to 123 Elm Street, Apt 45, Springfield, IL 62704 today"
    >>> sorted({text[a:b] for _, a, b, _ in find(text, [8], ["US"])})
    ['123 Elm Street, Apt 45, Springfield, IL 62704']
    """
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
        if "US" in countries or "CA" in countries:
            yield from _street(text, start, US)
        if POSTCODE_HINT.search(text, start + 1, start + _LONGEST):
            yield from _by_postcode(text, start, countries)


def _by_postcode(text: str, start: int, countries: Sequence[str]) -> Iterator[Span]:
    if "US" in countries or "CA" in countries:
        if lines := US_LINES.match(text, start):
            yield Span("address", start, lines.end(), Evidence.PATTERN)
        before = US_BOX_BEFORE.search(text, max(0, start - 12), start)
        if before and (box := US_BOX.match(text, start)):
            yield Span("address", before.start(), box.end(), Evidence.PATTERN)
    if "GB" in countries:
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
    elif _LABELS.of(text, start, found.end()):
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
