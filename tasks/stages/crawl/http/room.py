"""Memory limit for response bodies in flight: many small ones, few large ones at a time.

A visit that receives more than 256 KiB reserves memory until it ends. While all memory is reserved, large bodies are
not read further, except that of the visit that has waited longest. So a thousand slow hosts with maximal bodies take no
more memory than a few dozen.
"""

import asyncio
from collections.abc import Hashable
from typing import Protocol

SMALL = 256 << 10
"""Bytes of a body that need no room."""
ROOM = 192 << 20
"""Bytes of memory for what is beyond."""


class Reading(Protocol):
    """What can be made to wait: a connection."""

    def pause(self) -> None:
        """Stops reading."""

    def read_on(self) -> None:
        """Reads on, unless it is over."""


class Room:
    """Keeps account of large bodies, by the visit that they belong to."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, int] = {}
        self._paused: dict[Hashable, Reading] = {}
        self._taken = 0

    def take(self, visit: "asyncio.Task[object]", reading: Reading, size: int) -> None:
        """Notes that the body of a visit has `size` bytes by now; has it wait if there is no room."""
        if size <= SMALL:
            return
        before = self._sizes.get(visit)
        if before is None:
            before = SMALL
            visit.add_done_callback(self._leave)
        self._sizes[visit] = size
        self._taken += size - before
        if self._taken > ROOM and visit is not next(iter(self._sizes)) and visit not in self._paused:
            self._paused[visit] = reading
            reading.pause()

    def _leave(self, visit: "asyncio.Task[object]") -> None:
        self._paused.pop(visit, None)
        self._taken -= self._sizes.pop(visit) - SMALL
        first = next(iter(self._sizes), None)
        for waiting in [visit for visit in self._paused if self._taken <= ROOM or visit is first]:
            self._paused.pop(waiting).read_on()
