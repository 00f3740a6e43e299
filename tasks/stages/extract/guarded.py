"""Child process of `guard`: reads batches of rows from standard input and writes outcomes to standard output.

Run by `guard` as `python -m tasks.stages.extract.guarded FILE`, where FILE is the descriptor of a file that both have
mapped.
"""

import importlib
import mmap
import pickle
import struct
import sys
from collections.abc import Callable

from tasks.core import child_process
from tasks.core.child_process import Parent, limit_cpu, limit_memory
from tasks.core.errors import SluiceError
from tasks.stages.extract.row import Content, Poison, Rejected

Call = Callable[[], Content]

ROW = struct.Struct("=Q")
"""What the mapped file holds: at which row of its batch this process is."""
ROOM = 640 << 20
"""Bytes of address space that this process may take beyond what it starts with."""


def _serve(parent: Parent, at: mmap.mmap) -> None:
    """Imports what the parent names, then answers until it is gone; `at` holds the row that this process is at."""
    questions = parent.questions()
    for module in next(questions, ()):
        importlib.import_module(module)
    limit_memory(ROOM)
    parent.answer(pickle.dumps(None))
    parent.flush()
    for cpu_s, calls in questions:
        for row, call in enumerate(calls):
            ROW.pack_into(at, 0, row)
            outcome, final = _outcome(call, cpu_s)
            parent.answer(outcome)
            if final:
                return
        parent.flush()


def _outcome(call: Call, cpu_s: float) -> tuple[bytes, bool]:
    """Returns what comes of a call, and whether the parent ends this process for it: no more rows are read in vain."""
    limit_cpu(cpu_s)
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
        limit_cpu(0)
    final = isinstance(failed, SluiceError) or (isinstance(failed, Poison) and failed.reason != "error")
    return pickle.dumps(failed, pickle.HIGHEST_PROTOCOL), final


if __name__ == "__main__":
    with child_process.parent() as found:
        _serve(found, mmap.mmap(int(sys.argv[1]), ROW.size))
