"""Init process of a pod: forwards signals to the stage and reaps child processes.

The kernel gives PID 1 no default action for a signal, so a stage that is PID 1 would ignore SIGTERM wherever it has no
handler, and the pod would occupy its GPUs for the whole grace period; orphans become its children, and stay zombies. So
the shell forks before any slow import: the child runs the stage with the default actions of signals; the parent (10 MB)
only waits. A child with nothing to save ends on SIGTERM immediately, which is safe: parts are committed whole.
"""

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
AWAITED = {*FORWARDED, signal.SIGCHLD}

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def fork_below_init() -> None:
    """Forks where this process is PID 1 or ignores SIGTERM: the parent becomes the init process, the child returns.

    Returns immediately elsewhere. The parent never returns: it exits with the child's status, 128 + signal if the child
    was killed, and ends all remaining child processes before.
    """
    if os.getpid() != 1 and signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
        return
    # A blocked signal stays pending until `sigwait`, even if it is ignored or this is PID 1.
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    stage = os.fork()
    if stage:
        _watch(stage)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in FORWARDED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)


def _watch(stage: int) -> NoReturn:
    while True:
        number = signal.sigwait(AWAITED)
        if number != signal.SIGCHLD:
            os.kill(stage, number)
            continue
        status = _reap(stage)
        if status is not None:
            _end_orphans()
            os._exit(status if status >= 0 else 128 - status)


def _reap(stage: int) -> int | None:
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
    """Kills the child processes that the stage has left, such as pool workers that wait for work."""
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
