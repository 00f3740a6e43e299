"""Exit of a command whose standard output is closed by the reader, as by `head`: silent, like any Unix tool.

Python ignores SIGPIPE, so that a broken connection does not end a process; on standard output that gives a traceback.
"""

import os
import select
import signal
import sys
from collections.abc import Callable

GONE = 128 + signal.SIGPIPE
"""Exit status of a command that SIGPIPE ended, as a shell reports it."""


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
