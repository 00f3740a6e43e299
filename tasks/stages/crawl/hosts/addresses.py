"""Politeness per IP address: a pause between requests to all hosts behind one address.

The pause runs from the start of one request to the start of the next, so that a slow host behind an address does not
block the others; each host also has its own pause. Slots in the queue are assigned in advance: a host whose slot is not
due yet waits without a connection. Precedents: Heritrix' and Nutch's queues by IP, BUbiNG's `ipDelay`.
"""

import math
import time

from tasks.stages.crawl.config import is_loopback

IP_DELAY_S = 0.25
"""The pause between two requests to a public address where the recipe names none, in seconds (BUbiNG's is 0.5)."""

_FEW = 10_000


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
