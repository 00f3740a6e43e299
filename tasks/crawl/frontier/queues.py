"""The back queues of a fetch task: one per host, in a heap on the time when the host may be asked next.

Used by fetch (Mercator's frontier, as in Heritrix and BUbiNG). It decides *when* a URL is tried; *which* URLs are tried
is `waves`' business.
"""

import asyncio
import contextlib
import heapq
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum

from tasks.crawl.candidate import Candidate
from tasks.crawl.hosts.politeness import Host, Politeness
from tasks.crawl.url import authority

_GRACE_S = 5.0


class Visit(Enum):
    """How a visit to a URL ended."""

    DONE = "done"
    UNASKED = "unasked"  # done without a request: the host owes no pause
    AGAIN = "again"  # try once more when the host's pause is over


Visitor = Callable[[Host, Candidate], Awaitable[Visit]]


class Frontier:
    """Works off URLs: one at a time per host, many hosts at once.

    Args:
        politeness: the hosts' clocks.
        visit: tries one URL.
        concurrency: hosts asked at one time.
        deadline: time of the monotonic clock after which nothing new is begun.
    """

    def __init__(self, politeness: Politeness, visit: Visitor, concurrency: int, deadline: float) -> None:
        self._politeness = politeness
        self._visit = visit
        self._concurrency = concurrency
        self._deadline = deadline
        self._queues: dict[str, deque[Candidate]] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._pushed = 0
        self._running: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopped = False
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Begins nothing new; `drain` returns when what is under way has ended."""
        self._stopped = True
        self._wake.set()

    @property
    def hosts(self) -> int:
        """Hosts that still have URLs waiting."""
        return len(self._queues)

    @property
    def waiting(self) -> int:
        """URLs of this round that wait."""
        return sum(map(len, self._queues.values()))

    async def drain(self, candidates: Iterable[Candidate]) -> bool:
        """Visits all candidates; returns False when the deadline or `stop` left some of them unvisited."""
        for candidate in candidates:
            name = authority(candidate.url)
            if name not in self._queues:
                self._queues[name] = deque()
                self._push(name)
            self._queues[name].append(candidate)
        left = False
        try:
            while (self._heap or self._running) and not self._stopped and self._failure is None:
                left |= await self._step()
        finally:
            await self._settle()
        if self._failure is not None:
            raise self._failure
        return not (left or self._queues)

    async def _step(self) -> bool:
        """Starts one host if one may be asked now, else waits; returns whether a host was put off past the deadline."""
        self._wake.clear()
        now = time.monotonic()
        if (self._heap and self._heap[0][0] > self._deadline) or now > self._deadline:
            # The earliest host comes too late, so all do.
            put_off = bool(self._heap)
            for _, _, name in self._heap:
                del self._queues[name]
            self._heap.clear()
            await self._sleep(None if self._running else 0.0)
            return put_off
        if self._heap and len(self._running) < self._concurrency:
            wait = self._heap[0][0] - now
            if wait <= 0:
                task = asyncio.ensure_future(self._work(heapq.heappop(self._heap)[2]))
                self._running.add(task)
                task.add_done_callback(self._ended)
                return False
            await self._sleep(wait)
            return False
        await self._sleep(None)
        return False

    async def _sleep(self, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _work(self, name: str) -> None:
        host, queue = self._politeness.host(name), self._queues[name]
        try:
            while queue and not self._stopped:
                candidate = queue.popleft()
                result = await self._visit(host, candidate)
                if result is Visit.AGAIN:
                    queue.appendleft(candidate)
                if result is not Visit.UNASKED:
                    break
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self._failure = self._failure or error
        if queue:
            self._push(name)
        else:
            del self._queues[name]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wake.set()

    def _push(self, name: str) -> None:
        host = self._politeness.host(name)
        self._pushed += 1
        # Of hosts that may be asked at the same time the one that waited longest comes first.
        heapq.heappush(self._heap, (0.0 if host.given_up else host.next_at, self._pushed, name))

    async def _settle(self) -> None:
        if not self._running:
            return
        # Whoever stops a task soon kills it: a slow answer, or a host whose pause is long, is not waited for.
        _, late = await asyncio.wait(self._running, timeout=_GRACE_S if self._stopped else None)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
