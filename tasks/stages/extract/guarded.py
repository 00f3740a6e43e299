"""The process that `guard` runs rows in: it reads batches from its standard input and answers on its standard output.

Run by `guard` as `python -m tasks.stages.extract.guarded FILE`, where FILE is the descriptor of a file that both have
mapped.
"""

import contextlib
import gc
import importlib
import mmap
import os
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from tasks.core.errors import SluiceError
from tasks.stages.extract.row import Content, Poison, Rejected

Call = Callable[[], Content]

LENGTH = struct.Struct(">Q")
"""Stands before every question and every answer: how many bytes it has."""
ROW = struct.Struct("=Q")
"""What the mapped file holds: at which row of its batch this process is."""
ROOM = 640 << 20
"""Bytes of address space that this process may take beyond what it starts with."""

_ANSWERS = 1 << 18


def _serve(questions: BinaryIO, answers: BinaryIO, at: mmap.mmap) -> None:
    """Imports what it is told, then answers until its parent is gone; `at` holds the row that it is at."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which ends this process
    for module in _asked(questions) or ():
        importlib.import_module(module)
    gc.freeze()  # what was imported stays: no collection need look at it again
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _answer(answers, pickle.dumps(None))
    answers.flush()
    while question := _asked(questions):
        cpu_s, calls = question
        for row, call in enumerate(calls):
            ROW.pack_into(at, 0, row)
            outcome, final = _outcome(call, cpu_s)
            _answer(answers, outcome)
            if final:
                return
        answers.flush()


def _asked(questions: BinaryIO) -> Any:
    head = questions.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    data = questions.read(LENGTH.unpack(head)[0])
    return pickle.loads(data) if data else None


def _answer(answers: BinaryIO, data: bytes) -> None:
    answers.write(LENGTH.pack(len(data)) + data)


def _outcome(call: Call, cpu_s: float) -> tuple[bytes, bool]:
    """Returns what comes of a call, and whether the parent ends this process for it: no more rows are read in vain."""
    # Nobody handles SIGPROF: it ends the process even where the interpreter is never reached.
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    failed: Exception
    try:
        return pickle.dumps(call(), pickle.HIGHEST_PROTOCOL), False
    except (Rejected, SluiceError) as known:
        failed = known
    except MemoryError:
        failed = Poison("memory", f"it took more than {ROOM >> 20} MiB")
    except Exception as error:  # whatever one page does to a parser must not stop the others
        failed = Poison("error", f"{type(error).__name__}: {error}"[:400])
    except BaseException as panic:  # Rust's panics are no Exception
        failed = Poison("crash", f"{type(panic).__name__}: {panic}"[:400])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    final = isinstance(failed, SluiceError) or (isinstance(failed, Poison) and failed.reason != "error")
    return pickle.dumps(failed, pickle.HIGHEST_PROTOCOL), final


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb", _ANSWERS) as out:
        os.dup2(2, 1)  # what a library prints must not stand among the answers
        _serve(sys.stdin.buffer, out, mmap.mmap(int(sys.argv[1]), ROW.size))
