"""Contract of tasks.extract.guard: what one row does to its parser costs that row only."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tasks.errors import InputError
from tasks.extract import guard
from tasks.extract.careful import check_installed
from tasks.extract.config import ExtractConfig
from tasks.extract.guard import Guard
from tasks.extract.row import Content, Poison, Rejected, Row

GOOD = partial(Content, "read")
# An expression that backtracks for longer than the universe is old, in C code that no signal handler interrupts.
ENDLESS = partial(re.match, r"(a+)+$", "a" * 64 + "b")
GREEDY = partial(bytes, 4 << 30)
FATAL = partial(ctypes.string_at, 0)


def summary(calls: list, cpu_s: float = 5.0) -> list[str]:
    found = []
    for outcome in Guard(cpu_s).run(calls):
        found.append(outcome.reason if isinstance(outcome, Poison | Rejected) else outcome.text)
    return found


def test_answers_come_in_order_and_one_process_serves_all_batches() -> None:
    rows = [Row(f"http://a.example/{n}", "web", content=partial(Content, str(n))) for n in range(200)]
    assert summary([GOOD]) == ["read"]
    served = guard.children()
    assert [outcome.text for _, outcome in Guard(5.0).outcomes(rows)] == [str(n) for n in range(200)]
    assert guard.children() == served
    assert len(served) == 1


def test_a_row_that_never_returns_is_ended_by_its_cpu_seconds_and_the_rest_is_read() -> None:
    assert summary([GOOD, ENDLESS, GOOD, ENDLESS, GOOD], cpu_s=0.5) == ["read", "timeout", "read", "timeout", "read"]


def test_a_row_that_only_waits_is_ended_too() -> None:
    assert summary([partial(time.sleep, 600), GOOD], cpu_s=0.1) == ["timeout", "read"]


def test_the_limit_counts_for_each_row_alone() -> None:
    busy = partial(sum, range(4_000_000))
    assert not any(isinstance(outcome, Poison) for outcome in Guard(2.0).run([busy] * 30))


def test_a_row_that_wants_all_memory_gets_none_of_it() -> None:
    assert summary([GOOD, GREEDY, GOOD]) == ["read", "memory", "read"]


def test_a_row_that_crashes_the_process_costs_itself_only() -> None:
    assert summary([GOOD, FATAL, GOOD]) == ["read", "crash", "read"]
    assert summary([FATAL, FATAL]) == ["crash", "crash"]


def test_a_process_that_something_else_killed_costs_no_row() -> None:
    assert summary([GOOD]) == ["read"]
    os.kill(guard.children()[-1], signal.SIGKILL)
    assert summary([GOOD, GOOD]) == ["read", "read"]


def test_a_row_at_which_something_else_killed_the_process_is_read_again(tmp_path: Path) -> None:
    once = f"import os; f = {str(tmp_path / 'killed')!r}; os.path.exists(f) or (open(f, 'w'), os.kill(os.getpid(), 9))"
    before, killed, behind = Guard(5.0).run([GOOD, partial(exec, once), GOOD])
    assert (before, killed, behind) == (Content("read"), None, Content("read"))


def test_what_a_row_raises_is_its_reason() -> None:
    refused, failed = Guard(5.0).run(
        [partial(exec, "raise __import__('tasks.extract.row').extract.row.Rejected('why')"), partial(int, "x")]
    )
    assert isinstance(refused, Rejected)
    assert refused.reason == "why"
    assert str(failed) == "error: ValueError: invalid literal for int() with base 10: 'x'"


def test_an_error_that_concerns_the_whole_stage_is_raised() -> None:
    fault = "raise __import__('tasks.errors').errors.InputError('no such thing', 'install it')"
    with pytest.raises(InputError, match=r"no such thing\. Install it\."):
        list(Guard(5.0).run([partial(exec, fault)]))
    assert summary([GOOD]) == ["read"]


def test_what_a_library_prints_does_not_stand_among_the_answers() -> None:
    assert summary([partial(os.write, 1, b"noise"), GOOD][1:]) == ["read"]
    assert list(Guard(5.0).run([partial(os.write, 1, b"noise")])) == [5]


def test_rows_that_are_refused_stay_where_they_are_in_order() -> None:
    rows = [Row("http://a.example/", "web", content=GOOD, refused="revisit" if n % 3 == 0 else "") for n in range(200)]
    found = list(Guard(5.0).outcomes(rows))
    assert [row for row, _ in found] == rows
    assert all(isinstance(outcome, Rejected) is bool(row.refused) for row, outcome in found)


def test_the_process_ends_with_its_parent() -> None:
    program = (
        "import os, re; from functools import partial; from tasks.extract import guard;"
        "list(guard.Guard(5.0).run([partial(str, 1)])); print(guard.children()[0], flush=True); os._exit(9)"
    )
    child = int(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False).stdout)
    until = time.monotonic() + 20
    while time.monotonic() < until and os.path.exists(f"/proc/{child}/exe"):
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{child}/exe")


def test_a_process_that_cannot_start_is_an_error_with_a_remedy() -> None:
    with pytest.raises(InputError, match="cannot be started"):
        list(Guard(5.0, ("no.such.module",)).run([GOOD]))


def test_an_extractor_that_is_not_installed_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    check_installed(ExtractConfig())
    with pytest.raises(InputError, match=r"trafilatura is not installed here\. Install it where the stage runs"):
        check_installed(ExtractConfig(extractor="trafilatura"))
