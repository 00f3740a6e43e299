"""Contract of tasks.core.child_process: messages of any size, unaffected by printed output, and a memory limit."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.core.child_process import LENGTH, environment, message

ROOM = 64 << 20
CHILD = f"""
import os, pickle
from tasks.core import child_process
with child_process.parent() as parent:
    child_process.limit_memory({ROOM})
    for question in parent.requests():
        os.write(1, b"a library prints")
        try:
            answer = len(bytes(question)) if isinstance(question, int) else question
        except MemoryError:
            answer = "memory"
        parent.respond(pickle.dumps(answer))
        parent.flush()
print("left", flush=True)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", CHILD]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=tmp_path, env=environment()) as process:
        yield process
        process.kill()


def ask(process: subprocess.Popen[bytes], question: Any) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.writelines(message(question))
    process.stdin.flush()
    (length,) = LENGTH.unpack(process.stdout.read(LENGTH.size))
    return pickle.loads(process.stdout.read(length))


def test_messages_of_any_size_are_returned_without_printed_output(child: Any) -> None:
    for question in (None, "", [1, "é"], b"x" * (1 << 18), b"y" * (3 << 20)):
        assert ask(child, question) == question
    child.stdin.close()
    assert child.wait(20) == 0
    assert child.stderr.read() == b"a library prints" * 5 + b"left\n"


def test_a_request_over_the_memory_limit_fails_and_the_next_one_is_answered(child: Any) -> None:
    assert ask(child, ROOM // 2) == ROOM // 2
    assert ask(child, 2 * ROOM) == "memory"
    assert ask(child, "next") == "next"


def test_a_terminal_interrupt_does_not_end_the_child(child: Any) -> None:
    assert ask(child, 1) == 1
    os.kill(child.pid, signal.SIGINT)
    time.sleep(0.2)
    assert ask(child, 2) == 2


def test_the_child_exits_silently_when_its_parent_dies_during_a_request(child: Any) -> None:
    assert ask(child, 1) == 1
    head, data = message("x" * 1000)
    child.stdin.write(head + data[:500])
    child.stdin.close()
    assert child.wait(20) == 0
    assert child.stderr.read() == b"a library printsleft\n"


def test_our_code_is_first_on_the_path_and_other_entries_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(__file__).parents[3])
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = environment({"OMP_NUM_THREADS": "1"})
    assert (found["PYTHONPATH"], found["OMP_NUM_THREADS"]) == (os.pathsep.join([root, "/somewhere"]), "1")
    monkeypatch.delenv("PYTHONPATH")
    assert environment()["PYTHONPATH"] == root
