"""Rules of sites: robots.txt and tdmrep.json, fetched politely once a day.

By RFC 9309, 2.3.1, 4xx means that there are no rules. An unreachable file (429, 5xx, network error after three tries,
content that cannot be decoded) never counts as permission: the host is skipped for this cycle. Files are cached for
24 hours (2.4), also for the next cycle, as `HostRobots` rows; in memory they are compressed, and the parsed rules of
recently used sites are cached (`RulesCache`).

tdmrep.json is requested once, before the first page of the site, and expires with its robots.txt. By the protocol, a
site without a readable one reserves nothing and is crawled.

Up to five redirects are followed (`SiteFiles`), with the same politeness as for pages; the body is decoded, and
truncated one byte above 512 KiB. If a file redirects to another site, the robots.txt of that site is fetched first,
because its Crawl-delay applies to the request. Many sites may redirect to one host: each file there is requested only
once, at the pace of that host, and no visit occupies a slot while it waits for the file.
"""

import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.content_encoding import decode
from tasks.formats.web.robots import MAX_BYTES, Robots, complete_lines
from tasks.formats.web.tdmrep import TDMREP, Reservations
from tasks.formats.web.url import authority, distinct, origin_of
from tasks.stages.crawl.hosts.politeness import (
    HOST_BACKOFF,
    HOST_FAILURES,
    HostState,
    Politeness,
    crawl_delay,
    retry_after,
)
from tasks.stages.crawl.http.address import PORT, PRIVATE
from tasks.stages.crawl.http.client import Client, FetchError, Response
from tasks.stages.crawl.policy import HOST_DENIED

log = logging.getLogger("sluice.crawl")

TRIES = 3

MAX_REDIRECTS = 5
MAX_SITEMAPS = 1000
MAX_AGE_S = 24 * 3600.0
"""Seconds for which a file may be used (RFC 9309, 2.4)."""
MAX_AGE = timedelta(seconds=MAX_AGE_S)

UNAVAILABLE = "robots_unavailable"
DENIED = "robots_denied"
AI_OPTOUT = "ai_optout"
OK, MISSING, UNREACHABLE = "ok", "missing", "unavailable"
UNUSABLE = "unusable"
"""The reason of a file that cannot be fetched by another try, although its host may answer."""

# Reasons for which another try is useless. If the host's own file fails with one, its pages would, too.
_PERMANENT = (PRIVATE, PORT, "url", "tls", HOST_DENIED)
# A body of this size is longer than the limit.
_READ = MAX_BYTES + 1

# Bytes of compressed files, and of files with parsed rules; these take some twenty times the size of their text.
_MAX_CACHED, _MAX_PARSED = 128 << 20, 8 << 20
# Bytes of compressed files that others redirect to, and of an entry without the file.
_MAX_FILES_CACHED, _ENTRY_BYTES = 16 << 20, 500
# A visit that waits for a file fetched by another one checks after this time, which doubles up to a maximum.
_RECHECK_S, _MAX_RECHECK_S = 0.1, 5.0


@dataclass(frozen=True)
class HostRobots:
    """The robots.txt and tdmrep.json of one origin as stored for the next cycle.

    Attributes:
        origin: scheme and authority, "https://example.org".
        status: "ok" (there is one), "missing" (4xx: no rules) or "unavailable" (never used again).
        body: the robots.txt, decoded, at most 512 KiB.
        fetched_at: time of the request, in UTC.
        crawl_delay_s: Crawl-delay in seconds, 0 for none.
        tdm: the tdmrep.json, decoded; b"" if there is no readable one, None if unknown.
    """

    origin: str
    status: str
    body: bytes
    fetched_at: datetime
    crawl_delay_s: float
    tdm: bytes | None = None


class Ruling(NamedTuple):
    """The rules of a site's files for one URL.

    Attributes:
        denied: why the URL must not be fetched (see `HostRules.denial`), or "".
        detail: why robots.txt is unavailable, as text, or "".
        reserved: whether tdmrep.json reserves the URL from text and data mining.
        terms: terms of use as (name, value), by file.
    """

    denied: str = ""
    detail: str = ""
    reserved: bool = False
    terms: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType({})


class HostBusyError(Exception):
    """A host must not be requested yet; the look-up continues where it stopped when it is called again.

    Attributes:
        seconds: time to wait before the next call.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.1f} s")
        self.seconds = seconds


class FileUnavailableError(Exception):
    """A try to fetch a file has failed.

    Attributes:
        reason: code for why another try is useless, or "".
        retry_after_s: Retry-After of the host in seconds, or None.
        authority: the host that is busy or did not answer, or "".
    """

    def __init__(
        self, detail: str, *, reason: str = "", retry_after_s: float | None = None, authority: str = ""
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.authority = authority


@dataclass(frozen=True)
class Rules:
    """The parsed files of one origin; `reservations` is None if there is no tdmrep.json."""

    robots: Robots
    reservations: Reservations | None


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
        tdm: the compressed tdmrep.json; b"" if there is no readable one, None if unknown.
        tdm_requested: whether tdmrep.json was requested, successfully or not.
        parsed: the parsed rules, while cached.
    """

    status: str
    fetched_at: datetime
    robots: bytes = b""
    reason: str = ""
    detail: str = ""
    crawl_delay_s: float = 0.0
    tdm: bytes | None = None
    tdm_requested: bool = False
    parsed: "Rules | None" = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Compressed size of the files in bytes."""
        return len(self.robots) + len(self.tdm or b"")


@dataclass(frozen=True)
class _FetchResult:
    """Result for one URL: a compressed file (None: there is none), or a redirect to `target`."""

    body: bytes | None
    target: str = ""
    fetched_at: float = field(default_factory=time.monotonic)


@dataclass
class _Lookup:
    """Progress of a look-up: its current URL, the number of redirects followed, and how often it has waited."""

    url: str
    hops: int = 0
    waits: int = 0


class HostRules:
    """The rules of sites, by origin (scheme and authority).

    Args:
        client: sends the requests.
        politeness: the clocks of the hosts.
        agent: product token of the crawler.
        max_backoff_s: longest pause in seconds between two tries.
        ai_optout: whether opt-outs from AI training in robots.txt are respected.
        tdm: whether tdmrep.json is requested and respected.
        now: returns the current time, in UTC.
    """

    def __init__(
        self,
        client: Client,
        politeness: Politeness,
        agent: str,
        max_backoff_s: float,
        *,
        ai_optout: bool = False,
        tdm: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._files = SiteFiles(client, politeness, max_backoff_s, self._require_rules)
        self._politeness = politeness
        self._max_backoff_s = max_backoff_s
        self._ai_optout = ai_optout
        self._tdm = tdm
        self._now = now
        self._cache = RulesCache(agent)
        self._tries: dict[str, int] = {}

    def load(self, rows: Iterable[HostRobots]) -> None:
        """Loads files of earlier cycles, except those that are older than 24 hours or unavailable."""
        for row in rows:
            if row.status in (OK, MISSING) and self._now() - row.fetched_at < MAX_AGE:
                entry = CachedRules(row.status, row.fetched_at, compress(row.body), crawl_delay_s=row.crawl_delay_s)
                if row.tdm is not None:
                    entry.tdm, entry.tdm_requested = compress(row.tdm), True
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
                None if entry.tdm is None else decompress(entry.tdm),
            )
            for origin, entry in self._cache.sorted()
        ]

    async def ruling(self, url: str) -> Ruling | None:
        """Returns the rules of the site's files for `url`.

        None if a file had to be requested first: call again after the host's pause.
        """
        if not self.is_known(url):
            await self.look_up(url)
            return None
        origin = origin_of(url)
        entry = self._cache[origin]
        if denied := self.denial(url):
            return Ruling(denied, entry.detail)
        if self._tdm and not entry.tdm_requested:
            await self._look_up_reservations(url, origin, entry)
            return None
        if not entry.size:
            return Ruling()
        rules = self._cache.rules(origin)
        tdm = rules.reservations
        terms = {"robots": rules.robots.terms(url), "tdmrep": tdm.terms(url) if tdm is not None else ()}
        return Ruling(reserved=self._tdm and tdm is not None and tdm.reserves(url), terms=terms)

    def is_known(self, url: str) -> bool:
        """Returns whether the cached rules for `url` are younger than 24 hours; if so, applies their Crawl-delay."""
        entry = self._cache.get(origin_of(url))
        if entry is None or self._now() - entry.fetched_at >= MAX_AGE:
            return False
        self._apply_crawl_delay(url, entry)
        return True

    def denial(self, url: str) -> str | None:
        """Returns why `url` must not be fetched, or None; its rules must be known.

        The reason is "robots_unavailable", "robots_denied", "ai_optout", or an error that prevents any request to the
        host ("private_address", "port", "tls", ...).
        """
        origin = origin_of(url)
        entry = self._cache[origin]
        if entry.status == UNREACHABLE:
            return entry.reason
        robots = self._cache.rules(origin).robots
        if not robots.allows(url):
            return DENIED
        return AI_OPTOUT if self._ai_optout and robots.ai_optout(url) else None

    def sitemaps(self, url: str) -> tuple[str, ...]:
        """Returns the canonical URLs of the sitemaps that the robots.txt of `url` names, without duplicates."""
        origin = origin_of(url)
        entry = self._cache.get(origin)
        if entry is None or entry.status != OK:
            return ()
        listed = self._cache.rules(origin).robots.sitemaps[:MAX_SITEMAPS]
        urls = (canonical(sitemap, f"{origin}/robots.txt") for sitemap in listed)
        return distinct(sitemap for sitemap in urls if sitemap)

    async def look_up(self, url: str) -> None:
        """Tries once to fetch the robots.txt that governs `url`, and applies its Crawl-delay.

        If the try failed and another one may succeed, or if the file redirects to a host that is busy, the rules remain
        unknown: call again after the host's pause. After three tries the host counts as unavailable.
        """
        origin = origin_of(url)
        try:
            await self._fetch(origin, ())
        except HostBusyError as busy:
            self._politeness.postpone(self._politeness.host(authority(url)), busy.seconds)
            return
        entry = self._cache.get(origin)
        if entry is not None and entry.status == UNREACHABLE:
            log.warning("%s is skipped in this cycle: no robots.txt (%s)", origin, entry.detail)

    async def _require_rules(self, url: str, origins: tuple[str, ...]) -> None:
        """Fetches the robots.txt of a site to which the files of `origins` redirect (see `SiteFiles`)."""
        origin = origin_of(url)
        if not self.is_known(url):
            if origin in origins or len(origins) > MAX_REDIRECTS:
                raise FileUnavailableError(f"{origins[0]} and {origin} redirect without end", reason=UNUSABLE)
            await self._fetch(origin, origins)
            if not self.is_known(url):
                host = self._politeness.host(authority(url))
                raise HostBusyError(max(host.next_at - time.monotonic(), 0.0))
        entry = self._cache[origin]
        if entry.status == UNREACHABLE:
            raise FileUnavailableError(
                f"{origin} must not be requested without robots.txt: {entry.detail}", reason=UNUSABLE
            )

    async def _fetch(self, origin: str, origins: tuple[str, ...]) -> None:
        """Tries once to fetch a robots.txt, and stores a final result."""
        host = self._politeness.host(authority(f"{origin}/"))
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
        self._apply_crawl_delay(f"{origin}/", entry)
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

    async def _look_up_reservations(self, url: str, origin: str, entry: CachedRules) -> None:
        """Tries to fetch the tdmrep.json that governs `url`, if robots.txt allows that.

        There is one try: if the file is unreachable, nothing is reserved until the next cycle. If the file redirects to
        a host that is busy, the entry is unchanged: call again.
        """
        entry.tdm_requested = True
        try:
            body = await self._files.get(origin + TDMREP, self._may_request)
        except HostBusyError as busy:
            entry.tdm_requested = False
            self._politeness.postpone(self._politeness.host(authority(url)), busy.seconds)
            return
        except (FileUnavailableError, ValueError) as error:
            log.info("%s reserves nothing: its tdmrep.json cannot be fetched (%s)", origin, error)
            if isinstance(error, FileUnavailableError) and error.authority:
                failed = self._politeness.host(error.authority)
                # Only a pause that the host requires may exceed the limit; a failure alone does not.
                if self._politeness.failed(failed, error.retry_after_s) > self._max_backoff_s:
                    failed.skip_reason = HOST_BACKOFF
            return
        self._politeness.succeeded(self._politeness.host(authority(url)))
        try:
            self._cache.put_tdm(origin, entry, b"" if body is None else _valid_tdm(body))
        except ValueError as error:
            log.info("%s reserves nothing: its tdmrep.json cannot be read (%s)", origin, error)
            entry.tdm = b""

    def _may_request(self, url: str) -> bool:
        """Returns whether the robots.txt of the site, if known, allows a URL."""
        origin = origin_of(url)
        entry = self._cache.get(origin)
        return entry is None or (entry.status != UNREACHABLE and self._cache.rules(origin).robots.allows(url))

    def _apply_crawl_delay(self, url: str, entry: CachedRules) -> None:
        # A host has one clock: the longer delay of its http and https origins applies to both.
        host = self._politeness.host(authority(url))
        host.crawl_delay_s = max(host.crawl_delay_s, entry.crawl_delay_s)


def _valid_tdm(body: bytes) -> bytes:
    """Returns a tdmrep.json unchanged; raises ValueError if it cannot be read."""
    if len(body) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    Reservations(body)
    return body


class SiteFiles:
    """Fetches files of sites over redirects.

    Args:
        client: sends the requests.
        politeness: the clocks of the hosts.
        patience_s: redirects to a host with a longer pause in seconds are not followed.
        require_rules: called before a request to another site, with the URL and the origins whose files redirected
            there; applies the site's Crawl-delay, or raises HostBusyError or FileUnavailableError.
    """

    def __init__(
        self,
        client: Client,
        politeness: Politeness,
        patience_s: float,
        require_rules: Callable[[str, tuple[str, ...]], Awaitable[None]],
    ) -> None:
        self._client = client
        self._politeness = politeness
        self._patience_s = patience_s
        self._require_rules = require_rules
        # By URL of the original file: look-ups that were interrupted by HostBusyError.
        self._lookups: dict[str, _Lookup] = {}
        # By URL, and by whether the headers of the hosts file were omitted.
        self._cache: OrderedDict[tuple[str, bool], _FetchResult] = OrderedDict()
        self._cache_bytes = 0
        # By URL: the look-up that fetches it on behalf of all waiting ones, and when that one counts as abandoned.
        self._fetchers: dict[str, tuple[str, float]] = {}

    async def get(
        self, url: str, allowed: Callable[[str], bool] = lambda _: True, *, origins: tuple[str, ...] = ()
    ) -> bytes | None:
        """Tries once to fetch the file at `url`.

        Args:
            url: canonical URL of the file.
            allowed: returns whether a URL may be requested; called for the file and for each redirect.
            origins: origins whose files redirected to this site; () if the caller is a visit to the file's own host.

        Returns:
            The file, at most 512 KiB and one byte; None if there is none (4xx).

        Raises:
            HostBusyError: a host must not be requested yet; call again.
            FileUnavailableError: 429, 5xx, no response, or an unusable redirect.
        """
        lookup = self._lookups.pop(url, None) or _Lookup(url)
        while lookup.hops <= MAX_REDIRECTS:
            try:
                result = await self._step(url, lookup, allowed, origins)
            except HostBusyError:
                lookup.waits += 1
                self._lookups[url] = lookup
                raise
            if not result.target:
                return result.body and decompress(result.body)
            lookup = _Lookup(result.target, lookup.hops + 1)
        raise FileUnavailableError(f"more than {MAX_REDIRECTS} redirects", reason=UNUSABLE)

    async def _step(
        self, first: str, lookup: _Lookup, allowed: Callable[[str], bool], origins: tuple[str, ...]
    ) -> _FetchResult:
        url = lookup.url
        if origin_of(url) != origin_of(first):
            await self._require_rules(url, (*origins, origin_of(first)))
        if not allowed(url):
            raise FileUnavailableError(f"robots.txt forbids {url}", reason=UNUSABLE)
        # A request after a redirect from another host is sent without the headers of the hosts file.
        anonymous = authority(url) != authority(first)
        cached = self._cache.get((url, anonymous))
        if cached is not None and time.monotonic() - cached.fetched_at < MAX_AGE_S:
            self._cache.move_to_end((url, anonymous))
            return cached
        host = self._politeness.host(authority(url))
        if not lookup.hops and not origins:
            return await self._request(url, host, own=True, anonymous=False)
        if host.skip_reason or host.next_at - time.monotonic() > self._patience_s:
            raise FileUnavailableError(f"{host.authority} must not be requested for a while", reason=UNUSABLE)
        await self._require_turn(first, lookup, host)
        try:
            result = await self._request(url, host, own=not lookup.hops, anonymous=anonymous)
        finally:
            self._fetchers.pop(url, None)
        self._store((url, anonymous), result)
        return result

    async def _require_turn(self, first: str, lookup: _Lookup, host: HostState) -> None:
        """Raises HostBusyError unless the host may be requested now; only one look-up of each file is queued."""
        fetcher, until = self._fetchers.get(lookup.url, ("", 0.0))
        now = time.monotonic()
        if fetcher not in ("", first) and now < until:
            raise HostBusyError(min(_RECHECK_S * 2**lookup.waits, _MAX_RECHECK_S))
        wait = self._politeness.reserve_turn(host, (await self._client.locate(lookup.url)).address)
        # Longer than any request takes: after that the fetching visit must have been abandoned.
        self._fetchers[lookup.url] = (first, now + wait + self._patience_s)
        if wait:
            raise HostBusyError(wait)

    async def _request(self, url: str, host: HostState, *, own: bool, anonymous: bool) -> _FetchResult:
        try:
            async with self._politeness.turn(host):
                response = await self._client.get(url, limit=_READ, anonymous=anonymous)
        except FetchError as error:
            if error.reason not in _PERMANENT:
                raise FileUnavailableError(str(error), authority=host.authority) from error
            raise FileUnavailableError(str(error), reason=error.reason if own else UNUSABLE) from error
        if not 300 <= response.status < 400:
            body = _body(response, url)
            return _FetchResult(None if body is None else compress(body))
        target = canonical(response.location, url) if response.location is not None else None
        if target is None:
            raise FileUnavailableError(f"status {response.status} without a usable Location", reason=UNUSABLE)
        return _FetchResult(None, target)

    def _store(self, key: tuple[str, bool], result: _FetchResult) -> None:
        before = self._cache.pop(key, None)
        self._cache[key] = result
        self._cache_bytes += _size(result) - (_size(before) if before else 0)
        while self._cache_bytes > _MAX_FILES_CACHED:
            self._cache_bytes -= _size(self._cache.popitem(last=False)[1])


def _size(result: _FetchResult) -> int:
    return _ENTRY_BYTES + len(result.body or b"") + len(result.target)


def _body(response: Response, url: str) -> bytes | None:
    """Returns the decoded body, or None for 4xx; raises FileUnavailableError for 429, 5xx and unreadable bodies."""
    if 200 <= response.status < 300:
        body = decode(response.body, ",".join(response.all("content-encoding")), _READ).data
        if response.body and not body:
            raise FileUnavailableError("its content coding cannot be undone")
        return body
    if 400 <= response.status < 500 and response.status != 429:
        return None
    pause_s = retry_after(response.header("retry-after"))
    raise FileUnavailableError(f"status {response.status}", retry_after_s=pause_s, authority=authority(url))


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

    def put_tdm(self, origin: str, entry: CachedRules, body: bytes) -> None:
        """Adds a tdmrep.json to an entry, which may have been dropped while the file was fetched."""
        is_cached = bool(body) and self._entries.get(origin) is entry
        if is_cached:
            self._remove(origin)
            entry.parsed = None
        entry.tdm = compress(body)
        if is_cached:
            self.put(origin, entry)

    def rules(self, origin: str) -> Rules:
        """Returns the parsed rules of a cached origin."""
        entry = self._entries[origin]
        if entry.parsed is None:
            robots, tdm = decompress(entry.robots), decompress(entry.tdm or b"")
            entry.parsed = Rules(Robots(robots, self._agent), Reservations(tdm) if tdm else None)
            self._parsed[origin] = len(robots) + len(tdm)
            self._parsed_bytes += len(robots) + len(tdm)
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


def compress(body: bytes) -> bytes:
    """Returns a file compressed with zlib; b"" for b""."""
    return zlib.compress(body, 1) if body else b""


def decompress(compressed: bytes) -> bytes:
    """Returns the file that `compress` compressed."""
    return zlib.decompress(compressed) if compressed else b""
