"""Child processes that parse hostile input and can be killed: start, memory limit, and length-prefixed messages.

A parser is C code, which cannot be interrupted from inside. So the input is sent to a separate process as a pickle on
its standard input, and the response comes back as a pickle on its standard output, each after its length. The parent
applies the timeout and kills the process.
"""

import contextlib
import gc
import os
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

LENGTH = struct.Struct(">Q")
"""Header of every message: its number of bytes."""


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module in another process of this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of this process with `settings`, and this checkout or wheel first on PYTHONPATH."""
    path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **(settings or {}), "PYTHONPATH": os.pathsep.join(path)}


def message(content: Any) -> tuple[bytes, bytes]:
    """Returns a message as it is sent: the header, and the pickle of `content`."""
    data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)), data


class Parent:
    """The parent, seen from the child: where questions come from and answers are sent to."""

    def __init__(self, questions: BinaryIO, answers: BinaryIO) -> None:
        self._questions = questions
        self._answers = answers

    def questions(self) -> Iterator[Any]:
        """Yields what the parent sends, until it is gone."""
        while len(head := self._questions.read(LENGTH.size)) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            if len(data := self._questions.read(length)) < length:
                return
            yield pickle.loads(data)

    def answer(self, pickled: bytes) -> None:
        """Writes an answer, which is sent when the buffer is full, or by `flush`."""
        self._answers.write(LENGTH.pack(len(pickled)) + pickled)

    def flush(self) -> None:
        """Sends what was written."""
        self._answers.flush()


@contextlib.contextmanager
def parent(buffer: int = 1 << 18) -> Iterator[Parent]:
    """Yields the parent of this child process; leaves quietly when the parent is gone.

    Args:
        buffer: bytes of answers that are gathered for one write.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which ends this process
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb", buffer) as answers:
        os.dup2(2, 1)  # the output of libraries must not mix with the answers
        yield Parent(sys.stdin.buffer, answers)


def limit_memory(room: int) -> None:
    """Limits the address space of this process to what it has now and `room` bytes; call it when all is imported."""
    gc.freeze()  # what was imported stays: no collection need look at it again
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    limit = pages * resource.getpagesize() + room
    # The soft limit: a command that this process runs may have more memory than a parser.
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def limit_cpu(seconds: float) -> None:
    """Ends this process, by SIGPROF, when it has taken so many CPU seconds from now on; 0 lifts the limit.

    Nobody handles the signal, so it ends the process even where the interpreter is never reached.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
