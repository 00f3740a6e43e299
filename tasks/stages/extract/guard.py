"""Extraction in a process that can be killed: a page that hangs its parser or eats its memory costs itself only.

A parser is C code, which cannot be interrupted from inside. So rows go to a child in batches and answers come back in
as few writes as will do, because to wake the worker for each costs more than to read a page; a mapped file says at
which row the child is. When it dies, that row is poison, and a new child takes the rest, first the rows before it whose
answers were lost. A child serves one thread of the worker, from part to part.

Limits count CPU seconds and not the time of day, so that a busy machine does not change what is kept. A row that wants
too much memory, or crashes the child, is tried once more in a new one: what was read before must not matter.

The child is this module as a program, `python -m tasks.stages.extract.guard FILE`, where FILE is the descriptor of the
mapped file. It reads batches of rows from standard input and writes outcomes to standard output.
"""

import atexit
import contextlib
import fcntl
import importlib
import mmap
import os
import pickle
import select
import signal
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tasks.core import child_process
from tasks.core.child_process import LENGTH, Parent, limit_cpu, limit_memory
from tasks.core.errors import InputError, SluiceError
from tasks.stages.extract.row import Content, InputRow, Poison, Rejected

Outcome = Content | Rejected | Poison
Call = Callable[[], Content]

BATCH_ROWS = 64
BATCH_BYTES = 4 << 20

_START_S = 120.0
# A child that waits instead of computing is not caught by its CPU seconds; this many times as long it may be silent.
PATIENCE = 20
_PIPE = 1 << 20
_MODULES = ("tasks.stages.extract.content",)
_SETTINGS = {
    # A library that finds no memory must end at once, without a trace of its stack.
    "RUST_BACKTRACE": "0",
    # A child works for one thread of the worker: threads of its own would only wait for those of its like.
    "OMP_NUM_THREADS": "1",
    # glibc keeps what a page has used for the next one; asking the kernel for it each time costs a twentieth.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}

_ROW = struct.Struct("=Q")
"""What the mapped file holds: at which row of its batch the child is."""
MEMORY_BYTES = 640 << 20
"""Bytes of address space that the child may take beyond what it starts with."""


class ExtractionGuard:
    """Runs the extraction of rows in a child process.

    Args:
        cpu_s: CPU seconds that one row may take.
        modules: what the child imports before its first row, because it takes long.
        silent_s: seconds that one row may take by the clock; None for 20 times `cpu_s`.
    """

    def __init__(self, cpu_s: float, modules: Sequence[str] = (), silent_s: float | None = None) -> None:
        self._cpu_s = cpu_s
        self._silent_s = PATIENCE * cpu_s if silent_s is None else silent_s
        self._modules = (*_MODULES, *modules)

    def outcomes(self, rows: Iterable[InputRow]) -> Iterator[tuple[InputRow, Outcome]]:
        """Yields every row with what came of it, in order; rows that are refused already do not leave this process.

        Raises:
            InputError: the child cannot be started.
            SluiceError: extracting a row raised it, so it concerns more than the row.
        """
        batch: list[InputRow] = []
        size = 0
        for row in rows:
            batch.append(row)
            size += row.size
            if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._batch(batch)
                batch, size = [], 0
        yield from self._batch(batch)

    def _batch(self, rows: Sequence[InputRow]) -> Iterator[tuple[InputRow, Outcome]]:
        answers = iter(self.run([row.content for row in rows if not row.refused]))
        for row in rows:
            yield row, Rejected(row.refused) if row.refused else next(answers)

    def run(self, calls: Sequence[Call]) -> list[Outcome]:
        """Returns what comes of each call, in order; raises as `outcomes` does."""
        found: list[Outcome] = []
        alone = -1  # the row that has a new child to itself
        while len(found) < len(calls):
            start = len(found)
            child = _fresh_child(self._modules) if alone == start else _idle_child(self._modules)
            try:
                for outcome in child.answers(calls[start:], self._cpu_s, self._silent_s):
                    found.append(outcome)
            except _ChildExitError as death:
                child.end()
                row = max(len(found), start + death.row)  # what has answered already is not at fault
                found += self.run(calls[len(found) : row])  # no row of these has ended a child
                if death.poison.reason != "timeout" and alone != row:
                    alone = row
                else:
                    found.append(death.poison)
            except BaseException:
                child.end()  # answers may be on their way, which the next rows must not get
                raise
            else:
                _idle.append(child)
        return found


class _ChildExitError(Exception):
    """The child is of no use any more; `row` of the batch is what it was at."""

    def __init__(self, reason: str, detail: str, row: int) -> None:
        super().__init__(reason)
        self.poison = Poison(reason, detail)
        self.row = row


class _Child:
    """The child process, seen from the worker."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        import subprocess  # here, because the child imports this module, too
        import tempfile

        self.modules = modules
        self.parent = os.getpid()
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(_ROW.pack(0))
            self._at = mmap.mmap(file.fileno(), _ROW.size)
            self._process = subprocess.Popen(
                child_process.command("tasks.stages.extract.guard", str(file.fileno())),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=child_process.environment(_SETTINGS),
                pass_fds=[file.fileno()],
            )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._ready = select.poll()
        self._ready.register(self._answers, select.POLLIN)
        self._received = bytearray()
        for pipe in (self._questions, self._answers):
            with contextlib.suppress(OSError, AttributeError):  # smaller pipes mean more switches, no more
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
        try:
            self._send(modules)
            self._receive(_START_S)
        except _ChildExitError as death:
            self.end()
            raise InputError(
                f"the process that extracts pages cannot be started ({death.poison})",
                f"see what `{sys.executable} -c 'import tasks.stages.extract.content'` says on this machine",
            ) from None

    def answers(self, calls: Sequence[Call], cpu_s: float, silent_s: float) -> Iterator[Outcome]:
        """Yields what the child makes of each call; raises _Died for the one that it did not survive."""
        _ROW.pack_into(self._at, 0, 0)
        self._send((cpu_s, calls))
        for row in range(len(calls)):
            outcome = self._receive(silent_s)
            if isinstance(outcome, SluiceError):
                raise outcome
            if isinstance(outcome, Poison) and outcome.reason != "error":
                raise _ChildExitError(outcome.reason, outcome.detail, row)
            yield outcome

    def end(self) -> None:
        """Ends the process and waits for it."""
        if self.parent == os.getpid():
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._at.close()

    def _send(self, question: Any) -> None:
        try:
            for block in child_process.message(question):
                unsent = memoryview(block)
                while unsent:
                    unsent = unsent[os.write(self._questions, unsent) :]
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self, patience_s: float) -> Any:
        self._await(LENGTH.size, patience_s)
        end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
        self._await(end, patience_s)
        with memoryview(self._received) as received:
            answer = pickle.loads(received[LENGTH.size : end])
        del self._received[:end]
        return answer

    def _await(self, size: int, patience_s: float) -> None:
        while len(self._received) < size:
            row = self._row()
            if not self._ready.poll(patience_s * 1000):
                if self._row() != row:
                    continue
                self._process.kill()
                raise _ChildExitError("timeout", "the process that extracts pages went silent", row)
            block = os.read(self._answers, _PIPE)
            if not block:
                raise self._death()
            self._received += block

    def _row(self) -> int:
        row: int = _ROW.unpack_from(self._at)[0]
        return row

    def _death(self) -> _ChildExitError:
        code, row = self._process.wait(), self._row()
        if code == -signal.SIGPROF:
            return _ChildExitError("timeout", "it took more CPU seconds than a page may", row)
        if code == -signal.SIGKILL:
            return _ChildExitError("memory", "the process was killed, most often for want of memory", row)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return _ChildExitError("crash", f"the process that extracts pages ended with {how}", row)


_idle: list[_Child] = []


def idle_children() -> list[int]:
    """Returns the process ids of the children of this process that wait for their next rows."""
    return [child.pid for child in _idle if child.parent == os.getpid()]


def _idle_child(modules: tuple[str, ...]) -> _Child:
    while True:
        try:
            child = _idle.pop()  # threads of one worker take from the same list
        except IndexError:
            return _Child(modules)
        # After a fork the list names children of another process, which must not be talked to.
        if child.parent == os.getpid() and child.modules == modules:
            return child
        child.end()


def _fresh_child(modules: tuple[str, ...]) -> _Child:
    """Returns a child that has read nothing yet, in the place of one that waits, so that they do not add up."""
    with contextlib.suppress(IndexError):
        _idle.pop().end()
    return _Child(modules)


@atexit.register
def end_idle_children() -> None:
    """Ends the children of this process that wait."""
    while _idle:
        _idle.pop().end()


def _serve(parent: Parent, at: mmap.mmap) -> None:
    """Imports what the parent names, then answers until it is gone; `at` holds the row that this process is at."""
    questions = parent.requests()
    for module in next(questions, ()):
        importlib.import_module(module)
    limit_memory(MEMORY_BYTES)
    parent.respond(pickle.dumps(None))
    parent.flush()
    for cpu_s, calls in questions:
        for row, call in enumerate(calls):
            _ROW.pack_into(at, 0, row)
            outcome, final = _outcome(call, cpu_s)
            parent.respond(outcome)
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
        failed = Poison("memory", f"it took more than {MEMORY_BYTES >> 20} MiB")
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
        _serve(found, mmap.mmap(int(sys.argv[1]), _ROW.size))
