"""Streams the log of a container for hours: live, in order, each line once, with reconnects.

A kubelet that does not answer (the API server then returns 500) only causes a gap in the log.

The position is stored on the pod, in the annotation `sluice/log-read-until`: a triggerer that replaces another one
continues from there. Kubernetes gives every line a timestamp in nanoseconds, but `sinceTime` counts seconds
only; so each reconnect reads the last second again and drops known lines.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta

import aiohttp

from operators.pods.api import PODS, Api
from operators.pods.failure import LAST_LINES
from operators.pods.outage import Refused

READ_UNTIL = "sluice/log-read-until"
"""Annotation of the pod: timestamp of the last line that is in the task's log."""

SILENCE_S = 300
"""Seconds without a line after which the log is requested again: its connection may be broken without an error."""

KEEP_S = 30.0
"""How often the annotation is written."""

_LONGEST_PAUSE_S = 15.0


class LogSpool:
    """The lines of one container that are in the task's log; decides for each line whether it is new.

    Args:
        until: timestamp to continue from, as Kubernetes writes it; empty: the beginning.
    """

    def __init__(self, until: str = "") -> None:
        self.until = until
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._key = _key(until)
        self._at_until = 1 if until else 0
        self._skip = 0
        self._overlap = True

    def reconnected(self) -> None:
        """Marks the beginning of a new connection, which repeats the last second."""
        self._skip = self._at_until
        self._overlap = not self.until

    def take(self, line: str) -> tuple[str, bool] | None:
        """Returns the text of a line (timestamp first) and whether some may be missing before it; None: a repeat."""
        stamp, _, text = line.partition(" ")
        key = _key(stamp)
        if key is None:
            return line, False  # a kubelet's own line without timestamp: never dropped
        if self._key is not None and key < self._key:
            return None
        if key == self._key and self._skip:
            self._skip -= 1
            self._overlap = True
            return None
        missing = not self._overlap
        self._at_until = self._at_until + 1 if key == self._key else 1
        self.until, self._key, self._overlap, self._skip = stamp, key, True, 0
        self.last_lines.append(text)
        return text, missing

    @property
    def since(self) -> str:
        """Returns the `sinceTime` of the next request, or ""."""
        if self._key is None:
            return ""
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self._key[0]):%Y-%m-%dT%H:%M:%SZ}"


class LogReader:
    """Reads the log of one container until it has ended.

    Args:
        api: the cluster.
        namespace: of the pod.
        pod: its name.
        container: its name.
        say: called with each line.
        until: value of the pod's annotation.
    """

    def __init__(
        self, api: Api, namespace: str, pod: str, container: str, say: Callable[[str], None], until: str
    ) -> None:
        self.api, self.namespace, self.pod, self.container, self.say = api, namespace, pod, container, say
        self.spool = LogSpool(until)
        self.ended = asyncio.Event()
        self._kept = time.monotonic()
        self._broken_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Reads to the end of the log; returns only after `ended` is set and the rest is read. Raises nothing."""
        if self.spool.until:
            self.say(f"[log goes on after {self.spool.until}; what came before is in the earlier log of this task]")
        pause = 1.0
        while True:
            last = self.ended.is_set()
            before = self.spool.until
            try:
                await self._read()
                complete = True
            except Refused as error:
                complete = error.status in (400, 404) and last
                if error.status not in (400, 404):  # 400: the container has not started yet
                    self._break(str(error))
            except (aiohttp.ClientError, OSError, ValueError) as error:
                complete = False
                broke_off = isinstance(error, aiohttp.ClientPayloadError)
                self._break("the stream broke off" if broke_off else f"{type(error).__name__} {error}".strip())
            if complete and last:
                return
            pause = 1.0 if self.spool.until != before else min(pause * 2, _LONGEST_PAUSE_S)
            await self._pause(pause)

    async def stop(self, patience_s: float, last_words: Sequence[str] = ()) -> None:
        """Waits until the log of an ended pod is read; gives up after `patience_s`, with a warning.

        Args:
            patience_s: how long.
            last_words: the end of the log from the termination message; its lines that were not read come
                in place of the rest.
        """
        self.ended.set()
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=patience_s)
        self.cancel()
        if done:
            return
        self.say("[the rest of the pod's log is out of reach]")
        if unread := unread_of(last_words, self.spool.last_lines):
            self.say("[its end, from the pod's termination message; lines may be missing before it]")
            for line in unread:
                self.spool.last_lines.append(line)
                self.say(line)

    async def finish(self, patience_s: float) -> None:
        """Reads the last lines of a container that was stopped, after this reader was cancelled."""
        self.ended.set()
        with suppress(TimeoutError, Refused, aiohttp.ClientError, OSError, ValueError):
            await asyncio.wait_for(self._read(), patience_s)

    def start(self) -> "LogReader":
        """Begins to read in the background."""
        self._task = asyncio.create_task(self.run())
        return self

    def cancel(self) -> None:
        """Ends the reading at once."""
        if self._task is not None:
            self._task.cancel()

    async def _read(self) -> None:
        query = {"container": self.container, "follow": "true", "timestamps": "true"}
        if since := self.spool.since:
            query["sinceTime"] = since
        self.spool.reconnected()
        path = f"{PODS.path(self.namespace, self.pod)}/log"
        async with aclosing(self.api.lines(path, query, silence_s=SILENCE_S)) as lines:
            async for line, whole in lines:
                if self._broken_at is not None:
                    self.say(f"[log is back after {time.monotonic() - self._broken_at:.0f} s]")
                    self._broken_at = None
                # A line without its end was cut, and the next connection brings it whole; or it is the last one.
                taken = self.spool.take(line) if whole or self.ended.is_set() else None
                if taken is None:
                    continue
                if taken[1]:
                    self.say("[lines may be missing here: the node has not kept them]")
                self.say(taken[0])
                await self._keep()

    def _break(self, cause: str) -> None:
        if self._broken_at is None:
            self._broken_at = time.monotonic()
            self.say(f"[log is out of reach, the pod is not touched: {cause}]")

    async def _keep(self) -> None:
        if time.monotonic() - self._kept >= KEEP_S:
            await self.note()

    async def note(self) -> None:
        """Notes on the pod how far its log was read; a failure to do so only makes a successor repeat lines."""
        self._kept = time.monotonic()
        with suppress(Refused, aiohttp.ClientError, OSError, ValueError):
            await self.api.annotate(PODS, self.namespace, self.pod, {READ_UNTIL: self.spool.until})

    async def _pause(self, seconds: float) -> None:
        if self.ended.is_set():
            await asyncio.sleep(min(seconds, 1.0))
            return
        try:
            await asyncio.wait_for(self.ended.wait(), seconds)
        except TimeoutError:
            return


def unread_of(last_words: Sequence[str], read: Sequence[str]) -> list[str]:
    """Returns the lines of a termination message after those which were read.

    Args:
        last_words: the message; its first line may lack its beginning, because a message is cut to 2 or 4 kB.
        read: the last lines that were read, ascending; the message may begin before, among or after them.

    >>> unread_of(["o", "three", "four"], ["one", "two", "three"])
    ['four']
    """
    words, known = list(last_words), list(read)
    for at in range(len(words), 0, -1):
        tail = known[-at:]
        same = words[at - len(tail) : at]
        cut = at == len(tail) and len(same) > 1 and tail[0].endswith(same[0])
        if tail and (same == tail or (cut and same[1:] == tail[1:])):
            return words[at:]
    return words


def _key(stamp: str) -> tuple[int, int] | None:
    """Returns a timestamp as (seconds, nanoseconds), or None where it is none."""
    head, _, fraction = stamp.removesuffix("Z").partition(".")
    try:
        when = datetime.strptime(head, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
        return int(when.timestamp()), int(fraction.ljust(9, "0")[:9] or 0)
    except ValueError:
        return None
