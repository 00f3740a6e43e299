"""Politeness per host: one request at a time, a pause after each, longer for slow hosts and on their request.

The pause runs from the end of one request to the start of the next, so that two requests are never closer than the
delay wherever it is measured. Long pauses are persistent (`clocks`): no further request is sent to a host before its
pause is stored, and the next attempt of a killed task waits for the remaining pause.

Each IP address has a clock of its own (`Addresses`), for all hosts behind it. Its pause runs from the start of one
request to the start of the next, so that a slow host does not block the others. Slots in the queue are assigned in
advance: a host whose slot is not due yet waits without a connection. Precedents: Heritrix' and Nutch's queues by IP,
BUbiNG's `ipDelay`.
"""

import asyncio
import heapq
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tasks.stages.crawl.config import CrawlConfig, is_loopback
from tasks.stages.crawl.hosts.clocks import Clocks, Cooldown
from tasks.stages.crawl.policy import Policy

IP_DELAY_S = 0.25
"""The pause between two requests to a public address where the recipe names none, in seconds (BUbiNG's is 0.5)."""

MAX_RETRY_AFTER_S = 24 * 3600.0
MAX_CRAWL_DELAY_S = 24 * 3600.0
HOST_FAILURES = 6
"""Failures in a row after which a host waits for the next cycle."""
GIVEN_UP = "host_backoff"

# Clocks of addresses kept before those that have run out are removed.
_FEW = 10_000

_SMALLEST_BACKOFF_S = 0.05
# A visit that is early by at most this keeps its slot and waits; one that would wait longer is queued again.
_EARLY_S = 0.05
_LOOK_AGAIN_S = 0.1
# A slot in the queue of an IP address expires when unused for so long.
_PLACE_S = 30.0
# Pauses up to so many floors are not stored: a resumed task waits that long before its first request.
_SHORT_FLOORS = 3
# A delay that creeps up with a host's answer times is stored a few times, not at every request.
_GROWTH = 1.5

# Seconds of the running request that went by before it was sent, for the sake of an IP address.
_held_up: ContextVar[list[float] | None] = ContextVar("held_up", default=None)


@dataclass(frozen=True)
class HostClock:
    """State of a host at the end of a fetch, for the host table and the next cycle.

    Attributes:
        authority: the host, with port where it is not the scheme's default.
        crawl_delay_s: Crawl-delay of its robots.txt, or 0.
        latency_s: moving average of its answer times, or None without a request.
        failures: in a row, up to now.
        backoff_until: no request before this time, whatever the reason; None for no limit.
    """

    authority: str
    crawl_delay_s: float = 0.0
    latency_s: float | None = None
    failures: int = 0
    backoff_until: datetime | None = None


@dataclass
class Host:
    """State of one host in this fetch task; times are in seconds, `next_at` on the monotonic clock.

    `given_up` is the reason why the rest of the host waits for the next cycle, or ""; `kept_s` the longest delay that a
    later attempt of the task knows of; `requested` whether this attempt has sent it a request. `place` is the time at
    which its turn comes in the line before its IP `address`, and `line_until` the end of the line before this host
    itself.
    """

    authority: str
    floor_s: float
    next_at: float = 0.0
    latency_s: float | None = None
    crawl_delay_s: float = 0.0
    failures: int = 0
    given_up: str = ""
    kept_s: float = 0.0
    requested: bool = False
    address: str = ""
    place: float | None = None
    line_until: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def delay(self, latency_factor: float) -> float:
        """Returns max(delay_s, Crawl-delay, latency_factor x average latency), in seconds."""
        slow = latency_factor * (self.latency_s or 0.0)
        return max(self.floor_s, self.crawl_delay_s, slow)

    @property
    def short_s(self) -> float:
        """The longest pause that is not worth storing."""
        return max(_SHORT_FLOORS * self.floor_s, _SMALLEST_BACKOFF_S)


class Politeness:
    """The hosts of one fetch task and their clocks.

    Args:
        config: the crawl's settings.
        clocks: what outlives the process; None for a crawl of one attempt.
        policy: pauses that operators have set for single hosts.
    """

    def __init__(self, config: CrawlConfig, clocks: Clocks | None = None, policy: Policy | None = None) -> None:
        self._config = config
        self._clocks = clocks
        self._policy = policy or Policy()
        self._hosts: dict[str, Host] = {}
        self._seeds: dict[str, HostClock] = {}
        self._begin, self._began_at = time.monotonic(), time.time()
        self._resumed = clocks is not None and clocks.resumed
        self._addresses = Addresses(config.ip_delay_s, resumed=self._resumed)

    def seed(self, rows: Iterable[HostClock]) -> None:
        """Loads the state of the previous cycle; call it before the first request."""
        self._seeds = {row.authority: row for row in rows}

    def rows(self) -> list[HostClock]:
        """Returns the state of every host of the task, including its earlier attempts; sorted by host."""
        for authority in self._clocks.inherited if self._clocks is not None else ():
            self.host(authority)
        return [self._clock(self._hosts[authority]) for authority in sorted(self._hosts)]

    def slowest(self, most: int) -> list[tuple[str, float]]:
        """Returns the hosts with the longest answer times (seconds), slowest first."""
        known = ((host.authority, host.latency_s) for host in self._hosts.values() if host.latency_s is not None)
        return heapq.nlargest(most, known, key=lambda one: one[1])

    def host(self, authority: str) -> Host:
        """Returns the host, new on first sight."""
        found = self._hosts.get(authority)
        if found is None:
            found = self._hosts[authority] = Host(authority, self._floor(authority))
            self._remember(found)
        return found

    def _floor(self, authority: str) -> float:
        name = authority.rsplit(":", 1)[0] if authority[-1] != "]" else authority
        delay = self._policy.delay_s(authority, self._config.delay_s)
        return delay if is_loopback(name) else max(1.0, delay)

    def adjust(self) -> None:
        """Takes over what operators have changed: hosts that are denied or dropped, and delays.

        Pauses under way become longer or shorter with the delay. A back-off is never shortened: the host requires
        it, or does not answer.
        """
        for host in self._hosts.values():
            host.given_up = host.given_up or self._policy.withheld(host.authority)
            before = host.delay(self._config.latency_factor)
            host.floor_s = self._floor(host.authority)
            change = host.delay(self._config.latency_factor) - before
            if host.next_at and (change > 0 or not host.failures):
                host.next_at += change

    def delay_s(self, authority: str) -> float:
        """Returns the seconds from the end of a request to a host to the next one, whether it was met or not."""
        host = self._hosts.get(authority)
        return self._floor(authority) if host is None else host.delay(self._config.latency_factor)

    def known(self) -> Mapping[str, Host]:
        """Returns the hosts that were met, by name."""
        return self._hosts

    def ready(self, host: Host, address: str = "") -> bool:
        """Returns whether a visit may send its request now; if not, the host's clock has the time of the next try.

        Args:
            host: the host.
            address: the IP address of the host; "" while unknown.
        """
        wait = 0.0 if host.given_up else self._wait(host, address)
        if wait > _EARLY_S:
            self.put_off(host, wait)
        return wait <= _EARLY_S

    def put_off(self, host: Host, seconds: float) -> None:
        """Blocks requests to a host for at least this long."""
        host.next_at = max(host.next_at, time.monotonic() + seconds)

    def stand_in_line(self, host: Host, address: str) -> float:
        """Returns after how many seconds a visit of another host may send it a request; 0 for now.

        New visits are queued behind waiting ones, one pause of the host apart, so that few of many try at the same
        time. A visit that finds the host busy at its time is queued again.
        """
        wait = self._wait(host, address)
        if wait <= _EARLY_S:
            return 0.0
        now = time.monotonic()
        place = max(now + wait, host.line_until)
        host.line_until = place + host.delay(self._config.latency_factor)
        return place - now - _EARLY_S

    def _wait(self, host: Host, address: str) -> float:
        """Returns the estimated seconds until the host may be requested."""
        if self._clocks is not None and self._clocks.unsaved(host.authority):
            return self._clocks.look_again_s
        if host.lock.locked():
            return max(host.delay(self._config.latency_factor), _LOOK_AGAIN_S)
        wait = self._free_at(host) - time.monotonic()
        if wait > _EARLY_S:
            return wait
        now = time.monotonic()
        if host.place is None or host.address != address or host.place < now - _PLACE_S:
            host.address, host.place = address, self._addresses.place(address)
        return max(wait, host.place - now)

    @asynccontextmanager
    async def turn(self, host: Host) -> AsyncIterator[None]:
        """Waits until the host may be requested, reserves it for one request, and starts the pause at its end."""
        async with host.lock:
            await self._allowed(host)
            begin, held_up = time.monotonic(), [0.0]
            token = _held_up.set(held_up)
            try:
                yield
            finally:
                _held_up.reset(token)
                end = time.monotonic()
                host.place = None
                # Exponentially weighted mean, as browsers and BUbiNG estimate round trips (weight 1/4).
                last = end - begin - held_up[0]
                host.latency_s = last if host.latency_s is None else 0.75 * host.latency_s + 0.25 * last
                self.rest(host, end)

    def begin(self, address: str) -> float:
        """Returns the seconds for which a request to an IP address waits, beyond its slot, before it is sent."""
        wait = self._addresses.begin(address)
        if (held_up := _held_up.get()) is not None:
            held_up[0] += wait
        return wait

    async def rested(self, host: Host) -> None:
        """Waits for the end of the host's pause."""
        while (wait := host.next_at - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    async def _allowed(self, host: Host) -> None:
        while True:
            if self._clocks is not None:
                await self._clocks.saved(host.authority)
            # Timers may fire a little early, and the pause may grow meanwhile.
            wait = self._free_at(host) - time.monotonic()
            if wait <= 0:
                host.requested = True
                return
            await asyncio.sleep(wait)

    def _free_at(self, host: Host) -> float:
        if not host.requested and self._resumed:
            # The previous attempt may have just sent a request, with a delay that is known from an earlier cycle.
            host.next_at = max(host.next_at, self._begin + host.delay(self._config.latency_factor))
        return host.next_at

    def rest(self, host: Host, since: float | None = None) -> None:
        """Restarts the host's pause, now or at `since`: after a request, or when the host requires a longer pause."""
        delay = host.delay(self._config.latency_factor)
        host.next_at = max(host.next_at, (time.monotonic() if since is None else since) + delay)
        if self._clocks is not None and delay > max(host.kept_s, host.short_s):
            host.kept_s = max(delay, _GROWTH * host.kept_s)
            self._clocks.keep(Cooldown(host.authority, delay_s=min(host.kept_s, MAX_CRAWL_DELAY_S)))

    def succeeded(self, host: Host) -> None:
        """Ends the host's back-off."""
        host.failures = 0

    def failed(self, host: Host, retry_after_s: float | None) -> float:
        """Records a 429, 503 or timeout; returns the seconds until the host may be requested again.

        The pause doubles with every failure in a row and is at least Retry-After.
        """
        base = max(host.delay(self._config.latency_factor), _SMALLEST_BACKOFF_S)
        pause = min(base * 2.0**host.failures, self._config.max_backoff_s)
        host.failures += 1
        pause = max(pause, retry_after_s or 0.0)
        host.next_at = max(host.next_at, time.monotonic() + pause)
        if self._clocks is not None and pause > host.short_s:
            self._clocks.keep(Cooldown(host.authority, 0.0, time.time() + pause, pause, host.failures))
        return pause

    def _remember(self, host: Host) -> None:
        """Takes over what an earlier attempt and the cycle before knew."""
        left = patience = 0.0
        row = self._seeds.get(host.authority)
        if row is not None:
            host.latency_s = row.latency_s
            # What failed in the last cycle counts half, so that a host that has recovered is not given up at once.
            host.failures = row.failures // 2
            if row.backoff_until is not None:
                left = min(max(row.backoff_until.timestamp() - self._began_at, 0.0), MAX_RETRY_AFTER_S)
                patience = max(row.crawl_delay_s, self._config.latency_factor * (row.latency_s or 0.0))
        if self._clocks is not None and self._resumed:
            cooldown = self._clocks.inherited.get(host.authority, Cooldown(host.authority))
            left = max(left, host.short_s, cooldown.left(self._began_at))
            host.failures = max(host.failures, cooldown.failures)
            host.kept_s = cooldown.delay_s
        if left:
            host.next_at = self._begin + left
        patience = max(patience, self._config.max_backoff_s, host.kept_s, host.short_s)
        if left > patience or host.failures >= HOST_FAILURES:
            host.given_up = GIVEN_UP

    def _clock(self, host: Host) -> HostClock:
        wait = host.next_at - time.monotonic()
        until = datetime.fromtimestamp(time.time() + wait, UTC) if wait > 0 else None
        seed = self._seeds.get(host.authority)
        # Without a request in this cycle the seed's value is still valid.
        crawl_delay = seed.crawl_delay_s if seed and not host.requested else host.crawl_delay_s
        return HostClock(host.authority, crawl_delay, host.latency_s, host.failures, until)


class Addresses:
    """The clocks of IP addresses.

    Args:
        delay_s: pause between the starts of two requests to one address; None: `IP_DELAY_S`, and none for loopback.
        resumed: whether an earlier attempt may just have sent a request to any of them.
    """

    def __init__(self, delay_s: float | None, *, resumed: bool = False) -> None:
        self._delay_s = delay_s
        # After a kill the time of the last request is unknown: the whole pause counts from now.
        self._asked_before = time.monotonic() if resumed else -math.inf
        # By address: the end of the last place in line, and of the pause after the last request.
        self._line: dict[str, float] = {}
        self._free: dict[str, float] = {}
        self._most = _FEW

    def delay(self, address: str) -> float:
        """Returns the pause of an address in seconds; 0 where it has none, or is not known ("")."""
        if not address:
            return 0.0
        if self._delay_s is None:
            return 0.0 if is_loopback(address) else IP_DELAY_S
        return self._delay_s

    def place(self, address: str) -> float:
        """Takes the next free place in the line before an address; returns its time on the monotonic clock."""
        return self._next(self._line, address)

    def begin(self, address: str) -> float:
        """Begins a request to an address: returns the seconds to wait before it is sent.

        At its slot a visit waits only for the delay of others, mostly nothing.
        """
        return max(self._next(self._free, address) - time.monotonic(), 0.0)

    def _next(self, ends: dict[str, float], address: str) -> float:
        now, delay = time.monotonic(), self.delay(address)
        if not delay:
            return now
        begin = max(now, ends.get(address, self._asked_before + delay))
        ends[address] = begin + delay
        if len(ends) > self._most:
            for one in [one for one, end in ends.items() if end <= now]:
                del ends[one]
            self._most = max(_FEW, 2 * len(ends))
        return begin


def retry_after(value: str | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Reads a Retry-After header (RFC 9110, 10.2.3) as seconds from now, 0 .. 24 h; None when absent or malformed.

    >>> retry_after("120"), retry_after("-5"), retry_after("soon"), retry_after("999999999999")
    (120.0, None, None, 86400.0)
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return min(float(value), MAX_RETRY_AFTER_S) if len(value) < 300 else MAX_RETRY_AFTER_S
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return min(max((when - now()).total_seconds(), 0.0), MAX_RETRY_AFTER_S)


def crawl_delay(value: float | None) -> float:
    """Returns a Crawl-delay in seconds within 0 .. 24 h; 0 when there is none or it is no number."""
    if value is None or not math.isfinite(value) or value < 0:
        return 0.0
    return min(value, MAX_CRAWL_DELAY_S)
