"""The init process below which the first command of a pod runs.

The kernel has no default actions for signals to PID 1, so a stage running as PID 1 would ignore SIGTERM unless it
installs a handler, and the pod would occupy its GPUs for the whole grace period. Orphaned processes would become its
children and remain zombies. So the command forks before any slow import. The child runs it with default actions for
signals. The parent only forwards signals and reaps children. A child with nothing to save ends on SIGTERM immediately,
which is safe because parts are committed atomically.
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
    """Forks if this process is PID 1 or ignores SIGTERM; the child returns, the parent acts as its init process.

    The parent never returns: it kills all remaining child processes and exits with the child's status, or with 128 +
    signal if the child was killed. Any other process returns immediately.
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
    """Reaps all ended children; returns the exit code of `stage` (negative: a signal) if it is one of them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == stage:
                code = os.waitstatus_to_exitcode(status)
    return code


def _end_orphans() -> None:
    """Kills the remaining child processes of the stage, such as idle pool workers."""
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
