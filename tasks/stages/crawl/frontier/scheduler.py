"""The back queues of a fetch task: its hosts in heaps by the time of their next request (Mercator).

Decides *when* a URL is tried; `order` decides *which*. Slow hosts do not block others: a visit that lasts longer than a
second frees its slot, because it only waits, and hosts that are slow, failing or not tried yet occupy at most half of
the slots. So neither a hundred silent hosts nor one with a latency of four seconds delay fast hosts.
"""

import asyncio
import contextlib
import heapq
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from tasks.stages.crawl.frontier.order import UrlOrder
from tasks.stages.crawl.hosts.politeness import HostState, Politeness
from tasks.stages.crawl.storage.fetchlist import Candidate

PROMPT_S = 1.0
"""A response within this number of seconds is prompt; a visit that lasts longer frees its slot."""
WAITING = 1024
"""Visits that may continue without a slot; each has an open connection and the bytes it received."""

_GRACE_S = 5.0
# URLs without a request are processed without a pause; other tasks may run after this many of them.
_BATCH = 64


class VisitResult(Enum):
    """How a visit to a URL ended."""

    DONE = "done"
    SKIPPED = "skipped"  # done without a request: no pause follows
    AGAIN = "again"  # to be tried again after the host's pause


@dataclass
class _RunningVisit:
    """One host that is being visited.

    Attributes:
        name: the host.
        begin: time of the monotonic clock.
        proven: whether the host has answered promptly before.
        has_slot: whether the visit occupies a slot.
    """

    name: str
    begin: float
    proven: bool
    has_slot: bool = True


class Scheduler:
    """Visits the URLs of an order: one URL at a time per host, many hosts concurrently.

    Args:
        order: source of the URLs; `visit` reports their outcomes to it.
        politeness: the clocks of the hosts.
        visit: tries one URL.
        concurrency: number of slots, that is of visits begun within the last second.
        max_visits: maximum number of concurrent visits, with or without a slot.
        deadline: time of the monotonic clock after which no visit is begun.
    """

    def __init__(
        self,
        order: UrlOrder,
        politeness: Politeness,
        visit: Callable[[HostState, Candidate], Awaitable[VisitResult]],
        *,
        concurrency: int,
        max_visits: int,
        deadline: float,
    ) -> None:
        self._order = order
        self._politeness = politeness
        self._visit = visit
        self._concurrency = min(concurrency, max_visits)
        self._max_visits = max_visits
        self._deadline = deadline
        # Waiting hosts, by whether they are proven: (time, order of arrival, host).
        self._heaps: dict[bool, list[tuple[float, int, str]]] = {True: [], False: []}
        # Occupied slots, by whether the hosts are proven.
        self._slots = {True: 0, False: 0}
        self._pushed = 0
        # By host: the URL to be tried again.
        self._again: dict[str, Candidate] = {}
        # Hosts that wait in a heap or are being visited.
        self._queued: set[str] = set()
        self._running: dict[asyncio.Task[None], _RunningVisit] = {}
        # Visits that may occupy a slot, the oldest first.
        self._begun: deque[_RunningVisit] = deque()
        self._wake = asyncio.Event()
        self._stopped = False
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Stops new visits; `run` returns after the running ones have ended."""
        self._stopped = True
        self._wake.set()

    def retime(self) -> None:
        """Updates the times of waiting hosts after their clocks were changed."""
        for heap in self._heaps.values():
            heap[:] = [(self._time(name), number, name) for _, number, name in heap]
            heapq.heapify(heap)
        self._wake.set()

    @property
    def visited(self) -> set[str]:
        """The hosts that are being visited."""
        return {visit.name for visit in self._running.values()}

    async def run(self) -> bool:
        """Visits all URLs; returns False if the deadline or `stop` left some unvisited."""
        late = False
        try:
            for name in self._order.available:
                self._push(name)
            while not self._stopped and self._failure is None:
                for name in self._order.newly_available():
                    self._push(name)
                if not self._queued:
                    break
                late |= await self._step()
        finally:
            await self._finish_visits()
        if self._failure is not None:
            raise self._failure
        return not (late or self._stopped)

    async def _step(self) -> bool:
        """Begins a visit, or waits until one may begin; returns whether hosts were dropped because of the deadline."""
        self._wake.clear()
        now = time.monotonic()
        self._release(now)
        first = min((heap[0] for heap in self._heaps.values() if heap), default=None)
        if first is not None and max(now, first[0]) > self._deadline:
            # Even the earliest host is too late.
            for heap in self._heaps.values():
                self._queued.difference_update(name for _, _, name in heap)
                heap.clear()
            return True
        # The earliest host of each heap for which a slot is free.
        startable = [(self._heaps[proven][0], proven) for proven in (True, False) if self._has_slot(proven)]
        if startable and min(startable)[0][0] <= now:
            self._begin(min(startable)[1], now)
            return False
        waits = [entry[0] - now for entry, _ in startable]
        if len(startable) < sum(map(bool, self._heaps.values())) and self._begun:
            waits.append(self._begun[0].begin + PROMPT_S - now)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), min(waits, default=None))
        return False

    def _has_slot(self, proven: bool) -> bool:
        """Returns whether a host waits in the heap, and a slot is free for it."""
        free = self._max_visits - len(self._running)
        if not self._heaps[proven] or sum(self._slots.values()) >= self._concurrency:
            return False
        half = self._concurrency // 2
        return free > 0 if proven else free > half and self._slots[False] < max(1, half)

    def _begin(self, proven: bool, now: float) -> None:
        visit = _RunningVisit(heapq.heappop(self._heaps[proven])[2], now, proven)
        self._slots[proven] += 1
        self._begun.append(visit)
        task = asyncio.ensure_future(self._visit_host(visit.name))
        self._running[task] = visit
        task.add_done_callback(self._end_visit)

    async def _visit_host(self, name: str) -> None:
        """Visits URLs of a host up to the first that was requested or must be tried again."""
        host, skipped = self._politeness.host(name), 0
        try:
            while not self._stopped:
                candidate = self._again.pop(name, None) or self._order.take(name)
                if candidate is None:
                    break
                result = await self._visit(host, candidate)
                if result is VisitResult.AGAIN:
                    self._again[name] = candidate
                if result is not VisitResult.SKIPPED:
                    break
                skipped += 1
                if skipped % _BATCH == 0:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self._failure = self._failure or error

    def _end_visit(self, task: asyncio.Task[None]) -> None:
        visit = self._running.pop(task)
        self._free_slot(visit)
        self._queued.discard(visit.name)
        if visit.name in self._again or self._order.peek(visit.name):
            self._push(visit.name)
        self._wake.set()

    def _push(self, name: str) -> None:
        if name in self._queued:
            return
        self._queued.add(name)
        self._pushed += 1
        host = self._politeness.host(name)
        proven = host.latency_s is not None and host.latency_s < PROMPT_S and not host.failures
        # Of hosts with the same time, the one that has waited longest is first.
        heapq.heappush(self._heaps[proven], (self._time(name), self._pushed, name))

    def _time(self, name: str) -> float:
        host = self._politeness.host(name)
        return 0.0 if host.skip_reason else host.next_at

    def _release(self, now: float) -> None:
        """Frees the slots of visits that last too long, and removes ended visits from the queue."""
        while self._begun and (not self._begun[0].has_slot or self._begun[0].begin + PROMPT_S <= now):
            self._free_slot(self._begun.popleft())

    def _free_slot(self, visit: _RunningVisit) -> None:
        self._slots[visit.proven] -= visit.has_slot
        visit.has_slot = False

    async def _finish_visits(self) -> None:
        """Waits for the running visits; after `stop`, cancels those that last too long."""
        if not self._running:
            return
        # SIGKILL follows soon after SIGTERM, so slow responses and long pauses are not awaited.
        _, late = await asyncio.wait(self._running, timeout=_GRACE_S if self._stopped else None)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
