"""Child processes that parse hostile input and can be killed: start, resource limits, and length-prefixed messages.

A parser in C cannot be interrupted from within its process. So a child process reads its requests as pickles from
standard input and writes its responses as pickles to standard output, each after its length. The parent applies the
timeout and kills the child.
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
    """Encodes a message: the header, and the pickle of `content`."""
    data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)), data


class Parent:
    """The child's connection to its parent: requests to read and responses to write."""

    def __init__(self, requests: BinaryIO, responses: BinaryIO) -> None:
        self._requests = requests
        self._responses = responses

    def requests(self) -> Iterator[Any]:
        """Yields the parent's requests until the parent closes the pipe."""
        while len(head := self._requests.read(LENGTH.size)) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            if len(data := self._requests.read(length)) < length:
                return
            yield pickle.loads(data)

    def respond(self, pickled: bytes) -> None:
        """Writes a response; it is sent when the buffer is full, or by `flush`."""
        self._responses.write(LENGTH.pack(len(pickled)) + pickled)

    def flush(self) -> None:
        """Sends the responses in the buffer."""
        self._responses.flush()


@contextlib.contextmanager
def parent() -> Iterator[Parent]:
    """Yields the connection of this child process to its parent; a pipe that the parent has closed is not an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which ends this process
    with contextlib.suppress(BrokenPipeError), os.fdopen(os.dup(1), "wb", 1 << 18) as responses:
        os.dup2(2, 1)  # the output of libraries must not mix with the responses
        yield Parent(sys.stdin.buffer, responses)


def limit_memory(extra: int) -> None:
    """Limits the address space of this process to its current size plus `extra` bytes; call it after all imports."""
    gc.freeze()  # imported objects are never freed, so collections need not traverse them
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    limit = pages * resource.getpagesize() + extra
    # The soft limit: a command that this process runs may have more memory than a parser.
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def limit_cpu(seconds: float) -> None:
    """Ends this process with SIGPROF after `seconds` more CPU seconds; 0 removes the limit.

    No handler is installed, so the signal also ends a process that never returns from C code to the interpreter.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
