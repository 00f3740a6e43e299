"""A stoppable timeout: time of an exchange without waits that the server does not cause."""

import asyncio


class Clock:
    """A timeout that can be stopped while the exchange waits for something other than the server.

    Args:
        limit: of the time that the exchange may take.

    Attributes:
        stopped_s: seconds for which the clock was stopped.
    """

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.stopped_s = 0.0
        self._limit = limit
        self._stopped: float | None = None
        self._left: float | None = None

    def stop(self) -> None:
        """Stops the clock."""
        if self._stopped is None and not self._limit.expired():
            self._stopped, until = _now(), self._limit.when()
            self._left = None if until is None else until - self._stopped
            self._limit.reschedule(None)

    def go_on(self) -> None:
        """Restarts the clock."""
        if self._stopped is not None:
            now = _now()
            self.stopped_s += now - self._stopped
            self._stopped = None
            self._limit.reschedule(None if self._left is None else now + self._left)


def _now() -> float:
    return asyncio.get_running_loop().time()
