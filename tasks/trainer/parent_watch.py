"""Ties a training process to the one that started it: when that dies, however it dies, so does this one.

A stage that is killed with SIGKILL cannot clean up, and its retry must not find a second writer in its folder. Two
ties: on Linux the kernel kills us with our parent (PR_SET_PDEATHSIG); everywhere the end of the pipe on standard input,
whose other end only the stage holds. A pod has no stage beside it and needs no watch.
"""

import ctypes
import os
import signal
import sys
import threading

PARENT_PIPE = "SLUICE_PARENT_PIPE"
"""Set to "stdin" by a parent that holds the other end of our standard input."""

_PR_SET_PDEATHSIG = 1


def hold() -> None:
    """Ties this process to its parent, if the parent asked for it; call once, early."""
    if os.environ.get(PARENT_PIPE) != "stdin":
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Covers the moment before the call above, too: a parent that is gone has closed the pipe.
    threading.Thread(target=_die_with_pipe, name="pipe-watch", daemon=True).start()


def _die_with_pipe() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
