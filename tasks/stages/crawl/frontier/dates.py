"""Recognition of calendar pages by URL: a year, month, week or day, at the end of the path or in the query.

Pure functions. The formats are those of real sites' calendars; the price of each is a page that only looks like a date.
The consequences are in `traps`. Posts (/2014/05/01/title) have further segments and are not date pages.

- /2026/05, /2026-05-17. Price: numbered pages (/photos/2031/07).
- /2026/may, /may-2026, /17-may-2026: names in seven languages, and English abbreviations. Price: /issue/2050/may.
- /2026-W05, /2026/week/5. Price: none known.
- /day/20260517, /archive/202605: behind a word for a calendar only. Price: numbers that look like it there.
- ?date=2026-05-17, ?week=2026-W05 under any name; ?month=may-2026, ?month=202605, ?y=2026 only under that of a date.
  Price: ?m=210012 for a menu.
- ?from=1767225600, in seconds or milliseconds since 1970, under the name of a time. Price: lists paged by such numbers.
- ?week=-104, ?month=+350, ?month=350: so many from now, where signed, or more than a year has of them. Price: ?week=60
  of a course.
"""

import re
from datetime import UTC, datetime
from urllib.parse import quote

_NAMES = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    *("december", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    *("januar", "februar", "märz", "maerz", "mai", "juni", "juli", "oktober", "dezember"),
    *("janvier", "février", "fevrier", "mars", "avril", "juin", "juillet", "août", "aout", "septembre", "octobre"),
    *("novembre", "décembre", "decembre"),
    *("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre", "noviembre"),
    *("diciembre", "gennaio", "febbraio", "aprile", "maggio", "giugno", "luglio", "settembre", "ottobre", "dicembre"),
    *(
        "janeiro",
        "fevereiro",
        "março",
        "marco",
        "maio",
        "junho",
        "julho",
        "setembro",
        "outubro",
        "novembro",
        "dezembro",
    ),
    *("januari", "februari", "maart", "mei", "augustus"),
)
_MONTH = f"(?:{'|'.join(map(quote, _NAMES))})"
_CALENDARS = frozenset(
    (
        *(
            "agenda",
            "archiv",
            "archive",
            "archives",
            "cal",
            "calendar",
            "daily",
            "date",
            "dates",
            "day",
            "days",
            "event",
        ),
        *("events", "kalender", "month", "monthly", "months", "schedule"),
    )
)
_DAY, _NUMBER = r"[0-3]?\d", r"(?:0?[1-9]|1[0-2])"
_VIEW = r"(?:/(?:list|day|week|month|year|agenda|grid|today|map|summary|print|index))?(?:\.\w{2,5})?/?"
# Each is matched with the end of a path from the beginning of a segment on.
_DATE = re.compile(
    rf"(?:(\d{{4}})(?:-{_NUMBER}(?:-{_DAY})?|/{_NUMBER}(?:/{_DAY})?|[-/_]{_MONTH}(?:[-/_]{_DAY})?"
    rf"|(?:[-/]?w|[-/](?:week|kw)[-/]?)[0-5]?\d(?:-[1-7])?)|(?:{_DAY}[-/_])?{_MONTH}[-/_](\d{{4}})){_VIEW}",
    re.I,
)
_COMPACT = re.compile(rf"((?:1[89]|2[0-2])\d\d)(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])?{_VIEW}")
# Year, month and day, a view and nothing, and before them a word for a calendar.
_SEGMENTS = 6
_MONTHS_BEGIN = frozenset(quote(name)[:3].lower() for name in _NAMES)
_ISO = re.compile(r"(\d{4})(?:-[01]?\d(?:-[0-3]?\d)?(?:[T+ %].*)?|-?W[0-5]?\d(?:-?[1-7])?)", re.I)
_WORDS = re.compile(rf"(?:(\d{{4}})(?:[-_+.]|%20)?{_MONTH}|{_MONTH}(?:[-_+.]|%20)?(\d{{4}}))", re.I)
_DIGITS = re.compile(r"(\d{4})[01]\d(?:[0-3]\d)?")
_EPOCH = re.compile(r"(\d{9,10})(?:\d{3})?")
_OFFSET = re.compile(r"(\+|-|%2B)?(\d{1,6})", re.I)
_DATE_NAME = re.compile(r"(?:.*[_.-])?(?:date|day|week|month|m|d|cal|calendar)", re.I)
_YEAR_NAME = re.compile(r"(?:.*[_.-])?(?:year|yr|y)", re.I)
_TIME_NAME = re.compile(
    r"(?:.*[_.-])?(?:time|timestamp|ts|epoch|date|day|week|month|cal|calendar|start|from|since|begin|after|end|to|until"
    r"|till|before)",
    re.I,
)
_UNIT_NAME = re.compile(r"(?:.*?[_.-])??(day|week|month|year|offset)s?(?:[_.-]?offset)?", re.I)
_DAYS = {"day": 1.0, "week": 7.0, "month": 30.436875, "year": 365.2425, "offset": 1.0}
# More than a year has, where a calendar counts without a sign.
_UNSIGNED = {"week": 53, "month": 12}


def date_page(path: str, fields: list[str], this_year: int) -> tuple[int, str]:
    """Returns (year, the path it is a page below) of an address that shows a calendar; (0, "") of any other.

    Args:
        path: of a canonical URL, without the slash at its begin.
        fields: of its query, as they are written.
        this_year: from where offsets are counted.

    >>> date_page("events/2026-W05", [], 2026), date_page("cal", ["week=-104"], 2026)
    ((2026, 'events'), (2024, 'cal?'))
    """
    for field in fields:
        name, _, value = field.partition("=")
        year = _field_year(name, value, this_year) if value else 0
        if year:
            return year, path + "?"
    segments = path.rsplit("/", _SEGMENTS)
    for at, segment in enumerate(segments):
        if _may_begin(segment[:4]):
            end = "/".join(segments[at:])
            found = _DATE.fullmatch(end)
            if found is None and at and segments[at - 1].lower() in _CALENDARS:
                found = _COMPACT.fullmatch(end)
            if found:
                return int(found[1] or found[2]), path[: max(0, len(path) - len(end) - 1)]
    return 0, ""


def _may_begin(begin: str) -> bool:
    """Returns whether a segment may begin a date, by its first four characters: saves most regular expressions."""
    named = begin[:3].lower() in _MONTHS_BEGIN
    return named or begin.isdigit() or (begin[:1].isdigit() and ("-" in begin or "_" in begin))


def _field_year(name: str, value: str, this_year: int) -> int:
    """Returns the year that a field of a query shows, or 0."""
    if value.isdigit():
        return _number_year(name, value, this_year)
    if value[:4].isdigit() and (found := _ISO.fullmatch(value)):
        return int(found[1])
    if value[:1] in "+-%":
        return _offset_year(name, value, this_year)
    named = (value[:4].isdigit() or value[-4:].isdigit()) and _DATE_NAME.fullmatch(name) and _WORDS.fullmatch(value)
    return int(named[1] or named[2]) if named else 0


def _number_year(name: str, value: str, this_year: int) -> int:
    # "start=2030" is the 2,030th entry of a list: digits alone are a date only under the name of one.
    if len(value) == 4 and _YEAR_NAME.fullmatch(name):
        return int(value)
    if (found := _DIGITS.fullmatch(value)) and _DATE_NAME.fullmatch(name):
        return int(found[1])
    if (found := _EPOCH.fullmatch(value)) and _TIME_NAME.fullmatch(name):
        return datetime.fromtimestamp(int(found[1]), UTC).year
    return _offset_year(name, value, this_year)


def _offset_year(name: str, value: str, this_year: int) -> int:
    found, unit = _OFFSET.fullmatch(value), _UNIT_NAME.fullmatch(name)
    if not found or not unit:
        return 0
    kind = unit[1].lower()
    if not found[1] and int(found[2]) <= _UNSIGNED.get(kind, 10**6):
        return 0
    # From the middle of the year, so that the result does not change from one day to the next.
    years = round(int(found[2]) * _DAYS[kind] / 365.2425)
    return max(1, this_year + (-years if found[1] == "-" else years))
