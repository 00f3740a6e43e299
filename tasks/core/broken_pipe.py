"""How a command ends when whoever reads its output has gone, as `head` does: without a word, like any Unix tool.

Python ignores SIGPIPE, so that a broken connection does not end a process; of standard output it makes a traceback.
"""

import os
import select
import signal
import sys
from collections.abc import Callable

GONE = 128 + signal.SIGPIPE
"""The exit status of a command that SIGPIPE has ended, as a shell reports it."""


def ends_quietly(command: Callable[[], int]) -> int:
    """Runs a command that prints; returns its exit status, or `GONE` where nobody reads standard output any more.

    Any other pipe that breaks is an error as before.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _unread(sys.stdout.fileno()):
            raise
        # What is still buffered would be written, and fail, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GONE


def _unread(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)  # what is broken is told without being asked for
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
