"""Detection of crawler traps, that is of endless parts of a site.

Each rule has a price, a legitimate site that it excludes. The limits are chosen so that documentation, blogs, shops,
forums and wikis pass. Checking a link takes 5 us; memory per host is bounded.

- trap_path: a path with more than 20 segments, or with the same one to four segments three times in a row (relative
  links that grow). Price: map tiles under /0/0/0/.
- trap_calendar: date pages, with a month, week or day at the end of the path or in the query (`date_page`). Refused are
  years outside 1990 .. next year, after three pages within that range below the same path; more than 500 date pages
  below one path; and all other date pages below a path after 40 in a row that added neither a link nor a title
  (ignoring numbers and names of months and days). Price: a newspaper archive that lists more than 500 days, or years
  before 1990; a diary with the same title for every day and no links to other pages; pages that only look like dates,
  for which `date_page` gives an example per format.
- trap_queries: on one path, the same fields in another order; more than `max_queries_per_path` query strings that only
  recombine values seen there before; and more than ten times as many with a new value (items of a forum, pages of a
  list). Price: a page that depends on the order of its fields; a table with more views than that, each with its own
  content.
- trap_session: parameters that do not change the page. A parameter is one if three further values had the same payload
  as the first; if its values look like ids, and more than 10 of them occurred on 10 paths each, like session ids; or if
  its name is that of a session or of a cache-busting time stamp, with a matching value. Then each page is fetched with
  one value only. The same applies to an id as the first segment of the path. Price: a site with ten pages per user,
  distinguished only by an id in the query; pages that differ by an id of letters and digits called "sid".
- trap_hosts: more than `max_hosts_per_domain` hosts of one registered domain. Price: users' sites of a large provider
  beyond that number, until the next cycle.
- soft_404: pages that say "not found" with status 200 (`page.reading`).
- duplicate: a page with the payload of another page of the host in this crawl. It is stored as a reference to that one;
  from the fourth copy on, its links are ignored. Price: none in text, because equal pages are dropped later anyway; the
  links of the fourth copy are those of the first.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from urllib.parse import quote

from tasks.formats.web.domain import Link
from tasks.formats.web.url import authority, identity, is_trap
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.page.reading import DUPLICATE, SOFT_404, SOFT_404_TEXT, PageComparison, is_soft_404
from tasks.stages.crawl.storage.fetchlist import EarlierCapture

TRAPS = frozenset({"trap_path", "trap_calendar", "trap_queries", "trap_session", "trap_hosts"})
"""Reasons that `Traps.refuses` returns."""

FIRST_YEAR = 1990
MAX_DATES = 500
MAX_EMPTY_DATES = 40
MAX_COPIES = 3
NEW_VALUES = 10
_VALID_DATES = 3
_IDLE_VOTES = 3
# A session id occurs on at least this many paths; a parameter carries session ids if it has more of them than this.
_SESSION_PATHS = 10
_MAX_STORED = 20_000
_STORED_PER_PAGE = 40

_TOKEN = re.compile(r"(?=(?:\D*\d){4})[0-9A-Za-z_.~-]{16,}|1[5-9]\d{8}(?:\d{3})?|\(S\(\w{24}\)\)")

# Names of parameters for sessions and cache-busting time stamps, and their values. "sid=1234" may be a story.
_SESSION = re.compile(
    r"(?:(?:php|j|asp|cf)?_?sess(?:ion)?(?:_?id|_?key|_?token)?|sid|s_?id|visit(?:or)?_?id)=(?=[a-z_-]*\d)(?!\d{1,9}$)"
    r"[0-9a-z_-]{6,}|(?:_|_?ts|_?t_?stamp|time_?stamp|nocache|no_cache|cache_?bust(?:er)?|cb|rnd|rand(?:om)?)="
    r"(?:1[5-9]\d{8}(?:\d{3})?|0?\.\d{6,})",
    re.I,
)
# Words by which the titles of a calendar's pages differ.
_DATE_WORDS = re.compile(
    r"\d+(?:st|nd|rd|th)?|\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
    r"|\b(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*\b",
    re.I,
)

_MONTH_NAMES = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    *("december", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"),
    *("januar", "februar", "märz", "maerz", "mai", "juni", "juli", "oktober", "dezember"),
    *("janvier", "février", "fevrier", "mars", "avril", "juin", "juillet", "août", "aout", "septembre", "octobre"),
    *("novembre", "décembre", "decembre"),
    *("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre", "octubre", "noviembre"),
    *("diciembre", "gennaio", "febbraio", "aprile", "maggio", "giugno", "luglio", "settembre", "ottobre", "dicembre"),
    *("janeiro", "fevereiro", "março", "marco", "maio", "junho", "julho", "setembro", "outubro", "novembro"),
    "dezembro",
    *("januari", "februari", "maart", "mei", "augustus"),
)
_MONTH = f"(?:{'|'.join(map(quote, _MONTH_NAMES))})"
_CALENDARS = frozenset(
    (
        *("agenda", "archiv", "archive", "archives", "cal", "calendar", "daily", "date", "dates", "day", "days"),
        *("event", "events", "kalender", "month", "monthly", "months", "schedule"),
    )
)
_DAY, _NUMBER = r"[0-3]?\d", r"(?:0?[1-9]|1[0-2])"
_VIEW = r"(?:/(?:list|day|week|month|year|agenda|grid|today|map|summary|print|index))?(?:\.\w{2,5})?/?"
# Matched with the end of a path, from the beginning of a segment.
_DATE = re.compile(
    rf"(?:(\d{{4}})(?:-{_NUMBER}(?:-{_DAY})?|/{_NUMBER}(?:/{_DAY})?|[-/_]{_MONTH}(?:[-/_]{_DAY})?"
    rf"|(?:[-/]?w|[-/](?:week|kw)[-/]?)[0-5]?\d(?:-[1-7])?)|(?:{_DAY}[-/_])?{_MONTH}[-/_](\d{{4}})){_VIEW}",
    re.I,
)
_COMPACT = re.compile(rf"((?:1[89]|2[0-2])\d\d)(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])?{_VIEW}")
# A word for a calendar, year, month and day, a view, and the empty segment after a final slash.
_SEGMENTS = 6
_MONTHS_BEGIN = frozenset(quote(name)[:3].lower() for name in _MONTH_NAMES)
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
# Units per year: unsigned numbers up to these are not offsets from today.
_UNSIGNED = {"week": 53, "month": 12}


@dataclass(slots=True)
class _Path:
    """The query strings of one path.

    Attributes:
        values: hashes of fields ("name=value").
        new: number of query strings with a new field.
        recombined: number of query strings that only recombine known fields.
        idle: votes that a parameter does not change the page, by name.
        orders: hashes of sorted query strings.
    """

    values: set[int] = field(default_factory=set)
    new: int = 0
    recombined: int = 0
    idle: dict[str, int] = field(default_factory=dict)
    orders: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Calendar:
    """The date pages below one path.

    Attributes:
        links: number of links to them.
        content: hashes of the titles and links on them.
        empty: number of pages in a row without new content.
    """

    links: int = 0
    content: set[int] = field(default_factory=set)
    empty: int = 0


@dataclass(slots=True)
class _Id:
    """A parameter whose values look like ids.

    Attributes:
        paths: hashes of paths, by hash of the value.
        sessions: number of values that occur on `_SESSION_PATHS` paths.
    """

    paths: dict[int, set[int]] = field(default_factory=dict)
    sessions: int = 0


@dataclass(slots=True)
class _Host:
    """State of one host; keys are paths, parameter names and payload digests.

    Attributes:
        refused: number of refused links.
        stored: number of stored entries.
        paths: query strings by path.
        dates: date pages by the path that they are below.
        ids: parameters with values like ids, by name; "/" for the first segment of the path.
        sessionless: hashes of URLs without their session parameters.
        copies: number of pages by payload digest.
        originals: first capture by payload digest.
        first: query fields of the first page, by path and payload digest.
    """

    refused: int = 0
    stored: int = 0
    paths: dict[str, _Path] = field(default_factory=dict)
    dates: dict[str, _Calendar] = field(default_factory=dict)
    ids: dict[str, _Id] = field(default_factory=dict)
    sessionless: set[int] = field(default_factory=set)
    copies: dict[str, int] = field(default_factory=dict)
    originals: dict[str, EarlierCapture] = field(default_factory=dict)
    first: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)


class Traps:
    """Trap detector. Its results depend on the pages and links so far, and on their order.

    Args:
        config: caps of the crawl.
        today: the day of the crawl; today by default.
    """

    def __init__(self, config: CrawlConfig, today: date | None = None) -> None:
        self._config = config
        self._this_year = (today or datetime.now(UTC).date()).year
        self._max_stored = max(_MAX_STORED, _STORED_PER_PAGE * config.max_pages_per_host)
        self._hosts: dict[str, _Host] = {}
        # By owner of the domain: the number of its hosts, and the first of them.
        self._host_counts: dict[int, int] = {}
        self._first_host: dict[int, str] = {}

    def refuses(self, link: Link) -> str:
        """Returns why a link must not be followed, or ""; must be called once per link, in a fixed order."""
        host = self._hosts.get(link.host)
        if host is None:
            if self._host_counts.get(link.owner, 0) >= self._config.max_hosts_per_domain:
                # The number of refused names is unlimited, so they are counted at the first host.
                self._hosts[self._first_host[link.owner]].refused += 1
                return "trap_hosts"
            host = self._hosts[link.host] = _Host()
            self._host_counts[link.owner] = self._host_counts.get(link.owner, 0) + 1
            self._first_host.setdefault(link.owner, link.host)
        reason = self._reason(host, link.url)
        if reason:
            host.refused += 1
        return reason

    def note(self, url: str, payload_digest: str, title: str = "", text_chars: int = SOFT_404_TEXT) -> PageComparison:
        """Records a page; returns whether it is an error page or a copy of another page.

        Must not be called for pages that need a browser, whose empty shells are equal at every URL.

        Args:
            url: canonical URL; at most one call per URL.
            payload_digest: digest of the body; "" if unknown.
            title: see `Page.title`.
            text_chars: see `Page.text_chars`.
        """
        host = self._hosts.setdefault(authority(url), _Host())
        copies = 0
        if payload_digest:
            copies = host.copies.get(payload_digest, 0) + 1
            if copies > 1 or self._store(host):
                host.copies[payload_digest] = copies
            self._vote(host, url, payload_digest)
        if is_soft_404(title, text_chars):
            return PageComparison(SOFT_404, follow=False)
        same = copies > MAX_COPIES or self.original(url, payload_digest) is not None
        return PageComparison(DUPLICATE if same else "", follow=copies <= MAX_COPIES)

    def keep(self, capture: EarlierCapture) -> None:
        """Records the full capture of a page, to which later pages with the same payload refer."""
        host = self._hosts.setdefault(authority(capture.url), _Host())
        if capture.payload_digest not in host.originals and self._store(host):
            host.originals[capture.payload_digest] = capture

    def original(self, url: str, payload_digest: str) -> EarlierCapture | None:
        """Returns the capture of another page of the host with the same payload, or None."""
        host = self._hosts.get(authority(url))
        capture = host.originals.get(payload_digest) if host else None
        return capture if capture and identity(capture.url) != identity(url) else None

    def learn(self, url: str, title: str, links: Iterable[Link]) -> None:
        """Records title and links of a date page: a calendar whose pages add nothing is endless."""
        name = authority(url)
        host = self._hosts.get(name)
        path, fields = _split(url)
        year, below = date_page(path, fields, self._this_year)
        calendar = host.dates.get(below) if host and year else None
        if host is None or calendar is None:
            return
        content = {hash(_DATE_WORDS.sub("", title))}
        content.update(hash(to.url) for to in links if to.host != name or self._below(to.url) != below)
        new = content - calendar.content
        calendar.empty = 0 if new else calendar.empty + 1
        calendar.content.update(item for item in new if self._store(host))

    def _below(self, url: str) -> str | None:
        """Returns the path that a date page is below; None for other pages."""
        year, below = date_page(*_split(url), self._this_year)
        return below if year else None

    def scores(self) -> dict[str, int]:
        """Returns the number of refused links by host, without hosts that have none."""
        return {name: host.refused for name, host in self._hosts.items() if host.refused}

    def _reason(self, host: _Host, url: str) -> str:
        if is_trap(url):
            return "trap_path"
        path, fields = _split(url)
        if self._is_calendar(host, path, fields):
            return "trap_calendar"
        if self._is_session(host, path, fields):
            return "trap_session"
        return "trap_queries" if fields and self._is_permutation(host, path, fields) else ""

    def _is_calendar(self, host: _Host, path: str, fields: list[str]) -> bool:
        year, below = date_page(path, fields, self._this_year)
        if not year:
            return False
        calendar = host.dates.get(below)
        links = calendar.links if calendar else 0
        if not FIRST_YEAR <= year <= self._this_year + 1:
            return links >= _VALID_DATES
        if links >= MAX_DATES or (calendar and calendar.empty >= MAX_EMPTY_DATES):
            return True
        if calendar is None and self._store(host):
            calendar = host.dates[below] = _Calendar()
        if calendar is not None:
            calendar.links += 1
        return False

    def _is_session(self, host: _Host, path: str, fields: list[str]) -> bool:
        """Returns whether the same page was listed before with other session parameters."""
        state = host.paths.get(path)
        idle = state.idle if state else {}
        session = [name for name, _ in _pairs(fields) if idle.get(name, 0) >= _IDLE_VOTES]
        session += [entry.partition("=")[0] for entry in fields if _SESSION.fullmatch(entry)]
        segment, _, rest = path.partition("/")
        page_path = path
        for name, value in _pairs(fields):
            if _TOKEN.fullmatch(value) and self._is_session_id(host, name, value, path):
                session.append(name)
        if _TOKEN.fullmatch(segment) and self._is_session_id(host, "/", segment, rest):
            page_path = rest
            session.append("/")
        if not session:
            return False
        page = hash((page_path, tuple(entry for entry in fields if entry.partition("=")[0] not in session)))
        if page in host.sessionless or not self._store(host):
            return True
        host.sessionless.add(page)
        return False

    def _is_session_id(self, host: _Host, name: str, value: str, path: str) -> bool:
        """Records a value of a parameter; returns whether many of its values occur on many paths each."""
        state = host.ids.get(name)
        if state is None:
            if not self._store(host):
                return False
            state = host.ids[name] = _Id()
        paths = state.paths.get(hash(value))
        is_open = state.sessions <= _SESSION_PATHS and (paths is None or len(paths) < _SESSION_PATHS)
        if is_open and self._store(host):
            paths = state.paths.setdefault(hash(value), set())
            before = len(paths)
            paths.add(hash(path))
            state.sessions += before < len(paths) == _SESSION_PATHS
        return state.sessions > _SESSION_PATHS

    def _is_permutation(self, host: _Host, path: str, fields: list[str]) -> bool:
        state = host.paths.get(path)
        if state is None:
            if not self._store(host):
                return True
            state = host.paths[path] = _Path()
        order = hash(tuple(sorted(fields, key=_name)))
        if order in state.orders:
            return True
        if len(fields) > 1 and self._store(host):
            state.orders.add(order)
        new_values = [value for value in map(hash, fields) if value not in state.values]
        limit = self._config.max_queries_per_path
        # A single field is not a combination: "title=A" is a page even if "title=A&action=edit" came first.
        if new_values or len(fields) == 1:
            if state.new >= NEW_VALUES * limit:
                return True
            state.new += 1
            state.values.update(value for value in new_values if self._store(host))
            return False
        state.recombined += state.recombined < limit + 1
        return state.recombined > limit

    def _vote(self, host: _Host, url: str, digest: str) -> None:
        """Compares with the first page of the same path and payload: if a single field differs, it gets a vote."""
        path, mark, query = url.split("/", 3)[3].partition("?")
        if not mark:
            return
        fields = tuple(query.split("&"))
        first = host.first.get((path, digest))
        if first is None:
            if self._store(host):
                host.first[path, digest] = fields
            return
        names = {entry.partition("=")[0] for entry in set(first) ^ set(fields)}
        if len(names) == 1 and path in host.paths:
            idle = host.paths[path].idle
            name = names.pop()
            idle[name] = idle.get(name, 0) + 1

    def _store(self, host: _Host) -> bool:
        """Counts an entry in the memory of a host; returns False if the memory is full."""
        host.stored += host.stored < self._max_stored
        return host.stored < self._max_stored


def _split(url: str) -> tuple[str, list[str]]:
    """Returns path and query fields of a canonical URL, the path without its first slash."""
    path, mark, query = url.split("/", 3)[3].partition("?")
    return path, query.split("&") if mark else []


def _name(entry: str) -> str:
    # Sorting is stable, so fields with the same name keep their order.
    return entry.partition("=")[0]


def _pairs(fields: list[str]) -> Iterator[tuple[str, str]]:
    for entry in fields:
        name, _, value = entry.partition("=")
        yield name, value


def date_page(path: str, fields: list[str], this_year: int) -> tuple[int, str]:
    """Returns (year, path above the date) if a URL is a calendar page; otherwise (0, "").

    A date is a year, month, week or day, at the end of the path or in the query. The formats are those of calendars on
    real sites; the price of each is a page that only looks like a date. Posts (/2014/05/01/title) have further segments
    and are not date pages.

    - /2026/05, /2026-05-17. Price: numbered pages (/photos/2031/07).
    - /2026/may, /may-2026, /17-may-2026: names in seven languages, and English abbreviations. Price: /issue/2050/may.
    - /2026-W05, /2026/week/5. Price: none known.
    - /day/20260517, /archive/202605: only after a word for a calendar. Price: similar numbers there.
    - ?date=2026-05-17, ?week=2026-W05 under any name; ?month=may-2026, ?month=202605, ?y=2026 only under the name of a
      date. Price: ?m=210012 for a menu.
    - ?from=1767225600, in seconds or milliseconds since 1970, under the name of a time. Price: lists paged by such
      numbers.
    - ?week=-104, ?month=+350, ?month=350: an offset from now, if it is signed or exceeds the number per year. Price:
      ?week=60 of a course.

    Args:
        path: path of a canonical URL, without the leading slash.
        fields: fields of its query, "name=value".
        this_year: year from which offsets are counted.

    >>> date_page("events/2026-W05", [], 2026), date_page("cal", ["week=-104"], 2026)
    ((2026, 'events'), (2024, 'cal?'))
    """
    for entry in fields:
        name, _, value = entry.partition("=")
        year = _field_year(name, value, this_year) if value else 0
        if year:
            return year, path + "?"
    segments = path.rsplit("/", _SEGMENTS)
    for at, segment in enumerate(segments):
        if _may_begin(segment[:4]):
            end = "/".join(segments[at:])
            match = _DATE.fullmatch(end)
            if match is None and at and segments[at - 1].lower() in _CALENDARS:
                match = _COMPACT.fullmatch(end)
            if match:
                return int(match[1] or match[2]), path[: max(0, len(path) - len(end) - 1)]
    return 0, ""


def _may_begin(begin: str) -> bool:
    """Returns whether a segment with these first four characters may begin a date; saves most regular expressions."""
    is_month = begin[:3].lower() in _MONTHS_BEGIN
    return is_month or begin.isdigit() or (begin[:1].isdigit() and ("-" in begin or "_" in begin))


def _field_year(name: str, value: str, this_year: int) -> int:
    """Returns the year of the date in a query field, or 0."""
    if value.isdigit():
        return _number_year(name, value, this_year)
    if value[:4].isdigit() and (match := _ISO.fullmatch(value)):
        return int(match[1])
    if value[:1] in "+-%":
        return _offset_year(name, value, this_year)
    has_year = value[:4].isdigit() or value[-4:].isdigit()
    words = has_year and _DATE_NAME.fullmatch(name) and _WORDS.fullmatch(value)
    return int(words[1] or words[2]) if words else 0


def _number_year(name: str, value: str, this_year: int) -> int:
    # "start=2030" is the 2,030th entry of a list: a number is a date only under the name of one.
    if len(value) == 4 and _YEAR_NAME.fullmatch(name):
        return int(value)
    if (match := _DIGITS.fullmatch(value)) and _DATE_NAME.fullmatch(name):
        return int(match[1])
    if (match := _EPOCH.fullmatch(value)) and _TIME_NAME.fullmatch(name):
        return datetime.fromtimestamp(int(match[1]), UTC).year
    return _offset_year(name, value, this_year)


def _offset_year(name: str, value: str, this_year: int) -> int:
    offset, unit = _OFFSET.fullmatch(value), _UNIT_NAME.fullmatch(name)
    if not offset or not unit:
        return 0
    kind = unit[1].lower()
    if not offset[1] and int(offset[2]) <= _UNSIGNED.get(kind, 10**6):
        return 0
    # Counted from this year as a whole, so that the result does not change from day to day.
    years = round(int(offset[2]) * _DAYS[kind] / 365.2425)
    return max(1, this_year + (-years if offset[1] == "-" else years))
