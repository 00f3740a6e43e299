"""The robots.txt of each host: fetched politely once a day, and what its absence means.

Used by fetch and render. RFC 9309 2.3.1: 4xx means no rules; an unreachable file (429, 5xx, network error after three
tries, content that cannot be decoded) means the host is left alone for this cycle and is never taken for permission.
What was fetched is known for 24 hours (2.4), also by the next cycle, which gets it as `HostRobots` rows.
"""

import logging
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tasks.archive import decode
from tasks.crawl.hosts.politeness import Host, Politeness, crawl_delay, retry_after
from tasks.crawl.http.address import PORT, PRIVATE
from tasks.crawl.http.client import Answer, Client, FetchError
from tasks.crawl.robots.lines import MAX_BYTES, beginning
from tasks.crawl.robots.robotstxt import Robots
from tasks.crawl.url import authority, canonical

log = logging.getLogger("sluice.crawl")

TRIES = 3
MAX_REDIRECTS = 5
MAX_SITEMAPS = 1000
LIFE = timedelta(hours=24)

UNAVAILABLE = "robots_unavailable"
DENIED = "robots_denied"
AI_OPTOUT = "ai_optout"
OK, MISSING, AWAY = "ok", "missing", "unavailable"

# Another try would end the same way; of the host's own file these say as much of its pages.
_PERMANENT = (PRIVATE, PORT, "url", "tls")
# One byte more than counts tells that a file goes on.
_READ = MAX_BYTES + 1
# Bytes of files kept (compressed) and of files whose rules lie ready; rules take some twenty times their text.
_MAX_KEPT, _MAX_READY = 128 << 20, 8 << 20


@dataclass(frozen=True)
class HostRobots:
    """The robots.txt of one origin as a cycle leaves it for the next.

    Attributes:
        origin: scheme and authority, "https://example.org".
        status: "ok" (there is one), "missing" (4xx: no rules) or "unavailable" (never used again).
        body: the file, decoded, 512 KiB at most.
        fetched_at: when, in UTC.
        crawl_delay_s: the pause it asks of us, 0 for none.
    """

    origin: str
    status: str
    body: bytes
    fetched_at: datetime
    crawl_delay_s: float


@dataclass
class _Entry:
    """What is known of one origin: the file compressed, or the reason why it is left out."""

    status: str
    fetched_at: datetime
    packed: bytes = b""
    reason: str = ""
    why: str = ""
    crawl_delay_s: float = 0.0
    robots: Robots | None = field(default=None, repr=False)

    @property
    def body(self) -> bytes:
        return zlib.decompress(self.packed) if self.packed else b""


class _Unavailable(Exception):
    """The file could not be had in this try; `retry_after_s` is what the host asked for."""

    def __init__(self, why: str, *, retry_after_s: float | None = None, reason: str = "") -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s
        self.reason = reason


class HostRules:
    """Robots rules by origin (scheme and authority).

    Args:
        client: sends the requests.
        politeness: robots.txt requests take their turn like any other.
        agent: our product token.
        max_backoff_s: longest pause between two tries.
        ai_optout: whether opt-outs from AI training in robots.txt are honoured.
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
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._politeness = politeness
        self._agent = agent
        self._max_backoff_s = max_backoff_s
        self._ai_optout = ai_optout
        self._now = now
        self._known: OrderedDict[str, _Entry] = OrderedDict()
        self._tries: dict[str, int] = {}
        self._ready: OrderedDict[str, int] = OrderedDict()
        self._kept_bytes = self._ready_bytes = 0

    def seed(self, held: Iterable[HostRobots]) -> None:
        """Takes over what earlier cycles fetched; what is older than 24 hours or was unavailable is passed over."""
        for row in held:
            if row.status in (OK, MISSING) and self._now() - row.fetched_at < LIFE:
                self._keep(row.origin, _entry(row.status, row.fetched_at, row.body, row.crawl_delay_s))

    def rows(self) -> list[HostRobots]:
        """Returns what is known, by origin, for the next cycle."""
        return [
            HostRobots(origin, entry.status, entry.body, entry.fetched_at, entry.crawl_delay_s)
            for origin, entry in sorted(self._known.items())
        ]

    def known(self, url: str) -> bool:
        """Tells whether the rules for `url` were looked up within the last 24 hours; sets the host's Crawl-delay."""
        entry = self._known.get(_origin(url))
        if entry is None or self._now() - entry.fetched_at >= LIFE:
            return False
        self._pause(url, entry)
        return True

    def verdict(self, url: str) -> str | None:
        """Returns why `url` is not to be fetched, or None (go ahead); look the rules up first.

        "robots_unavailable", "robots_denied", "ai_optout", or what makes the host's address itself impossible
        ("private_address", "port", "tls").
        """
        origin = _origin(url)
        entry = self._known[origin]
        if entry.status == AWAY:
            return entry.reason
        robots = self._robots(origin, entry)
        if not robots.allows(url):
            return DENIED
        return AI_OPTOUT if self._ai_optout and robots.ai_optout(url) else None

    def why(self, url: str) -> str:
        """Returns for people why the rules for `url` could not be had; "" when they were."""
        return self._known[_origin(url)].why

    def sitemaps(self, url: str) -> tuple[str, ...]:
        """Returns the canonical addresses of the sitemaps that the robots.txt of `url` names, without doubles."""
        origin = _origin(url)
        entry = self._known.get(origin)
        if entry is None or entry.status != OK:
            return ()
        named = (canonical(one, f"{origin}/robots.txt") for one in self._robots(origin, entry).sitemaps[:MAX_SITEMAPS])
        return tuple(dict.fromkeys(one for one in named if one))

    async def look_up(self, url: str) -> None:
        """Tries once to fetch the robots.txt that governs `url`, and sets the host's Crawl-delay.

        When the file could not be had, and may be had later, the rules stay unknown: call again when the host's pause
        is over. After three tries the host counts as unavailable.
        """
        origin = _origin(url)
        host = self._politeness.host(authority(url))
        try:
            status, body = await self._tried(f"{origin}/robots.txt")
        except (_Unavailable, ValueError) as why:
            if not self._is_over(origin, host, why):
                return
            log.warning("%s is left out of this cycle: no robots.txt (%s)", origin, why)
            reason = why.reason if isinstance(why, _Unavailable) and why.reason else UNAVAILABLE
            self._keep(origin, _Entry(AWAY, self._now(), reason=reason, why=str(why)[:500]))
            return
        self._tries.pop(origin, None)
        self._politeness.succeeded(host)
        entry = _entry(status, self._now(), body, 0.0)
        self._keep(origin, entry)
        entry.crawl_delay_s = crawl_delay(self._robots(origin, entry).crawl_delay())
        self._pause(url, entry)
        self._politeness.rest(host)

    def _is_over(self, origin: str, host: Host, why: Exception) -> bool:
        """Notes a try that failed; tells whether it was the last."""
        if not isinstance(why, _Unavailable):
            return True
        pause = self._politeness.failed(host, why.retry_after_s)
        tries = self._tries[origin] = self._tries.get(origin, 0) + 1
        if why.reason or tries >= TRIES or pause > self._max_backoff_s:
            del self._tries[origin]
            return True
        return False

    def _pause(self, url: str, entry: _Entry) -> None:
        # A host that asks for a pause on http means its https side too.
        host = self._politeness.host(authority(url))
        host.crawl_delay_s = max(host.crawl_delay_s, entry.crawl_delay_s)

    def _keep(self, origin: str, entry: _Entry) -> None:
        """Remembers an origin; when files take too much room those that came first are looked up again if need be."""
        self._forget(origin)
        self._known[origin] = entry
        self._kept_bytes += len(entry.packed)
        while self._kept_bytes > _MAX_KEPT:
            self._forget(next(one for one, held in self._known.items() if held.packed))

    def _forget(self, origin: str) -> None:
        entry = self._known.pop(origin, None)
        self._kept_bytes -= len(entry.packed) if entry else 0
        self._ready_bytes -= self._ready.pop(origin, 0)

    def _robots(self, origin: str, entry: _Entry) -> Robots:
        """Returns the rules of an origin; those not asked for lately are read anew from their text."""
        if entry.robots is None:
            body = entry.body
            entry.robots = Robots(body, self._agent)
            self._ready[origin] = len(body)
            self._ready_bytes += len(body)
            while self._ready_bytes > _MAX_READY and len(self._ready) > 1:
                oldest, size = self._ready.popitem(last=False)
                self._ready_bytes -= size
                self._known[oldest].robots = None
        elif origin in self._ready:
            self._ready.move_to_end(origin)
        return entry.robots

    async def _tried(self, url: str) -> tuple[str, bytes]:
        for hop in range(MAX_REDIRECTS + 1):
            answer = await self._get(url, own=hop == 0)
            if not 300 <= answer.status < 400:
                return _file(answer)
            target = canonical(answer.location, url) if answer.location is not None else None
            if target is None:
                raise _Unavailable(f"status {answer.status} without a usable Location", reason=UNAVAILABLE)
            url = target
        raise _Unavailable(f"more than {MAX_REDIRECTS} redirects", reason=UNAVAILABLE)

    async def _get(self, url: str, *, own: bool) -> Answer:
        try:
            # A redirect may lead to a host that is being crawled: it waits for that host's turn.
            async with self._politeness.turn(self._politeness.host(authority(url))):
                return await self._client.get(url, limit=_READ)
        except FetchError as error:
            if error.reason not in _PERMANENT:
                raise _Unavailable(str(error)) from error
            raise _Unavailable(str(error), reason=error.reason if own else UNAVAILABLE) from error


def _entry(status: str, fetched_at: datetime, body: bytes, crawl_delay_s: float) -> _Entry:
    packed = zlib.compress(beginning(body), 1) if body else b""
    return _Entry(status, fetched_at, packed, crawl_delay_s=crawl_delay_s)


def _file(answer: Answer) -> tuple[str, bytes]:
    if 200 <= answer.status < 300:
        body = decode(answer.body, ",".join(answer.all("content-encoding")), _READ).data
        if answer.body and not body:
            raise _Unavailable("its content coding cannot be undone")
        return OK, beginning(body)
    if 400 <= answer.status < 500 and answer.status != 429:
        return MISSING, b""
    raise _Unavailable(f"status {answer.status}", retry_after_s=retry_after(answer.header("retry-after")))


def _origin(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])
