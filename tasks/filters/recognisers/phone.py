"""Telephone numbers.

Reads runs of digits with separators. Three rules, the most certain first:
- "+" or "00" and a country code, and the number exists in that country's plan;
- a format that only telephone numbers have in one of the configured countries (`STRONG`), and it exists;
- a label beside it ("Tel.", "call"), and it exists, or has at least a length that exists, in one of those countries.
Whether a number exists is checked with `phonenumbers`, Google's libphonenumber in Python: 25 microseconds a call, which
is why the cheaper check of the format is done first.

Sources of the formats: ITU-T E.123 (notation) and the national numbering plans as libphonenumber states them. What is
missing (Spain's and India's nine and ten bare digits, Germany's and Italy's open plans without brackets or dash) needs
a label.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tasks.filters.recognisers.span import GOODS, OTHER_NUMBERS, Evidence, Labels, PiiSpan

if TYPE_CHECKING:
    from phonenumbers import PhoneNumber

_NORTH_AMERICA = (
    r"(?:1[-. ]?)?\( ?[2-9][0-9]{2} ?\)[ .-]?[2-9][0-9]{2}(?: - |[-. ])[0-9]{4}"
    r"|(?:1[-.])?[2-9][0-9]{2}(?P<dash>[-.]| - )[2-9][0-9]{2}(?P=dash)[0-9]{4}"
    r"|[2-9][0-9]{2}/[2-9][0-9]{2}[-.][0-9]{4}"
    r"|1 [2-9][0-9]{2} [2-9][0-9]{2}[- ][0-9]{4}"
)

_FORMS = {
    "US": _NORTH_AMERICA,
    "CA": _NORTH_AMERICA,
    "GB": (
        r"\(?02[0-9]\)? ?[0-9]{4}[ -][0-9]{4}"
        r"|\(?01[0-9]{2,3}\)?[ -][0-9]{3,4}[ -]?[0-9]{3,4}"
        r"|07[0-9]{3}[ -][0-9]{3}[ -]?[0-9]{3}"
    ),
    "DE": r"\(0[1-9][0-9]{1,4}\) ?[0-9]{2,5}[ -]?[0-9]{2,5}|0[1-9][0-9]{1,4} ?/ ?[0-9]{3,5}[ -]?[0-9]{2,5}",
    "FR": r"0[1-9](?P<pair>[ .-])[0-9]{2}(?P=pair)[0-9]{2}(?P=pair)[0-9]{2}(?P=pair)[0-9]{2}",
    "NL": (
        r"\(?0[1-9][0-9]\)?[ -][0-9]{3} ?[0-9]{2} ?[0-9]{2}"
        r"|06[ -][0-9]{8}|06(?:[ -][0-9]{2}){4}|0[1-9][0-9]{2}-[0-9]{6}"
    ),
    "IT": r"0[1-9][0-9]{0,3}/[0-9]{4,8}|3[0-9]{2}/[0-9]{6,7}",
    "IN": r"0[1-9][0-9]{1,3}-[2-7][0-9]{5,7}",
    "BR": r"\(0?[1-9][0-9]\) ?(?:9 ?[0-9]{4}|[2-5][0-9]{3})[- ][0-9]{4}",
}

NO_END = "(?!x[0-9]{1,5}(?![0-9]))[0-9A-Za-z_%]"
"""Characters that cannot directly follow a number; "x12" can: the extension of an American line."""

# A number is also the next field of a line, the second of two with a bar between, behind the dash of a list, or, with
# its area code in brackets, behind an address without a space.
_OPEN = (
    r"(?:(?<![0-9A-Za-z_=/#@&%$€£+.,])(?<![^\s-]-)|(?<=[^0-9],)|(?<=[-.][0-9]{4}[,/])"
    r"|(?<=\.(?:com|org|net|edu|gov))(?=\())"
)

_CLOSE = rf"(?!{NO_END}|[.:-][0-9]|(?<![-.][0-9]{{4}})[,/][0-9]| ?[€$£])"
STRONG = {country: re.compile(f"{_OPEN}(?:{form}){_CLOSE}") for country, form in _FORMS.items()}
"""National formats that identify a telephone number alone, by country: digits and separators.

>>> [country for country, form in STRONG.items() if form.fullmatch("(415) 555-0123")]
['US', 'CA']
"""

ANY = re.compile(f"{_OPEN}(?:{'|'.join(dict.fromkeys(_FORMS.values()))}){_CLOSE}")
"""The beginning of any of them: one search excludes most runs of digits, instead of one per country."""

COUNTRIES = (*STRONG, "ES")
"""Countries whose national formats are known; of others, numbers with a country code are found."""

LONGEST = 40
"""Characters of the longest number, gaps included: ITU-T E.164 allows 15 digits."""

_MOST_NATIONAL = 12
_GAP = r"[ .()/\u2010-\u2013-]{0,3}"
# A separate "+" ("+ 44 20 7946 0123", in newspapers and old pages) is a sum behind a digit or bracket.
_INTERNATIONAL = re.compile(
    r"(?:(?<![0-9A-Za-z_=/_#@&%.+])\(?(?:\+\(?|(?<![0-9][ .-])00)|(?<![^\s:;,(|])(?<![0-9)\]}$] )(?P<apart>\+ )"
    r"|(?<![0-9+])(?P<glued>\+))[1-9]"
    rf"(?:{_GAP}[0-9]){{6,16}}+(?!{NO_END})"
)

# Of several groups, and not all of three digits: those are thousands.
_GROUPS = re.compile(r"(?!\+ [0-9]{1,3}(?: [0-9]{3}){1,5}+\Z)\+ [0-9]{1,3}(?:[ -](?:\([0-9]{1,5}\)|[0-9]{1,8})){2}")

_WEAK = re.compile(
    r"(?<![0-9A-Za-z_=#@&%$€£+,])(?<![\s0-9]\.)\(?\+?[0-9]"
    rf"(?:{_GAP}[0-9]){{6,13}}+(?!{NO_END}|[.,:][0-9]| ?[€$£])"
)

# Degrees, minutes and seconds of a declination ("+41 16 08.5"), or degrees with decimals.
_SEXAGESIMAL = re.compile(
    r"\+ ?[0-9]{1,2} {1,2}[0-5]?[0-9] {1,2}[0-5]?[0-9](?:\.[0-9]{1,3}(?![0-9])|\Z)|\+[0-9]{1,3}\.[0-9]{1,6}\Z"
)

# A sum or reading with decimals: "+6073641856.9".
_DECIMAL = re.compile(r"\+[0-9]{7,}\.[0-9]{1,3}(?![0-9])")

# Thousands, decimals and pairs of them, minutes and seconds, and what is counted in a unit, as frequencies are.
_AMOUNT = re.compile(
    r"[1-9][0-9]?(?:\.[0-9]{3}){2,3}|[1-9][0-9]{0,2}\.[0-9]{5,7}"
    r"|[0-9]{2,4}\.[0-9]{3} [0-9]{2,4}\.[0-9]{3}|[0-9]{1,3} [0-5][0-9] [0-5][0-9]\.[0-9]{1,3}|[0-9](?: [0-9])+"
)

_UNIT = re.compile(r" ?(?:[kMG]?Hz|[kMGT]i?B|[kcm]m|kg|bytes?|bits?)(?![A-Za-z])")
# The line of an address before it: "TX 77002 USA 713 853 3848".
_ADDRESS_BEFORE = re.compile(r"[A-Z][ ,]{1,3}[0-9]{5}(?:-[0-9]{4})?[ ,]{1,3}(?:USA|U\.S\.A\.)[ ,;:]{1,3}\Z")

_ARGUMENT = re.compile(r"[A-Za-z0-9_]\(\Z")
_YEAR = "(?:1[5-9]|20)[0-9]{2}"
_DATE = re.compile(
    rf"\(?{_YEAR}[ -/\u2013]{{1,3}}{_YEAR}\)?|{_YEAR}([-./ ])[01]?[0-9]\1[0-3]?[0-9](?:[^0-9].*)?"
    rf"|[0-3]?[0-9]([-./ ])[0-3]?[0-9]\2{_YEAR}|[0-9]{{3}}-[0-9]{{3}}"
)

_CELL_BEFORE, _CELL = re.compile(r"[0-9][ \t]\Z"), re.compile(r"[ \t][0-9]")
_CALL = r"calls?\b(?![ -]?(?:n(?:o\b|r\b|um)|mark|sign))"  # the call number of a book, the call sign of a station
_GOODS = Labels(r"phone|tel\b|calls?\b|fax\b", GOODS)
_LABELS = Labels(
    r"phone|tel\b|tel:|telephone|mobile|cell(?= ?(?:phone|no|num|#|[:.+(0-9]|$))|cellular|cellphone|fax\b"
    rf"|{_CALL}|calling|whats ?app|telegram|sms|dial|hotline|helpline|ring us|ph\b|contacts?\b"
    r"|reach (?:me|us|him|her|them)|text (?:me|us)"
    r"|telefon|telefax|handy|mobil|rufnummer|durchwahl|anruf|ruf(?:en)?\b|erreich"
    r"|téléphone|tél\b|portable|appel|joindre|fixe\b"
    r"|teléfono|tlf|tfno|móvil|llam|cellulare|chiam"
    r"|telefoon|mobiel|bel(?:len)?\b|gsm\b|celular|ligue|fone\b|contato"
    r"|फ़ोन|फोन|मोबाइल|दूरभाष|संपर्क|कॉल",
    rf"{OTHER_NUMBERS}|ssn|social security",
)


def find_phones(text: str, start: int, end: int, countries: Sequence[str]) -> Iterator[PiiSpan]:
    """Yields telephone numbers in text[start:end].

    Args:
        text: the document's text.
        start: where a run of digits begins, with the "+" or "(" before it.
        end: where it ends.
        countries: ISO 3166 codes of the countries whose national numbers count.

    >>> text = "Ring (415) 555-0123 or +49 30 23125 123, order 4155550123."
    >>> [text[a:b] for _, a, b, _ in find_phones(text, 0, len(text), ["US"])]
    ['+49 30 23125 123', '(415) 555-0123']
    """
    if text.find("+", start, end) >= 0 or text.find("00", start, end) >= 0:
        yield from _international(text, start, end)
    for country in countries if ANY.search(text, start, end) else ():
        if form := STRONG.get(country):
            for found in form.finditer(text, start, end):
                if exists(found.group(), country) and not _is_other(text, found.start(), found.end()):
                    yield PiiSpan("phone", found.start(), found.end(), Evidence.PATTERN)
    yield from _labelled(text, start, end, countries)


def _is_other(text: str, start: int, end: int) -> bool:
    """Returns whether it is a cell of a table, or a number with another label, and not a telephone number."""
    number = text[start:end]
    if (
        " " in number
        and "(" not in number
        and (_CELL_BEFORE.search(text, max(0, start - 2), start) or _CELL.match(text, end))
    ):
        return True
    return _GOODS.of(text, start, end) is False


def _international(text: str, start: int, end: int) -> Iterator[PiiSpan]:
    for found in _INTERNATIONAL.finditer(text, start, end):
        number = found.group()
        if "+" not in number and not re.search(r"[0-9][ ./-]+[0-9]", number[2:]):
            continue  # zeros before a bare number count something
        if (found["apart"] and not _GROUPS.match(number)) or _SEXAGESIMAL.match(number) or _DECIMAL.match(number):
            continue
        if kept := _longest(number, lenient=found["glued"] is found["apart"] is None):
            first = 1 if kept.startswith("(") and kept.count("(") > kept.count(")") else 0
            yield PiiSpan("phone", found.start() + first, found.start() + len(kept), Evidence.PATTERN)


def _longest(number: str, lenient: bool) -> str | None:
    """Returns the number, without last groups that belong to something else, or None where none exists.

    With gaps as in print its length need only be one that exists: plans grow, and numbers of films are in none. Not so
    (`lenient` is false) for a "+" behind a letter or sign, which may be a sum.
    """
    # "(0049) 30" is "(+49) 30", and "+ 49" is "+49".
    plain = re.sub(r"^(\(?)00", r"\1+", number).replace("+ ", "+", 1)
    if lenient and "+" in number and plain.count(" ") + plain.count("-") >= 2 and _could_exist(plain, ("",)):
        return number
    for _ in range(4):
        if exists(plain, ""):
            return number
        cut = re.search(r"[^0-9]+[0-9]+$", plain[4:])
        if cut is None:
            return None
        number = number[: len(number) - len(cut.group())]
        plain = plain[: len(plain) - len(cut.group())]
    return None


def _labelled(text: str, start: int, end: int, countries: Sequence[str]) -> Iterator[PiiSpan]:
    if end - start > 3 * LONGEST:  # a table of numbers, not a line of contacts
        return
    for found in _WEAK.finditer(text, start, end):
        for first, last in _pieces(text, found.start(), found.end()):
            number = text[first:last]
            if _is_amount(text, first, last) or not _is_labelled(text, first, last):
                continue
            if any(exists(number, country) for country in countries) or _could_exist(number, countries):
                yield PiiSpan("phone", first, last, Evidence.CONTEXT)


def _is_labelled(text: str, start: int, end: int) -> bool:
    """Returns whether a label is beside a number, or an American address before it."""
    label = _LABELS.of(text, start, end)
    return bool(label) or (label is None and _ADDRESS_BEFORE.search(text, max(0, start - 30), start) is not None)


def _is_amount(text: str, start: int, end: int) -> bool:
    """Returns whether it is a date, an amount or the argument of a function."""
    number = text[start:end]
    if _DATE.fullmatch(number) or _AMOUNT.fullmatch(number.lstrip("+(")) or _UNIT.match(text, end):
        return True
    return _ARGUMENT.search(text, max(0, start - 2), start + number.startswith("(")) is not None


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the stretches of digits that wide gaps separate ("030 123456 / 030 123457"), without loose brackets."""
    at = start
    digits = sum(map(str.isdigit, text[start:end]))
    wide = r" [/-] |  +" if digits > _MOST_NATIONAL else r"  +"
    for gap in [*re.finditer(wide, text[start:end]), None]:
        last = start + gap.start() if gap else end
        if text[at] == "(" and ")" not in text[at:last]:
            at += 1
        elif text.rfind("(", at, last) > text.rfind(")", at, last):
            last = at + len(text[at : text.rfind("(", at, last)].rstrip())
        piece = text[at:last]
        if piece.count("(") == piece.count(")") and sum(map(str.isdigit, piece)) >= 7:
            yield at, last
        at = start + gap.end() if gap else end


@lru_cache(maxsize=1 << 14)
def exists(number: str, country: str) -> bool:
    """Returns whether `number` is in the numbering plan of `country`, or with "+" of its own country ("" then)."""
    parsed = _parsed(number, country)
    if parsed is None:
        return False
    from phonenumbers import is_valid_number, is_valid_number_for_region

    return bool(is_valid_number_for_region(parsed, country) if country else is_valid_number(parsed))


@lru_cache(maxsize=1 << 12)
def _could_exist(number: str, countries: Sequence[str]) -> bool:
    """Returns whether the number has a length that exists in one of the countries."""
    from phonenumbers import ValidationResult, is_possible_number_with_reason

    known = (_parsed(number, country) for country in countries)
    return any(one and is_possible_number_with_reason(one) == ValidationResult.IS_POSSIBLE for one in known)


def _parsed(number: str, country: str) -> "PhoneNumber | None":
    from phonenumbers import NumberParseException, parse

    try:
        return parse(number, country or None, _check_region=False)
    except NumberParseException:
        return None
