"""Rules of each site: its robots.txt and tdmrep.json, fetched politely once a day.

RFC 9309 2.3.1: 4xx means no rules; an unreachable file (429, 5xx, network error after three tries, content that cannot
be decoded) never counts as permission: the host is skipped for this cycle. Files are cached for 24 hours (2.4), also
for the next cycle, as `HostRobots` rows; in memory they are compressed, and parsed where recently used (`Memory`).

tdmrep.json is requested once, before the first page of the site, and expires with the site's robots.txt. A site without
a readable one reserves nothing, by the protocol, and is crawled.

Files are fetched over up to five redirects (`SiteFiles`), every request subject to politeness like any other; the body
is decoded, and cut one byte above 512 KiB. Where a file redirects to another site, that site's robots.txt is looked up
first: its Crawl-delay applies to the request. The files of many sites may be on one host: each file is requested once,
at that host's pause, and no visit occupies a slot while it waits for it.
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
from tasks.formats.web.robots import MAX_BYTES, TDMREP, Reservations, Robots, beginning
from tasks.formats.web.url import authority, origin_of
from tasks.stages.crawl.hosts.politeness import GIVEN_UP, HOST_FAILURES, Host, Politeness, crawl_delay, retry_after
from tasks.stages.crawl.http.address import PORT, PRIVATE
from tasks.stages.crawl.http.client import Client, FetchError, Response
from tasks.stages.crawl.policy import HOST_DENIED

log = logging.getLogger("sluice.crawl")

TRIES = 3

MAX_REDIRECTS = 5
MAX_SITEMAPS = 1000
LIFE_S = 24 * 3600.0
"""How long a file may be used (RFC 9309, 2.4)."""
LIFE = timedelta(seconds=LIFE_S)

UNAVAILABLE = "robots_unavailable"
DENIED = "robots_denied"
AI_OPTOUT = "ai_optout"
OK, MISSING, AWAY = "ok", "missing", "unavailable"
UNUSABLE = "unusable"
"""The reason of a file that no other try would bring, although its host may be well."""

# Reasons for which another try is useless; for the host's own file they apply to its pages as well.
_PERMANENT = (PRIVATE, PORT, "url", "tls", HOST_DENIED)
# One byte above the limit shows that a file is longer.
_READ = MAX_BYTES + 1

# Bytes of stored files (compressed) and of parsed files; parsed rules take some twenty times their text.
_MAX_KEPT, _MAX_READY = 128 << 20, 8 << 20
# Of files that others redirect to: bytes kept, compressed, and what an entry takes besides.
_MAX_FILES_KEPT, _ENTRY_BYTES = 16 << 20, 500
# A visit that waits for a file fetched by another checks again after so long, then after twice as long, up to a
# maximum.
_LOOK_S, _MAX_LOOK_S = 0.1, 5.0


@dataclass(frozen=True)
class HostRobots:
    """The robots.txt and tdmrep.json of one origin as stored for the next cycle.

    Attributes:
        origin: scheme and authority, "https://example.org".
        status: "ok" (there is one), "missing" (4xx: no rules) or "unavailable" (never used again).
        body: the file, decoded, 512 KiB at most.
        fetched_at: when, in UTC.
        crawl_delay_s: its Crawl-delay, 0 for none.
        tdm: the tdmrep.json, decoded; b"" where there is no readable one, None while unknown.
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
        denied: why it must not be fetched (see `HostRules.verdict`), or "".
        why: text on a robots.txt that is unavailable, or "".
        reserved: whether tdmrep.json reserves it from text and data mining.
        terms: terms of use, as (name, value), by file.
    """

    denied: str = ""
    why: str = ""
    reserved: bool = False
    terms: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType({})


class Later(Exception):
    """A host is busy: the look-up continues where it stopped when it is called again.

    Attributes:
        seconds: after which that is worth while.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.1f} s")
        self.seconds = seconds


class Unavailable(Exception):
    """The file could not be had in this try.

    Attributes:
        reason: machine word for why another try is useless, or "".
        retry_after_s: Retry-After of the host, in seconds.
        authority: the host that is busy or did not answer, or "".
    """

    def __init__(self, why: str, *, reason: str = "", retry_after_s: float | None = None, authority: str = "") -> None:
        super().__init__(why)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.authority = authority


@dataclass(frozen=True)
class Rules:
    """The files of one origin as rules; no `reservations` where there is no tdmrep.json."""

    robots: Robots
    reservations: Reservations | None


@dataclass
class Entry:
    """Entry of one origin: its files, compressed, or the reason why it is skipped.

    Attributes:
        status: of robots.txt.
        fetched_at: when it was, in UTC.
        robots: the robots.txt.
        reason: machine word for why the origin is skipped, or "".
        why: the same as text.
        crawl_delay_s: its Crawl-delay.
        tdm: the tdmrep.json; b"" where there is no readable one, None while unknown.
        tdm_asked: whether it was requested, with success or not.
        ready: the parsed rules, while cached.
    """

    status: str
    fetched_at: datetime
    robots: bytes = b""
    reason: str = ""
    why: str = ""
    crawl_delay_s: float = 0.0
    tdm: bytes | None = None
    tdm_asked: bool = False
    ready: "Rules | None" = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Bytes that the files take."""
        return len(self.robots) + len(self.tdm or b"")


@dataclass(frozen=True)
class _Found:
    """Result for one URL: a file (None: there is none), or a redirect to `target`."""

    body: bytes | None
    target: str = ""
    at: float = field(default_factory=time.monotonic)


@dataclass
class _Way:
    """Progress of a look-up: its current URL, the redirects up to there, and how often it has waited."""

    url: str
    hops: int = 0
    waits: int = 0


class HostRules:
    """What sites allow, by origin (scheme and authority).

    Args:
        client: sends the requests.
        politeness: applies to robots.txt requests like any other.
        agent: our product token.
        max_backoff_s: longest pause between two tries.
        ai_optout: whether opt-outs from AI training in robots.txt are honoured.
        tdm: whether tdmrep.json is respected; if not, it is not requested.
        now: the clock, in UTC.
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
        self._files = SiteFiles(client, politeness, max_backoff_s, self._meet)
        self._politeness = politeness
        self._max_backoff_s = max_backoff_s
        self._ai_optout = ai_optout
        self._tdm = tdm
        self._now = now
        self._known = Memory(agent)
        self._tries: dict[str, int] = {}

    def seed(self, rows: Iterable[HostRobots]) -> None:
        """Loads files of earlier cycles, except those older than 24 hours or unavailable."""
        for row in rows:
            if row.status in (OK, MISSING) and self._now() - row.fetched_at < LIFE:
                entry = Entry(row.status, row.fetched_at, packed(row.body), crawl_delay_s=row.crawl_delay_s)
                if row.tdm is not None:
                    entry.tdm, entry.tdm_asked = packed(row.tdm), True
                self._known.keep(row.origin, entry)

    def rows(self) -> list[HostRobots]:
        """Returns all entries, by origin, for the next cycle."""
        return [
            HostRobots(
                origin,
                entry.status,
                unpacked(entry.robots),
                entry.fetched_at,
                entry.crawl_delay_s,
                None if entry.tdm is None else unpacked(entry.tdm),
            )
            for origin, entry in self._known.sorted()
        ]

    async def ruling(self, url: str) -> Ruling | None:
        """Returns the rules of the site's files for `url`.

        None where a file had to be looked up first, which takes a request: call again after the host's pause.
        """
        if not self.known(url):
            await self.look_up(url)
            return None
        origin = origin_of(url)
        entry = self._known[origin]
        if denied := self.verdict(url):
            return Ruling(denied, entry.why)
        if self._tdm and not entry.tdm_asked:
            await self._look_up_reservations(url, origin, entry)
            return None
        if not entry.size:
            return Ruling()
        rules = self._known.rules(origin)
        found = rules.reservations
        terms = {"robots": rules.robots.terms(url), "tdmrep": found.terms(url) if found is not None else ()}
        return Ruling(reserved=self._tdm and found is not None and found.reserves(url), terms=terms)

    def known(self, url: str) -> bool:
        """Returns whether the rules for `url` were looked up within the last 24 hours; sets the host's Crawl-delay."""
        entry = self._known.get(origin_of(url))
        if entry is None or self._now() - entry.fetched_at >= LIFE:
            return False
        self._pause(url, entry)
        return True

    def verdict(self, url: str) -> str | None:
        """Returns why `url` must not be fetched, or None; look the rules up first.

        "robots_unavailable", "robots_denied", "ai_optout", or what makes the host's address itself impossible
        ("private_address", "port", "tls").
        """
        origin = origin_of(url)
        entry = self._known[origin]
        if entry.status == AWAY:
            return entry.reason
        robots = self._known.rules(origin).robots
        if not robots.allows(url):
            return DENIED
        return AI_OPTOUT if self._ai_optout and robots.ai_optout(url) else None

    def sitemaps(self, url: str) -> tuple[str, ...]:
        """Returns the canonical addresses of the sitemaps that the robots.txt of `url` names, without doubles."""
        origin = origin_of(url)
        entry = self._known.get(origin)
        if entry is None or entry.status != OK:
            return ()
        listed = self._known.rules(origin).robots.sitemaps[:MAX_SITEMAPS]
        named = (canonical(one, f"{origin}/robots.txt") for one in listed)
        return tuple(dict.fromkeys(one for one in named if one))

    async def look_up(self, url: str) -> None:
        """Tries once to fetch the robots.txt that governs `url`, and sets the host's Crawl-delay.

        When the file could not be had, and may be had later, the rules stay unknown: call again when the host's pause
        is over. So they do while a host that the file redirects to is not free. After three tries the host counts as
        unavailable.
        """
        origin = origin_of(url)
        try:
            await self._fetch(origin, ())
        except Later as later:
            self._politeness.put_off(self._politeness.host(authority(url)), later.seconds)
            return
        entry = self._known.get(origin)
        if entry is not None and entry.status == AWAY:
            log.warning("%s is left out of this cycle: no robots.txt (%s)", origin, entry.why)

    async def _meet(self, url: str, origins: tuple[str, ...]) -> None:
        """Looks up the robots.txt of a site to which the files of other sites have led (`SiteFiles`)."""
        origin = origin_of(url)
        if not self.known(url):
            if origin in origins or len(origins) > MAX_REDIRECTS:
                raise Unavailable(f"{origins[0]} and {origin} redirect without end", reason=UNUSABLE)
            await self._fetch(origin, origins)
            if not self.known(url):
                host = self._politeness.host(authority(url))
                raise Later(max(host.next_at - time.monotonic(), 0.0))
        entry = self._known[origin]
        if entry.status == AWAY:
            raise Unavailable(f"{origin} must not be requested without robots.txt: {entry.why}", reason=UNUSABLE)

    async def _fetch(self, origin: str, origins: tuple[str, ...]) -> None:
        """Tries once to fetch a robots.txt, and stores a final result."""
        host = self._politeness.host(authority(f"{origin}/"))
        try:
            body = await self._files.get(f"{origin}/robots.txt", origins=origins)
        except (Unavailable, ValueError) as why:
            if self._is_over(origin, host, why):
                reason = why.reason if isinstance(why, Unavailable) else ""
                reason = UNAVAILABLE if reason in ("", UNUSABLE) else reason
                self._known.keep(origin, Entry(AWAY, self._now(), reason=reason, why=str(why)[:500]))
            return
        self._tries.pop(origin, None)
        self._politeness.succeeded(host)
        entry = Entry(MISSING if body is None else OK, self._now(), packed(beginning(body or b"")))
        self._known.keep(origin, entry)
        entry.crawl_delay_s = crawl_delay(self._known.rules(origin).robots.crawl_delay())
        self._pause(f"{origin}/", entry)
        self._politeness.rest(host)

    def _is_over(self, origin: str, host: Host, why: Exception) -> bool:
        """Records a failed try; returns whether it was the last."""
        if not isinstance(why, Unavailable):
            return True
        busy = self._politeness.host(why.authority) if why.authority else host
        pause = self._politeness.failed(busy, why.retry_after_s)
        tries = self._tries[origin] = self._tries.get(origin, 0) + 1
        over = bool(why.reason) or tries >= TRIES or pause > self._max_backoff_s
        if over:
            del self._tries[origin]
        if busy is not host:
            # Others may redirect there, too: a site that keeps failing is not tried for each of them.
            if pause > self._max_backoff_s or busy.failures >= HOST_FAILURES:
                busy.given_up = GIVEN_UP
            if not over:
                self._politeness.put_off(host, pause)
        return over

    async def _look_up_reservations(self, url: str, origin: str, entry: Entry) -> None:
        """Tries to fetch the tdmrep.json that governs `url`, which robots.txt must allow to be fetched itself.

        Once, whatever the result: an unreachable site reserves nothing, and is tried again in the next cycle. While a
        host that the file redirects to is not free, it stays to be looked up: call again.
        """
        entry.tdm_asked = True
        try:
            body = await self._files.get(origin + TDMREP, self._may_request)
        except Later as later:
            entry.tdm_asked = False
            self._politeness.put_off(self._politeness.host(authority(url)), later.seconds)
            return
        except (Unavailable, ValueError) as why:
            log.info("%s reserves nothing: its tdmrep.json cannot be had (%s)", origin, why)
            if isinstance(why, Unavailable) and why.authority:
                self._put_off(self._politeness.host(why.authority), why.retry_after_s)
            return
        self._politeness.succeeded(self._politeness.host(authority(url)))
        try:
            self._known.keep_tdm(origin, entry, b"" if body is None else _checked(body))
        except ValueError as why:
            log.info("%s reserves nothing: its tdmrep.json cannot be read (%s)", origin, why)
            entry.tdm = b""

    def _may_request(self, url: str) -> bool:
        """Returns whether a site's robots.txt allows its tdmrep.json; of another site, if known."""
        origin = origin_of(url)
        entry = self._known.get(origin)
        return entry is None or (entry.status != AWAY and self._known.rules(origin).robots.allows(url))

    def _put_off(self, host: Host, asked_pause_s: float | None) -> None:
        # A pause that a host requires applies to all requests; a failure alone only costs a longer pause.
        if self._politeness.failed(host, asked_pause_s) > self._max_backoff_s:
            host.given_up = GIVEN_UP

    def _pause(self, url: str, entry: Entry) -> None:
        # A pause required on http also applies to https.
        host = self._politeness.host(authority(url))
        host.crawl_delay_s = max(host.crawl_delay_s, entry.crawl_delay_s)


def _checked(body: bytes) -> bytes:
    """Returns a tdmrep.json if it can be read; raises ValueError if not."""
    if len(body) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    Reservations(body)
    return body


class SiteFiles:
    """Fetches files of sites.

    Args:
        client: sends the requests.
        politeness: the hosts' clocks.
        patience_s: a redirect to a host with a longer pause is not followed.
        meet: called with a URL of another site, and with the origins whose files redirected there, before the first
            request to that site: sets its Crawl-delay, or raises Later or Unavailable.
    """

    def __init__(
        self,
        client: Client,
        politeness: Politeness,
        patience_s: float,
        meet: Callable[[str, tuple[str, ...]], Awaitable[None]],
    ) -> None:
        self._client = client
        self._politeness = politeness
        self._patience_s = patience_s
        self._meet = meet
        self._ways: dict[str, _Way] = {}
        # By URL, and by whether the settings of the hosts file were left out.
        self._kept: OrderedDict[tuple[str, bool], _Found] = OrderedDict()
        self._kept_bytes = 0
        # By URL: the look-up that fetches it for all waiting ones, and when it expires.
        self._fetchers: dict[str, tuple[str, float]] = {}

    async def get(
        self, url: str, allowed: Callable[[str], bool] = lambda _: True, *, origins: tuple[str, ...] = ()
    ) -> bytes | None:
        """Tries once to fetch the file at `url`.

        Args:
            url: its canonical address.
            allowed: returns whether a URL, and each that it redirects to, may be requested.
            origins: origins whose files redirected here; without any, the visit is one to the file's own host.

        Returns:
            The file, 512 KiB and one byte at most; None where there is none (4xx).

        Raises:
            Later: a host is not free yet; call again.
            Unavailable: 429, 5xx, no answer, or an answer that leads nowhere.
        """
        way = self._ways.pop(url, None) or _Way(url)
        while way.hops <= MAX_REDIRECTS:
            try:
                found = await self._step(url, way, allowed, origins)
            except Later:
                way.waits += 1
                self._ways[url] = way
                raise
            if not found.target:
                return found.body and unpacked(found.body)
            way = _Way(found.target, way.hops + 1)
        raise Unavailable(f"more than {MAX_REDIRECTS} redirects", reason=UNUSABLE)

    async def _step(self, first: str, way: _Way, allowed: Callable[[str], bool], origins: tuple[str, ...]) -> _Found:
        if origin_of(way.url) != origin_of(first):
            await self._meet(way.url, (*origins, origin_of(first)))
        if not allowed(way.url):
            raise Unavailable(f"robots.txt forbids {way.url}", reason=UNUSABLE)
        # A request after a redirect from another host is sent without the settings of the hosts file.
        anonymous = authority(way.url) != authority(first)
        kept = self._kept.get((way.url, anonymous))
        if kept is not None and time.monotonic() - kept.at < LIFE_S:
            self._kept.move_to_end((way.url, anonymous))
            return kept
        host = self._politeness.host(authority(way.url))
        if not way.hops and not origins:
            return await self._request(way.url, host, own=True, anonymous=False)
        if host.given_up or host.next_at - time.monotonic() > self._patience_s:
            raise Unavailable(f"{host.authority} must not be requested for a while", reason=UNUSABLE)
        await self._wait_for_turn(first, way, host)
        try:
            found = await self._request(way.url, host, own=not way.hops, anonymous=anonymous)
        finally:
            self._fetchers.pop(way.url, None)
        self._keep((way.url, anonymous), found)
        return found

    async def _wait_for_turn(self, first: str, way: _Way, host: Host) -> None:
        """Raises Later unless the host may be requested now; of many look-ups of one file only one is queued."""
        fetcher, until = self._fetchers.get(way.url, ("", 0.0))
        now = time.monotonic()
        if fetcher not in ("", first) and now < until:
            raise Later(min(_LOOK_S * 2**way.waits, _MAX_LOOK_S))
        wait = self._politeness.stand_in_line(host, (await self._client.locate(way.url)).address)
        # Longer than any request: then the expected visit has been given up.
        self._fetchers[way.url] = (first, now + wait + self._patience_s)
        if wait:
            raise Later(wait)

    async def _request(self, url: str, host: Host, *, own: bool, anonymous: bool) -> _Found:
        try:
            async with self._politeness.turn(host):
                response = await self._client.get(url, limit=_READ, anonymous=anonymous)
        except FetchError as error:
            if error.reason not in _PERMANENT:
                raise Unavailable(str(error), authority=host.authority) from error
            raise Unavailable(str(error), reason=error.reason if own else UNUSABLE) from error
        if not 300 <= response.status < 400:
            body = _file(response, url)
            return _Found(None if body is None else packed(body))
        target = canonical(response.location, url) if response.location is not None else None
        if target is None:
            raise Unavailable(f"status {response.status} without a usable Location", reason=UNUSABLE)
        return _Found(None, target)

    def _keep(self, place: tuple[str, bool], found: _Found) -> None:
        before = self._kept.pop(place, None)
        self._kept[place] = found
        self._kept_bytes += _size(found) - (_size(before) if before else 0)
        while self._kept_bytes > _MAX_FILES_KEPT:
            self._kept_bytes -= _size(self._kept.popitem(last=False)[1])


def _size(found: _Found) -> int:
    return _ENTRY_BYTES + len(found.body or b"") + len(found.target)


def _file(response: Response, url: str) -> bytes | None:
    if 200 <= response.status < 300:
        body = decode(response.body, ",".join(response.all("content-encoding")), _READ).data
        if response.body and not body:
            raise Unavailable("its content coding cannot be undone")
        return body
    if 400 <= response.status < 500 and response.status != 429:
        return None
    pause_s = retry_after(response.header("retry-after"))
    raise Unavailable(f"status {response.status}", retry_after_s=pause_s, authority=authority(url))


class Memory:
    """Entries by origin; when files exceed the limit the oldest are dropped.

    Args:
        agent: our product token, for which robots.txt is read.
    """

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._known: OrderedDict[str, Entry] = OrderedDict()
        self._ready: OrderedDict[str, int] = OrderedDict()
        self._kept_bytes = self._ready_bytes = 0

    def __getitem__(self, origin: str) -> Entry:
        return self._known[origin]

    def get(self, origin: str) -> Entry | None:
        """Returns the entry of an origin, or None."""
        return self._known.get(origin)

    def sorted(self) -> Iterator[tuple[str, Entry]]:
        """Yields origins and their entries, sorted by origin."""
        yield from sorted(self._known.items(), key=lambda item: item[0])

    def keep(self, origin: str, entry: Entry) -> None:
        """Stores the entry of an origin."""
        self._forget(origin)
        self._known[origin] = entry
        self._kept_bytes += entry.size
        while self._kept_bytes > _MAX_KEPT:
            self._forget(next(origin for origin, entry in self._known.items() if entry.size))

    def keep_tdm(self, origin: str, entry: Entry, body: bytes) -> None:
        """Adds the tdmrep.json to an entry, which may have been forgotten while it was fetched."""
        remembered = bool(body) and self._known.get(origin) is entry
        if remembered:
            self._forget(origin)
            entry.ready = None
        entry.tdm = packed(body)
        if remembered:
            self.keep(origin, entry)

    def rules(self, origin: str) -> Rules:
        """Returns the rules of an origin that is known; rules not used lately are parsed again."""
        entry = self._known[origin]
        if entry.ready is None:
            robots, tdm = unpacked(entry.robots), unpacked(entry.tdm or b"")
            entry.ready = Rules(Robots(robots, self._agent), Reservations(tdm) if tdm else None)
            self._ready[origin] = len(robots) + len(tdm)
            self._ready_bytes += len(robots) + len(tdm)
            while self._ready_bytes > _MAX_READY and len(self._ready) > 1:
                oldest, size = self._ready.popitem(last=False)
                self._ready_bytes -= size
                self._known[oldest].ready = None
        elif origin in self._ready:
            self._ready.move_to_end(origin)
        return entry.ready

    def _forget(self, origin: str) -> None:
        entry = self._known.pop(origin, None)
        self._kept_bytes -= entry.size if entry else 0
        self._ready_bytes -= self._ready.pop(origin, 0)


def packed(body: bytes) -> bytes:
    """Returns a file as it is kept; b"" stays b""."""
    return zlib.compress(body, 1) if body else b""


def unpacked(kept: bytes) -> bytes:
    """Returns the file that is kept."""
    return zlib.decompress(kept) if kept else b""
