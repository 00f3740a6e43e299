"""The back queues of a fetch task: its hosts in a heap by the time of their next request (Mercator).

Decides *when* a URL is tried; `order` decides *which*. Slow hosts do not block others: a visit that lasts longer than a
second frees its slot, since it only waits; and hosts that have not answered yet, or late, or with a failure, may occupy
at most half of the slots. So neither a hundred silent hosts nor one with a response time of four seconds delay fast
ones.
"""

import asyncio
import contextlib
import heapq
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from tasks.stages.crawl.frontier.order import Order
from tasks.stages.crawl.hosts.politeness import HostState, Politeness
from tasks.stages.crawl.storage.fetchlist import Candidate

PROMPT_S = 1.0
"""An answer within this time is prompt; a visit that lasts longer gives its place up."""
WAITING = 1024
"""Visits that have freed their slot and continue; each has an open connection and the bytes it received."""

_GRACE_S = 5.0
# URLs that need no request are processed without a pause; other hosts get a turn after so many.
_TURN = 64


class Visit(Enum):
    """How a visit to a URL ended."""

    DONE = "done"
    SKIPPED = "skipped"  # done without a request: no pause follows
    AGAIN = "again"  # try again after the host's pause


@dataclass
class _Work:
    """One host that is being visited, since `begin` (monotonic clock).

    `placed`: whether it occupies a slot, `proven`: of which kind.
    """

    name: str
    begin: float
    proven: bool
    placed: bool = True


class Scheduler:
    """Works off an order: one URL at a time per host, many hosts at once.

    Args:
        order: source of the URLs; `visit` reports their outcomes to it.
        politeness: the hosts' clocks.
        visit: tries one URL.
        concurrency: places, that is visits begun within the last second.
        most_open: visits that may be under way at a time.
        deadline: time of the monotonic clock after which nothing new is begun.
    """

    def __init__(
        self,
        order: Order,
        politeness: Politeness,
        visit: Callable[[HostState, Candidate], Awaitable[Visit]],
        *,
        concurrency: int,
        most_open: int,
        deadline: float,
    ) -> None:
        self._order = order
        self._politeness = politeness
        self._visit = visit
        self._concurrency = min(concurrency, most_open)
        self._most_open = most_open
        self._deadline = deadline
        # By whether hosts are proven: (time, order of arrival, host).
        self._heaps: dict[bool, list[tuple[float, int, str]]] = {True: [], False: []}
        self._placed = {True: 0, False: 0}
        self._pushed = 0
        self._again: dict[str, Candidate] = {}
        self._queued: set[str] = set()
        self._running: dict[asyncio.Task[None], _Work] = {}
        self._begun: deque[_Work] = deque()
        self._wake = asyncio.Event()
        self._stopped = False
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Begins no new visit; `run` returns when running ones have ended."""
        self._stopped = True
        self._wake.set()

    def retime(self) -> None:
        """Takes the times of waiting hosts anew from their clocks, which were changed from outside."""
        for heap in self._heaps.values():
            heap[:] = [(self._time(name), number, name) for _, number, name in heap]
            heapq.heapify(heap)
        self._wake.set()

    @property
    def visited(self) -> set[str]:
        """The hosts that are being visited."""
        return {work.name for work in self._running.values()}

    async def run(self) -> bool:
        """Visits until nothing is left; returns False when the deadline or `stop` left URLs unvisited."""
        put_off = False
        try:
            for name in self._order.able:
                self._push(name)
            while not self._stopped and self._failure is None:
                for name in self._order.ready():
                    self._push(name)
                if not self._queued:
                    break
                put_off |= await self._step()
        finally:
            await self._settle()
        if self._failure is not None:
            raise self._failure
        return not (put_off or self._stopped)

    async def _step(self) -> bool:
        """Begins one visit if one may begin now, else waits; returns whether hosts were put off past the deadline."""
        self._wake.clear()
        now = time.monotonic()
        self._release(now)
        first = min((heap[0] for heap in self._heaps.values() if heap), default=None)
        if first is not None and max(now, first[0]) > self._deadline:
            # The earliest host is too late, so all are.
            for heap in self._heaps.values():
                self._queued.difference_update(name for _, _, name in heap)
                heap.clear()
            return True
        # The host that waits longest, of those for which there is room.
        ready = [(self._heaps[proven][0], proven) for proven in (True, False) if self._has_room(proven)]
        if ready and min(ready)[0][0] <= now:
            self._begin(min(ready)[1], now)
            return False
        waits = [one[0] - now for one, _ in ready]
        if len(ready) < sum(map(bool, self._heaps.values())) and self._begun:
            waits.append(self._begun[0].begin + PROMPT_S - now)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), min(waits, default=None))
        return False

    def _has_room(self, proven: bool) -> bool:
        """Returns whether a host waits in the heap, and one more of its kind may be visited."""
        open_ = self._most_open - len(self._running)
        if not self._heaps[proven] or sum(self._placed.values()) >= self._concurrency:
            return False
        half = self._concurrency // 2
        return open_ > 0 if proven else open_ > half and self._placed[False] < max(1, half)

    def _begin(self, proven: bool, now: float) -> None:
        work = _Work(heapq.heappop(self._heaps[proven])[2], now, proven)
        self._placed[proven] += 1
        self._begun.append(work)
        task = asyncio.ensure_future(self._work(work.name))
        self._running[task] = work
        task.add_done_callback(self._ended)

    async def _work(self, name: str) -> None:
        host, turns = self._politeness.host(name), 0
        try:
            while not self._stopped:
                candidate = self._again.pop(name, None) or self._order.take(name)
                if candidate is None:
                    break
                result = await self._visit(host, candidate)
                if result is Visit.AGAIN:
                    self._again[name] = candidate
                if result is not Visit.SKIPPED:
                    break
                turns += 1
                if turns % _TURN == 0:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self._failure = self._failure or error

    def _ended(self, task: asyncio.Task[None]) -> None:
        work = self._running.pop(task)
        self._leave(work)
        self._queued.discard(work.name)
        if work.name in self._again or self._order.peek(work.name):
            self._push(work.name)
        self._wake.set()

    def _push(self, name: str) -> None:
        if name in self._queued:
            return
        self._queued.add(name)
        self._pushed += 1
        host = self._politeness.host(name)
        proven = host.latency_s is not None and host.latency_s < PROMPT_S and not host.failures
        # Of hosts that are ready at the same time the one that waited longest is first.
        heapq.heappush(self._heaps[proven], (self._time(name), self._pushed, name))

    def _time(self, name: str) -> float:
        host = self._politeness.host(name)
        return 0.0 if host.skip_reason else host.next_at

    def _release(self, now: float) -> None:
        """Frees the slots of visits that last too long, and removes finished ones."""
        while self._begun and (not self._begun[0].placed or self._begun[0].begin + PROMPT_S <= now):
            self._leave(self._begun.popleft())

    def _leave(self, work: _Work) -> None:
        self._placed[work.proven] -= work.placed
        work.placed = False

    async def _settle(self) -> None:
        if not self._running:
            return
        # After SIGTERM a SIGKILL follows soon: slow responses and long pauses are not waited for.
        _, late = await asyncio.wait(self._running, timeout=_GRACE_S if self._stopped else None)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
