"""International bank account numbers.

Called by `scan` where two capitals and two digits stand before more of either. A number counts when it has its
country's length and checks. Source: ISO 13616-1 and the IBAN registry (SWIFT).
"""

import re
from collections.abc import Iterator

from tasks.pii.checksum import mod97
from tasks.pii.span import Evidence, Span

_LENGTHS = {
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
_LENGTH = {country: length for length, countries in _LENGTHS.items() for country in countries.split()}
_FORM = re.compile(r"[A-Z]{2}[0-9]{2}(?:[A-Z0-9]{11,30}|(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,4})?)")


def find(text: str, start: int) -> Iterator[Span]:
    """Yields the IBAN that begins at `start`, if one does.

    >>> list(find("Konto DE89 3704 0044 0532 0130 00 bei", 6))[0][:3]
    ('iban', 6, 33)
    """
    length = _LENGTH.get(text[start : start + 2])
    found = _FORM.match(text, start) if length else None
    if length is None or found is None or text[max(0, start - 1) : start].isalnum():
        return
    printed = found.group()
    end = start + (length if printed[4] != " " else length + (length - 1) // 4)
    printed = text[start:end]
    if end > found.end() or text[end : end + 1].isalnum() or not mod97(printed.replace(" ", "")):
        return
    yield Span("iban", start, end, Evidence.CHECKSUM)
