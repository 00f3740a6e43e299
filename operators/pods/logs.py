"""Streams the log of a container for hours: live, in order, each line once, with reconnects.

A kubelet that does not respond (the API server then returns 500) only causes a gap in the log.

The position is stored on the pod, in the annotation `sluice/log-read-until`, so that another triggerer can continue
from there. Kubernetes timestamps every line in nanoseconds, but `sinceTime` has a resolution of one second; so each
reconnect reads the last second again and drops the repeated lines.
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
"""Annotation of the pod: timestamp of the last line in the task's log."""

SILENCE_S = 300
"""Seconds without a line after which the log is requested again: the connection may be broken without an error."""

NOTE_S = 30.0
"""Seconds between two updates of the annotation."""

_LONGEST_PAUSE_S = 15.0


class LogSpool:
    """Position in the log of one container, and its last lines; decides for each line whether it is new.

    Args:
        until: timestamp to continue from, in the format of Kubernetes; empty: the beginning.
    """

    def __init__(self, until: str = "") -> None:
        self.until = until
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._key = _key(until)
        self._at_until = 1 if until else 0
        self._skip = 0
        self._overlap = True

    def reconnected(self) -> None:
        """Prepares for a new connection, which repeats the last second."""
        self._skip = self._at_until
        self._overlap = not self.until

    def take(self, line: str) -> tuple[str, bool] | None:
        """Returns the text of a timestamped line and whether lines may be missing before it; None if it is repeated."""
        stamp, _, text = line.partition(" ")
        key = _key(stamp)
        if key is None:
            return line, False  # a line of the kubelet itself, without a timestamp: never dropped
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
        pass_on: called with each line.
        until: value of the pod's annotation.
    """

    def __init__(
        self, api: Api, namespace: str, pod: str, container: str, pass_on: Callable[[str], None], until: str
    ) -> None:
        self.api, self.namespace, self.pod, self.container, self.pass_on = api, namespace, pod, container, pass_on
        self.spool = LogSpool(until)
        self.ended = asyncio.Event()
        self._noted_at = time.monotonic()
        self._broken_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Reads to the end of the log; returns once `ended` is set and the rest is read. Does not raise."""
        if self.spool.until:
            self.pass_on(f"[log continues after {self.spool.until}; earlier lines are in the earlier log of this task]")
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

    async def stop(self, patience_s: float, termination_lines: Sequence[str] = ()) -> None:
        """Waits until the log of an ended pod is read; gives up after `patience_s`, with a warning.

        Args:
            patience_s: seconds to wait.
            termination_lines: lines of the termination message; those that were not read replace the rest of the log.
        """
        self.ended.set()
        if self._task is None:
            return
        done, _ = await asyncio.wait({self._task}, timeout=patience_s)
        self.cancel()
        if done:
            return
        self.pass_on("[the rest of the pod's log cannot be read]")
        if unread := unread_lines(termination_lines, self.spool.last_lines):
            self.pass_on("[its end, from the pod's termination message; lines may be missing before it]")
            for line in unread:
                self.spool.last_lines.append(line)
                self.pass_on(line)

    async def finish(self, patience_s: float) -> None:
        """Reads the last lines of a container that was stopped, after this reader was cancelled."""
        self.ended.set()
        with suppress(TimeoutError, Refused, aiohttp.ClientError, OSError, ValueError):
            await asyncio.wait_for(self._read(), patience_s)

    def start(self) -> "LogReader":
        """Starts to read in the background; returns itself."""
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
                    self.pass_on(f"[log is back after {time.monotonic() - self._broken_at:.0f} s]")
                    self._broken_at = None
                # A line without a line end was cut, and the next connection repeats it whole; or it is the last line.
                new_line = self.spool.take(line) if whole or self.ended.is_set() else None
                if new_line is None:
                    continue
                text, may_miss_lines = new_line
                if may_miss_lines:
                    self.pass_on("[lines may be missing here: the node has not kept them]")
                self.pass_on(text)
                await self._note_sometimes()

    def _break(self, cause: str) -> None:
        if self._broken_at is None:
            self._broken_at = time.monotonic()
            self.pass_on(f"[log cannot be read, the pod is not touched: {cause}]")

    async def _note_sometimes(self) -> None:
        if time.monotonic() - self._noted_at >= NOTE_S:
            await self.note()

    async def note(self) -> None:
        """Writes the position to the pod; after a failed write, a successor only repeats some lines."""
        self._noted_at = time.monotonic()
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


def unread_lines(termination_lines: Sequence[str], read: Sequence[str]) -> list[str]:
    """Returns the lines of a termination message after those that were read.

    Args:
        termination_lines: the message; its first line may be cut at the start, because a message has at most 2 or 4 kB.
        read: the last lines that were read, oldest first; the message may begin before, among or after them.

    >>> unread_lines(["o", "three", "four"], ["one", "two", "three"])
    ['four']
    """
    message, read = list(termination_lines), list(read)
    for end in range(len(message), 0, -1):
        tail = read[-end:]
        candidate = message[end - len(tail) : end]
        cut = end == len(tail) and len(candidate) > 1 and tail[0].endswith(candidate[0])
        if tail and (candidate == tail or (cut and candidate[1:] == tail[1:])):
            return message[end:]
    return message


def _key(stamp: str) -> tuple[int, int] | None:
    """Returns a timestamp as (seconds, nanoseconds), or None if `stamp` is not a timestamp."""
    head, _, fraction = stamp.removesuffix("Z").partition(".")
    try:
        when = datetime.strptime(head, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
        return int(when.timestamp()), int(fraction.ljust(9, "0")[:9] or 0)
    except ValueError:
        return None
