"""Parent watch: kills a training process when the process that started it ends, however it ends.

A stage that is killed with SIGKILL cannot clean up, and its retry must not find a second writer in its folder. Two
mechanisms: on Linux PR_SET_PDEATHSIG; everywhere end of file on standard input, a pipe whose other end only the stage
has open. A pod runs no stage beside the ranks and needs no watch.
"""

import ctypes
import os
import signal
import sys
import threading

PARENT_PIPE = "SLUICE_PARENT_PIPE"
"""Set to "stdin" by a parent that has the other end of our standard input open."""

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Starts the watch, if the parent has set `PARENT_PIPE`; call once, early."""
    if os.environ.get(PARENT_PIPE) != "stdin":
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Also covers the time before the call above: a parent that has ended has closed the pipe.
    threading.Thread(target=_die_with_pipe, name="pipe-watch", daemon=True).start()


def _die_with_pipe() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
