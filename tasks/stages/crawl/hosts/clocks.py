"""Persistent cooldowns of hosts, so that the retry of a killed fetch observes them.

Every attempt writes `.clocks/<attempt>-<n>.json` beside the unfinished artifact, for retries on other machines; the
commit of the artifact removes these files. It also appends to `clocks/<attempt>.jsonl` in the scratch folder of the
task, which is a little more recent. Times are wall-clock times. Short pauses are not stored; instead, a retry waits for
the longest unstored pause before its first request to any host.
"""

import asyncio
import contextlib
import json
import logging
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

from tasks.core.errors import SluiceError, TransientError
from tasks.core.stage import Output

log = logging.getLogger("sluice.crawl")

FOLDER = ".clocks"
_BEGAN = "began"
# Files per attempt. Each write replaces one of them, with the hosts of its bucket.
_BUCKETS = 16
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_JOIN_S = 2.0


@dataclass(frozen=True)
class Cooldown:
    """Cooldown of one host.

    Attributes:
        authority: the host.
        delay_s: pause in seconds after every request; 0 if too short to be stored.
        until: Unix time before which no request may be sent to the host.
        pause_s: duration in seconds of the pause that ends at `until`.
        failures: consecutive failures.
    """

    authority: str
    delay_s: float = 0.0
    until: float = 0.0
    pause_s: float = 0.0
    failures: int = 0

    def remaining_s(self, now: float) -> float:
        """Returns the seconds for which a new process must not send a request to the host.

        The time of the last request is unknown, so the whole delay counts from now. The result never exceeds the
        original pause, even if the system clock was set back.
        """
        return max(self.delay_s, min(max(self.until - now, 0.0), self.pause_s))

    def merged(self, other: "Cooldown") -> "Cooldown":
        """Returns the stricter combination of both cooldowns."""
        latest = max(self, other, key=lambda cooldown: (cooldown.until, cooldown.failures))
        delay_s = max(self.delay_s, other.delay_s)
        return Cooldown(self.authority, delay_s, latest.until, latest.pause_s, latest.failures)


class CooldownStore:
    """Stores the cooldowns of one fetch task, and reads those of its earlier attempts.

    Args:
        output: the artifact being written.

    Attributes:
        resumed: whether an earlier attempt may have sent requests.
        inherited: cooldowns of earlier attempts, by host.

    Raises:
        SluiceError: the store cannot be read or written.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._path = f"{output.address.path}/{FOLDER}"
        folder = Path(output.scratch) / "clocks"
        folder.mkdir(parents=True, exist_ok=True)
        self.inherited: dict[str, Cooldown] = {}
        for cooldown in (*self._read_store(), *_read_journals(folder)):
            self.inherited[cooldown.authority] = cooldown.merged(self.inherited.get(cooldown.authority, cooldown))
        self.resumed = self._mark_begun()
        self._journal = open(folder / f"{output.attempt}.jsonl", "a", buffering=1)  # noqa: SIM115  closed by `close`
        self._current: dict[str, Cooldown] = {}
        self._unsaved: dict[str, Cooldown] = {}
        self._state = threading.Condition()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self._stopping = False
        # Whether the last write failed and is repeated, and the error that ended the thread.
        self._failing = False
        self._failure: SluiceError | None = None

    def save(self, cooldown: Cooldown) -> None:
        """Queues a host's cooldown for storage and returns immediately."""
        self._journal.write(json.dumps(astuple(cooldown)) + "\n")
        with self._state:
            merged = cooldown.merged(self._current.get(cooldown.authority, cooldown))
            self._current[cooldown.authority] = self._unsaved[cooldown.authority] = merged
            self._state.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cooldowns", daemon=True)
            self._thread.start()

    def is_unsaved(self, authority: str) -> bool:
        """Returns whether a cooldown of the host is not stored yet.

        Raises:
            SluiceError: a write failed and cannot be repeated.
        """
        if self._failure is not None:
            raise self._failure
        return authority in self._unsaved

    async def wait_saved(self, authority: str) -> None:
        """Waits until the host's cooldown is stored."""
        if self.is_unsaved(authority):
            await self._wakeup.wait_until(lambda: not self.is_unsaved(authority))

    @property
    def recheck_s(self) -> float:
        """Seconds to wait before another call of `is_unsaved`."""
        return 5.0 if self._failing else 0.05

    def close(self) -> None:
        """Ends the thread; cooldowns that are not stored yet remain in the scratch folder."""
        with self._state:
            self._stopping = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._journal.close()

    def _mark_begun(self) -> bool:
        """Writes the marker of the first attempt; returns whether there was an earlier attempt."""
        path = f"{self._path}/{_BEGAN}"
        if self._output.store.exists(path):
            return True
        with self._output.store.write(path) as file:
            file.write(self._output.attempt.encode())
        return bool(self.inherited)

    def _read_store(self) -> Iterator[Cooldown]:
        for path in self._output.store.list(self._path):
            if path.endswith(".json"):
                yield from (Cooldown(*row) for row in json.loads(self._output.store.read(path)))

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while (bucket := self._next_bucket()) is not None:
            number, cooldowns = bucket
            path = f"{self._path}/{self._output.attempt}-{number}.json"
            try:
                with self._output.store.write(path) as file:
                    file.write(json.dumps(list(map(astuple, cooldowns))).encode())
            except Exception as error:
                if not isinstance(error, TransientError | OSError):
                    self._fail(error)
                    return
                self._failing = True
                with self._state:
                    self._state.wait_for(lambda: self._stopping, pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                continue
            pause, self._failing = _FIRST_PAUSE_S, False
            with self._state:
                for cooldown in cooldowns:
                    if self._unsaved.get(cooldown.authority) is cooldown:
                        del self._unsaved[cooldown.authority]
            self._wakeup.notify()

    def _next_bucket(self) -> tuple[int, list[Cooldown]] | None:
        """Waits for an unsaved cooldown; returns the number of its file and the content, or None after `close`."""
        with self._state:
            self._state.wait_for(lambda: self._unsaved or self._stopping)
            if self._stopping:
                return None
            number = _bucket(next(iter(self._unsaved)))
            return number, [cooldown for cooldown in self._current.values() if _bucket(cooldown.authority) == number]

    def _fail(self, error: Exception) -> None:
        log.error("[%s] cannot store pauses of hosts", self._output.address, exc_info=error)
        wrapped = error if isinstance(error, SluiceError) else TransientError(f"{type(error).__name__}: {error}")
        self._failure = wrapped
        self._wakeup.notify()


def _read_journals(folder: Path) -> Iterator[Cooldown]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                yield Cooldown(*json.loads(line))
            except (ValueError, TypeError):
                continue  # a line that was cut off when the process was killed


def _bucket(authority: str) -> int:
    return zlib.crc32(authority.encode()) % _BUCKETS


class Wakeup:
    """A condition variable for coroutines of any event loop, notified from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def __bool__(self) -> bool:
        """Returns whether any coroutine is waiting."""
        return bool(self._waiters)

    def notify(self) -> None:
        """Wakes all waiting coroutines, which then check their predicates. Thread-safe."""
        with self._lock:
            for loop, event in self._waiters:
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(event.set)

    async def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Waits until `predicate` returns True; its exceptions propagate."""
        event = asyncio.Event()
        waiter = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiters.add(waiter)
        try:
            while not predicate():
                await event.wait()
                event.clear()
        finally:
            with self._lock:
                self._waiters.discard(waiter)
