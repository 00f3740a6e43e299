"""Runs a training spec in subprocesses, and follows their log and metrics.

Writes `spec.json` and `train.log` into the run's folder; raises the failure of the run as a SluiceError. The processes
of the run are killed when the process that started them ends for any reason (`end_with_parent`).
"""

import contextlib
import ctypes
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from tasks.core.config import canonical_json
from tasks.core.errors import (
    InputError,
    KilledError,
    SluiceError,
    StoppedError,
    StoreError,
    SupersededError,
    TransientError,
)
from tasks.trainer.config import TrainSpec
from tasks.trainer.launch import failure, flight_recorder
from tasks.trainer.launch.gang import Gang
from tasks.trainer.logs import METRICS, MetricsTail
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.start import device_of_ranks, start_of
from tasks.trainer.spec import open_plan

log = logging.getLogger("sluice.train")
POLL_S = 0.2
GRACE_S = float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "100")) + 10
"""Seconds that a run may take to save after SIGTERM: more than torchrun's limit (see `agent`), less than the grace
period of a pod."""
LOG = "train.log"
OnMetrics = Callable[[int, dict[str, float]], None]
PARENT_PIPE = "SLUICE_PARENT_PIPE"
"""Set to "stdin" by a parent that keeps the other end of the standard input open."""
_RECORD_BYTES = 1 << 16
"""More than a failure record and the end of the log need."""
_PR_SET_PDEATHSIG = 1


def training_command(spec_path: str, nproc: int) -> list[str]:
    """Returns the command that trains the spec at `spec_path` with `nproc` ranks on this node."""
    return [sys.executable, "-m", "tasks.trainer.launch.agent", "--spec", spec_path, "--nproc", str(nproc)]


def train_local(
    spec: TrainSpec,
    on_metrics: OnMetrics,
    gang: Gang | None = None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Trains `spec` to its last step in subprocesses, resuming from its `out` folder.

    The subprocesses are killed when this process ends for any reason. On an exception (a keyboard interrupt, an error
    in a callback) they receive SIGTERM, save a checkpoint and exit. SIGTERM has the same effect unless a handler is
    installed; this process then exits with 143.

    Args:
        spec: the run.
        on_metrics: called with (step, values) for every step, in order, within a second; only on node 0.
        gang: the gang of this node; None: it is the only node.
        check: called several times a second; an exception stops the run.

    Raises:
        SluiceError: the run failed; a TransientError if a retry may succeed.
    """
    out = Path(spec.out)
    path = out / "spec.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        failure.clear(out)
        flight_recorder.clear(out)
        path.write_text(canonical_json(spec) + "\n")
    except OSError as error:
        raise failure.as_sluice_error(error, out) from error
    tail = MetricsTail(out / METRICS)
    with (out / LOG).open("ab") as output, (out / LOG).open("rb") as log_file, _sigterm_exits():
        log_file.seek(0, os.SEEK_END)
        command = training_command(str(path), _ranks_for(spec, gang.nodes if gang else 1))
        try:
            code = _run(command, _environment(gang), output, partial(_poll, log_file, tail, on_metrics, check))
        finally:
            _log_lines(log_file)
    if code:
        raise explain(code, out)


def _run(command: list[str], environment: dict[str, str], output: IO[bytes], poll: Callable[[], None]) -> int:
    """Runs `command` and calls `poll` while it runs and once after it; returns the exit code."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )
    try:
        running = True
        while running:
            running = process.poll() is None
            poll()
            if running:
                time.sleep(POLL_S)
    except SupersededError:
        process.kill()  # it must not save any more; its ranks end with it
        raise
    finally:
        _end(process)
    return 128 - process.returncode if process.returncode < 0 else process.returncode


def _poll(log_file: IO[bytes], tail: MetricsTail, on_metrics: OnMetrics, check: Callable[[], None]) -> None:
    """Logs the output and passes on the metrics of the run since the last call."""
    check()
    _log_lines(log_file)
    for values in tail.new_lines():
        on_metrics(int(values["step"]), {k: v for k, v in values.items() if k != "step" and v is not None})


def _log_lines(log_file: IO[bytes]) -> None:
    while (line := log_file.readline()).endswith(b"\n"):
        log.info("%s", line.decode(errors="replace").rstrip())
    log_file.seek(-len(line), os.SEEK_CUR)  # an incomplete line is read again


def _environment(gang: Gang | None) -> dict[str, str]:
    """Returns the environment of the run: that of this process, the parent pipe, the gang, and PYTHONPATH."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    path = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    gang_variables = gang.environment() if gang else {}
    return {**inherited, **gang_variables, PARENT_PIPE: "stdin", "PYTHONPATH": os.pathsep.join(path)}


@contextlib.contextmanager
def _sigterm_exits() -> Iterator[None]:
    """Makes SIGTERM raise SystemExit(143) in the block; only in the main thread, and unless a handler is installed."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Sends SIGTERM, so that the run saves; kills it after GRACE_S, or on a second interrupt."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        log.warning("the training run did not end within %.0f s and is killed", GRACE_S)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        process.wait()


def explain(code: int, out: Path) -> SluiceError:
    """Returns the error for an exit code of a run, from the recorded failure or the end of the log."""
    failures = failure.recorded(out)
    if failures and failures[0].permanent:
        return failures[0].error()
    if code == 2 and shutil.disk_usage(out).free < _RECORD_BYTES:  # neither the failure nor the log could be written
        return StoreError(f"{out} cannot be written: {os.strerror(errno.ENOSPC)}", failure.RESUMES)
    if code == 2:
        return InputError(f"training was refused: {last_lines(out / LOG)}", f"the log is {out / LOG}")
    if code == 143:
        return StoppedError("training was stopped on request and has saved a checkpoint", "run it again to continue")
    if code == 137:
        return KilledError(
            "a training rank was killed (SIGKILL), usually because it ran out of memory",
            "run it again to resume; if it recurs give it more memory or lower train.microbatch",
        )
    cause = failures[0].cause if failures else f"exit code {code}: {last_lines(out / LOG)}"
    if missed := flight_recorder.explained(out):
        cause = f"{cause.rstrip('.')}. {missed[0].upper()}{missed[1:]}"
    return TransientError(f"training crashed: {cause}", f"the log is {out / LOG}; run it again to resume")


def last_lines(path: Path, count: int = 3) -> str:
    """Returns the last lines of a log, joined into one line."""
    text = path.read_text(errors="replace") if path.exists() else ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return " | ".join(lines[-count:])


def _ranks_for(spec: TrainSpec, nodes: int) -> int:
    """Returns the number of ranks per node, and logs what makes the run slow.

    Raises:
        RecipeError: a rank would refuse the run, for the same reasons.
    """
    run = spec.run
    if spec.tuning:
        vocab_size, seq_len = spec.tuning.vocab_size, spec.tuning.seq_len
    else:
        plan = open_plan(spec)
        vocab_size, seq_len = plan.format.vocab_size, plan.seq_len
    device = device_of_ranks() if run.precision == "fp8" else None
    shape = ModelShape.of(run.model, vocab_size)
    start = start_of(
        spec.place.layout, run, shape, seq_len, nodes, spec.place.nproc, device, tunes=spec.tuning is not None
    )
    start.check()
    for warning in start.warnings:
        log.warning("%s", warning)
    return start.ranks_per_node


def end_with_parent() -> None:
    """Makes this process end when its parent ends, if the parent has set `PARENT_PIPE`; call once, early.

    A stage that receives SIGKILL cannot clean up, and its retry must not have a second writer in its folder. There are
    two mechanisms: PR_SET_PDEATHSIG on Linux; and on all platforms end of file on standard input, a pipe whose other
    end only the stage has open. Pods that run only ranks need neither.
    """
    if os.environ.get(PARENT_PIPE) != "stdin":
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The pipe also covers the time before the call above, because it is closed when the parent ends.
    threading.Thread(target=_kill_at_end_of_pipe, name="pipe-watch", daemon=True).start()


def _kill_at_end_of_pipe() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
