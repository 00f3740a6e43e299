"""Fetching of robots.txt and tdmrep.json, politely, over up to five redirects.

Every request is subject to politeness like any other; the body is decoded, and cut one byte above 512 KiB. The files of
many sites may be on one host: each file is requested once, at that host's pause, and no visit occupies a slot while it
waits for it.

Cache of sites' robots.txt and tdmrep.json in bounded memory: compressed, and parsed where recently used.
"""

import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from tasks.formats.robots.lines import MAX_BYTES
from tasks.formats.robots.robotstxt import Robots
from tasks.formats.robots.tdmrep import Reservations
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.content_encoding import decode
from tasks.formats.web.url import authority, origin_of
from tasks.stages.crawl.hosts.politeness import Host, Politeness, retry_after
from tasks.stages.crawl.http.address import PORT, PRIVATE
from tasks.stages.crawl.http.client import Answer, Client, FetchError
from tasks.stages.crawl.policy import HOST_DENIED

# Bytes of stored files (compressed) and of parsed files; parsed rules take some twenty times their text.
_MAX_KEPT, _MAX_READY = 128 << 20, 8 << 20


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
class Rules:
    """The files of one origin as rules; no `reservations` where there is no tdmrep.json."""

    robots: Robots
    reservations: Reservations | None


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


MAX_REDIRECTS = 5
LIFE_S = 24 * 3600.0
"""How long a file may be used (RFC 9309, 2.4)."""
UNUSABLE = "unusable"
"""The reason of a file that no other try would bring, although its host may be well."""

# Reasons for which another try is useless; for the host's own file they apply to its pages as well.
_PERMANENT = (PRIVATE, PORT, "url", "tls", HOST_DENIED)
# One byte above the limit shows that a file is longer.
_READ = MAX_BYTES + 1
# Of files that others redirect to: bytes kept, compressed, and what an entry takes besides.
_MAX_KEPT, _ENTRY = 16 << 20, 500
# A visit that waits for a file fetched by another checks again after so long, then after twice as long, up to a
# maximum.
_LOOK_S, _MAX_LOOK_S = 0.1, 5.0


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
            return await self._ask(way.url, host, own=True, anonymous=False)
        if host.given_up or host.next_at - time.monotonic() > self._patience_s:
            raise Unavailable(f"{host.authority} is not to be asked for a while", reason=UNUSABLE)
        await self._wait_for_turn(first, way, host)
        try:
            found = await self._ask(way.url, host, own=not way.hops, anonymous=anonymous)
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
        wait = self._politeness.stand_in_line(host, await self._client.locate(way.url))
        # Longer than any request: then the expected visit has been given up.
        self._fetchers[way.url] = (first, now + wait + self._patience_s)
        if wait:
            raise Later(wait)

    async def _ask(self, url: str, host: Host, *, own: bool, anonymous: bool) -> _Found:
        try:
            async with self._politeness.turn(host):
                answer = await self._client.get(url, limit=_READ, anonymous=anonymous)
        except FetchError as error:
            if error.reason not in _PERMANENT:
                raise Unavailable(str(error), authority=host.authority) from error
            raise Unavailable(str(error), reason=error.reason if own else UNUSABLE) from error
        if not 300 <= answer.status < 400:
            body = _file(answer, url)
            return _Found(None if body is None else packed(body))
        target = canonical(answer.location, url) if answer.location is not None else None
        if target is None:
            raise Unavailable(f"status {answer.status} without a usable Location", reason=UNUSABLE)
        return _Found(None, target)

    def _keep(self, place: tuple[str, bool], found: _Found) -> None:
        before = self._kept.pop(place, None)
        self._kept[place] = found
        self._kept_bytes += _size(found) - (_size(before) if before else 0)
        while self._kept_bytes > _MAX_KEPT:
            self._kept_bytes -= _size(self._kept.popitem(last=False)[1])


def _size(found: _Found) -> int:
    return _ENTRY + len(found.body or b"") + len(found.target)


def _file(answer: Answer, url: str) -> bytes | None:
    if 200 <= answer.status < 300:
        body = decode(answer.body, ",".join(answer.all("content-encoding")), _READ).data
        if answer.body and not body:
            raise Unavailable("its content coding cannot be undone")
        return body
    if 400 <= answer.status < 500 and answer.status != 429:
        return None
    pause_s = retry_after(answer.header("retry-after"))
    raise Unavailable(f"status {answer.status}", retry_after_s=pause_s, authority=authority(url))
