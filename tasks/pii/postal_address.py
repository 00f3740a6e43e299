"""Postal addresses: house number and street, with what makes them one.

Called by `scan`. A street line alone ("10 Downing Street") names a place; with a postcode and town, a flat, or a label
beside it, it is where somebody lives. The forms and their sources are in `address_forms`.
"""

import re
from collections.abc import Iterator, Sequence

from tasks.pii.address_forms import (
    DE,
    DE_STREET_BEFORE,
    FR,
    GB,
    GB_CODE,
    GB_FLAT_BEFORE,
    HOUSES,
    US,
    US_BOX,
    US_BOX_BEFORE,
)
from tasks.pii.context import Labels
from tasks.pii.span import Evidence, Span

_LABELS = Labels(
    r"address|lives? (?:at|in)|lived at|resid(?:es|ing|ence)|located at|ship(?:ped|ping)? to|deliver|mail(?:ing)?\b"
    r"|home\b|visit us|office|adresse|anschrift|wohnhaft|wohnt|lieferung|domicili|demeurant|habite|résidant|livr",
    r"chapter|page|figure|table|section",
)
_LOOK_BACK = 60
_GB_LONGEST = 110


def find(text: str, countries: Sequence[str]) -> Iterator[Span]:
    """Yields the addresses in a text; of one place there may be several readings.

    >>> text = "Ship to 123 Elm Street, Apt 45, Springfield, IL 62704 today"
    >>> [text[a:b] for _, a, b, _ in find(text, ["US"])]
    ['123 Elm Street, Apt 45, Springfield, IL 62704']
    """
    for house in HOUSES.finditer(text):
        start, like = house.start(), house.lastgroup
        if like == "DE":
            if "DE" in countries:
                yield from _german(text, start)
            continue
        if like == "FR" and "FR" in countries:
            yield from _street(text, start, FR)
        if "US" in countries:
            yield from _american(text, start)
        if "GB" in countries:
            yield from _british(text, start)


def _american(text: str, start: int) -> Iterator[Span]:
    before = US_BOX_BEFORE.search(text, max(0, start - 12), start)
    if before and (box := US_BOX.match(text, start)):
        yield Span("address", before.start(), box.end(), Evidence.PATTERN)
    yield from _street(text, start, US)


def _british(text: str, start: int) -> Iterator[Span]:
    code = GB_CODE.search(text, start, start + _GB_LONGEST)
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


def _german(text: str, start: int) -> Iterator[Span]:
    found = DE.match(text, start)
    street = DE_STREET_BEFORE.search(text, max(0, start - _LOOK_BACK), start) if found else None
    if found is None or street is None:
        return
    if found["town"]:
        yield Span("address", street.start(), found.end(), Evidence.PATTERN)
    elif _LABELS.of(text, street.start(), found.end()):
        yield Span("address", street.start(), found.end(), Evidence.CONTEXT)
