"""Rules of each site: its robots.txt and tdmrep.json, fetched politely once a day.

RFC 9309 2.3.1: 4xx means no rules; an unreachable file (429, 5xx, network error after three tries, content that cannot
be decoded) never counts as permission: the host is skipped for this cycle. Files are cached for 24 hours (2.4), also
for the next cycle, as `HostRobots` rows.

tdmrep.json is requested once, before the first page of the site, and expires with the site's robots.txt. A site without
a readable one reserves nothing, by the protocol, and is crawled.

Where a file redirects to another site, that site's robots.txt is looked up first: its Crawl-delay applies to the
request.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tasks.formats.robots.lines import MAX_BYTES, beginning
from tasks.formats.robots.tdmrep import TDMREP, Reservations
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import authority, origin_of
from tasks.stages.crawl.hosts.politeness import GIVEN_UP, HOST_FAILURES, Host, Politeness, crawl_delay
from tasks.stages.crawl.hosts.sitefile import (
    LIFE_S,
    MAX_REDIRECTS,
    UNUSABLE,
    Entry,
    Later,
    Memory,
    SiteFiles,
    Unavailable,
    packed,
    unpacked,
)
from tasks.stages.crawl.http.client import Client

log = logging.getLogger("sluice.crawl")

TRIES = 3
MAX_SITEMAPS = 1000
LIFE = timedelta(seconds=LIFE_S)

UNAVAILABLE = "robots_unavailable"
DENIED = "robots_denied"
AI_OPTOUT = "ai_optout"
OK, MISSING, AWAY = "ok", "missing", "unavailable"


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

    def why(self, url: str) -> str:
        """Returns text on why the rules for `url` are unavailable; "" when they are available."""
        return self._known[origin_of(url)].why

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
            raise Unavailable(f"{origin} is not to be asked, its robots.txt is missing: {entry.why}", reason=UNUSABLE)

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

    def reservations_known(self, url: str) -> bool:
        """Returns whether the tdmrep.json of `url` needs no look-up (any more); look its robots.txt up first."""
        return not self._tdm or self._known[origin_of(url)].tdm_asked

    def reserved(self, url: str) -> bool:
        """Returns whether the site's tdmrep.json, if known, reserves `url` from text and data mining."""
        origin = origin_of(url)
        entry = self._known.get(origin)
        if not self._tdm or entry is None or not entry.tdm:
            return False
        reservations = self._known.rules(origin).reservations
        return reservations is not None and reservations.reserves(url)

    def terms(self, url: str) -> dict[str, list[tuple[str, str]]]:
        """Returns the terms of use of the site for `url`, as (name, value), by file."""
        origin = origin_of(url)
        entry = self._known.get(origin)
        if entry is None or not entry.size:
            return {}
        rules = self._known.rules(origin)
        stated = rules.reservations.terms(url) if rules.reservations is not None else ()
        return {"robots": rules.robots.terms(url), "tdmrep": list(stated)}

    async def look_up_reservations(self, url: str) -> None:
        """Tries to fetch the tdmrep.json that governs `url`, which robots.txt must allow to be fetched itself.

        Once, whatever the result: an unreachable site reserves nothing, and is tried again in the next cycle. While a
        host that the file redirects to is not free, it stays to be looked up: call again.
        """
        origin = origin_of(url)
        entry = self._known[origin]
        entry.tdm_asked = True
        try:
            body = await self._files.get(origin + TDMREP, self._may_ask)
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

    def _may_ask(self, url: str) -> bool:
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
