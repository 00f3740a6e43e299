"""Telephone numbers.

Examines runs of digits with separators. Four rules, the most certain first:
- "+" or "00" and a country code, and the number exists in the numbering plan of that country;
- a format that only telephone numbers have in one of the configured countries (`STRONG`), and the number exists;
- an area code with its "0" (in Russia "8") or in brackets, in groups, and the number exists in a country that the
  letters around it or the domain of the page hint at (`regions`);
- a label next to it ("Tel.", "電話"; `phone_labels`), and the number exists or has a possible length in one of the
  configured countries.
`phonenumbers`, the Python version of Google's libphonenumber, checks whether a number exists. It takes 25 microseconds
per call, so the cheaper check of the format comes first.

Sources of the formats: ITU-T E.123 (notation) and the national numbering plans according to libphonenumber. Formats
that are not unique (nine or ten bare digits in Spain and India, numbers without brackets or dash in the open plans of
Germany and Italy) need a label.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from tasks.filters.recognisers.phone_labels import COUNTED, GOODS_LABELS, LABELS
from tasks.filters.recognisers.regions import regions_near
from tasks.filters.recognisers.span import Evidence, PiiSpan

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
"""Characters that cannot directly follow a number; "x12", an extension in the United States, can."""

# A number may also be the next field of a line, the second of two with a bar between them, follow the dash of a list
# or, with its area code in brackets, follow a URL without a space.
_OPEN = (
    r"(?:(?<![0-9A-Za-z_=/#@&%$€£+.,])(?<![^\s-]-)|(?<=[^0-9],)|(?<=[-.][0-9]{4}[,/])"
    r"|(?<=\.(?:com|org|net|edu|gov))(?=\())"
)

_CLOSE = rf"(?!{NO_END}|[.:-][0-9]|(?<![-.][0-9]{{4}})[,/][0-9]| ?[€$£])"
STRONG = {country: re.compile(f"{_OPEN}(?:{form}){_CLOSE}") for country, form in _FORMS.items()}
"""National formats, by country, that identify a telephone number without a label: digits and separators.

>>> [country for country, form in STRONG.items() if form.fullmatch("(415) 555-0123")]
['US', 'CA']
"""

ANY = re.compile(f"{_OPEN}(?:{'|'.join(dict.fromkeys(_FORMS.values()))}){_CLOSE}")
"""All of them in one expression: a single search, instead of one per country, excludes most runs of digits."""

LONGEST = 40
"""Maximum number of characters of a number with its gaps: ITU-T E.164 allows 15 digits."""

_MOST_NATIONAL = 12
_GAP = r"[ .()/\u2010-\u2013-]{0,3}"
# A separate "+" ("+ 44 20 7946 0123", in newspapers and old pages) is an addition after a digit or bracket.
_INTERNATIONAL = re.compile(
    r"(?:(?<![0-9A-Za-z_=/_#@&%.+])\(?(?:\+\(?|(?<![0-9][ .-])00)|(?<![^\s:;,(|])(?<![0-9)\]}$] )(?P<apart>\+ )"
    r"|(?<![0-9+])(?P<glued>\+))[1-9]"
    rf"(?:{_GAP}[0-9]){{6,16}}+(?!{NO_END})"
)

# Several groups, but not all of three digits, because those are thousands.
_GROUPS = re.compile(r"(?!\+ [0-9]{1,3}(?: [0-9]{3}){1,5}+\Z)\+ [0-9]{1,3}(?:[ -](?:\([0-9]{1,5}\)|[0-9]{1,8})){2}")

_WEAK = re.compile(
    r"(?<![0-9A-Za-z_=#@&%$€£+,])(?<![\s0-9]\.)\(?\+?[0-9]"
    rf"(?:{_GAP}[0-9]){{6,13}}+(?!{NO_END}|[.,:][0-9]| ?[€$£])"
)

# Degrees, minutes and seconds of a declination ("+41 16 08.5"), or degrees with decimals.
_SEXAGESIMAL = re.compile(
    r"\+ ?[0-9]{1,2} {1,2}[0-5]?[0-9] {1,2}[0-5]?[0-9](?:\.[0-9]{1,3}(?![0-9])|\Z)|\+[0-9]{1,3}\.[0-9]{1,6}\Z"
)

# A number with decimals: "+6073641856.9".
_DECIMAL = re.compile(r"\+[0-9]{7,}\.[0-9]{1,3}(?![0-9])")

# Thousands, decimals and pairs of them, minutes and seconds, single digits.
_AMOUNT = re.compile(
    r"[1-9][0-9]?(?:\.[0-9]{3}){2,3}|[1-9][0-9]{0,2}\.[0-9]{5,7}"
    r"|[0-9]{2,4}\.[0-9]{3} [0-9]{2,4}\.[0-9]{3}|[0-9]{1,3} [0-5][0-9] [0-5][0-9]\.[0-9]{1,3}|[0-9](?: [0-9])+"
)

_UNIT = re.compile(r" ?(?:[kMG]?Hz|[kMGT]i?B|[kcm]m|kg|bytes?|bits?)(?![A-Za-z])")
# A line of an address before the number: "TX 77002 USA 713 853 3848".
_ADDRESS_BEFORE = re.compile(r"[A-Z][ ,]{1,3}[0-9]{5}(?:-[0-9]{4})?[ ,]{1,3}(?:USA|U\.S\.A\.)[ ,;:]{1,3}\Z")

_ARGUMENT = re.compile(r"[A-Za-z0-9_]\(\Z")
_YEAR = "(?:1[5-9]|20)[0-9]{2}"
_DATE = re.compile(
    rf"\(?{_YEAR}[ -/\u2013]{{1,3}}{_YEAR}\)?|{_YEAR}([-./ ])[01]?[0-9]\1[0-3]?[0-9](?:[^0-9].*)?"
    rf"|[0-3]?[0-9]([-./ ])[0-3]?[0-9]\2{_YEAR}|[0-9]{{3}}-[0-9]{{3}}"
)
# Opening hours, "9.00 - 13.00", also with more of them behind.
_HOUR = "(?:[01]?[0-9]|2[0-4])[.][0-5][0-9]"
_HOURS = re.compile(rf"\(?{_HOUR} ?[-/\u2010-\u2013] ?{_HOUR}(?![0-9])")

_CELL_BEFORE, _CELL = re.compile(r"[0-9][ \t]\Z"), re.compile(r"[ \t][0-9]")
# A national number as it is printed where calls begin with "0" (in Russia and its neighbors "8"), or with its area code
# in brackets; mobile numbers and numbers free of charge of China begin with neither.
_TRUNK = re.compile(
    rf"{_OPEN}(?:"
    r"(?:8[ -]{1,2}|0 ?)?\( ?0?[1-9][0-9]{0,4} ?\)[ -]{0,2}[0-9]{1,4}(?:[ .-][0-9]{2,4}){0,4}+"
    r"|0[1-9][0-9]{0,4}(?:[ -]|\.| - )[0-9]{2,4}(?:[ .-][0-9]{2,4}){1,3}+"
    r"|0[1-9][0-9]{0,4}(?:-| - | )[0-9]{5,8}"
    r"|0800[ -][0-9]{2,4}(?:[ -][0-9]{2,4}){1,2}+|8[ -][0-9]{3}[ -][0-9]{3}[ -][0-9]{2}[ -]?[0-9]{2}"
    r"|1[3-9][0-9][ -][0-9]{4}[ -][0-9]{4}|400[ -]?[0-9]{3}[ -]?[0-9]{4}|1[3-9][0-9]{9}"
    rf"){_CLOSE}"
)


_OPEN_PLANS = frozenset(("DE", "AT", "IT", "ID"))
"""Countries whose numbers have so many lengths that two bare groups show nothing."""

_TWO_GROUPS = re.compile("[0-9]+ [0-9]+")
# Thousands or a bare number: how amounts are written.
_COUNT = re.compile("[0-9]+|[0-9]{1,3}(?:[ .][0-9]{3})+")
# Citations: "134 (30) 2222-2245", "№ 12 (345) 67-89", "(1985) 123 456". "Т." is also short for a telephone.
_NUMBER_BEFORE = re.compile(r"(?:[0-9][ \t]{1,2}|(?:№|[Vv]ol\.|[Bb]d\.|[Nn]o\.|Nr\.)[ \t]{0,2})\Z")
_YEAR_FIRST = re.compile(r"\( ?(?:1[5-9]|20)[0-9]{2} ?\)")
_PAGES = re.compile(r"\([1-9][0-9]{0,4}\) ?([0-9]{3,5})-([0-9]{3,5})")
_MOST_PAGES = 100
"""Pages of an article, at most: telephone numbers with a dash seldom have such close groups."""


def find_phones(
    text: str, start: int, end: int, countries: Sequence[str], hints: Sequence[str] = ()
) -> Iterator[PiiSpan]:
    """Yields telephone numbers in text[start:end].

    Args:
        text: the document's text.
        start: start of a run of digits, including the "+" or "(" before it.
        end: end of the run.
        countries: ISO 3166 codes of the countries whose national numbers are searched for.
        hints: those of countries that the document is likely to be from (`regions.region_of_url`).

    >>> text = "Ring (415) 555-0123 or +49 30 23125 123, order 4155550123."
    >>> [text[a:b] for _, a, b, _ in find_phones(text, 0, len(text), ["US"])]
    ['+49 30 23125 123', '(415) 555-0123']
    """
    if text.find("+", start, end) >= 0 or text.find("00", start, end) >= 0:
        yield from _international(text, start, end)
    for country in countries if ANY.search(text, start, end) else ():
        if form := STRONG.get(country):
            for match in form.finditer(text, start, end):
                if exists(match.group(), country) and not _is_other(text, match.start(), match.end()):
                    yield PiiSpan("phone", match.start(), match.end(), Evidence.PATTERN)
    if (hints or regions_near(text, start, end)) and (printed := _TRUNK.search(text, start, end)):
        yield from _hinted(text, printed, end, countries, hints)
    yield from _labeled(text, start, end, countries)


def _hinted(
    text: str, match: re.Match[str] | None, end: int, countries: Sequence[str], hints: Sequence[str]
) -> Iterator[PiiSpan]:
    """Yields the numbers from `match` on that exist in a country that the page or the letters around hint at."""
    while match:
        first, last = match.span()
        for country in dict.fromkeys((*hints, *regions_near(text, first, last))):
            if country in countries and _is_printed(text, first, last, country):
                yield PiiSpan("phone", first, last, Evidence.PATTERN)
                break
        match = _TRUNK.search(text, last, end)


def _is_printed(text: str, start: int, end: int, country: str) -> bool:
    number = text[start:end]
    if number.isdigit() and country != "CN":
        return False
    if country in _OPEN_PLANS and _TWO_GROUPS.fullmatch(number):
        return False
    if _is_citation(text, start, end) or (_COUNT.fullmatch(number) and COUNTED.match(text, end)):
        return False
    return exists(number, country) and not _is_amount(text, start, end) and LABELS.of(text, start, end) is not False


def _is_citation(text: str, start: int, end: int) -> bool:
    """Returns whether the number in brackets is the issue or the year of a journal, and what follows its pages."""
    number = text[start:end]
    if not number.startswith("("):
        return False
    if _NUMBER_BEFORE.search(text, max(0, start - 8), start) or _YEAR_FIRST.match(number):
        return True
    return _is_pages(number)


def _is_pages(number: str) -> bool:
    pages = _PAGES.fullmatch(number)
    return pages is not None and len(pages[1]) == len(pages[2]) and 0 < int(pages[2]) - int(pages[1]) < _MOST_PAGES


def _is_other(text: str, start: int, end: int) -> bool:
    """Returns whether the number is a table cell or has another label, and so is not a telephone number."""
    number = text[start:end]
    if _is_pages(number) and _NUMBER_BEFORE.search(text, max(0, start - 8), start):
        return True
    if (
        " " in number
        and "(" not in number
        and (_CELL_BEFORE.search(text, max(0, start - 2), start) or _CELL.match(text, end))
    ):
        return True
    return GOODS_LABELS.of(text, start, end) is False


def _international(text: str, start: int, end: int) -> Iterator[PiiSpan]:
    for match in _INTERNATIONAL.finditer(text, start, end):
        number = match.group()
        if "+" not in number and not re.search(r"[0-9][ ./-]+[0-9]", number[2:]):
            continue  # leading zeros of a bare number
        if (match["apart"] and not _GROUPS.match(number)) or _SEXAGESIMAL.match(number) or _DECIMAL.match(number):
            continue
        if valid := _longest(number, lenient=match["glued"] is match["apart"] is None):
            first = 1 if valid.startswith("(") and valid.count("(") > valid.count(")") else 0
            yield PiiSpan("phone", match.start() + first, match.start() + len(valid), Evidence.PATTERN)


def _longest(number: str, lenient: bool) -> str | None:
    """Returns the number without trailing groups that do not belong to it, or None if none exists.

    If `lenient`, a number with gaps as in print only needs a possible length, because plans grow and fictional numbers
    are in no plan. `lenient` is False for a "+" after a letter or sign, which may be an addition.
    """
    # Writes "(0049) 30" as "(+49) 30", and "+ 49" as "+49".
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


def _labeled(text: str, start: int, end: int, countries: Sequence[str]) -> Iterator[PiiSpan]:
    if end - start > 3 * LONGEST:  # a table of numbers, not a line of contacts
        return
    for match in _WEAK.finditer(text, start, end):
        for first, last in _pieces(text, match.start(), match.end()):
            number = text[first:last]
            if _is_amount(text, first, last) or not _is_labeled(text, first, last):
                continue
            if _COUNT.fullmatch(number) and COUNTED.match(text, last) and not LABELS.directly_before(text, first):
                continue
            if _could_exist(number, countries):
                yield PiiSpan("phone", first, last, Evidence.CONTEXT)


def _is_labeled(text: str, start: int, end: int) -> bool:
    """Returns whether a number has a label, or a US address before it."""
    label = LABELS.of(text, start, end)
    return bool(label) or (label is None and _ADDRESS_BEFORE.search(text, max(0, start - 30), start) is not None)


def _is_amount(text: str, start: int, end: int) -> bool:
    """Returns whether the number is a date, opening hours, an amount or the argument of a function."""
    number = text[start:end]
    if (
        _DATE.fullmatch(number)
        or _HOURS.match(number)
        or _AMOUNT.fullmatch(number.lstrip("+("))
        or _UNIT.match(text, end)
    ):
        return True
    return _ARGUMENT.search(text, max(0, start - 2), start + number.startswith("(")) is not None


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the bounds of numbers separated by wide gaps ("030 123456 / 030 123457"), without unmatched brackets."""
    begin = start
    digits = sum(map(str.isdigit, text[start:end]))
    wide = r" [/-] |  +" if digits > _MOST_NATIONAL else r"  +"
    for gap in [*re.finditer(wide, text[start:end]), None]:
        last = start + gap.start() if gap else end
        if text[begin] == "(" and ")" not in text[begin:last]:
            begin += 1
        elif text.rfind("(", begin, last) > text.rfind(")", begin, last):
            last = begin + len(text[begin : text.rfind("(", begin, last)].rstrip())
        piece = text[begin:last]
        if piece.count("(") == piece.count(")") and sum(map(str.isdigit, piece)) >= 7:
            yield begin, last
        begin = start + gap.end() if gap else end


@lru_cache(maxsize=1 << 14)
def exists(number: str, country: str) -> bool:
    """Returns whether `number` is in the numbering plan of `country`; "": of the country of its "+" code."""
    parsed = _parsed(number, country)
    if parsed is None:
        return False
    from phonenumbers import is_valid_number, is_valid_number_for_region

    return bool(is_valid_number_for_region(parsed, country) if country else is_valid_number(parsed))


@lru_cache(maxsize=1 << 12)
def _could_exist(number: str, countries: Sequence[str]) -> bool:
    """Returns whether the number has a possible length in one of the countries."""
    from phonenumbers import ValidationResult, is_possible_number_with_reason

    parsed = (_parsed(number, country) for country in countries)
    return any(
        candidate and is_possible_number_with_reason(candidate) == ValidationResult.IS_POSSIBLE for candidate in parsed
    )


def _parsed(number: str, country: str) -> "PhoneNumber | None":
    from phonenumbers import NumberParseException, parse

    try:
        return parse(number, country or None, _check_region=False)
    except NumberParseException:
        return None
