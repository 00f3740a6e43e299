"""International bank account numbers.

Reads from two letters and two digits on, in capitals or not. A number counts when it has its country's length and the
right check digits; one that is not in capitals must also have its country's structure, to exclude hexadecimal hashes.
Sources: ISO 13616-1 and the IBAN registry (SWIFT): lengths, structures, and fours with spaces as the form in print;
dots, hyphens and an end of line between them are our own, as are small letters.
"""

import re
from collections.abc import Iterator

from tasks.filters.recognisers.checksum import mod97
from tasks.filters.recognisers.span import Evidence, Span

_IBAN_LENGTHS = {
    15: "NO",
    16: "BE",
    18: "DK FI FO GL NL SD FK",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST",
    26: "IS TR",
    27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HU LB NI PL SV",
    29: "BR EG PS QA UA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}
_IBAN_LENGTH = {country: length for length, countries in _IBAN_LENGTHS.items() for country in countries.split()}
_NUMERIC_IBANS = frozenset(
    country
    for countries in ("AE AT BA BE CR CZ DE DK EE ES", "FI FO GL HR HU IL IS LT ME NO", "PL PT RS SE SI SK TL TN VA XK")
    for country in countries.split()
)
"""Countries whose numbers are digits only, behind the country's two letters."""

_IBAN_FORM = re.compile(
    r"[A-Za-z]{2}[0-9]{2}(?:[A-Za-z0-9]{11,30}"
    r"|(?: {0,2}\n?(?<=[ \n])[A-Za-z0-9]{4}){2,7}(?: {0,2}\n?(?<=[ \n])[A-Za-z0-9]{1,4})?"
    r"|(?P<gap>[./_-])\n?[A-Za-z0-9]{4}(?:(?P=gap)\n?[A-Za-z0-9]{4}){1,6}(?:(?P=gap)\n?[A-Za-z0-9]{1,4})?)"
)
_IBAN_GAP = re.compile(r"[ ./_\n-]")


def find_iban(text: str, start: int) -> Iterator[Span]:
    """Yields the IBAN that begins at `start`, if one does.

    >>> list(find_iban("Konto DE89 3704 0044 0532 0130 00 bei", 6))[0][:3]
    ('iban', 6, 33)
    """
    length = _IBAN_LENGTH.get(text[start : start + 2].upper())
    found = _IBAN_FORM.match(text, start) if length else None
    if length is None or found is None or not _iban_begins(text, start):
        return
    end = _iban_end(text, start, found.end(), length)
    printed = _IBAN_GAP.sub("", text[start:end])
    if (
        len(printed) < length
        or text[end : end + 1].isalnum()
        or not _could_be_iban(printed)
        or not mod97(printed.upper())
    ):
        return
    yield Span("iban", start, end, Evidence.CHECKSUM)


def _iban_begins(text: str, start: int) -> bool:
    """Returns whether no word ends at `start`, except a label without space before the number."""
    before = text[max(0, start - 5) : start]
    return not before[-1:].isalnum() or (before[-4:].upper() == "IBAN" and not before[:-4].isalnum())


def _iban_end(text: str, start: int, end: int, length: int) -> int:
    """Returns where `length` letters and digits have passed, at most `end`."""
    for at in range(start, end):
        length -= text[at].isalnum()
        if not length:
            return at + 1
    return end


def _could_be_iban(printed: str) -> bool:
    """Returns whether it is an IBAN and not random characters: one of 97 has right check digits by chance."""
    if printed.isupper():
        return True
    if printed[:2].upper() in _NUMERIC_IBANS:
        return printed[2:].isdigit()
    return 2 * sum(map(str.isdigit, printed)) >= len(printed)
