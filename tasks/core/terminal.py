"""What a command shows: progress of long work, and a silent end where nobody reads on.

`Progress` overwrites one line of a terminal; elsewhere (an Airflow log, a file) it writes a log line every few seconds.

Python ignores SIGPIPE, so that a broken connection does not end a process; a command whose standard output is closed by
its reader, as by `head`, would end with a traceback without `handling_broken_pipe`.
"""

import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable

log = logging.getLogger("sluice.progress")
_QUIET_S = 5.0
GONE = 128 + signal.SIGPIPE
"""Exit status of a command that SIGPIPE ended, as a shell reports it."""


class Progress:
    """Progress report of one stage.

    Args:
        label: name of the work, such as "annotate".
        quiet_s: seconds between two lines in a log.
    """

    def __init__(self, label: str, quiet_s: float = _QUIET_S) -> None:
        self.label = label
        self.quiet_s = quiet_s
        self._begin = time.monotonic()
        self._reported = float("-inf")
        self._already: float | None = None

    def report(self, done: float, total: float, note: str = "") -> None:
        """Reports that `done` of `total` is finished; the last report is always shown."""
        if self._already is None:
            self._already = done if done < total else 0.0
        now = time.monotonic()
        finished = done >= total
        if not finished and now - self._reported < (0.2 if sys.stderr.isatty() else self.quiet_s):
            return
        self._reported = now
        line = f"[{self.label}] {_share(done, total)}{', ' + note if note else ''}{self._left(done, total, now)}"
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{line}", end="\n" if finished else "", file=sys.stderr, flush=True)
        else:
            log.info("%s", line)

    def _left(self, done: float, total: float, now: float) -> str:
        # Work of an earlier, killed run does not count in the speed of this one.
        fresh = done - (self._already or 0.0)
        if done >= total or fresh <= 0:
            return ""
        return f", {duration((now - self._begin) / fresh * (total - done))} left"


def duration(seconds: float) -> str:
    """Returns seconds as a person reads them.

    >>> duration(42), duration(90), duration(7300)
    ('42 s', '1 min 30 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _share(done: float, total: float) -> str:
    percent = 100.0 * done / total if total else 100.0
    return f"{done:,.0f}/{total:,.0f} ({percent:.0f} %)"


def handling_broken_pipe(command: Callable[[], int]) -> int:
    """Runs a command that prints; returns its exit status, or `GONE` where the reader has closed standard output.

    Raises:
        BrokenPipeError: another pipe is broken.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _unread(sys.stdout.fileno()):
            raise
        # The interpreter flushes the buffer at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GONE


def _unread(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are reported without being requested
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
