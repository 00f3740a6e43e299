"""Countries that a number may belong to: by the top-level domain of the page, by the letters around the number.

A national number without a label ("03-1234-5678") is ambiguous: it is a telephone number in Japan and a part number
elsewhere. Near Japanese letters, or on a page below `.jp`, it is a telephone number. Letters are searched for near
the number, so a match depends on nothing but a bounded context and the URL.
"""

import re
from typing import Literal, get_args

# fmt: off
Country = Literal[
    "US", "CA", "GB", "DE", "FR", "ES", "IT", "NL", "IN", "BR", "AT", "CH", "BE", "IE", "PT", "SE", "NO", "DK",
    "FI", "PL", "CZ", "SK", "HU", "RO", "BG", "GR", "HR", "RS", "RU", "UA", "BY", "KZ", "TR", "IL", "SA", "AE",
    "EG", "MA", "IQ", "IR", "PK", "BD", "CN", "TW", "HK", "JP", "KR", "TH", "VN", "ID", "MY", "SG", "PH", "AU",
    "NZ", "ZA", "NG", "KE", "MX", "AR", "CL", "CO", "PE",
]
# fmt: on
COUNTRIES: tuple[Country, ...] = get_args(Country)
"""ISO 3166 codes of the countries whose national formats can be searched for."""

# In this order: kana before Han, because both occur in Japanese.
_SCRIPTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("\u3041-\u30fa", ("JP",)),
    ("\uac00-\ud7a3", ("KR",)),
    ("\u3400-\u9fff", ("CN", "TW", "HK", "JP", "SG", "MY")),
    ("\u0400-\u052f", ("RU", "UA", "BG", "BY", "KZ", "RS")),
    ("\u0590-\u05ff", ("IL",)),
    ("\u0600-\u065f\u0670-\u06ef", ("EG", "SA", "AE", "IR", "PK", "MA", "IQ")),
    ("\u0e01-\u0e4e", ("TH",)),
    ("\u0900-\u0965", ("IN",)),
    ("\u0980-\u09e5", ("BD", "IN")),
)
_LETTERS = tuple((re.compile(f"[{letters}]"), countries) for letters, countries in _SCRIPTS)
_ANY_LETTER = re.compile(f"[{''.join(letters for letters, _ in _SCRIPTS)}]")
_BEFORE, _BEHIND = 60, 30
# Top-level domains that are sold to everybody as words: .co (Colombia), .me, .tv and so on are not in COUNTRIES.
_DOMAINS = {country.lower(): country for country in COUNTRIES if country != "CO"} | {"uk": "GB"}


def region_of_url(url: str) -> tuple[str, ...]:
    """Returns the country of the top-level domain of a URL; () if it has none.

    >>> region_of_url("https://www.example.co.uk:8080/a.jp"), region_of_url("http://example.com/"), region_of_url("")
    (('GB',), (), ())
    """
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition(":")[0]
    country = _DOMAINS.get(host.rpartition(".")[2].lower())
    return (country,) if country else ()


def regions_near(text: str, start: int, end: int) -> tuple[str, ...]:
    """Returns the countries in whose scripts the text around text[start:end] is written; () for Latin and Greek.

    >>> regions_near("本社は東京です 03-1234-5678", 8, 20), regions_near("Part 03-1234-5678", 5, 17)
    (('JP',), ())
    """
    around = text[max(0, start - _BEFORE) : start] + " " + text[end : end + _BEHIND]
    if around.isascii() or not _ANY_LETTER.search(around):
        return ()
    return next((countries for letters, countries in _LETTERS if letters.search(around)), ())
