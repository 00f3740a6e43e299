"""The robots.txt of each host: fetched politely once per task, and what its absence means.

Used by fetch. RFC 9309 2.3.1: 4xx means no rules; an unreachable file (429, 5xx, network error after three tries)
means the host is left alone for this cycle and is never taken for permission.
"""

import logging

from tasks.archive import decode
from tasks.crawl.client import Answer, Client, FetchError
from tasks.crawl.politeness import Politeness, crawl_delay, retry_after
from tasks.crawl.robots import MAX_BYTES, Robots
from tasks.crawl.url import authority, canonical

log = logging.getLogger("sluice.crawl")

TRIES = 3
MAX_REDIRECTS = 5
UNAVAILABLE = "robots_unavailable"
DENIED = "robots_denied"

_PERMANENT = ("private_address", "port", "url")


class _Unavailable(Exception):
    """The file could not be had in this try; `retry_after_s` is what the host asked for."""

    def __init__(self, why: str, *, retry_after_s: float | None = None, permanent: bool = False) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s
        self.permanent = permanent


class HostRules:
    """Robots rules by origin (scheme and authority).

    Args:
        client: sends the requests.
        politeness: robots.txt requests take their turn like any other.
        agent: our product token.
        max_backoff_s: longest pause between two tries.
    """

    def __init__(self, client: Client, politeness: Politeness, agent: str, max_backoff_s: float) -> None:
        self._client = client
        self._politeness = politeness
        self._agent = agent
        self._max_backoff_s = max_backoff_s
        self._known: dict[str, Robots | None] = {}

    def known(self, url: str) -> bool:
        """Tells whether the rules for `url` were looked up before."""
        return _origin(url) in self._known

    def verdict(self, url: str) -> str | None:
        """Returns "robots_unavailable", "robots_denied" or None (go ahead); look the rules up first."""
        robots = self._known[_origin(url)]
        if robots is None:
            return UNAVAILABLE
        return None if robots.allows(url) else DENIED

    async def look_up(self, url: str) -> None:
        """Fetches the robots.txt that governs `url` and sets the host's Crawl-delay."""
        origin = _origin(url)
        host = self._politeness.host(authority(url))
        try:
            self._known[origin] = robots = await self._fetched(origin)
            # A host that asks for a pause on http means its https side too.
            host.crawl_delay_s = max(host.crawl_delay_s, crawl_delay(robots.crawl_delay()))
            self._politeness.rest(host)
        except (_Unavailable, ValueError) as why:
            log.warning("%s is left out of this cycle: no robots.txt (%s)", origin, why)
            self._known[origin] = None

    async def _fetched(self, origin: str) -> Robots:
        host = self._politeness.host(authority(f"{origin}/"))
        for attempt in range(TRIES):
            try:
                robots = await self._tried(f"{origin}/robots.txt")
            except _Unavailable as why:
                pause = self._politeness.failed(host, why.retry_after_s)
                if why.permanent or attempt == TRIES - 1 or pause > self._max_backoff_s:
                    raise
            else:
                self._politeness.succeeded(host)
                return robots
        raise _Unavailable("no try was made")

    async def _tried(self, url: str) -> Robots:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(url)
            if not 300 <= answer.status < 400:
                return _rules(answer, self._agent)
            target = canonical(answer.header("location") or "", url)
            if answer.header("location") is None or target is None:
                raise _Unavailable(f"status {answer.status} without a usable Location", permanent=True)
            url = target
        raise _Unavailable(f"more than {MAX_REDIRECTS} redirects", permanent=True)

    async def _get(self, url: str) -> Answer:
        try:
            # A redirect may lead to a host that is being crawled: it waits for that host's turn.
            async with self._politeness.turn(self._politeness.host(authority(url))):
                return await self._client.get(url, limit=MAX_BYTES)
        except FetchError as error:
            raise _Unavailable(str(error), permanent=error.reason in _PERMANENT) from error


def _rules(answer: Answer, agent: str) -> Robots:
    if 200 <= answer.status < 300:
        coding = ",".join(answer.all("content-encoding"))
        return Robots(decode(answer.body, coding, MAX_BYTES).data, agent)
    if 400 <= answer.status < 500 and answer.status != 429:
        return Robots(b"", agent)
    raise _Unavailable(f"status {answer.status}", retry_after_s=retry_after(answer.header("retry-after")))


def _origin(url: str) -> str:
    return "/".join(url.split("/", 3)[:3])
