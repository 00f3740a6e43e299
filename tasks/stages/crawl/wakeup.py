"""Waiting in coroutines for a condition that a thread changes."""

import asyncio
import contextlib
import threading
from collections.abc import Callable


class Wakeup:
    """A place where coroutines of any event loop wait until a thread has changed something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def __bool__(self) -> bool:
        """Returns whether any coroutine waits."""
        return bool(self._waiting)

    def call(self) -> None:
        """Has everybody look again; from any thread."""
        with self._lock:
            for loop, event in self._waiting:
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(event.set)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Waits until `reached` is true; its exceptions end the wait."""
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiting.add(waiter)
        try:
            while not reached():
                await event.wait()
                event.clear()
        finally:
            with self._lock:
                self._waiting.discard(waiter)
