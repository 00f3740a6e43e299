"""Terminal output of commands: progress reports, tables, and a quiet exit when standard output is closed.

`Progress` overwrites one line of a terminal. Elsewhere (an Airflow log, a file) it writes a log line every few seconds.

Python ignores SIGPIPE so that a broken connection does not end the process. Without `handling_broken_pipe`, a command
whose standard output is closed by its reader, such as `head`, would end with a traceback.
"""

import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence

log = logging.getLogger("sluice.progress")
_QUIET_S = 5.0
"""Least seconds between two log lines."""
BROKEN_PIPE_STATUS = 128 + signal.SIGPIPE
"""Exit status that a shell reports for a command ended by SIGPIPE."""


class Progress:
    """Progress report of one stage.

    Args:
        label: name of the work, such as "annotate".
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._begin = time.monotonic()
        self._reported = float("-inf")
        self._done_before: float | None = None

    def report(self, done: float, total: float, note: str = "") -> None:
        """Reports that `done` of `total` is finished. Reports in quick succession are dropped, except the last one."""
        if self._done_before is None:
            self._done_before = done if done < total else 0.0
        now = time.monotonic()
        finished = done >= total
        if not finished and now - self._reported < (0.2 if sys.stderr.isatty() else _QUIET_S):
            return
        self._reported = now
        remaining = self._remaining(done, total, now)
        line = f"[{self.label}] {_share(done, total)}{', ' + note if note else ''}{remaining}"
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{line}", end="\n" if finished else "", file=sys.stderr, flush=True)
        else:
            log.info("%s", line)

    def _remaining(self, done: float, total: float, now: float) -> str:
        # Work of an earlier, killed run does not count in the speed of this one.
        done_here = done - (self._done_before or 0.0)
        if done >= total or done_here <= 0:
            return ""
        return f", {duration((now - self._begin) / done_here * (total - done))} left"


def duration(seconds: float) -> str:
    """Formats a duration for people.

    >>> duration(0.25), duration(42), duration(90), duration(7300)
    ('0.2 s', '42 s', '1 min 30 s', '2 h 1 min')
    """
    whole = round(seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows of cells, the first of them the head, as lines with aligned columns.

    >>> table_lines([("host", "pages"), ("a.example", "7")])
    ['host       pages', 'a.example  7']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _share(done: float, total: float) -> str:
    percent = 100.0 * done / total if total else 100.0
    return f"{done:,.0f}/{total:,.0f} ({percent:.0f} %)"


def handling_broken_pipe(command: Callable[[], int]) -> int:
    """Runs a command that prints.

    Returns:
        its exit status, or `BROKEN_PIPE_STATUS` if the reader closed standard output.

    Raises:
        BrokenPipeError: another pipe is broken.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _closed_by_reader(sys.stdout.fileno()):
            raise
        # The interpreter flushes the buffer at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_STATUS


def _closed_by_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are reported without being requested
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
