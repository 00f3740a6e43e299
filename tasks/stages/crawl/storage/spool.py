"""Spool of a crawl task: stores closed parts in the background, strictly in order, from a buffer on the local disk.

The files of a part are stored first, then its record. While the store does not respond, parts are buffered up to a
limit, the crawl continues, and a warning is logged. The buffer is in the task's scratch folder, with one folder per
attempt; the parts of a killed attempt are committed by the next attempt on the same machine:

    buffer/<attempt>/lock          locked while the attempt runs
    buffer/<attempt>/<stem>/...    the files of a part; the part is closed once part.json (its record) exists

There is no fsync: a killed process loses nothing that it has written, and after a crash of the machine the checksums in
part.json show which parts are complete.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tasks.core.artifact import RECORD, FileEntry, PartRecord
from tasks.core.digest import sha256_of_file
from tasks.core.errors import SluiceError, StoreError, TransientError
from tasks.core.part import commit_part
from tasks.core.stage import Output, scratch_of
from tasks.core.store import Store
from tasks.stages.crawl.hosts.clocks import Wakeup

log = logging.getLogger("sluice.crawl")

DRAIN_S = 600.0
"""Seconds for which the end of a task waits for a store that does not respond."""

MANIFEST = "part.json"

_NAME = "warc-"
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_REMIND_S = 600.0
# The client of an object store retries for minutes before it raises an error, so a slow call is reported earlier.
_SLOW_S = 120.0
_JOIN_S = 5.0
_CHUNK = 1 << 20
# Disk space reserved for responses that are being received when the disk is found to be full.
_RESERVE = 256 << 20


class _SupersededError(TransientError):
    """Another attempt has continued the task, so waiting for the store is useless."""


@dataclass(frozen=True)
class ClosedPart:
    """A closed part: its files are complete and in `folder`; `record` describes them."""

    folder: Path
    record: PartRecord

    @property
    def bytes(self) -> int:
        """Total size of its files."""
        return sum(entry.bytes for entry in self.record.files)

    def remove(self) -> None:
        """Removes the part from the disk."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Staging(Store):
    """A local folder to which files are written directly, without the atomicity of a store."""

    @contextlib.contextmanager
    def write(self, path: str) -> Iterator[BinaryIO]:
        """Yields a binary file at `path`; after an error, a partial file remains.

        Raises:
            StoreError: the disk is full or cannot be written.
        """
        try:
            with self._translated_errors(path, remote_errors=False):
                full = self._full(path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "wb") as file:
                    yield cast(BinaryIO, file)
        except StoreError as error:
            raise StoreError(f"captures cannot be kept on this machine: {error.cause}", error.remedy) from error


class Buffer:
    """The buffer folder of one attempt, which is locked while the attempt runs.

    Args:
        scratch: the task's scratch folder on this machine.
        attempt: name of this attempt.

    Attributes:
        folder: the folder of this attempt.
        staging: the same folder as a store, to which the files of parts are written, below one folder per stem.
    """

    def __init__(self, scratch: str, attempt: str) -> None:
        self.folder = Path(scratch) / "buffer" / attempt
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        self.staging = Staging(str(self.folder))

    def close_part(self, stem: str, record: PartRecord) -> ClosedPart:
        """Closes a part: writes its record to part.json, after all files below `stem` are complete."""
        folder = self.folder / stem
        with self.staging.write(f"{stem}/{MANIFEST}.new") as file:
            file.write(record.model_dump_json().encode())
        os.replace(folder / f"{MANIFEST}.new", folder / MANIFEST)
        return ClosedPart(folder, record)

    def take_over_parts(self) -> list[ClosedPart]:
        """Moves the closed parts of earlier attempts on this machine into this folder; removes their other files.

        Returns:
            these parts, sorted by stem.

        Raises:
            TransientError: another attempt has finished the task and cleared its scratch folder.
        """
        try:
            return self._take_over_parts()
        except FileNotFoundError:
            if self.folder.exists():
                raise
            cause = f"another attempt of this task has finished and cleared {self.folder.parent}"
            raise TransientError(cause, "run it again: the next attempt reads the stored parts") from None

    def _take_over_parts(self) -> list[ClosedPart]:
        parts = []
        for folder in sorted(self.folder.parent.iterdir()):
            if folder == self.folder:
                continue
            lock = _lock(folder)
            if lock is None:
                log.warning("another attempt of this task is running on this machine (%s)", folder)
                continue
            parts += [closed for part in sorted(folder.iterdir()) if (closed := self._take_over(part))]
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
        return sorted(parts, key=lambda closed: closed.folder.name)

    def free(self) -> int:
        """Returns the free bytes of the disk; 0 if the folder is missing."""
        with contextlib.suppress(FileNotFoundError):
            return shutil.disk_usage(self.folder.parent.parent).free
        return 0

    def release(self, *, empty: bool) -> None:
        """Releases the lock; removes the folder if it is empty, otherwise leaves it for the next attempt."""
        if self._lock is not None:
            if empty:
                shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def _take_over(self, folder: Path) -> ClosedPart | None:
        try:
            record = PartRecord.model_validate_json((folder / MANIFEST).read_bytes())
            complete = all(sha256_of_file(folder / entry.path) == entry.sha256 for entry in record.files)
        except (OSError, ValueError):
            return None  # the part was not closed
        if not complete:
            log.warning("the buffered part %s is damaged; its pages are fetched again", folder)
            return None
        target = self.folder / folder.name
        os.replace(folder, target)
        return ClosedPart(target, record)


def _lock(folder: Path) -> int | None:
    """Locks the folder of an attempt for this process; returns the file descriptor, or None if its owner is running."""
    # A record lock, not flock(): forked children do not inherit it, and it is released when the process ends.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
    return None


class Spool:
    """Queue of closed parts, and the thread that stores them.

    Args:
        output: the artifact being written.
        limit_bytes: bytes that may be buffered before `wait_for_space` waits.
        order: folders of a part in the order in which their files are stored.

    Attributes:
        buffer: the folder of buffered parts.
        outages: number of times that the store ceased to respond.
        peak_bytes: maximum of buffered bytes.
    """

    def __init__(self, output: Output, limit_bytes: int, order: tuple[str, ...] = ()) -> None:
        self._output = output
        self._limit = limit_bytes
        self._order = order
        self.buffer = Buffer(output.scratch, output.attempt)
        self.outages = 0
        self.peak_bytes = 0
        self._queue: deque[ClosedPart] = deque()
        self._stored: set[str] = set()
        self._bytes = 0
        self._free = self.buffer.free()
        self._state = threading.Condition()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._busy_since: float | None = None
        self._down_since: float | None = None
        self._logged_at = 0.0
        self._failure: SluiceError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of closed parts that are not stored yet."""
        return self._bytes

    @property
    def holds_parts(self) -> bool:
        """Whether any part is committed or queued."""
        return bool(self._output.committed or self._queue)

    def stem(self) -> str:
        """Returns a file name prefix for the next part that no other attempt uses."""
        with self._state:
            number = _next_number(self._output.committed) + len(self._queue)
        return f"{_NAME}{number:05d}-{self._output.attempt}"

    def put(self, closed: ClosedPart) -> None:
        """Queues a closed part; returns at once.

        Raises:
            SluiceError: see `check`.
        """
        with self._state:
            self._queue.append(closed)
            self._bytes += closed.bytes
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            self._free = self.buffer.free()
            self._state.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="spool", daemon=True)
            self._thread.start()
        self.check()

    def check(self) -> None:
        """Raises the error that ended the background thread, if any.

        Raises:
            StoreError: the store refuses the files; the message has the path of the buffer.
            TransientError: another attempt of this task has committed the same part.
        """
        if self._failure is not None:
            raise self._failure

    def _checked(self, condition: bool) -> bool:
        self.check()
        return condition

    def is_full(self, open_bytes: int = 0) -> bool:
        """Returns whether fetching must pause; `open_bytes` is the size of the open part."""
        # Without a queued part, nothing would free space, and the wait would not end.
        return self._bytes > 0 and (self._bytes + open_bytes >= self._limit or self._free < _RESERVE)

    async def wait_for_space(self, open_bytes: Callable[[], int]) -> None:
        """Waits while the buffer is full.

        Raises:
            SluiceError: see `check`.
        """
        self.check()
        since, now = self._busy_since, time.monotonic()
        if since is not None and self._down_since is None and now - since > _SLOW_S:
            self._alert(f"no answer for {now - since:.0f} s")
        if self.is_full(open_bytes()):
            if not self._wakeup:
                log.warning("[%s] fetching pauses, the buffer is full: %s", self._output.address, self._level())
            await self._wakeup.wait_until(lambda: self._checked(not self.is_full(open_bytes())))

    async def close(self, limit_s: float = DRAIN_S) -> None:
        """Waits until all parts are stored, and ends the thread.

        Raises:
            SluiceError: see `check`.
            TransientError: the store has not accepted all parts within `limit_s` seconds.
        """
        try:
            async with asyncio.timeout(limit_s):
                await self._wakeup.wait_until(lambda: self._checked(not self._queue))
        except TimeoutError:
            raise TransientError(
                f"{self._output.address}: the store has not accepted the last captures: {self._level()}",
                "run it again on this machine when the store responds: it stores the buffered captures first",
            ) from None
        finally:
            self.end()

    def end(self) -> None:
        """Ends the thread after the current part; queued parts remain on the disk for the next attempt."""
        with self._state:
            if self._stopping:
                return
            self._stopping = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():  # it is in a call to the store; the lock is released when the process ends
                return
        self.buffer.release(empty=not self._queue)

    def _work(self) -> None:
        pause = _FIRST_PAUSE_S
        while (closed := self._next()) is not None:
            self._busy_since = self._busy_since or time.monotonic()
            try:
                self._commit(closed)
                pause, self._busy_since = _FIRST_PAUSE_S, None
            except Exception as error:
                if isinstance(error, _SupersededError) or not isinstance(error, TransientError | OSError):
                    self._fail(error)
                    return
                self._alert(str(error))
                with self._state:
                    self._state.wait_for(lambda: self._stopping, pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _next(self) -> ClosedPart | None:
        with self._state:
            self._state.wait_for(lambda: self._queue or self._stopping)
            return None if self._stopping else self._queue[0]

    def _commit(self, closed: ClosedPart) -> None:
        output = self._output
        if output.store.exists(f"{output.address.path}/{RECORD}"):
            output.store.forget_scratch(scratch_of(output.address, output.fingerprint))
            raise _SupersededError(f"another attempt has finished {output.address}; its captures are used")
        for entry in sorted(closed.record.files, key=self._rank):
            if entry.path not in self._stored:
                self._store_file(closed, entry)
                self._stored.add(entry.path)
        name = f"{_NAME}{_next_number(output.committed):05d}"
        record = closed.record.model_copy(update={"name": name})
        committed = commit_part(output.store, output.address.path, output.fingerprint, record)
        if committed.files != record.files:
            raise _SupersededError(
                f"another attempt of {output.address} is committing the same pages",
                "let it finish, or end it and run this one again",
            )
        log.info("committed %s: %d captures of %d URLs", name, record.rows_out, record.rows_in)
        self._remove_committed(closed, committed)

    def _rank(self, entry: FileEntry) -> tuple[int, str]:
        folder = entry.path.partition("/")[0] + "/"
        return (self._order.index(folder) if folder in self._order else 0, entry.path)

    def _store_file(self, closed: ClosedPart, entry: FileEntry) -> None:
        try:
            source = open(closed.folder / entry.path, "rb")  # noqa: SIM115  an error here is not one of the store
        except OSError as error:
            raise _SupersededError(
                f"the buffered file {closed.folder / entry.path} can no longer be read ({error.strerror})",
                "check whether another attempt has finished; if not, run this one again",
            ) from error
        with source, self._output.store.write(f"{self._output.address.path}/{entry.path}") as target:
            shutil.copyfileobj(source, target, _CHUNK)

    def _remove_committed(self, closed: ClosedPart, record: PartRecord) -> None:
        with self._state:
            self._output.committed[record.name] = record
            self._queue.popleft()
            self._stored.clear()
            self._bytes -= closed.bytes
            drained = not self._queue
        closed.remove()
        if self._down_since is not None and drained:
            delay_s = time.monotonic() - self._down_since
            log.warning("[%s] the store has accepted all buffered captures, %.0f s late", self._output.address, delay_s)
            self._down_since = None
        self._free = self.buffer.free()
        self._wakeup.notify()

    def _alert(self, why: str) -> None:
        now = time.monotonic()
        with self._state:  # the thread and the event loop both call this
            if self._down_since is None:
                self._down_since, self._logged_at = now, now - _REMIND_S
                self.outages += 1
            if now - self._logged_at < _REMIND_S:
                return
            self._logged_at = now
        text = "[%s] the store %s does not accept captures (%s); fetching continues, and they are buffered: %s"
        log.warning(text, self._output.address, self._output.store.root, why, self._level())

    def _level(self) -> str:
        space = max(0, min(self._limit - self._bytes, self._free))
        return f"{self._bytes / 1e6:,.1f} MB in {self.buffer.folder}, space for {space / 1e6:,.1f} MB more"

    def _fail(self, error: Exception) -> None:
        where = f"captures not stored yet: {self._level()}"
        if isinstance(error, StoreError):
            failure: SluiceError = StoreError(f"{error.cause}; {where}", error.remedy)
        elif isinstance(error, TransientError):
            failure = TransientError(error.cause, error.remedy)
        elif isinstance(error, SluiceError):
            failure = error
        else:
            # An internal error must end the crawl; otherwise it would continue without a store.
            log.error("[%s] captures cannot be committed", self._output.address, exc_info=error)
            failure = TransientError(f"captures cannot be committed ({type(error).__name__}: {error}); {where}")
        self._failure = failure
        self._wakeup.notify()


def _next_number(committed: dict[str, PartRecord]) -> int:
    # Not the number of parts plus one: a part that could not be committed leaves a gap.
    numbers = (int(name.removeprefix(_NAME)) for name in committed if name.startswith(_NAME))
    return 1 + max(numbers, default=-1)
