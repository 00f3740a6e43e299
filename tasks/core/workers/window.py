"""The window of items that workers have at a time, and the groups that are one task for the cluster.

A task costs client and scheduler some 5 ms, whatever its size, so items that take less are sent in groups. How many fit
into a group follows from the seconds per item so far. A worker returns a group unfinished once it has worked for
`STOP_S`, so a wrong guess delays nothing by more than this and one item. Groups become smaller toward the end, and an
item without measured neighbors is sent alone.

Only items in flight are held, so memory does not grow with their number.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

GROUP_S = 0.25
"""Seconds of work to send as one task."""

STOP_S = 2 * GROUP_S
"""Seconds after which a worker returns the results of a group and leaves the remaining items."""

_LEAST_S = 0.02
"""Seconds of work below which a task is not divided among threads: a task takes about as long by itself."""

_GROUP_ITEMS = 128
"""Largest group: the items of a lost one run alone, and cost a task each."""

_GROUPS = 4
"""Groups in flight per thread: one at work, one waiting on its worker, and two that replace them."""

_AHEAD_S = 10.0
"""Seconds of work in flight per thread, if that is more: above 5 s a thread, Dask's autoscaler wants more threads."""

_AHEAD_ITEMS = _GROUPS * _GROUP_ITEMS
"""Most items in flight per thread."""


@dataclass(frozen=True)
class Done:
    """Results of the first items of a group, in order, and the seconds that they took."""

    results: list[Any]
    seconds: float


def work(fn: Callable[[Any], Any], items: Sequence[Any]) -> Done:
    """Calls `fn` with the items of a group, on a worker; stops after `STOP_S`, but not before the first item."""
    begin = time.monotonic()
    results = []
    for item in items:
        results.append(fn(item))
        if time.monotonic() - begin > STOP_S:
            break
    return Done(results, time.monotonic() - begin)


class Window:
    """Items by index, from 0: which to send next, and in what groups.

    Args:
        count: number of items.
    """

    def __init__(self, count: int) -> None:
        self._next = 0
        self._count = count
        self._again: deque[int] = deque()
        self._alone: deque[int] = deque()
        self._pace = 0.0

    @property
    def waiting(self) -> int:
        """Number of items that are neither in flight nor done."""
        return self._count - self._next + len(self._again) + len(self._alone)

    def groups(self, in_flight: int, threads: int) -> Iterator[list[int]]:
        """Yields the groups to send now; none until a quarter of the window is free, so that they are sent together.

        Args:
            in_flight: number of items in flight.
            threads: number of threads of all workers.
        """
        most = threads * self._ahead()
        if in_flight > 3 * most // 4:
            return
        while self.waiting and in_flight < most:
            size = min(self._size(threads), most - in_flight)
            group = [self._alone.popleft()] if self._alone else self._take(size)
            in_flight += len(group)
            yield group

    def measured(self, done: Done) -> None:
        """Takes the time of a group into account."""
        pace = max(1e-6, done.seconds / len(done.results))
        self._pace = (self._pace + pace) / 2 if self._pace else pace

    def again(self, group: Sequence[int]) -> None:
        """Takes items back that have no result; they go first."""
        self._again.extendleft(reversed(group))

    def alone(self, group: Sequence[int]) -> None:
        """Takes back a group whose worker was lost: one of its items may be the cause, so each is sent alone."""
        self._alone.extend(group)

    def _ahead(self) -> int:
        if not self._pace:
            return _GROUPS
        return min(_AHEAD_ITEMS, max(_GROUPS * self._within(GROUP_S), self._within(_AHEAD_S)))

    def _size(self, threads: int) -> int:
        # The last items are shared among all threads.
        share = max(self.waiting // (2 * threads), self._within(_LEAST_S))
        return min(share, self._within(GROUP_S), _GROUP_ITEMS)

    def _within(self, seconds: float) -> int:
        """Returns how many items take that long; 1 if they take longer or none has been measured."""
        return max(1, int(seconds / self._pace)) if self._pace else 1

    def _take(self, size: int) -> list[int]:
        if self._again:
            return [self._again.popleft() for _ in range(min(size, len(self._again)))]
        first, self._next = self._next, min(self._count, self._next + size)
        return list(range(first, self._next))
