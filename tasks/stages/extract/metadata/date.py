"""Date of publication of a page: stated by markup, or else by the URL or a line at the heading.

Reads elements of the parsed page and its URL; returns datetimes in UTC. Of the body text only lines are searched that
are below the main heading, where templates put the date, or have few words beside the date.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.stages.extract.metadata.elements import OF_READERS, among_comments, lines_after

# Names of meta elements with the date of publication, the most reliable first: Open Graph's article (ogp.me),
# schema.org, Dublin Core (RFC 5013), Google Scholar, and those of publishing systems.
_DATES = (
    *("article:published_time", "datepublished", "og:published_time", "og:article:published_time"),
    *("dcterms.issued", "dcterms.created", "dc.date.issued", "dc.date.created", "dc.date", "dcterms.date"),
    *("citation_publication_date", "citation_date", "parsely-pub-date", "sailthru.date", "pubdate", "publishdate"),
    *("publish-date", "publication_date", "publish_date", "published_time", "article.published", "date"),
)
# Keys of JSON-LD, the most reliable first; a video has only the third.
_KEYS = ("datePublished", "dateCreated", "uploadDate")
# These selectors are used only if markup gives no date.
_DATE_LIKE = (
    ':is(time, span, p, div, li, small, td, abbr, em, i, b, a):is([class*="date" i], [class*="publi" i], '
    '[itemprop*="date" i])'
)
_MAX_LIKELY = 20
# A date at the heading is in one of the next lines; elsewhere, it is in a line with at most three other words.
_MAX_LINE, _LINES_AFTER, _NODES_AT_HEADING, _MAX_WORDS = 80, 12, 60, 3
_WORD = re.compile(r"[^\W\d_]++")
_LINE_END = re.compile(r"[\n\t|·⋅•]")
_UNREAD = ["nav", "aside", "footer", OF_READERS]
# Date of the first web page. Earlier dates are those of works shown on a page, or of a clock that was not set.
_FIRST_PAGE = datetime(1991, 8, 6, tzinfo=UTC)

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january januar jänner janvier enero gennaio januari janeiro jan ene gen janv января stycznia",
            "february februar feber février febrero febbraio februari fevereiro feb févr fév fev февраля lutego",
            "march märz maerz mars marzo maart março mar mär mrz марта marca",
            "april avril abril aprile apr avr abr апреля kwietnia",
            "may mai mayo maggio mei maio mag мая maja",
            "june juni juin junio giugno junho jun giu июня czerwca",
            "july juli juillet julio luglio julho jul juil lug июля lipca",
            "august août agosto augustus aug ago августа sierpnia",
            "september septembre septiembre settembre setembro sep sept set сентября września",
            "october oktober octobre octubre ottobre outubro oct okt ott out октября października",
            "november novembre noviembre novembro nov ноября listopada",
            "december dezember décembre diciembre dicembre dezembro dec dez déc dic декабря grudnia",
        ),
        1,
    )
    for name in names.split()
}
# 2019-11-20, 20.11.2019, "20. November 2019", "20 de noviembre de 2019", "November 20th, 2019",
# 2019年11月20日. Of dates with slashes only those whose day cannot be a month: not 11/12/2019.
_WRITTEN = re.compile(
    r"(?<!\d)(?:(?P<y>\d{4})[-/.](?P<m>\d\d?)[-/.](?P<d>\d\d?)"
    r"|(?P<d1>\d\d?)\.\s?(?P<m1>\d\d?)\.\s?(?P<y1>\d{4})"
    r"|(?P<d2>\d\d?)(?:st|nd|rd|th|er|º)?\.?\s(?:de\s)?(?P<m2>[^\W\d]{3,12})\.?,?\s(?:de\s)?(?P<y2>\d{4})"
    r"|(?P<m3>[^\W\d]{3,12})\.?\s(?P<d3>\d\d?)(?:st|nd|rd|th)?,?\s(?P<y3>\d{4})"
    r"|(?P<y4>\d{4})\s?[年년]\s?(?P<m4>\d\d?)\s?[月월]\s?(?P<d4>\d\d?)\s?[日일]"
    r"|(?P<d5>1[3-9]|2\d|3[01])/(?P<m5>\d\d?)/(?P<y5>\d{4})"
    r"|(?P<m6>\d\d?)/(?P<d6>1[3-9]|2\d|3[01])/(?P<y6>\d{4}))(?!\d)"
)
_IN_ADDRESS = re.compile(
    r"/(?P<y>(?:19|20)\d\d)([/-])(?P<m>\d\d?)\2(?P<d>\d\d?)(?=[/-]|$)|/(?P<y1>(?:19|20)\d\d)-(?P<m1>\d\d)/(?P<d1>\d\d)/"
    r"|[/_-](?P<y2>(?:19|20)\d\d)(?P<m2>\d\d)(?P<d2>\d\d)(?=[/_-])"
)
# ISO 8601 has no space before the time zone, and no name of one.
_UTC, _ZONE = re.compile(r"(?<=\d)\s(?:UTC|GMT|Z)$"), re.compile(r"(?<=\d)\s(?=[+-]\d\d:?\d\d$)")
_LONGEST_DATE = 200  # number of characters that are searched for a date


def published_date(
    metas: dict[str, str],
    objects: list[dict[str, Any]],
    times: list[str],
    tree: HTMLTree,
    heading: Any,
    url: str,
    fetched_at: datetime | None,
) -> datetime | None:
    """Returns the date of publication of a page, None if it has none or only later ones than it was fetched.

    Args:
        metas: contents of meta elements by name in lower case.
        objects: objects of JSON-LD, those of articles first.
        times: machine-readable dates of elements that are marked as the date of publication.
        tree: the parsed page.
        heading: element of the main heading, or None.
        url: address of the page.
        fetched_at: when the page was fetched; a day is tolerated, for times without a time zone.
    """
    latest = fetched_at + timedelta(days=1) if fetched_at else None
    stated, likely = _stated(metas, objects, times), _likely(tree, tree.document, heading, url)
    return next((date for dates in (stated, likely) for date in dates if date and (not latest or date <= latest)), None)


def parse_time(text: str) -> datetime | None:
    """Parses a time in ISO 8601 or RFC 5322; returns it in UTC, truncated to milliseconds.

    Returns None for other texts, and for times before the first web page.

    >>> parse_time("2019-11-20T09:22:00+01:00").isoformat()
    '2019-11-20T08:22:00+00:00'
    >>> parse_time("11/12/2019")
    """
    text = text.strip()[:64]
    text = _ZONE.sub("", _UTC.sub("+00:00", text)) if text[:4].isdecimal() else text
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        try:
            time = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    try:
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:
        return None
    return time.replace(microsecond=time.microsecond // 1000 * 1000) if time >= _FIRST_PAGE else None


def _stated(metas: dict[str, str], objects: list[dict[str, Any]], times: list[str]) -> Iterator[datetime | None]:
    """Yields the dates that markup states, the most reliable first."""
    yield from (parse_time(metas[name]) for name in _DATES if name in metas)
    for key in _KEYS:
        for node in objects:
            stated = node.get(key)
            yield from (
                parse_time(date)
                for date in (stated if isinstance(stated, list) else [stated])[:_MAX_LIKELY]
                if isinstance(date, str)
            )
    yield from map(parse_time, times)


def _likely(tree: HTMLTree, document: Any, heading: Any, url: str) -> Iterator[datetime | None]:
    """Yields the dates of lines at the heading, the first `time` element, the URL, date-like elements and other lines.

    Dates of comments are none of the page.
    """
    lines = islice(lines_after(heading, _NODES_AT_HEADING), _LINES_AFTER) if heading is not None else ()
    day = next(filter(None, (find_date(line) for line in lines if len(line) <= _MAX_LINE)), None)
    times = document.query_selector_all("time[datetime]")[:_MAX_LIKELY]
    time = next((_of_time(element) for element in times if not among_comments(element)), None)
    # The element of the line at the heading has the time of day, too.
    yield time if time and day and time.date() == day.date() else day
    yield time
    yield _day(_IN_ADDRESS.search(url.partition("://")[2]))
    for element in document.query_selector_all(_DATE_LIKE)[:_MAX_LIKELY]:
        if not among_comments(element):
            yield find_date(element.text or "")
    yield from _short_lines(tree)


def _short_lines(tree: HTMLTree) -> Iterator[datetime | None]:
    """Yields the dates of lines of the visible text that have few other words, outside of menus and comments."""
    text = extract_plain_text(tree, comments=False, list_bullets=False, alt_texts=False, skip_elements=_UNREAD)
    for line in map(str.strip, _LINE_END.split(text)):
        if len(line) <= _MAX_LINE and (found := _WRITTEN.search(line)):
            words = _WORD.findall(line[: found.start()]) + _WORD.findall(line[found.end() :])
            yield _day(found) if len(words) <= _MAX_WORDS else None


def _of_time(element: Any) -> datetime | None:
    """Returns the date of a `time` element, unless its text is none: then it tells of something in the text."""
    attribute, text = element.getattr("datetime") or "", element.text or ""
    if text.strip() and not any(letter.isdecimal() for letter in text[:_LONGEST_DATE]):
        return None
    return parse_time(attribute) or parse_time(attribute[:10]) or find_date(attribute) or find_date(text)


def find_date(text: str) -> datetime | None:
    """Returns the first unambiguous date in the first 200 characters of a text.

    Returns None if there is none, or if it is before the first web page.

    >>> find_date("Von Eva Roth am 3. März 2021, 14 Uhr").date().isoformat()
    '2021-03-03'
    >>> find_date("11/12/2019")
    """
    days = map(_day, _WRITTEN.finditer(text[:_LONGEST_DATE]))
    return next(filter(None, days), None)


def _day(match: re.Match[str] | None) -> datetime | None:
    if match is None:
        return None
    parts = {name[0]: value for name, value in match.groupdict().items() if value}
    month = int(parts["m"]) if parts["m"].isdecimal() else _MONTHS.get(parts["m"].lower(), 0)
    try:
        day = datetime(int(parts["y"]), month, int(parts["d"]), tzinfo=UTC)
    except ValueError:
        return None
    return day if day >= _FIRST_PAGE else None
