"""Crawler traps: detection of endless parts of a site.

Every rule has a price, a legitimate site that it would exclude; the limits are set so that documentation, blogs, shops,
forums and wikis pass. 5 us per link; memory per host is bounded.

- trap_path: a path of more than 20 segments, or with the same one to four segments three times in a row (relative links
  that grow). Price: map tiles under /0/0/0/.
- trap_calendar: date pages, that is a month, week or day at the end of a path or in the query (`date_page`). Refused
  are years outside 1990 .. next year once three pages within were seen below the same path, more than 500 date pages
  below one path, and all others after 40 in a row that brought neither a link nor a title of their own, numbers and
  names of months and days aside. Price: a newspaper archive that lists more than 500 days, or years before 1990; a
  diary of one title for all its days that links to nothing else; pages that only look like dates, of which `date_page`
  names one for every form.
- trap_queries: of one path, the same fields in another order; query strings that only recombine values seen there
  before, `max_queries_per_path` of them; and ten times as many that bring a new value (items of a forum, pages of a
  list). Price: a page that depends on the order of its fields; a table with more views than that, each with content of
  its own.
- trap_session: parameters that do not change the page. Either three more values of one gave the same payload as the
  first; or it looks like an id, and more than 10 ids were seen on 10 paths each, like session ids; or it has the name
  of a session or of a time stamp against caches, and such a value. Then every page is fetched with one value only. The
  same holds for an id as the first segment of the path. Price: a site that gives each of its users ten pages,
  distinguished by an id in the query alone; pages that differ by an id of letters and digits called "sid".
- trap_hosts: hosts of one registered domain, more than `max_hosts_per_domain`. Price: the users' sites of a big
  provider beyond that number, until the next cycle.
- soft_404: pages that say "not found" with status 200 (`page.reading`).
- duplicate: the payload of another page of the host in this crawl. It is stored as a reference to that one, and from
  the fourth copy on its links do not count. Price: none in text, since equal pages are dropped later anyway; the links
  of the fourth copy are those of the first.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from urllib.parse import quote

from tasks.formats.web.domain import Link
from tasks.formats.web.url import authority, is_trap
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.page.reading import DUPLICATE, SOFT_404, SOFT_404_TEXT, PageComparison, is_soft_404
from tasks.stages.crawl.storage.fetchlist import EarlierCapture

TRAPS = frozenset({"trap_path", "trap_calendar", "trap_queries", "trap_session", "trap_hosts"})
"""What `Traps.refuses` returns."""

FIRST_YEAR = 1990
MAX_DATES = 500
MAX_BARE_DATES = 40
MAX_COPIES = 3
NEW_VALUES = 10
_SEEN_DATES = 3
_IDLE_VOTES = 3
_CARRIED = 10
_MAX_STORED = 20_000
_STORED_PER_PAGE = 40

_TOKEN = re.compile(r"(?=(?:\D*\d){4})[0-9A-Za-z_.~-]{16,}|1[5-9]\d{8}(?:\d{3})?|\(S\(\w{24}\)\)")

# Names under which sessions and time stamps are carried along, and their values. "sid=1234" may be a story.
_VISIT = re.compile(
    r"(?:(?:php|j|asp|cf)?_?sess(?:ion)?(?:_?id|_?key|_?token)?|sid|s_?id|visit(?:or)?_?id)=(?=[a-z_-]*\d)(?!\d{1,9}$)"
    r"[0-9a-z_-]{6,}|(?:_|_?ts|_?t_?stamp|time_?stamp|nocache|no_cache|cache_?bust(?:er)?|cb|rnd|rand(?:om)?)="
    r"(?:1[5-9]\d{8}(?:\d{3})?|0?\.\d{6,})",
    re.I,
)
# What the titles of a calendar's pages differ by.
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
# Each is matched with the end of a path from the beginning of a segment on.
_DATE = re.compile(
    rf"(?:(\d{{4}})(?:-{_NUMBER}(?:-{_DAY})?|/{_NUMBER}(?:/{_DAY})?|[-/_]{_MONTH}(?:[-/_]{_DAY})?"
    rf"|(?:[-/]?w|[-/](?:week|kw)[-/]?)[0-5]?\d(?:-[1-7])?)|(?:{_DAY}[-/_])?{_MONTH}[-/_](\d{{4}})){_VIEW}",
    re.I,
)
_COMPACT = re.compile(rf"((?:1[89]|2[0-2])\d\d)(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])?{_VIEW}")
# Year, month and day, a view and nothing, and before them a word for a calendar.
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
# More than a year has, where a calendar counts without a sign.
_UNSIGNED = {"week": 53, "month": 12}


@dataclass(slots=True)
class _Path:
    values: set[int] = field(default_factory=set)
    new: int = 0
    again: int = 0
    idle: dict[str, int] = field(default_factory=dict)
    orders: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Calendar:
    """The date pages below one path: links to them, what they have brought, and how many in a row brought nothing."""

    listed: int = 0
    brought: set[int] = field(default_factory=set)
    bare: int = 0


@dataclass(slots=True)
class _Id:
    """One parameter that looks like an id: the paths of each value, and the number of values above the limit."""

    paths: dict[int, set[int]] = field(default_factory=dict)
    carried: int = 0


@dataclass(slots=True)
class _Host:
    refused: int = 0
    stored: int = 0
    paths: dict[str, _Path] = field(default_factory=dict)
    dates: dict[str, _Calendar] = field(default_factory=dict)
    ids: dict[str, _Id] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    copies: dict[str, int] = field(default_factory=dict)
    originals: dict[str, EarlierCapture] = field(default_factory=dict)
    first: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)


class Traps:
    """Trap detector. Its results depend on the pages and links it has seen, and on their order.

    Args:
        config: caps of the crawl.
        today: the day of the crawl; by default this one.
    """

    def __init__(self, config: CrawlConfig, today: date | None = None) -> None:
        self._config = config
        self._this_year = (today or datetime.now(UTC).date()).year
        self._room = max(_MAX_STORED, _STORED_PER_PAGE * config.max_pages_per_host)
        self._hosts: dict[str, _Host] = {}
        self._hosts_of: dict[int, int] = {}
        self._first_host: dict[int, str] = {}

    def refuses(self, link: Link) -> str:
        """Returns why a link is not to be followed, or "". To be called once for every link, in a fixed order."""
        host = self._hosts.get(link.host)
        if host is None:
            if self._hosts_of.get(link.owner, 0) >= self._config.max_hosts_per_domain:
                # The names that are refused have no end: they count against the first one.
                self._hosts[self._first_host[link.owner]].refused += 1
                return "trap_hosts"
            host = self._hosts[link.host] = _Host()
            self._hosts_of[link.owner] = self._hosts_of.get(link.owner, 0) + 1
            self._first_host.setdefault(link.owner, link.host)
        reason = self._judged(host, link.url)
        if reason:
            host.refused += 1
        return reason

    def note(self, url: str, payload_digest: str, title: str = "", text_chars: int = SOFT_404_TEXT) -> PageComparison:
        """Records a page; returns whether it is an error page or the copy of another one.

        Not called for pages that only a browser can show: their empty shell is the same at every URL.

        Args:
            url: canonical; at most one call per URL.
            payload_digest: of its body; "" if unknown.
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
        """Records the full capture of a page, to which later pages with its payload refer."""
        host = self._hosts.setdefault(authority(capture.url), _Host())
        if capture.payload_digest not in host.originals and self._store(host):
            host.originals[capture.payload_digest] = capture

    def original(self, url: str, payload_digest: str) -> EarlierCapture | None:
        """Returns the capture of another page of the host with the same payload, or None."""
        host = self._hosts.get(authority(url))
        found = host.originals.get(payload_digest) if host else None
        return found if found and found.url != url else None

    def learn(self, url: str, title: str, links: Iterable[Link]) -> None:
        """Records what a page brings; only date pages matter: a calendar whose pages bring nothing has no end."""
        name = authority(url)
        host = self._hosts.get(name)
        path, fields = _split(url)
        year, below = date_page(path, fields, self._this_year)
        calendar = host.dates.get(below) if host and year else None
        if host is None or calendar is None:
            return
        brought = {hash(_DATE_WORDS.sub("", title))}
        brought.update(hash(to.url) for to in links if to.host != name or self._below(to.url) != below)
        fresh = brought - calendar.brought
        calendar.bare = 0 if fresh else calendar.bare + 1
        calendar.brought.update(one for one in fresh if self._store(host))

    def _below(self, url: str) -> str | None:
        year, below = date_page(*_split(url), self._this_year)
        return below if year else None

    def scores(self) -> dict[str, int]:
        """Returns for each host how many links were refused, where any were."""
        return {name: host.refused for name, host in self._hosts.items() if host.refused}

    def _judged(self, host: _Host, url: str) -> str:
        if is_trap(url):
            return "trap_path"
        path, fields = _split(url)
        if self._is_calendar(host, path, fields):
            return "trap_calendar"
        if self._is_visit(host, path, fields):
            return "trap_session"
        return "trap_queries" if fields and self._is_permutation(host, path, fields) else ""

    def _is_calendar(self, host: _Host, path: str, fields: list[str]) -> bool:
        year, below = date_page(path, fields, self._this_year)
        if not year:
            return False
        calendar = host.dates.get(below)
        seen = calendar.listed if calendar else 0
        if not FIRST_YEAR <= year <= self._this_year + 1:
            return seen >= _SEEN_DATES
        if seen >= MAX_DATES or (calendar and calendar.bare >= MAX_BARE_DATES):
            return True
        if calendar is None and self._store(host):
            calendar = host.dates[below] = _Calendar()
        if calendar is not None:
            calendar.listed += 1
        return False

    def _is_visit(self, host: _Host, path: str, fields: list[str]) -> bool:
        known = host.paths.get(path)
        idle = known.idle if known else {}
        dropped = [name for name, _ in _pairs(fields) if idle.get(name, 0) >= _IDLE_VOTES]
        dropped += [entry.partition("=")[0] for entry in fields if _VISIT.fullmatch(entry)]
        segment, _, rest = path.partition("/")
        kept_path = path
        for name, value in _pairs(fields):
            if _TOKEN.fullmatch(value) and self._is_carried(host, name, value, path):
                dropped.append(name)
        if _TOKEN.fullmatch(segment) and self._is_carried(host, "/", segment, rest):
            kept_path = rest
            dropped.append("/")
        if not dropped:
            return False
        page = hash((kept_path, tuple(entry for entry in fields if entry.partition("=")[0] not in dropped)))
        if page in host.taken or not self._store(host):
            return True
        host.taken.add(page)
        return False

    def _is_carried(self, host: _Host, name: str, value: str, path: str) -> bool:
        """Returns whether a parameter is a session id: each of its values occurs on many paths."""
        known = host.ids.get(name)
        if known is None:
            if not self._store(host):
                return False
            known = host.ids[name] = _Id()
        paths = known.paths.get(hash(value))
        if known.carried <= _CARRIED and (paths is None or len(paths) < _CARRIED) and self._store(host):
            paths = known.paths.setdefault(hash(value), set())
            before = len(paths)
            paths.add(hash(path))
            known.carried += before < len(paths) == _CARRIED
        return known.carried > _CARRIED

    def _is_permutation(self, host: _Host, path: str, fields: list[str]) -> bool:
        known = host.paths.get(path)
        if known is None:
            if not self._store(host):
                return True
            known = host.paths[path] = _Path()
        order = hash(tuple(sorted(fields, key=_name)))
        if order in known.orders:
            return True
        if len(fields) > 1 and self._store(host):
            known.orders.add(order)
        fresh = [value for value in map(hash, fields) if value not in known.values]
        limit = self._config.max_queries_per_path
        # One field alone is not a combination: "title=A" is a page even where "title=A&action=edit" came first.
        if fresh or len(fields) == 1:
            if known.new >= NEW_VALUES * limit:
                return True
            known.new += 1
            known.values.update(value for value in fresh if self._store(host))
            return False
        known.again += known.again < limit + 1
        return known.again > limit

    def _vote(self, host: _Host, url: str, digest: str) -> None:
        """Compares with the first page of the same path and payload: a single field that differs is idle."""
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
        """Reserves an entry in a host's memory; returns False when it is full."""
        host.stored += host.stored < self._room
        return host.stored < self._room


def _split(url: str) -> tuple[str, list[str]]:
    """Returns path and query fields of a canonical URL, the path without its first slash."""
    path, mark, query = url.split("/", 3)[3].partition("?")
    return path, query.split("&") if mark else []


def _name(entry: str) -> str:
    # Fields of one name stay in their order: sorting is stable.
    return entry.partition("=")[0]


def _pairs(fields: list[str]) -> Iterator[tuple[str, str]]:
    for entry in fields:
        name, _, value = entry.partition("=")
        yield name, value


def date_page(path: str, fields: list[str], this_year: int) -> tuple[int, str]:
    """Returns (year, the path it is a page below) of an address that shows a calendar; (0, "") of any other.

    A date is a year, month, week or day, at the end of the path or in the query. The formats are those of real sites'
    calendars; the price of each is a page that only looks like a date. Posts (/2014/05/01/title) have further segments
    and are not date pages.

    - /2026/05, /2026-05-17. Price: numbered pages (/photos/2031/07).
    - /2026/may, /may-2026, /17-may-2026: names in seven languages, and English abbreviations. Price: /issue/2050/may.
    - /2026-W05, /2026/week/5. Price: none known.
    - /day/20260517, /archive/202605: behind a word for a calendar only. Price: numbers that look like it there.
    - ?date=2026-05-17, ?week=2026-W05 under any name; ?month=may-2026, ?month=202605, ?y=2026 only under that of a
      date. Price: ?m=210012 for a menu.
    - ?from=1767225600, in seconds or milliseconds since 1970, under the name of a time. Price: lists paged by such
      numbers.
    - ?week=-104, ?month=+350, ?month=350: so many from now, where signed, or more than a year has of them. Price:
      ?week=60 of a course.

    Args:
        path: of a canonical URL, without the slash at its begin.
        fields: of its query, as they are written.
        this_year: from where offsets are counted.

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
