"""When a host may be asked again: one request at a time, a pause after each, longer when the host is slow or says so.

Used by fetch. The pause runs from the end of one request to the start of the next, so that two requests are never
closer than the delay wherever one measures.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tasks.crawl.config import CrawlConfig, is_loopback

MAX_RETRY_AFTER_S = 24 * 3600.0
MAX_CRAWL_DELAY_S = 24 * 3600.0
_SMALLEST_BACKOFF_S = 0.05


@dataclass
class Host:
    """One host as this fetch task knows it; times are in seconds, `next_at` on the monotonic clock.

    `given_up` is the reason why the rest of the host waits for the next cycle, or "".
    """

    authority: str
    floor_s: float
    next_at: float = 0.0
    latency_s: float | None = None
    crawl_delay_s: float = 0.0
    failures: int = 0
    given_up: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def delay(self, latency_factor: float) -> float:
        """Returns max(delay_s, Crawl-delay, latency_factor x average latency), in seconds."""
        slow = latency_factor * (self.latency_s or 0.0)
        return max(self.floor_s, self.crawl_delay_s, slow)


class Politeness:
    """The hosts of one fetch task and their clocks."""

    def __init__(self, config: CrawlConfig) -> None:
        self._config = config
        self._hosts: dict[str, Host] = {}

    def host(self, authority: str) -> Host:
        """Returns the host, new on first sight."""
        found = self._hosts.get(authority)
        if found is None:
            name = authority.rsplit(":", 1)[0] if authority[-1] != "]" else authority
            floor = self._config.delay_s if is_loopback(name) else max(1.0, self._config.delay_s)
            found = self._hosts[authority] = Host(authority, floor)
        return found

    @asynccontextmanager
    async def turn(self, host: Host) -> AsyncIterator[None]:
        """Waits until the host may be asked, holds it for one request, and starts the pause at its end."""
        async with host.lock:
            await asyncio.sleep(max(0.0, host.next_at - time.monotonic()))
            begin = time.monotonic()
            try:
                yield
            finally:
                end = time.monotonic()
                # Exponentially weighted mean, as browsers and BUbiNG estimate round trips (weight 1/4).
                last = end - begin
                host.latency_s = last if host.latency_s is None else 0.75 * host.latency_s + 0.25 * last
                host.next_at = max(host.next_at, end + host.delay(self._config.latency_factor))

    def rest(self, host: Host) -> None:
        """Starts the host's pause anew: it has just asked for a longer one than was known when it was last asked."""
        host.next_at = max(host.next_at, time.monotonic() + host.delay(self._config.latency_factor))

    def succeeded(self, host: Host) -> None:
        """Ends the host's back-off."""
        host.failures = 0

    def failed(self, host: Host, retry_after_s: float | None) -> float:
        """Notes a 429, 503 or timeout; returns the seconds until the host may be asked again.

        The pause doubles with every failure in a row and is at least what Retry-After says.
        """
        base = max(host.delay(self._config.latency_factor), _SMALLEST_BACKOFF_S)
        pause = min(base * 2.0**host.failures, self._config.max_backoff_s)
        host.failures += 1
        pause = max(pause, retry_after_s or 0.0)
        host.next_at = max(host.next_at, time.monotonic() + pause)
        return pause


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
