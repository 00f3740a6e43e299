"""Waiting for conditions, for tests of concurrent processes."""

import threading
import time
from collections.abc import Callable
from typing import Any


def until(true: Callable[[], Any], limit_s: float = 120, *, every_s: float = 0.05) -> Any:
    """Waits until `true()` is true and returns its value; fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s"
        time.sleep(every_s)
    return value


def later(do: Callable[[], object], when: Callable[[], object]) -> threading.Thread:
    """Calls `do` in a background thread as soon as `when()` is true."""

    def wait() -> None:
        until(when)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread
