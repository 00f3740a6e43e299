"""Persistent cooldowns of hosts: a retry of a killed fetch stays polite.

Every attempt writes `.clocks/<attempt>-<n>.json` beside the unfinished artifact, so that a retry on another machine
reads them (they are removed when the artifact is committed), and `clocks/<attempt>.jsonl` in the task's scratch folder,
which is written a little earlier. Times are on the wall clock. Short pauses are not written: a retry waits for the
longest of them before its first request to any host.
"""

import asyncio
import contextlib
import json
import logging
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.core.errors import SluiceError, TransientError
from tasks.core.stage import Output

log = logging.getLogger("sluice.crawl")

FOLDER = ".clocks"
_BEGAN = "began"
# Files per attempt: a write contains the hosts of one of them only.
_BUCKETS = 16
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_JOIN_S = 2.0


@dataclass(frozen=True)
class Cooldown:
    """Cooldown of one host.

    Attributes:
        authority: the host.
        delay_s: pause after every request, if it is a long one.
        until: time (Unix) before which the host must not be requested.
        pause_s: how long the pause was that ends at `until`.
        failures: in a row.
    """

    authority: str
    delay_s: float = 0.0
    until: float = 0.0
    pause_s: float = 0.0
    failures: int = 0

    def left(self, now: float) -> float:
        """Returns the seconds for which a new process must not send a request to the host.

        The time of the last request is unknown, so the whole delay counts from now. A clock that was set back never
        makes a pause longer than it was.
        """
        return max(self.delay_s, min(max(self.until - now, 0.0), self.pause_s))

    def merged(self, other: "Cooldown") -> "Cooldown":
        """Returns the longer of both cooldowns, field by field."""
        last = max(self, other, key=lambda one: (one.until, one.failures))
        return Cooldown(self.authority, max(self.delay_s, other.delay_s), last.until, last.pause_s, last.failures)


class Clocks:
    """The pauses of one fetch task, over all its attempts.

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
        for one in (*self._stored(), *_journaled(folder)):
            self.inherited[one.authority] = one.merged(self.inherited.get(one.authority, one))
        self.resumed = self._began()
        self._journal = open(folder / f"{output.attempt}.jsonl", "a", buffering=1)  # noqa: SIM115  open till the end
        self._mine: dict[str, Cooldown] = {}
        self._unsaved: dict[str, Cooldown] = {}
        self._state = threading.Condition()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._failing = False
        self._failure: SluiceError | None = None

    def keep(self, cooldown: Cooldown) -> None:
        """Queues a host's cooldown for storage; until it is stored the host is `unsaved`. Returns at once."""
        self._journal.write(json.dumps(_row(cooldown)) + "\n")
        with self._state:
            merged = cooldown.merged(self._mine.get(cooldown.authority, cooldown))
            self._mine[cooldown.authority] = self._unsaved[cooldown.authority] = merged
            self._state.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="clocks", daemon=True)
            self._thread.start()

    def unsaved(self, authority: str) -> bool:
        """Returns whether a cooldown of the host is not stored yet.

        Raises:
            SluiceError: the store refuses.
        """
        if self._failure is not None:
            raise self._failure
        return authority in self._unsaved

    async def saved(self, authority: str) -> None:
        """Waits until the host's cooldown is stored."""
        if self.unsaved(authority):
            await self._wakeup.until(lambda: not self.unsaved(authority))

    @property
    def look_again_s(self) -> float:
        """Seconds after which it is worth looking again whether a host is saved."""
        return 5.0 if self._failing else 0.05

    def end(self) -> None:
        """Ends the thread; what is not stored yet stays in the scratch folder."""
        with self._state:
            self._stopping = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._journal.close()

    def _began(self) -> bool:
        """Writes the marker of a begun attempt; returns whether one existed already."""
        path = f"{self._path}/{_BEGAN}"
        if self._output.store.exists(path):
            return True
        with self._output.store.write(path) as file:
            file.write(self._output.attempt.encode())
        return bool(self.inherited)

    def _stored(self) -> Iterator[Cooldown]:
        for path in self._output.store.list(self._path):
            if path.endswith(".json"):
                yield from (Cooldown(*row) for row in json.loads(self._output.store.read(path)))

    def _work(self) -> None:
        pause = _FIRST_PAUSE_S
        while (bucket := self._next()) is not None:
            number, rows = bucket
            path = f"{self._path}/{self._output.attempt}-{number}.json"
            try:
                with self._output.store.write(path) as file:
                    file.write(json.dumps([_row(one) for one in rows]).encode())
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
                for one in rows:
                    if self._unsaved.get(one.authority) is one:
                        del self._unsaved[one.authority]
            self._wakeup.call()

    def _next(self) -> tuple[int, list[Cooldown]] | None:
        """Returns the next file to write and all that belongs into it."""
        with self._state:
            self._state.wait_for(lambda: self._unsaved or self._stopping)
            if self._stopping:
                return None
            number = _bucket(next(iter(self._unsaved)))
            return number, [one for one in self._mine.values() if _bucket(one.authority) == number]

    def _fail(self, error: Exception) -> None:
        log.error("[%s] pauses of hosts cannot be stored", self._output.address, exc_info=error)
        explained = error if isinstance(error, SluiceError) else TransientError(f"{type(error).__name__}: {error}")
        self._failure = explained
        self._wakeup.call()


def _journaled(folder: Path) -> Iterator[Cooldown]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                yield Cooldown(*json.loads(line))
            except (ValueError, TypeError):
                continue  # the line that a kill has cut off


def _row(cooldown: Cooldown) -> list[object]:
    return [cooldown.authority, cooldown.delay_s, cooldown.until, cooldown.pause_s, cooldown.failures]


def _bucket(authority: str) -> int:
    return zlib.crc32(authority.encode()) % _BUCKETS


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
