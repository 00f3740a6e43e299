"""Extraction in a child process that can be killed: a page that hangs its parser or exhausts memory fails alone.

Parsers are C code, which cannot be interrupted from within the process. Rows are sent to a child in batches, and
outcomes are returned in as few writes as possible, because waking the worker for each row takes longer than extracting
a page. A memory-mapped file has the number of the row that the child is processing. If the child dies, that row is
poison, and a new child takes the remaining rows, beginning with those whose outcomes were lost. A child serves one
thread of the worker, across parts.

Limits are CPU seconds, not wall-clock time, so that the load of a machine does not change the output. A row that
exceeds the memory limit or crashes the child is retried once in a new child, so that the result does not depend on the
rows before it.

`python -m tasks.stages.extract.guard FD` runs the child; FD is the descriptor of the mapped file. It reads batches of
rows from standard input and writes outcomes to standard output.
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
# The CPU limit does not catch a child that waits. It is killed if it is silent for this many times the CPU limit.
PATIENCE = 20
_PIPE = 1 << 20
_MODULES = ("tasks.stages.extract.content",)
_SETTINGS = {
    # A library that runs out of memory must exit at once, without a backtrace.
    "RUST_BACKTRACE": "0",
    # A child works for one thread of the worker; more threads would compete with those of other children.
    "OMP_NUM_THREADS": "1",
    # glibc keeps freed memory for the next page; requesting it from the kernel each time takes 5 % more time.
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}

_ROW = struct.Struct("=Q")
"""Layout of the mapped file: the number of the current row in its batch."""
MEMORY_BYTES = 640 << 20
"""Bytes of address space that the child may allocate after its start, unless a parser needs more."""

_Start = tuple[int, tuple[str, ...]]
"""First message to the child: its limit of memory, and the modules that it imports."""


class ExtractionGuard:
    """Extracts rows in a child process.

    Args:
        cpu_s: limit of CPU seconds per row.
        modules: modules that the child imports before its first row, because their import takes long.
        silent_s: limit of wall-clock seconds per row; None for 20 times `cpu_s`.
        memory_bytes: bytes of address space that the child may allocate after its start.
    """

    def __init__(
        self,
        cpu_s: float,
        modules: Sequence[str] = (),
        silent_s: float | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._cpu_s = cpu_s
        self._silent_s = PATIENCE * cpu_s if silent_s is None else silent_s
        self._start = (memory_bytes, (*_MODULES, *modules))

    def outcomes(self, rows: Iterable[InputRow]) -> Iterator[tuple[InputRow, Outcome]]:
        """Yields every row with its outcome, in order; refused rows are not sent to the child.

        Raises:
            InputError: the child cannot be started.
            SluiceError: the extraction of a row raised it, because of an error that does not concern the row alone.
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
        outcomes = iter(self.run([row.content for row in rows if not row.refused]))
        for row in rows:
            yield row, Rejected(row.refused) if row.refused else next(outcomes)

    def run(self, calls: Sequence[Call]) -> list[Outcome]:
        """Returns the outcome of each call, in order; raises the same errors as `outcomes`."""
        outcomes: list[Outcome] = []
        retried = -1  # the row that is retried in a new child
        while len(outcomes) < len(calls):
            start = len(outcomes)
            child = _fresh_child(self._start) if retried == start else _idle_child(self._start)
            try:
                for outcome in child.outcomes(calls[start:], self._cpu_s, self._silent_s):
                    outcomes.append(outcome)
            except _ChildExitError as death:
                child.end()
                row = max(len(outcomes), start + death.row)  # rows with an outcome have not killed the child
                outcomes += self.run(calls[len(outcomes) : row])  # nor have the rows before the current one
                if death.poison.reason != "timeout" and retried != row:
                    retried = row
                else:
                    outcomes.append(death.poison)
            except BaseException:
                child.end()  # outcomes may be in the pipe, which must not be read for the next rows
                raise
            else:
                _idle.append(child)
        return outcomes


class _ChildExitError(Exception):
    """The child has exited or must be killed while it processed `row` of its batch."""

    def __init__(self, reason: str, detail: str, row: int) -> None:
        super().__init__(reason)
        self.poison = Poison(reason, detail)
        self.row = row


class _Child:
    """The worker's end of a child process."""

    def __init__(self, start: _Start) -> None:
        import subprocess  # here, because the child imports this module, too
        import tempfile

        self.start = start
        self.parent = os.getpid()
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(_ROW.pack(0))
            self._current_row = mmap.mmap(file.fileno(), _ROW.size)
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
        self._requests, self._responses = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._ready = select.poll()
        self._ready.register(self._responses, select.POLLIN)
        self._received = bytearray()
        for pipe in (self._requests, self._responses):
            with contextlib.suppress(OSError, AttributeError):  # smaller pipes only cause more context switches
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
        try:
            self._send(start)
            self._receive(_START_S)
        except _ChildExitError as death:
            self.end()
            raise InputError(
                f"the process that extracts pages cannot be started ({death.poison})",
                f"check the output of `{sys.executable} -c 'import tasks.stages.extract.content'` on this machine",
            ) from None

    def outcomes(self, calls: Sequence[Call], cpu_s: float, silent_s: float) -> Iterator[Outcome]:
        """Yields the outcome of each call; raises _ChildExitError for a call that killed the child."""
        _ROW.pack_into(self._current_row, 0, 0)
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
        self._current_row.close()

    def _send(self, request: Any) -> None:
        try:
            for block in child_process.message(request):
                unsent = memoryview(block)
                while unsent:
                    unsent = unsent[os.write(self._requests, unsent) :]
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self, patience_s: float) -> Any:
        self._await(LENGTH.size, patience_s)
        end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
        self._await(end, patience_s)
        with memoryview(self._received) as received:
            response = pickle.loads(received[LENGTH.size : end])
        del self._received[:end]
        return response

    def _await(self, size: int, patience_s: float) -> None:
        while len(self._received) < size:
            row = self._row()
            if not self._ready.poll(patience_s * 1000):
                if self._row() != row:
                    continue
                self._process.kill()
                raise _ChildExitError("timeout", "the process that extracts pages makes no progress", row)
            block = os.read(self._responses, _PIPE)
            if not block:
                raise self._death()
            self._received += block

    def _row(self) -> int:
        row: int = _ROW.unpack_from(self._current_row)[0]
        return row

    def _death(self) -> _ChildExitError:
        code, row = self._process.wait(), self._row()
        if code == -signal.SIGPROF:
            return _ChildExitError("timeout", "it exceeded the limit of CPU seconds", row)
        if code == -signal.SIGKILL:
            return _ChildExitError("memory", "the process was killed, probably because memory ran out", row)
        status = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return _ChildExitError("crash", f"the process that extracts pages ended with {status}", row)


_idle: list[_Child] = []


def idle_children() -> list[int]:
    """Returns the process ids of the idle children of this process."""
    return [child.pid for child in _idle if child.parent == os.getpid()]


def _idle_child(start: _Start) -> _Child:
    while True:
        try:
            child = _idle.pop()  # the threads of a worker share this list
        except IndexError:
            return _Child(start)
        # After a fork, the list has children of the parent process, which must not be used here.
        if child.parent == os.getpid() and child.start == start:
            return child
        child.end()


def _fresh_child(start: _Start) -> _Child:
    """Returns a new child; ends an idle one, so that the number of children does not grow."""
    with contextlib.suppress(IndexError):
        _idle.pop().end()
    return _Child(start)


@atexit.register
def end_idle_children() -> None:
    """Ends the idle children of this process."""
    while _idle:
        _idle.pop().end()


def _serve(parent: Parent, current_row: mmap.mmap) -> None:
    """Imports the modules that the parent requests, limits memory, then processes batches until the parent exits."""
    requests = parent.requests()
    memory_bytes, modules = next(requests, (MEMORY_BYTES, ()))
    for module in modules:
        importlib.import_module(module)
    limit_memory(memory_bytes)
    parent.respond(pickle.dumps(None))
    parent.flush()
    for cpu_s, calls in requests:
        for row, call in enumerate(calls):
            _ROW.pack_into(current_row, 0, row)
            outcome, final = _outcome(call, cpu_s, memory_bytes)
            parent.respond(outcome)
            if final:
                return
        parent.flush()


def _outcome(call: Call, cpu_s: float, memory_bytes: int) -> tuple[bytes, bool]:
    """Returns the pickled outcome of a call, and whether the child must exit after it (the parent starts a new one)."""
    limit_cpu(cpu_s)
    failure: Exception
    try:
        return pickle.dumps(call(), pickle.HIGHEST_PROTOCOL), False
    except (Rejected, SluiceError) as error:
        failure = error
    except MemoryError:
        failure = Poison("memory", f"it took more than {memory_bytes >> 20} MiB")
    except Exception as error:  # an error on one page must not stop the others
        failure = Poison("error", f"{type(error).__name__}: {error}"[:400])
    except BaseException as panic:  # a panic of Rust is not an Exception
        failure = Poison("crash", f"{type(panic).__name__}: {panic}"[:400])
    finally:
        limit_cpu(0)
    final = isinstance(failure, SluiceError) or (isinstance(failure, Poison) and failure.reason != "error")
    return pickle.dumps(failure, pickle.HIGHEST_PROTOCOL), final


if __name__ == "__main__":
    with child_process.parent() as parent:
        _serve(parent, mmap.mmap(int(sys.argv[1]), _ROW.size))
