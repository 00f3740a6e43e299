"""Numbers of persons: payment cards, IBANs, US social security numbers, IP addresses.

Each recogniser examines a part of a text at a candidate position of the scan. The rules and their sources are in the
docstrings and comments of the recogniser.
"""

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from itertools import pairwise

from tasks.filters.recognisers.span import GOODS, OTHER_NUMBERS, Evidence, Labels, PiiSpan

# As printed on cards: groups of four; American Express 4-6-5; Diners Club 4-6-4; or without gaps. The next field of the
# line may follow: a number of three digits, a date.
_CARD_FORM = re.compile(
    r"(?<![0-9A-Za-z_+])(?<![0-9]\.)(?<![^0-9][0-9],)(?<![0-9A-Za-z]-)(?:"
    r"[2-9][0-9]{3}(?:(?: - |[ ./-][ -]?)[0-9]{4}){3}(?P<tail>[ -]{1,2}[0-9]{1,3}(?![0-9/]))?"
    r"|3[0-9]{3}[ ./-]{1,2}[0-9]{6}[ ./-]{1,2}[0-9]{4,5}"
    r"|[2-9][0-9]{12,18}+"
    r")(?![0-9A-Za-z_]|\.[0-9])"
)
_CARD_GAPS = re.compile("[ ./-]")
# One more group, but not another card.
_FIFTH_GROUP = re.compile(" [0-9]{4}(?![0-9/-]| [0-9]{4} [0-9]{4} [0-9]{4}(?![0-9]))")
_CARD_LABELS = Labels(
    r"cards?\b|visa|master ?card|amex|american express|discover|karte|kredit|carte|tarjeta|carta|pan\b|cc\b", GOODS
)
# Prefix (as a regular expression) and lengths, by network.
_CARD_ISSUERS = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"  # Visa
    r"|(?:5[1-5][0-9]{2}|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2})[0-9]{12}(?:[0-9]{3})?"  # Discover
    r"|(?:30[0-5]|3095|36[0-9]|3[89][0-9])[0-9]{11}"  # Diners Club
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12}(?:[0-9]{3})?"  # JCB
    r"|62[0-9]{14}(?:[0-9]{1,3})?"  # UnionPay
    r"|(?:5018|5020|5038|5893|6304|6759|676[1-3])[0-9]{8,15}"  # Maestro
    r"|220[0-4][0-9]{12}(?:[0-9]{1,3})?"  # Mir
    r"|(?:508[5-9]|60[6-8][0-9]|8[12][0-9]{2})[0-9]{12}"  # RuPay
)


def find_cards(text: str, start: int, end: int) -> Iterator[PiiSpan]:
    """Yields payment card numbers in text[start:end]: with a valid issuer prefix, length and check digit.

    Sources: ISO/IEC 7812-1 (check digit), the networks' published issuer ranges.

    >>> [span[1:3] for span in find_cards("Visa 4111 1111 1111 1111, exp. 12/30", 0, 36)]
    [(5, 24)]
    """
    if end - start < 13:
        return
    at, last = start, -1
    while match := _CARD_FORM.search(text, at, end):
        at = match.start() + 4  # if no number begins here, one may begin at the next group of four
        ends = [match.end(), match.start("tail")] if match["tail"] else [match.end()]
        stop = next((stop for stop in ends if _is_card(_CARD_GAPS.sub("", text[match.start() : stop]))), None)
        if stop and not _is_cell(text, match.start(), stop, last):
            yield PiiSpan("card", match.start(), stop, Evidence.CHECKSUM)
            at = last = stop


def _is_card(digits: str) -> bool:
    if _CARD_ISSUERS.fullmatch(digits) is None or not luhn(digits) or len(set(digits)) == 1:
        return False
    return len(digits) != 16 or not _is_list(digits)


def _is_list(digits: str) -> bool:
    """Returns whether four groups of four are round or rise by equal steps, as in "4300 4400 4500 4600"."""
    groups = [int(digits[at : at + 4]) for at in range(0, 16, 4)]
    steps = {later - earlier for earlier, later in pairwise(groups)}
    return (len(steps) == 1 and 0 not in steps) or (
        min(groups) >= 1000 and all(group % 100 == 0 for group in groups) and groups == sorted(groups)
    )


def _is_cell(text: str, start: int, end: int, last: int) -> bool:
    """Returns whether groups of four stand in a longer row of digits, without a card or label nearby."""
    if " " not in text[start:end]:
        return False
    follows = text[max(0, start - 2) : start][:1].isdigit() and text[start - 1] == " " and start - last > 2
    return (follows or _FIFTH_GROUP.match(text, end) is not None) and not _CARD_LABELS.of(text, start, end)


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
"""Countries whose IBANs have only digits after the two letters of the country."""

_IBAN_FORM = re.compile(
    r"[A-Za-z]{2}[0-9]{2}(?:[A-Za-z0-9]{11,30}"
    r"|(?: {0,2}\n?(?<=[ \n])[A-Za-z0-9]{4}){2,7}(?: {0,2}\n?(?<=[ \n])[A-Za-z0-9]{1,4})?"
    r"|(?P<gap>[./_-])\n?[A-Za-z0-9]{4}(?:(?P=gap)\n?[A-Za-z0-9]{4}){1,6}(?:(?P=gap)\n?[A-Za-z0-9]{1,4})?)"
)
_IBAN_GAP = re.compile(r"[ ./_\n-]")


def find_iban(text: str, start: int) -> Iterator[PiiSpan]:
    """Yields the international bank account number that begins at `start`, if there is one.

    It must have the length of its country and valid check digits; one that is not in capital letters must also have the
    structure of its country, to exclude hexadecimal hashes. Sources: ISO 13616-1 and the IBAN registry (SWIFT) for
    lengths, structures, and the printed form in groups of four with spaces. Dots, hyphens and line ends as separators,
    and lower-case letters, are our own additions.

    >>> list(find_iban("Konto DE89 3704 0044 0532 0130 00 bei", 6))[0][:3]
    ('iban', 6, 33)
    """
    length = _IBAN_LENGTH.get(text[start : start + 2].upper())
    match = _IBAN_FORM.match(text, start) if length else None
    if length is None or match is None or not _iban_begins(text, start):
        return
    end = _iban_end(text, start, match.end(), length)
    printed = _IBAN_GAP.sub("", text[start:end])
    if (
        len(printed) < length
        or text[end : end + 1].isalnum()
        or not _could_be_iban(printed)
        or not mod97(printed.upper())
    ):
        return
    yield PiiSpan("iban", start, end, Evidence.CHECKSUM)


def _iban_begins(text: str, start: int) -> bool:
    """Returns whether `start` is not inside a word; it may directly follow the label "IBAN"."""
    before = text[max(0, start - 5) : start]
    return not before[-1:].isalnum() or (before[-4:].upper() == "IBAN" and not before[:-4].isalnum())


def _iban_end(text: str, start: int, end: int, length: int) -> int:
    """Returns the end of the first `length` letters and digits from `start` on, at most `end`."""
    for at in range(start, end):
        length -= text[at].isalnum()
        if not length:
            return at + 1
    return end


def _could_be_iban(printed: str) -> bool:
    """Returns whether this may be an IBAN: one of 97 random strings has valid check digits by chance."""
    if printed.isupper():
        return True
    if printed[:2].upper() in _NUMERIC_IBANS:
        return printed[2:].isdigit()
    return 2 * sum(map(str.isdigit, printed)) >= len(printed)


_SSN_FORM = re.compile(
    r"(?<![0-9A-Za-z_.+/])(?<![0-9A-Za-z]-)(?!000|666)[0-9]{3}(?P<gap>[ .-]?| - )(?!00)[0-9]{2}(?P<next>[ .-]?| - )"
    r"(?!0000)[0-9]{4}"
    r"(?![0-9A-Za-z_]|[./-][0-9])"
)
_VOID_SSNS = frozenset(("078051120", "219099999"))
_SSN_LABELS = Labels(r"ssn\b|ss ?#|social[ -]security|soc\.? sec|taxpayer|itin\b", OTHER_NUMBERS)


def find_ssns(text: str, start: int, end: int) -> Iterator[PiiSpan]:
    """Yields US social security numbers in text[start:end]: with dashes, or with a label.

    Sources: Social Security Administration, "Social Security Number Randomization": areas 000, 666 and 900 to 999,
    group 00 and serial 0000 are never issued; two numbers printed in advertising are void. Internal Revenue Service,
    Internal Revenue Manual 3.21.263: taxpayers without one have a number with area 900 to 999 and group 50 or above,
    which needs a label here.

    >>> [text[a:b] for text in ["SSN: 123-45-6789; part 12-345-6789"] for _, a, b, _ in find_ssns(text, 0, len(text))]
    ['123-45-6789']
    """
    for match in _SSN_FORM.finditer(text, start, end):
        digits = re.sub("[ .-]", "", match.group())
        taxpayer = digits[0] == "9"
        if digits in _VOID_SSNS or (taxpayer and digits[3:5] < "50"):
            continue
        dashed = match["gap"] == match["next"] == "-" and not taxpayer
        label = _SSN_LABELS.of(text, match.start(), match.end())
        if label or (dashed and label is None):
            yield PiiSpan("ssn", match.start(), match.end(), Evidence.PATTERN if dashed else Evidence.CONTEXT)


_V4 = re.compile(
    r"(?<![0-9A-Za-z_.+~^])(?<![^0-9]-)(?<![=~<>!^]=)(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})"
    r"(?![0-9A-Za-z_+]|-(?!(?:[0-9]{1,3}\.){3})|\.(?:[0-9]|in-addr))"
)
# The blocks of 2000::/3 that are allocated (IANA, "IPv6 Global Unicast Address Assignments"). A year after one of those
# that look like a year is a range ("2001::2010", a slice of a time series).
_V6 = re.compile(
    r"(?:200[1-3](?!::(?:19|20)[0-9]{2}(?![0-9A-Fa-f]))|24[0-9A-Fa-f]{2}|26[0-3][0-9A-Fa-f]|280[0-9A-Fa-f]"
    r"|2[Aa][01][0-9A-Fa-f]|2[Cc]0[0-9A-Fa-f])(?::[0-9A-Fa-f]{1,4}){0,7}(?:::(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6})?)?"
    r"(?![0-9A-Za-z_]|:[0-9A-Fa-f:])"
)
# A name with its version, "XFree86-4.2.99.3"; of two addresses joined by a dash, the first has dots.
_NAMED_VERSION = re.compile(r"[A-Za-z][A-Za-z0-9_+]{0,30}-\Z")
_COMPARED_VERSION = re.compile(r"\w ?[<>]\Z")
# The name of a product and its version, "Reader 11.0.23.22".
_PRODUCT_BEFORE = re.compile(
    r"(?<![^\W_])(?!From|User|With|Via|And|The)[A-Z][A-Za-z]{2,30}(?: \([0-9a-z -]{1,12}\))?[ \t]\Z"
)
_SMALL_VERSION = 9
"""Second numbers of versions are at most this, those of few addresses are."""
_LARGE_VERSION = 100

_PREFIX_LENGTH = re.compile(r"/([0-9]{1,3})(?![0-9])")
_SMALL_BYTE = 32
_IP_LABELS = Labels(
    r"ips?\b|ipv[46]|address|adresse|addr\b|host|server|client|peer|remote|gateway|proxy|dns|resolver|ping|router|login"
    r"|logged|visitor|banned|blocked",
    r"version|ver\b|v\b|rev|release|build|firmware|driver|sdk|section|chapter|sec\b|§|clause|table|figure|fig\b|annex|oid"
    r"|update|upgrade|patch|kernel|appendix|rule|article|abschnitt|kapitel",
)


def find_ipv4(text: str, start: int, end: int) -> Iterator[PiiSpan]:
    """Yields the IPv4 addresses in text[start:end] that may identify a person's connection.

    Private, loopback, link-local, documentation and multicast addresses are excluded (`ipaddress`, from the IANA
    special-purpose registries), and so are networks ("198.41.0.0/24"). "1.2.3.4" may be an address or a version: with
    the label of a version it is excluded, and four small numbers need the label of an address.

    >>> text = "Version 1.2.3.4 answered 8.8.8.8 from client 93.184.215.14, not 192.168.1.7"
    >>> [text[a:b] for _, a, b, _ in find_ipv4(text, 0, len(text))]
    ['93.184.215.14']
    """
    for match in _V4.finditer(text, start, end):
        try:
            address = IPv4Address(match.group())
        except AddressValueError:
            continue
        if not address.is_global or address.is_multicast or _is_version_or_network(text, match, address):
            continue
        label = _IP_LABELS.of(text, match.start(), match.end())
        if label is None and (max(address.packed) < _SMALL_BYTE or _may_be_version(text, match.start(), address)):
            continue
        if label is not False:
            yield PiiSpan("ip", match.start(), match.end(), Evidence.PATTERN if label is None else Evidence.CONTEXT)


def find_ipv6(text: str, start: int) -> Iterator[PiiSpan]:
    """Yields the IPv6 address that begins at `start`, if there is one.

    >>> [list(find_ipv6(text, 0)) != [] for text in ("2606:4700:4700::1111", "2001:db8::1", "2014:05:30")]
    [True, False, False]
    """
    match = _V6.match(text, start)
    if match is None or text[max(0, start - 1) : start].isalnum() or text[max(0, start - 1) : start] in ("_", ":", "."):
        return
    if match.group().endswith("::"):
        return  # a network
    try:
        address = IPv6Address(match.group())
    except AddressValueError:
        return
    if address.is_global and not _is_network(text, match.end(), address):
        yield PiiSpan("ip", start, match.end(), Evidence.CHECKSUM)


def _is_version_or_network(text: str, match: re.Match[str], address: IPv4Address) -> bool:
    """Returns whether this is a network, or a version: in a comparison ("pkg<1.2.3.4"), or after a name and a dash."""
    if text[match.start() - 1 : match.start()] == "-" and _NAMED_VERSION.search(
        text, max(0, match.start() - 32), match.start()
    ):
        return True
    compared = _COMPARED_VERSION.search(text, max(0, match.start() - 3), match.start())
    tagged = text[match.end() : match.end() + 1] in ("<", ">")
    return (compared is not None and not tagged) or _is_network(text, match.end(), address)


def _may_be_version(text: str, start: int, address: IPv4Address) -> bool:
    """Returns whether this may be a version: "24.0.9.46", or a small second number after a capitalized word."""
    first, second = address.packed[:2]
    if second == 0 and first < _LARGE_VERSION:
        return True
    return second <= _SMALL_VERSION and _PRODUCT_BEFORE.search(text, max(0, start - 48), start) is not None


def _is_network(text: str, end: int, address: IPv4Address | IPv6Address) -> bool:
    """Returns whether a prefix length follows and no host bit is set: "/24" after 198.41.0.0, not after 198.41.0.4."""
    length = _PREFIX_LENGTH.match(text, end)
    free = address.max_prefixlen - int(length[1]) if length else 0
    return free > 0 and int(address) % (1 << free) == 0


_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def luhn(digits: str) -> bool:
    """Returns whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B).

    >>> luhn("4111111111111111"), luhn("4111111111111112")
    (True, False)
    """
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[::2]) + sum(_DOUBLED[value] for value in values[1::2])) % 10 == 0


def mod97(iban: str) -> bool:
    """Returns whether the check digits of an IBAN without spaces are valid (ISO 13616-1, ISO/IEC 7064 MOD 97-10).

    >>> mod97("GB29NWBK60161331926819"), mod97("GB28NWBK60161331926819")
    (True, False)
    """
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1
