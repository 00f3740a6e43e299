"""What the first process of a pod owes its stage: it hears SIGTERM at once, passes it on, and buries the dead.

The kernel gives PID 1 no default action for a signal, so a stage that is PID 1 would sleep through SIGTERM wherever it
has no handler, and the pod would hold its GPUs for the whole grace; orphans become its children, and stay zombies. So
the shell forks there before anything slow is imported: the child runs the stage with ordinary signals, as in a
terminal; the parent (10 MB) only waits. A child that has nothing to save dies of SIGTERM on the spot, which is safe:
parts are committed whole.
"""

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
HEARD = {*PASSED_ON, signal.SIGCHLD}

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def stand_in() -> None:
    """Puts a process that does the duties of PID 1 between the kernel and the caller, where that is needed.

    Returns at once where signals act as they should, else in a child; the caller's own process never returns. It exits
    with the child's status, 128 + signal if the child was killed, and leaves no process behind.
    """
    if os.getpid() != 1 and signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        return
    # Blocked, a signal is kept until it is asked for, even if it is ignored or we are PID 1.
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    stage = os.fork()
    if stage:
        _watch(stage)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in PASSED_ON:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def _watch(stage: int) -> NoReturn:
    while True:
        number = signal.sigwait(HEARD)
        if number != signal.SIGCHLD:
            os.kill(stage, number)
            continue
        status = _bury(stage)
        if status is not None:
            _end_orphans()
            os._exit(status if status >= 0 else 128 - status)


def _bury(stage: int) -> int | None:
    """Reaps every child that has ended; returns the exit code of `stage` if it is among them (negative: a signal)."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == stage:
                found = os.waitstatus_to_exitcode(status)
    return found


def _end_orphans() -> None:
    """Ends what the stage has left behind: pool workers that wait for work for ever."""
    import psutil

    with contextlib.suppress(ChildProcessError):
        while True:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            os.waitpid(-1, 0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
