"""Politeness per host: one request at a time and a pause after each, longer for slow hosts and at the host's request.

The pause lasts from the end of one request to the start of the next, so that two requests are never closer than the
delay wherever it is measured. Long pauses are persistent (`clocks`): no further request is sent to a host before its
pause is stored, and the next attempt of a killed task waits for the rest of it.

Each IP address also has a clock (`AddressClocks`), shared by all hosts at that address. Its pause lasts from the start
of one request to the start of the next, so that a slow host does not block the others. Slots are assigned in advance:
a host whose slot is not due yet waits without a connection. Heritrix and Nutch have queues by IP, and BUbiNG has
`ipDelay`, for the same purpose.
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
from tasks.stages.crawl.hosts.clocks import Cooldown, CooldownStore
from tasks.stages.crawl.policy import Policy

IP_DELAY_S = 0.25
"""Default pause in seconds between two requests to a public address (BUbiNG's is 0.5)."""

MAX_RETRY_AFTER_S = 24 * 3600.0
MAX_CRAWL_DELAY_S = 24 * 3600.0
HOST_FAILURES = 6
"""Consecutive failures after which a host is left for the next cycle."""
HOST_BACKOFF = "host_backoff"

# Number of address clocks below which expired ones are not removed.
_MIN_CLOCKS = 10_000

_SMALLEST_BACKOFF_S = 0.05
# A visit that is early by at most this waits; one that would wait longer is queued again.
_EARLY_S = 0.05
_RECHECK_S = 0.1
# An unused slot of an IP address expires after this time.
_SLOT_EXPIRY_S = 30.0
# Pauses up to this multiple of the floor are not stored: a resumed task waits that long before its first request.
_SHORT_FLOORS = 3
# A delay that grows with the latency of its host is stored when it has grown by this factor, not after every request.
_GROWTH = 1.5

# Seconds that the request under way waited for the pause of its IP address, as the only element.
_address_wait: ContextVar[list[float] | None] = ContextVar("address_wait", default=None)


@dataclass(frozen=True)
class HostClock:
    """State of a host at the end of a fetch, for the host table and the next cycle.

    Attributes:
        authority: the host, with the port unless it is the default of the scheme.
        crawl_delay_s: Crawl-delay of its robots.txt in seconds, or 0.
        latency_s: moving average of its response times in seconds; None before the first request.
        failures: consecutive failures.
        backoff_until: no request may be sent before this time; None for no limit.
    """

    authority: str
    crawl_delay_s: float = 0.0
    latency_s: float | None = None
    failures: int = 0
    backoff_until: datetime | None = None


@dataclass
class HostState:
    """State of one host in this fetch task; times without a unit are in seconds on the monotonic clock.

    Attributes:
        authority: the host.
        floor_s: minimum delay between two requests.
        next_at: earliest time of the next request.
        latency_s: moving average of its response times, or None.
        crawl_delay_s: Crawl-delay of its robots.txt, or 0.
        failures: consecutive failures.
        skip_reason: why its remaining URLs are left for the next cycle, or "".
        stored_delay_s: the longest delay stored for later attempts of the task.
        requested: whether this attempt has sent a request to it.
        address: the IP address of its slot.
        slot: time of its slot at that address, or None.
        queue_end: end of the last turn that was reserved by `Politeness.reserve_turn`.
        lock: held during a request.
    """

    authority: str
    floor_s: float
    next_at: float = 0.0
    latency_s: float | None = None
    crawl_delay_s: float = 0.0
    failures: int = 0
    skip_reason: str = ""
    stored_delay_s: float = 0.0
    requested: bool = False
    address: str = ""
    slot: float | None = None
    queue_end: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def delay(self, latency_factor: float) -> float:
        """Returns max(floor, Crawl-delay, latency_factor x average latency), in seconds."""
        return max(self.floor_s, self.crawl_delay_s, latency_factor * (self.latency_s or 0.0))

    @property
    def short_s(self) -> float:
        """Pauses up to this length in seconds are not stored."""
        return max(_SHORT_FLOORS * self.floor_s, _SMALLEST_BACKOFF_S)


class Politeness:
    """Decides when each host of one fetch task may be requested.

    Args:
        config: the crawl's settings.
        cooldowns: storage of pauses for later attempts; None if there is only one attempt.
        policy: pauses that operators have set for single hosts.
    """

    def __init__(
        self, config: CrawlConfig, cooldowns: CooldownStore | None = None, policy: Policy | None = None
    ) -> None:
        self._config = config
        self._cooldowns = cooldowns
        self._policy = policy or Policy()
        self._hosts: dict[str, HostState] = {}
        self._previous: dict[str, HostClock] = {}
        # When this attempt began, on the monotonic clock and as Unix time.
        self._begin, self._began_at = time.monotonic(), time.time()
        self._resumed = cooldowns is not None and cooldowns.resumed
        self._addresses = AddressClocks(config.ip_delay_s, resumed=self._resumed)

    def load(self, rows: Iterable[HostClock]) -> None:
        """Loads the state of the previous cycle; must be called before the first request."""
        self._previous = {row.authority: row for row in rows}

    def rows(self) -> list[HostClock]:
        """Returns the state of every host of the task, including its earlier attempts; sorted by host."""
        for authority in self._cooldowns.inherited if self._cooldowns is not None else ():
            self.host(authority)
        return [self._host_clock(self._hosts[authority]) for authority in sorted(self._hosts)]

    def slowest(self, count: int) -> list[tuple[str, float]]:
        """Returns the `count` hosts with the highest latency, as (host, seconds), slowest first."""
        latencies = ((host.authority, host.latency_s) for host in self._hosts.values() if host.latency_s is not None)
        return heapq.nlargest(count, latencies, key=lambda row: row[1])

    def host(self, authority: str) -> HostState:
        """Returns the state of a host; creates it if needed."""
        host = self._hosts.get(authority)
        if host is None:
            floor_s = min_delay_s(authority, self._config, self._policy)
            host = self._hosts[authority] = HostState(authority, floor_s)
            self._restore(host)
        return host

    def adjust(self) -> None:
        """Applies changes of the hosts file: hosts that are denied or dropped, and delays.

        The current pauses become longer or shorter with the delay. A back-off is never shortened, because the host
        demanded it or does not answer.
        """
        for host in self._hosts.values():
            host.skip_reason = host.skip_reason or self._policy.skip_reason(host.authority)
            before = host.delay(self._config.latency_factor)
            host.floor_s = min_delay_s(host.authority, self._config, self._policy)
            change = host.delay(self._config.latency_factor) - before
            if host.next_at and (change > 0 or not host.failures):
                host.next_at += change

    def delay_s(self, authority: str) -> float:
        """Returns the delay of any host, in seconds from the end of a request to the start of the next."""
        host = self._hosts.get(authority)
        if host is None:
            return min_delay_s(authority, self._config, self._policy)
        return host.delay(self._config.latency_factor)

    def hosts(self) -> Mapping[str, HostState]:
        """Returns the states of all hosts used so far, by name."""
        return self._hosts

    def ready(self, host: HostState, address: str = "") -> bool:
        """Returns whether a visit may send its request now; if not, sets `host.next_at` to the time of the next try.

        Args:
            host: the host.
            address: the IP address of the host; "" if unknown.
        """
        wait = 0.0 if host.skip_reason else self._wait(host, address)
        if wait > _EARLY_S:
            self.postpone(host, wait)
        return wait <= _EARLY_S

    def postpone(self, host: HostState, seconds: float) -> None:
        """Blocks requests to a host for at least this long."""
        host.next_at = max(host.next_at, time.monotonic() + seconds)

    def reserve_turn(self, host: HostState, address: str) -> float:
        """Returns the seconds after which a visit of another host may send a request to this one; 0 for now.

        Visits are queued one delay of the host apart, so that few of them try at the same time. A visit that finds the
        host busy at its time must be queued again.
        """
        wait = self._wait(host, address)
        if wait <= _EARLY_S:
            return 0.0
        now = time.monotonic()
        turn = max(now + wait, host.queue_end)
        host.queue_end = turn + host.delay(self._config.latency_factor)
        return turn - now - _EARLY_S

    def _wait(self, host: HostState, address: str) -> float:
        """Returns the estimated seconds until the host may be requested."""
        if self._cooldowns is not None and self._cooldowns.is_unsaved(host.authority):
            return self._cooldowns.recheck_s
        if host.lock.locked():
            return max(host.delay(self._config.latency_factor), _RECHECK_S)
        wait = self._free_at(host) - time.monotonic()
        if wait > _EARLY_S:
            return wait
        now = time.monotonic()
        if host.slot is None or host.address != address or host.slot < now - _SLOT_EXPIRY_S:
            host.address, host.slot = address, self._addresses.reserve(address)
        return max(wait, host.slot - now)

    @asynccontextmanager
    async def turn(self, host: HostState) -> AsyncIterator[None]:
        """Waits until the host may be requested, locks it for one request, and starts its pause afterwards."""
        async with host.lock:
            await self._wait_allowed(host)
            begin, address_wait = time.monotonic(), [0.0]
            token = _address_wait.set(address_wait)
            try:
                yield
            finally:
                _address_wait.reset(token)
                end = time.monotonic()
                host.slot = None
                # Exponentially weighted mean with weight 1/4, as in the round-trip estimates of browsers and BUbiNG.
                latency = end - begin - address_wait[0]
                host.latency_s = latency if host.latency_s is None else 0.75 * host.latency_s + 0.25 * latency
                self.start_pause(host, end)

    def begin(self, address: str) -> float:
        """Returns the seconds that a request to an IP address must still wait before it is sent."""
        wait = self._addresses.begin(address)
        if (address_wait := _address_wait.get()) is not None:
            address_wait[0] += wait
        return wait

    async def wait_pause(self, host: HostState) -> None:
        """Waits for the end of the host's pause."""
        while (wait := host.next_at - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    async def _wait_allowed(self, host: HostState) -> None:
        while True:
            if self._cooldowns is not None:
                await self._cooldowns.wait_saved(host.authority)
            # Timers may fire slightly early, and the pause may have grown.
            wait = self._free_at(host) - time.monotonic()
            if wait <= 0:
                host.requested = True
                return
            await asyncio.sleep(wait)

    def _free_at(self, host: HostState) -> float:
        if not host.requested and self._resumed:
            # The previous attempt may have just sent a request, so the whole delay counts from the start of this one.
            host.next_at = max(host.next_at, self._begin + host.delay(self._config.latency_factor))
        return host.next_at

    def start_pause(self, host: HostState, since: float | None = None) -> None:
        """Starts the host's pause at `since` (monotonic clock) or now: after a request, or when the delay has grown."""
        delay = host.delay(self._config.latency_factor)
        host.next_at = max(host.next_at, (time.monotonic() if since is None else since) + delay)
        if self._cooldowns is not None and delay > max(host.stored_delay_s, host.short_s):
            host.stored_delay_s = max(delay, _GROWTH * host.stored_delay_s)
            self._cooldowns.save(Cooldown(host.authority, delay_s=min(host.stored_delay_s, MAX_CRAWL_DELAY_S)))

    def succeeded(self, host: HostState) -> None:
        """Resets the back-off of a host."""
        host.failures = 0

    def failed(self, host: HostState, retry_after_s: float | None) -> float:
        """Records a 429, 503 or timeout; returns the seconds until the host may be requested again.

        The pause doubles with every failure in a row and is at least Retry-After.
        """
        base = max(host.delay(self._config.latency_factor), _SMALLEST_BACKOFF_S)
        pause = min(base * 2.0**host.failures, self._config.max_backoff_s)
        host.failures += 1
        pause = max(pause, retry_after_s or 0.0)
        host.next_at = max(host.next_at, time.monotonic() + pause)
        if self._cooldowns is not None and pause > host.short_s:
            self._cooldowns.save(Cooldown(host.authority, 0.0, time.time() + pause, pause, host.failures))
        return pause

    def _restore(self, host: HostState) -> None:
        """Initializes a host from the previous cycle and from earlier attempts of the task."""
        remaining_s = patience_s = 0.0
        row = self._previous.get(host.authority)
        if row is not None:
            host.latency_s = row.latency_s
            # Failures of the previous cycle count half, so that a host that has recovered is not skipped at once.
            host.failures = row.failures // 2
            if row.backoff_until is not None:
                remaining_s = min(max(row.backoff_until.timestamp() - self._began_at, 0.0), MAX_RETRY_AFTER_S)
                patience_s = max(row.crawl_delay_s, self._config.latency_factor * (row.latency_s or 0.0))
        if self._cooldowns is not None and self._resumed:
            cooldown = self._cooldowns.inherited.get(host.authority, Cooldown(host.authority))
            remaining_s = max(remaining_s, host.short_s, cooldown.remaining_s(self._began_at))
            host.failures = max(host.failures, cooldown.failures)
            host.stored_delay_s = cooldown.delay_s
        if remaining_s:
            host.next_at = self._begin + remaining_s
        patience_s = max(patience_s, self._config.max_backoff_s, host.stored_delay_s, host.short_s)
        if remaining_s > patience_s or host.failures >= HOST_FAILURES:
            host.skip_reason = HOST_BACKOFF

    def _host_clock(self, host: HostState) -> HostClock:
        wait = host.next_at - time.monotonic()
        until = datetime.fromtimestamp(time.time() + wait, UTC) if wait > 0 else None
        previous = self._previous.get(host.authority)
        # Without a request in this cycle, the value of the previous cycle is still valid.
        crawl_delay = previous.crawl_delay_s if previous and not host.requested else host.crawl_delay_s
        return HostClock(host.authority, crawl_delay, host.latency_s, host.failures, until)


class AddressClocks:
    """The clocks of IP addresses.

    Args:
        delay_s: pause between the starts of two requests to one address, in seconds; None: `IP_DELAY_S` for public
            addresses and 0 for loopback.
        resumed: whether an earlier attempt may just have sent a request to any of them.
    """

    def __init__(self, delay_s: float | None, *, resumed: bool = False) -> None:
        self._delay_s = delay_s
        # After a kill the time of the last request is unknown, so the whole pause counts from now.
        self._requested_at = time.monotonic() if resumed else -math.inf
        # By address: the end of the last reserved slot, and of the pause after the last request.
        self._slots: dict[str, float] = {}
        self._requests: dict[str, float] = {}
        self._max_clocks = _MIN_CLOCKS

    def delay(self, address: str) -> float:
        """Returns the pause of an address in seconds; 0 if it has none or is unknown ("")."""
        if not address:
            return 0.0
        if self._delay_s is None:
            return 0.0 if is_loopback(address) else IP_DELAY_S
        return self._delay_s

    def reserve(self, address: str) -> float:
        """Reserves the next free slot of an address; returns its time on the monotonic clock."""
        return self._next(self._slots, address)

    def begin(self, address: str) -> float:
        """Begins a request to an address; returns the seconds to wait before it is sent.

        Usually 0 for a visit at its slot, unless others were late.
        """
        return max(self._next(self._requests, address) - time.monotonic(), 0.0)

    def _next(self, ends: dict[str, float], address: str) -> float:
        now, delay = time.monotonic(), self.delay(address)
        if not delay:
            return now
        begin = max(now, ends.get(address, self._requested_at + delay))
        ends[address] = begin + delay
        if len(ends) > self._max_clocks:
            for expired in [name for name, end in ends.items() if end <= now]:
                del ends[expired]
            self._max_clocks = max(_MIN_CLOCKS, 2 * len(ends))
        return begin


def min_delay_s(authority: str, config: CrawlConfig, policy: Policy) -> float:
    """Returns the delay of a host by hosts file and recipe, in seconds; at least 1 outside loopback."""
    name = authority.rsplit(":", 1)[0] if authority[-1] != "]" else authority
    delay = policy.delay_s(authority, config.delay_s)
    return delay if is_loopback(name) else max(1.0, delay)


def retry_after(value: str | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Returns a Retry-After header (RFC 9110, 10.2.3) as seconds from now, 0 to 24 h; None if absent or malformed.

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
    """Returns a Crawl-delay clipped to 24 h, in seconds; 0 if it is absent, negative or not finite."""
    if value is None or not math.isfinite(value) or value < 0:
        return 0.0
    return min(value, MAX_CRAWL_DELAY_S)
