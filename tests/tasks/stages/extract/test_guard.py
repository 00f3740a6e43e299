"""Contract of tasks.stages.extract.guard: a row that breaks its parser affects no other row."""

import ctypes
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.stages.extract import guard
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.guard import ExtractionGuard
from tasks.stages.extract.html import check_installed
from tasks.stages.extract.row import Content, InputRow, Poison, Rejected
from tests.soak import soak_but

GOOD = partial(Content, "read")
# An expression that backtracks practically forever, in C code that no signal handler interrupts.
ENDLESS = partial(re.match, r"(a+)+$", "a" * 64 + "b")
GREEDY = partial(bytes, 4 << 30)
FATAL = partial(ctypes.string_at, 0)
LEAVES = partial(os._exit, 0)
KINDS = {"timeout": ENDLESS, "memory": GREEDY, "crash": FATAL}


def summary(calls: list, cpu_s: float = 5.0) -> list[str]:
    found = []
    for outcome in ExtractionGuard(cpu_s).run(calls):
        found.append(outcome.reason if isinstance(outcome, Poison | Rejected) else outcome.text)
    return found


def named(number: int) -> partial:
    return partial(Content, str(number))


def noting(file: Path, then: str = "") -> partial:
    """A call that appends a line to a file and then runs a program."""
    return partial(exec, f"import os; f = open({str(file)!r}, 'ab', 0); f.write(b'x\\n'); f.close()\n{then}")


def killed_once(file: Path) -> partial:
    """A call whose process is killed from outside the first time."""
    return partial(exec, f"import os; p = {str(file)!r}; os.path.exists(p) or (open(p, 'w'), os.kill(os.getpid(), 9))")


def test_results_are_in_order_and_one_process_serves_all_batches() -> None:
    rows = [InputRow(f"http://a.example/{n}", "web", content=partial(Content, str(n))) for n in range(200)]
    assert summary([GOOD]) == ["read"]
    served = guard.idle_children()
    assert [outcome.text for _, outcome in ExtractionGuard(5.0).outcomes(rows)] == [str(n) for n in range(200)]
    assert guard.idle_children() == served
    assert len(served) == 1


def test_a_row_that_never_returns_is_killed_at_its_cpu_limit_and_the_rest_is_read() -> None:
    assert summary([GOOD, ENDLESS, GOOD, ENDLESS, GOOD], cpu_s=0.2) == ["read", "timeout", "read", "timeout", "read"]


def test_a_row_that_only_sleeps_is_killed_too() -> None:
    assert summary([partial(time.sleep, 600), GOOD], cpu_s=0.1) == ["timeout", "read"]


def test_the_limit_applies_to_each_row() -> None:
    busy = partial(sum, range(2_000_000))
    assert not any(isinstance(outcome, Poison) for outcome in ExtractionGuard(0.5).run([busy] * 20))


def test_a_row_that_exceeds_the_memory_limit_is_rejected() -> None:
    assert summary([GOOD, GREEDY, GOOD]) == ["read", "memory", "read"]


def test_a_row_that_crashes_the_process_costs_only_itself() -> None:
    assert summary([GOOD, FATAL, GOOD]) == ["read", "crash", "read"]
    assert summary([FATAL, FATAL]) == ["crash", "crash"]


def test_an_externally_killed_process_costs_no_row() -> None:
    assert summary([GOOD]) == ["read"]
    os.kill(guard.idle_children()[-1], signal.SIGKILL)
    assert summary([GOOD, GOOD]) == ["read", "read"]


def test_a_row_interrupted_by_an_external_kill_is_read_again(tmp_path: Path) -> None:
    before, killed, behind = ExtractionGuard(5.0).run([GOOD, killed_once(tmp_path / "killed"), GOOD])
    assert (before, killed, behind) == (Content("read"), None, Content("read"))


@pytest.mark.parametrize("kind", soak_but({2}, KINDS))
def test_a_row_that_crashes_costs_only_itself_at_any_position_in_its_batch(kind: str) -> None:
    dead = {31, guard.BATCH_ROWS - 1, guard.BATCH_ROWS}
    calls = [KINDS[kind] if number in dead else named(number) for number in range(2 * guard.BATCH_ROWS + 3)]
    rows = [InputRow(f"http://a.example/{number}", "web", content=call) for number, call in enumerate(calls)]
    found = list(ExtractionGuard(0.2).outcomes(rows))
    assert [row for row, _ in found] == rows
    for number, (_, outcome) in enumerate(found):
        assert (outcome.reason if number in dead else outcome.text) == (kind if number in dead else str(number))


def test_rows_that_crash_in_several_ways_do_not_affect_the_others(tmp_path: Path) -> None:
    kinds = ["good"] * (guard.BATCH_ROWS - 5) + [*KINDS, "left", "killed"]
    random.Random(4).shuffle(kinds)
    ways = {"good": GOOD, "left": LEAVES, **KINDS}
    calls = [ways.get(kind) or killed_once(tmp_path / str(number)) for number, kind in enumerate(kinds)]
    found = [outcome and getattr(outcome, "reason", "good") for outcome in ExtractionGuard(0.2).run(calls)]
    assert found == [{"killed": None, "left": "crash"}.get(kind, kind) for kind in kinds]


def test_processes_killed_between_and_during_batches_cost_no_row(tmp_path: Path) -> None:
    def rows() -> Iterator[InputRow]:
        for number in range(3 * guard.BATCH_ROWS):
            if number and number % guard.BATCH_ROWS == 0:
                os.kill(guard.idle_children()[-1], signal.SIGKILL)
            once = number in (0, guard.BATCH_ROWS - 1, 2 * guard.BATCH_ROWS + 1)
            yield InputRow("", "web", content=killed_once(tmp_path / str(number)) if once else named(number))

    found = [outcome and outcome.text for _, outcome in ExtractionGuard(5.0).outcomes(rows())]
    assert found == [None if (tmp_path / str(number)).exists() else str(number) for number in range(len(found))]
    assert found.count(None) == 3


def test_each_thread_has_one_process_after_any_crash(tmp_path: Path) -> None:
    guard.end_idle_children()
    ExtractionGuard(5.0).run([GOOD, FATAL, GOOD, killed_once(tmp_path / "killed"), GOOD])
    assert len(guard.idle_children()) == 1


def test_rows_after_a_crash_are_not_read_twice(tmp_path: Path) -> None:
    greedy = [noting(tmp_path / str(number), "bytes(4 << 30)") for number in range(2)]
    assert summary([*greedy, GOOD]) == ["memory"] * 2 + ["read"]
    assert [len((tmp_path / str(number)).read_text().split()) for number in range(2)] == [2] * 2
    fault = noting(
        tmp_path / "fault", "raise __import__('tasks.core.errors').core.errors.InputError('no such thing', 'install')"
    )
    with pytest.raises(InputError):
        ExtractionGuard(5.0).run([GOOD, fault, noting(tmp_path / "behind")])
    assert not (tmp_path / "behind").exists()


def test_rows_before_a_crash_are_read_at_most_once_more(tmp_path: Path) -> None:
    counted = [noting(tmp_path / str(number)) for number in range(6)]
    found = ExtractionGuard(0.2).run([*counted[:3], ENDLESS, *counted[3:5], ENDLESS, counted[5]])
    assert [str(outcome)[:7] for outcome in found] == [*["None"] * 3, "timeout", "None", "None", "timeout", "None"]
    assert all(1 <= len((tmp_path / str(number)).read_text().split()) <= 2 for number in range(6))


def test_a_row_that_hangs_after_good_rows_is_killed() -> None:
    assert summary([GOOD] * 5 + [partial(time.sleep, 600), GOOD], cpu_s=0.05) == [*["read"] * 5, "timeout", "read"]


def test_rows_whose_total_time_exceeds_the_limit_of_one_are_all_read() -> None:
    # One may be silent for a second.
    assert ExtractionGuard(0.05).run([partial(time.sleep, 0.3)] * 5) == [None] * 5


def test_results_of_any_size_are_returned() -> None:
    # Below, at and above the size of a write, and the capacity of a pipe.
    sizes = [0, 1, (1 << 18) - 50, 1 << 18, 5, (1 << 20) - 50, (1 << 20) + 1, 0, 20 << 20, 3, *[100_000] * 20]
    found = ExtractionGuard(5.0).run([partial(Content, "é" * (size // 2) + "." * (size % 2)) for size in sizes])
    assert [len(outcome.text.encode()) for outcome in found] == sizes


def test_large_results_before_a_crash_are_not_lost() -> None:
    large = partial(Content, "x" * (3 << 20))
    found = ExtractionGuard(5.0).run([GOOD, large, FATAL, large, GOOD, large, FATAL])
    sizes = [outcome.reason if isinstance(outcome, Poison) else len(outcome.text) for outcome in found]
    assert sizes == [4, 3 << 20, "crash", 3 << 20, 4, 3 << 20, "crash"]


def test_ended_processes_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count(str(tmp_path))

    guard.end_idle_children()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = held()
    assert summary([GOOD]) == ["read"]
    assert held() > before  # else this would count nothing
    for calls in ([FATAL], [GREEDY, GOOD], [ENDLESS], [LEAVES, GOOD]):
        summary(calls, cpu_s=0.2)
    with pytest.raises(InputError):
        ExtractionGuard(5.0, ("no.such.module",)).run([GOOD])
    assert summary([GOOD]) == ["read"]
    os.kill(guard.idle_children()[-1], signal.SIGKILL)
    assert summary([GOOD]) == ["read"]
    guard.end_idle_children()
    assert held() == before
    assert os.listdir(tmp_path) == []
    assert guard.idle_children() == []


def test_each_thread_of_a_worker_has_its_own_process() -> None:
    def work(thread: int) -> bool:
        poison = {7: FATAL} if thread % 2 else {20: ENDLESS}
        calls = [poison.get(number) or named(1000 * thread + number) for number in range(40)]
        found = ExtractionGuard(0.2).run(calls)
        return len(found) == 40 and all(
            isinstance(outcome, Poison) if number in poison else outcome == Content(str(1000 * thread + number))
            for number, outcome in enumerate(found)
        )

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, range(2))) == [True] * 2
    assert len(set(guard.idle_children())) == len(guard.idle_children()) <= 2 + 1


def test_after_a_fork_each_process_has_its_own() -> None:
    program = (
        "import os; from functools import partial; from tasks.stages.extract import guard;"
        "read = lambda: guard.ExtractionGuard(5.0).run([partial(str, os.getpid()), partial(os.getppid)]);"
        "[_, first] = read(); served = guard.idle_children(); pid = os.fork();"
        "found = read(); mine = guard.idle_children();"
        "assert found == [str(os.getpid()), os.getpid()], found;"
        "assert (mine == served) is (pid != 0), (mine, served);"
        "pid or guard.end_idle_children();"
        "assert pid == 0 or os.waitpid(pid, 0)[1] == 0;"
        "assert read() == found and (pid == 0 or guard.idle_children() == served)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_exception_of_a_row_is_its_reason() -> None:
    refused, failed = ExtractionGuard(5.0).run(
        [
            partial(exec, "raise __import__('tasks.stages.extract.row').stages.extract.row.Rejected('why')"),
            partial(int, "x"),
        ]
    )
    assert isinstance(refused, Rejected)
    assert refused.reason == "why"
    assert str(failed) == "error: ValueError: invalid literal for int() with base 10: 'x'"


def test_an_error_that_concerns_the_whole_stage_is_raised() -> None:
    fault = "raise __import__('tasks.core.errors').core.errors.InputError('no such thing', 'install it')"
    with pytest.raises(InputError, match=r"no such thing\. Install it\."):
        list(ExtractionGuard(5.0).run([partial(exec, fault)]))
    assert summary([GOOD]) == ["read"]


def test_output_printed_by_a_library_does_not_corrupt_results() -> None:
    assert summary([partial(os.write, 1, b"noise"), GOOD][1:]) == ["read"]
    assert list(ExtractionGuard(5.0).run([partial(os.write, 1, b"noise")])) == [5]


def test_refused_rows_keep_their_order() -> None:
    rows = [
        InputRow("http://a.example/", "web", content=GOOD, refused="revisit" if n % 3 == 0 else "") for n in range(200)
    ]
    found = list(ExtractionGuard(5.0).outcomes(rows))
    assert [row for row, _ in found] == rows
    assert all(isinstance(outcome, Rejected) is bool(row.refused) for row, outcome in found)


def test_the_process_ends_with_its_parent() -> None:
    program = (
        "import os, re; from functools import partial; from tasks.stages.extract import guard;"
        "list(guard.ExtractionGuard(5.0).run([partial(str, 1)])); print(guard.idle_children()[0], flush=True);"
        " os._exit(9)"
    )
    child = int(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False).stdout)
    until = time.monotonic() + 20
    while time.monotonic() < until and os.path.exists(f"/proc/{child}/exe"):
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}/exe")


def test_a_process_that_cannot_start_is_an_error_with_a_remedy() -> None:
    with pytest.raises(InputError, match="cannot be started"):
        list(ExtractionGuard(5.0, ("no.such.module",)).run([GOOD]))


def test_an_extractor_that_is_not_installed_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    check_installed(ExtractConfig())
    with pytest.raises(InputError, match=r"trafilatura is not installed\. Install it where the stage runs"):
        check_installed(ExtractConfig(extractor="trafilatura"))
