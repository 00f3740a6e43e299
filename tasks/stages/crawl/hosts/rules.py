"""Rules of sites: robots.txt, tdmrep.json and RSL licenses, fetched politely once a day.

By RFC 9309, 2.3.1, 4xx means that there are no rules. An unreachable file (429, 5xx, network error after three tries,
content that cannot be decoded) never counts as permission: the host is skipped for this cycle. Files are cached for
24 hours (2.4), also for the next cycle, as `HostRobots` rows; in memory they are compressed, and the parsed rules of
recently used sites are cached (`RulesCache`).

The other files state usage terms: tdmrep.json, the licenses that robots.txt names, and those that pages name in Link
headers and elements. Each is requested once, before the first page that it applies to (licenses of pages: before the
page is kept), and expires with the robots.txt of the site. A site without a readable file reserves nothing by it and is
crawled.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.robots import MAX_BYTES, Robots, complete_lines
from tasks.formats.web.rsl import RslDocument, strictest
from tasks.formats.web.tdmrep import TDMREP, Reservations
from tasks.formats.web.url import authority, distinct, origin_of
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.politeness import HOST_BACKOFF, HOST_FAILURES, HostState, Politeness, crawl_delay
from tasks.stages.crawl.hosts.site_files import (
    MAX_AGE_S,
    MAX_REDIRECTS,
    UNUSABLE,
    FileUnavailableError,
    HostBusyError,
    SiteFiles,
    compress,
    decompress,
)
from tasks.stages.crawl.http.client import Client

log = logging.getLogger("sluice.crawl")

TRIES = 3

MAX_SITEMAPS = 1000
MAX_LICENSES = 20
"""Licenses that are read of one site, over its robots.txt and all its pages."""
MAX_AGE = timedelta(seconds=MAX_AGE_S)

UNAVAILABLE = "robots_unavailable"
DENIED = "robots_denied"
AI_OPTOUT = "ai_optout"
OK, MISSING, UNREACHABLE = "ok", "missing", "unavailable"

# Bytes of compressed files, and of files with parsed rules; these take some twenty times the size of their text.
_MAX_CACHED, _MAX_PARSED = 128 << 20, 8 << 20


@dataclass(frozen=True)
class HostRobots:
    """The files of one origin as stored for the next cycle.

    Attributes:
        origin: scheme and authority, "https://example.org".
        status: "ok" (there is one), "missing" (4xx: no rules) or "unavailable" (never used again).
        body: the robots.txt, decoded, at most 512 KiB.
        fetched_at: time of the request, in UTC.
        crawl_delay_s: Crawl-delay in seconds, 0 for none.
        files: tdmrep.json and licenses by URL, decoded; b"" for one that is missing or unreadable. Files that could not
            be fetched are left out.
    """

    origin: str
    status: str
    body: bytes
    fetched_at: datetime
    crawl_delay_s: float
    files: Mapping[str, bytes] = field(default_factory=dict)


class Licensing(NamedTuple):
    """What RSL licenses say about one URL.

    Attributes:
        permits: whether they permit the training of AI models; None if they say nothing about it.
        terms: their terms as (name, value).
    """

    permits: bool | None = None
    terms: tuple[tuple[str, str], ...] = ()


class Ruling(NamedTuple):
    """The rules of a site's files for one URL.

    Attributes:
        denied: why the URL must not be fetched: "robots_unavailable", "robots_denied", "ai_optout", an error that
            prevents any request to the host ("private_address", "port", "tls", ...), or "".
        detail: why robots.txt is unavailable, as text, or "".
        reserved: whether tdmrep.json reserves the URL from text and data mining.
        licensed: whether the licenses of robots.txt permit training; None if they say nothing.
        terms: terms of use as (name, value), by file.
    """

    denied: str = ""
    detail: str = ""
    reserved: bool = False
    licensed: bool | None = None
    terms: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType({})

    @property
    def may_be_overridden(self) -> bool:
        """Whether a file refuses the URL, and its page has the last word in its header or elements."""
        return self.reserved or self.licensed is False


@dataclass(frozen=True)
class Rules:
    """The parsed files of one origin.

    Attributes:
        robots: the robots.txt.
        reservations: the tdmrep.json, or None.
        licenses: the readable licenses by URL.
        site_licenses: canonical URLs of the licenses that robots.txt names, at most `MAX_LICENSES`.
    """

    robots: Robots
    reservations: Reservations | None
    licenses: Mapping[str, RslDocument]
    site_licenses: Sequence[str]

    def denial(self, url: str, optouts: Collection[str]) -> str:
        """Returns why robots.txt forbids `url` ("robots_denied", "ai_optout"), or ""; `optouts` as for `HostRules`."""
        if not self.robots.allows(url):
            return DENIED
        return AI_OPTOUT if "robots" in optouts and self.robots.ai_optout(url) else ""

    def ruling(self, url: str, optouts: Collection[str]) -> Ruling:
        """Returns the reservations and terms of `url`, which robots.txt does not forbid."""
        tdm, licensing = self.reservations, self.licensing(url, self.site_licenses if "rsl" in optouts else ())
        terms = {
            "robots": (*self.robots.terms(url), *licensing.terms),
            "tdmrep": tdm.terms(url) if tdm is not None else (),
        }
        reserved = "tdm" in optouts and tdm is not None and tdm.reserves(url)
        return Ruling(reserved=reserved, licensed=licensing.permits, terms=terms)

    def licensing(self, url: str, licenses: Iterable[str]) -> Licensing:
        """Returns what some of the licenses, given by URL, say about `url`."""
        documents = [self.licenses[license_url] for license_url in licenses if license_url in self.licenses]
        terms = dict.fromkeys((f"rsl-{name}", value) for one in documents for name, value in one.terms(url))
        return Licensing(strictest(one.permits_training(url) for one in documents), tuple(terms))


@dataclass
class CachedRules:
    """The files of one origin, compressed, or the reason why it is skipped.

    Attributes:
        status: status of robots.txt, as in `HostRobots`.
        fetched_at: time of the request for robots.txt, in UTC.
        robots: the compressed robots.txt.
        reason: code for why the origin is skipped, or "".
        detail: the same as text.
        crawl_delay_s: Crawl-delay in seconds, 0 for none.
        files: compressed tdmrep.json and licenses by URL; b"" for one that is missing or unreadable.
        requested: URLs of the files that were requested, successfully or not.
        parsed: the parsed rules, while cached.
    """

    status: str
    fetched_at: datetime
    robots: bytes = b""
    reason: str = ""
    detail: str = ""
    crawl_delay_s: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)
    requested: set[str] = field(default_factory=set)
    parsed: "Rules | None" = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Compressed size of the files in bytes."""
        return len(self.robots) + sum(map(len, self.files.values()))

    def unpacked(self) -> dict[str, bytes]:
        """Returns the files, decompressed."""
        return {url: decompress(body) for url, body in self.files.items()}


class HostRules:
    """The rules of sites, by origin (scheme and authority).

    Args:
        client: sends the requests.
        politeness: the clocks of the hosts.
        config: settings of the crawl.
        optouts: the conventions of opt-outs from AI training that are respected: "robots" in robots.txt, "tdm" in
            tdmrep.json, "rsl" in licenses (the files of the last two are requested); the recipe's `ai_optouts` by
            default.
        now: returns the current time, in UTC.
    """

    def __init__(
        self,
        client: Client,
        politeness: Politeness,
        config: CrawlConfig,
        optouts: Collection[str] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._files = SiteFiles(client, politeness, config.max_backoff_s, self._require_rules)
        self._politeness = politeness
        self._max_backoff_s = config.max_backoff_s
        self._optouts = config.ai_optouts if optouts is None else optouts
        self._now = now
        self._cache = RulesCache(config.user_agent)
        self._tries: dict[str, int] = {}

    def load(self, rows: Iterable[HostRobots]) -> None:
        """Loads files of earlier cycles, except those that are older than 24 hours or unavailable."""
        for row in rows:
            if row.status in (OK, MISSING) and self._now() - row.fetched_at < MAX_AGE:
                entry = CachedRules(row.status, row.fetched_at, compress(row.body), crawl_delay_s=row.crawl_delay_s)
                entry.files = {url: compress(body) for url, body in row.files.items()}
                entry.requested = set(row.files)
                self._cache.put(row.origin, entry)

    def rows(self) -> list[HostRobots]:
        """Returns all entries, by origin, for the next cycle."""
        return [
            HostRobots(
                origin,
                entry.status,
                decompress(entry.robots),
                entry.fetched_at,
                entry.crawl_delay_s,
                dict(sorted(entry.unpacked().items())),
            )
            for origin, entry in self._cache.sorted()
        ]

    async def ruling(self, url: str) -> Ruling | None:
        """Returns the rules of the site's files for `url`.

        None if a file had to be requested first, or a host that it redirects to is busy: call again after the host's
        pause. After three failed tries the robots.txt counts as unavailable.
        """
        origin = origin_of(url)
        entry = self._fresh(origin)
        if entry is None:
            await self._look_up(origin)
            return None
        if entry.status == UNREACHABLE:
            return Ruling(entry.reason, entry.detail)
        rules = self._cache.rules(origin)
        if denied := rules.denial(url, self._optouts):
            return Ruling(denied)
        tdm = [origin + TDMREP] if "tdm" in self._optouts else []
        for file in (*tdm, *(rules.site_licenses if "rsl" in self._optouts else ())):
            if file not in entry.requested:
                await self._look_up_file(file, origin, entry)
                return None
        return rules.ruling(url, self._optouts) if entry.size else Ruling()

    async def licensing(self, url: str, licenses: Sequence[str]) -> Licensing:
        """Returns what licenses say that the page at `url` names; fetches them if necessary.

        Waits for turns of the hosts, at most twice `max_backoff_s` for each host that is busy. If a site names more
        than `MAX_LICENSES`, the others count as refusals, because nobody knows what they say.

        Args:
            url: URL of the page.
            licenses: canonical URLs.
        """
        if "rsl" not in self._optouts:
            return Licensing()
        origin = origin_of(url)
        # The cache may drop the entry at any time, now or while a license is fetched.
        entry = self._cache.get(origin) or CachedRules(OK, self._now())
        for file in licenses:
            if file not in entry.requested and len(entry.requested) > MAX_LICENSES:
                log.info("%s names more than %d licenses; others count as refusals (%s)", origin, MAX_LICENSES, file)
                return Licensing(permits=False)
            deadline = time.monotonic() + 2 * self._max_backoff_s
            while file not in entry.requested:
                await self._look_up_file(file, origin, entry)
                if file not in entry.requested:
                    if time.monotonic() > deadline:
                        log.info("%s reserves nothing: its license %s cannot be fetched (busy)", origin, file)
                        entry.requested.add(file)
                    else:
                        await self._politeness.wait_pause(self._host(origin))
        if self._cache.get(origin) is entry:
            return self._cache.rules(origin).licensing(url, licenses)
        return rules_from(origin, b"", "", entry.unpacked()).licensing(url, licenses)

    def allows(self, url: str) -> bool | None:
        """Returns whether the last robots.txt of its site allows `url`; None if none was requested yet."""
        origin = origin_of(url)
        entry = self._cache.get(origin)
        if entry is None:
            return None
        return entry.status != UNREACHABLE and self._cache.rules(origin).robots.allows(url)

    def sitemaps(self, url: str) -> tuple[str, ...]:
        """Returns the canonical URLs of the sitemaps that the robots.txt of `url` names, without duplicates."""
        origin = origin_of(url)
        entry = self._cache.get(origin)
        if entry is None or entry.status != OK:
            return ()
        listed = self._cache.rules(origin).robots.sitemaps[:MAX_SITEMAPS]
        urls = (canonical(sitemap, f"{origin}/robots.txt") for sitemap in listed)
        return distinct(sitemap for sitemap in urls if sitemap)

    def _fresh(self, origin: str) -> CachedRules | None:
        """Returns the rules of an origin if they are younger than 24 hours; if so, applies their Crawl-delay."""
        entry = self._cache.get(origin)
        if entry is None or self._now() - entry.fetched_at >= MAX_AGE:
            return None
        # A host has one clock: the longer delay of its http and https origins applies to both.
        host = self._host(origin)
        host.crawl_delay_s = max(host.crawl_delay_s, entry.crawl_delay_s)
        return entry

    def _host(self, origin: str) -> HostState:
        return self._politeness.host(origin.partition("://")[2])

    async def _look_up(self, origin: str) -> None:
        """Tries once to fetch the robots.txt of an origin; the rules remain unknown if another try may succeed."""
        try:
            await self._fetch(origin, ())
        except HostBusyError as busy:
            self._politeness.postpone(self._host(origin), busy.seconds)
            return
        entry = self._cache.get(origin)
        if entry is not None and entry.status == UNREACHABLE:
            log.warning("%s is skipped in this cycle: no robots.txt (%s)", origin, entry.detail)

    async def _require_rules(self, url: str, origins: tuple[str, ...]) -> None:
        """Fetches the robots.txt of a site to which the files of `origins` redirect (see `SiteFiles`)."""
        origin = origin_of(url)
        entry = self._fresh(origin)
        if entry is None:
            if origin in origins or len(origins) > MAX_REDIRECTS:
                raise FileUnavailableError(f"{origins[0]} and {origin} redirect without end", reason=UNUSABLE)
            await self._fetch(origin, origins)
            entry = self._fresh(origin)
        if entry is None:
            raise HostBusyError(max(self._host(origin).next_at - time.monotonic(), 0.0))
        if entry.status == UNREACHABLE:
            raise FileUnavailableError(
                f"{origin} must not be requested without robots.txt: {entry.detail}", reason=UNUSABLE
            )

    async def _fetch(self, origin: str, origins: tuple[str, ...]) -> None:
        """Tries once to fetch a robots.txt, and stores a final result."""
        host = self._host(origin)
        try:
            body = await self._files.get(f"{origin}/robots.txt", origins=origins)
        except (FileUnavailableError, ValueError) as error:
            if self._record_failure(origin, host, error):
                reason = error.reason if isinstance(error, FileUnavailableError) else ""
                reason = UNAVAILABLE if reason in ("", UNUSABLE) else reason
                self._cache.put(origin, CachedRules(UNREACHABLE, self._now(), reason=reason, detail=str(error)[:500]))
            return
        self._tries.pop(origin, None)
        self._politeness.succeeded(host)
        entry = CachedRules(MISSING if body is None else OK, self._now(), compress(complete_lines(body or b"")))
        self._cache.put(origin, entry)
        entry.crawl_delay_s = crawl_delay(self._cache.rules(origin).robots.crawl_delay())
        self._fresh(origin)  # applies the Crawl-delay
        self._politeness.start_pause(host)

    def _record_failure(self, origin: str, host: HostState, error: Exception) -> bool:
        """Records a failed try; returns whether it was the last."""
        if not isinstance(error, FileUnavailableError):
            return True
        failed = self._politeness.host(error.authority) if error.authority else host
        pause = self._politeness.failed(failed, error.retry_after_s)
        tries = self._tries[origin] = self._tries.get(origin, 0) + 1
        was_last = bool(error.reason) or tries >= TRIES or pause > self._max_backoff_s
        if was_last:
            del self._tries[origin]
        if failed is not host:
            # Other sites may redirect there, too: a host that keeps failing is not tried for each of them.
            if pause > self._max_backoff_s or failed.failures >= HOST_FAILURES:
                failed.skip_reason = HOST_BACKOFF
            if not was_last:
                self._politeness.postpone(host, pause)
        return was_last

    async def _look_up_file(self, file: str, origin: str, entry: CachedRules) -> None:
        """Tries to fetch a file with terms of an origin, if robots.txt of the file's site allows that.

        There is one try: if the file is unreachable, it reserves nothing until the next cycle. If a host is busy to
        which the site's file leads, the entry is unchanged: call again.
        """
        name = "tdmrep.json" if file == origin + TDMREP else f"license {file}"
        entry.requested.add(file)
        try:
            body = await self._files.get(file, lambda url: self.allows(url) is not False, site=f"{origin}/")
        except HostBusyError as busy:
            entry.requested.discard(file)
            self._politeness.postpone(self._host(origin), busy.seconds)
            return
        except (FileUnavailableError, ValueError) as error:
            log.info("%s reserves nothing: its %s cannot be fetched (%s)", origin, name, error)
            if isinstance(error, FileUnavailableError) and error.authority:
                failed = self._politeness.host(error.authority)
                # Only a pause that the host requires may exceed the limit; a failure alone does not.
                if self._politeness.failed(failed, error.retry_after_s) > self._max_backoff_s:
                    failed.skip_reason = HOST_BACKOFF
            return
        self._politeness.succeeded(self._politeness.host(authority(file)))
        try:
            if body and len(body) > MAX_BYTES:
                raise ValueError(f"it is longer than {MAX_BYTES} bytes")
            if body is not None:
                _parsed(origin, file, body)
            self._cache.put_file(origin, entry, file, body or b"")
        except ValueError as error:
            log.info("%s reserves nothing: its %s cannot be read (%s)", origin, name, error)
            entry.files[file] = b""


def _parsed(origin: str, url: str, body: bytes) -> Reservations | RslDocument:
    """Returns a file with terms; raises ValueError if it cannot be read."""
    return Reservations(body) if url == origin + TDMREP else RslDocument(body)


class RulesCache:
    """Rules by origin. When the files exceed the memory limit, the oldest are dropped.

    Args:
        agent: product token of the crawler, whose groups of robots.txt apply.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._entries: OrderedDict[str, CachedRules] = OrderedDict()
        # By origin with parsed rules, least recently used first: size of its files.
        self._parsed: OrderedDict[str, int] = OrderedDict()
        self._entry_bytes = self._parsed_bytes = 0

    def __getitem__(self, origin: str) -> CachedRules:
        return self._entries[origin]

    def get(self, origin: str) -> CachedRules | None:
        """Returns the entry of an origin, or None."""
        return self._entries.get(origin)

    def sorted(self) -> Iterator[tuple[str, CachedRules]]:
        """Yields origins and their entries, sorted by origin."""
        yield from sorted(self._entries.items(), key=lambda item: item[0])

    def put(self, origin: str, entry: CachedRules) -> None:
        """Stores the entry of an origin."""
        self._remove(origin)
        self._entries[origin] = entry
        self._entry_bytes += entry.size
        while self._entry_bytes > _MAX_CACHED:
            self._remove(next(origin for origin, entry in self._entries.items() if entry.size))

    def put_file(self, origin: str, entry: CachedRules, url: str, body: bytes) -> None:
        """Adds a file to an entry, which may have been dropped while the file was fetched."""
        is_cached = bool(body) and self._entries.get(origin) is entry
        if is_cached:
            self._remove(origin)
            entry.parsed = None
        entry.files[url] = compress(body)
        if is_cached:
            self.put(origin, entry)

    def rules(self, origin: str) -> Rules:
        """Returns the parsed rules of a cached origin."""
        entry = self._entries[origin]
        if entry.parsed is None:
            robots = decompress(entry.robots)
            files = entry.unpacked()
            entry.parsed = rules_from(origin, robots, self._agent, files)
            self._parsed[origin] = len(robots) + sum(map(len, files.values()))
            self._parsed_bytes += self._parsed[origin]
            while self._parsed_bytes > _MAX_PARSED and len(self._parsed) > 1:
                oldest, size = self._parsed.popitem(last=False)
                self._parsed_bytes -= size
                self._entries[oldest].parsed = None
        elif origin in self._parsed:
            self._parsed.move_to_end(origin)
        return entry.parsed

    def _remove(self, origin: str) -> None:
        entry = self._entries.pop(origin, None)
        self._entry_bytes -= entry.size if entry else 0
        self._parsed_bytes -= self._parsed.pop(origin, 0)


def rules_from(origin: str, robots: bytes, agent: str, files: Mapping[str, bytes]) -> Rules:
    """Returns the parsed files of an origin; `files` are those of `HostRobots`, which can be read or are empty."""
    parsed = {url: _parsed(origin, url, body) for url, body in files.items() if body}
    tdm = parsed.pop(origin + TDMREP, None)
    licenses = {url: file for url, file in parsed.items() if isinstance(file, RslDocument)}
    parsed_robots = Robots(robots, agent)
    named = dict.fromkeys(canonical(url, f"{origin}/robots.txt") for url in parsed_robots.licenses)
    site_licenses = [url for url in named if url][:MAX_LICENSES]
    return Rules(parsed_robots, tdm if isinstance(tdm, Reservations) else None, licenses, site_licenses)
