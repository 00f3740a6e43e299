"""The shell with SIGTERM ignored by the kernel, as for PID 1 of a pod."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

AS_PID_1 = "from tasks.run.pid1 import fork_below_init; fork_below_init()\nimport os, signal, subprocess, sys, time\n"
READY = "print('ready', flush=True)\n"


def start(code: str, *, ignoring: bool = True) -> "subprocess.Popen[str]":
    """Runs Python code after `fork_below_init`, started with SIGTERM ignored."""
    disposition = signal.SIG_IGN if ignoring else signal.SIG_DFL
    return subprocess.Popen(
        [sys.executable, "-c", AS_PID_1 + code],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, disposition),
    )


def told(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def gone(pid: int, seconds: float = 10) -> bool:
    """Whether a process exits and is reaped."""
    deadline = time.monotonic() + seconds
    while psutil.pid_exists(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_stage_with_nothing_to_save_exits_at_once_with_143() -> None:
    process = start(READY + "time.sleep(60)")
    assert told(process) == "ready"
    process.terminate()
    assert process.wait(10) == 143


def test_a_stage_busy_in_c_code_exits_as_well() -> None:
    process = start(READY + "sum(range(10**12))")
    assert told(process) == "ready"
    process.terminate()
    assert process.wait(10) == 143


def test_a_stage_that_saves_gets_time_and_its_exit_code_is_kept() -> None:
    saving = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print('saved', flush=True), sys.exit(143)))\n"
    process = start(saving + READY + "time.sleep(60)")
    assert told(process) == "ready"
    process.terminate()
    assert told(process) == "saved"
    assert process.wait(10) == 143


@pytest.mark.parametrize(
    ("code", "ended"), [("sys.exit(2)", 2), ("os.kill(os.getpid(), 9)", 137), ("", 0), ("raise SystemExit(1)", 1)]
)
def test_the_exit_code_reports_how_the_stage_ended(code: str, ended: int) -> None:
    assert start(code).wait(10) == ended


def test_no_process_of_the_stage_is_left_behind() -> None:
    child = "child = subprocess.Popen(['sleep', '60'], start_new_session=True); print(child.pid, flush=True)\n"
    process = start(child + "time.sleep(60)")
    pid = int(told(process))
    process.terminate()
    assert process.wait(10) == 143
    assert gone(pid)


def test_orphans_are_reaped() -> None:
    # The middle process dies before its child, which is then reparented to PID 1.
    orphan = "subprocess.run(['sh', '-c', 'sleep 0.3 & echo $!'])\n"
    process = start(orphan + "time.sleep(60)")
    pid = int(told(process))
    assert gone(pid)
    assert process.poll() is None
    process.terminate()
    assert process.wait(10) == 143


def test_a_stage_does_not_outlive_a_killed_pid_1() -> None:
    process = start("print(os.getpid(), flush=True)\ntime.sleep(60)")
    pid = int(told(process))
    assert pid != process.pid
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_in_a_terminal_no_extra_process_is_started() -> None:
    process = start("print(os.getpid(), flush=True)\ntime.sleep(60)", ignoring=False)
    assert int(told(process)) == process.pid
    process.terminate()
    assert process.wait(10) == -signal.SIGTERM


def test_the_shell_handles_sigterm_during_imports(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "tasks", "train", "--recipe", "smoke"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    )
    assert told(process) == "importing"
    process.terminate()
    assert process.wait(10) == 143


def test_a_real_pid_1_ends_at_once_with_143() -> None:
    spaces = ["unshare", "--pid", "--fork", "--mount-proc"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*spaces, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not make a PID namespace")
    code = "import os; print(os.getpid(), flush=True)\n" + AS_PID_1 + READY + "time.sleep(60)"
    outer = subprocess.Popen([*spaces, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert (told(outer), told(outer)) == ("1", "ready")
    (first,) = psutil.Process(outer.pid).children()
    first.terminate()
    assert outer.wait(10) == 143
