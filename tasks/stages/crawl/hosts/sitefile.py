"""A file in which a site speaks to crawlers (robots.txt, tdmrep.json), fetched politely over up to five redirects.

Every request takes its turn like any other; what comes is unpacked, and cut one byte above 512 KiB. The files of many
sites may lie on one host: it is asked once for each file, at its own pause, and nobody waits for it with a request's
place in hand.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tasks.formats.canonical_url import canonical
from tasks.formats.content_encoding import decode
from tasks.formats.robots.lines import MAX_BYTES
from tasks.formats.url import authority, origin_of
from tasks.stages.crawl.hosts.memory import packed, unpacked
from tasks.stages.crawl.hosts.politeness import Host, Politeness, retry_after
from tasks.stages.crawl.http.address import PORT, PRIVATE
from tasks.stages.crawl.http.client import Answer, Client, FetchError
from tasks.stages.crawl.policy import HOST_DENIED

MAX_REDIRECTS = 5
LIFE_S = 24 * 3600.0
"""How long a file may be used (RFC 9309, 2.4)."""
UNUSABLE = "unusable"
"""The reason of a file that no other try would bring, although its host may be well."""

# Another try would end the same way; of the host's own file these say as much of its pages.
_PERMANENT = (PRIVATE, PORT, "url", "tls", HOST_DENIED)
# One byte more than counts tells that a file goes on.
_READ = MAX_BYTES + 1
# Of files that others redirect to: bytes kept, compressed, and what an entry takes besides.
_MAX_KEPT, _ENTRY = 16 << 20, 500
# Whoever waits for a file that another fetches looks again after so long, then after twice as long, up to the most.
_LOOK_S, _MAX_LOOK_S = 0.1, 5.0


class Later(Exception):
    """A host is not free: the look-up goes on where it stopped when it is called again.

    Attributes:
        seconds: after which that is worth while.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.1f} s")
        self.seconds = seconds


class Unavailable(Exception):
    """The file could not be had in this try.

    Attributes:
        reason: why another try would end the same way, as a machine word, or "".
        retry_after_s: the pause that the host asked for, in seconds.
        authority: the host that is busy or did not answer, or "".
    """

    def __init__(self, why: str, *, reason: str = "", retry_after_s: float | None = None, authority: str = "") -> None:
        super().__init__(why)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.authority = authority


@dataclass(frozen=True)
class _Found:
    """What is at an address: a file (None: there is none), or a redirect to `target`."""

    body: bytes | None
    target: str = ""
    at: float = field(default_factory=time.monotonic)


@dataclass
class _Way:
    """How far a look-up has come: the address it is at, the redirects up to there, and how often it has waited."""

    url: str
    hops: int = 0
    waits: int = 0


class SiteFiles:
    """Fetches files of sites.

    Args:
        client: sends the requests.
        politeness: the hosts' clocks.
        patience_s: a redirect to a host that has to be left alone for longer is not followed.
        meet: called with an address of another site, and with the origins whose files led there, before that site is
            asked for anything: makes its Crawl-delay known, or raises Later or Unavailable.
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
        # By address, and by whether it was asked for without what the hosts file sets.
        self._kept: OrderedDict[tuple[str, bool], _Found] = OrderedDict()
        self._kept_bytes = 0
        # By address: the look-up that fetches it for all who wait, and until when they believe that it does.
        self._fetchers: dict[str, tuple[str, float]] = {}

    async def get(
        self, url: str, allowed: Callable[[str], bool] = lambda _: True, *, origins: tuple[str, ...] = ()
    ) -> bytes | None:
        """Tries once to fetch the file at `url`.

        Args:
            url: its canonical address.
            allowed: tells of that address, and of each that it redirects to, whether it may be asked for.
            origins: whose files led here; without any, a visit to the file's own host asks, at that host's time.

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
        # Whom another host has led there is shown what anybody is.
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
        """Raises Later unless the host may be asked now; of many who want the same file one stands in line."""
        fetcher, until = self._fetchers.get(way.url, ("", 0.0))
        now = time.monotonic()
        if fetcher not in ("", first) and now < until:
            raise Later(min(_LOOK_S * 2**way.waits, _MAX_LOOK_S))
        wait = self._politeness.stand_in_line(host, await self._client.locate(way.url))
        # Longer than any request lasts: then the visit that was to come has been given up.
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
    asked = retry_after(answer.header("retry-after"))
    raise Unavailable(f"status {answer.status}", retry_after_s=asked, authority=authority(url))
