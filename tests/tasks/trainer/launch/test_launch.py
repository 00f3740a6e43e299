"""Runs in separate processes: exit codes, restarts, and no leftover process."""

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from safetensors import SafetensorError

from tasks.core.config import canonical_json
from tasks.core.errors import InputError, StoreError, TransientError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainSpec
from tasks.trainer.launch import failure, launcher
from tasks.trainer.launch.launcher import LOG, PARENT_PIPE, explain, train_local, training_command
from tasks.trainer.logs import DETERMINISTIC, FAULTS, METRICS, read_metrics
from tasks.trainer.loop import Trainer
from tasks.trainer.place import TrainPlace
from tests.corpora import Made
from tests.tasks.trainer.launch import killed_rank
from tests.tasks.trainer.small_run import digests, small_spec
from tests.tasks.trainer.test_loop import ALONE
from tests.waiting import until

pytestmark = pytest.mark.real_time

LONG = 100_000
PARENT = """
import sys
from pathlib import Path
from tasks.trainer.config import TrainSpec
from tasks.trainer.launch.launcher import train_local
train_local(TrainSpec.model_validate_json(Path(sys.argv[1]).read_bytes()), lambda step, values: None)
"""


def on_ranks(spec: TrainSpec, nproc: int) -> TrainSpec:
    return spec.model_copy(update={"place": TrainPlace(nproc=nproc)})


def write(spec: TrainSpec) -> Path:
    path = Path(spec.out) / "given.json"
    path.write_text(canonical_json(spec))
    return path


def steps_done(spec: TrainSpec) -> int:
    return len(read_metrics(Path(spec.out) / METRICS))


def trainers(spec: TrainSpec, module: str = "tasks.trainer") -> list[psutil.Process]:
    """The live processes of a spec: ranks only, or also agents."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if spec.out in " ".join(line) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found += [process] if module in line else []
    return found


def curve(spec: TrainSpec) -> list[list[float]]:
    return [[line[name] for name in DETERMINISTIC] for line in read_metrics(Path(spec.out) / METRICS)]


@pytest.mark.soak
def test_one_rank_and_two_ranks_end_with_the_same_bytes(made: Made, tmp_path: Path) -> None:
    told: list[int] = []
    one, two = (small_spec(made, tmp_path / name) for name in ("1", "2"))
    train_local(one, lambda step, values: None)
    train_local(on_ranks(two, 2), lambda step, values: told.append(step))
    assert digests(tmp_path / "1") == digests(tmp_path / "2")
    assert len(digests(tmp_path / "1")) == 12
    assert curve(one) == curve(two)
    assert told == list(range(12))


def test_no_trainer_outlives_a_parent_that_was_killed(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, steps=LONG, checkpoint_every=LONG)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(write(on_ranks(spec, 2)))])
    until(lambda: steps_done(spec) > 2)
    assert len(trainers(spec)) == 2
    parent.kill()
    parent.wait()
    until(lambda: not trainers(spec) and not trainers(spec, "tasks.trainer.launch.agent"), 20)


def test_trainers_exit_when_the_pipe_of_their_parent_closes(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, steps=LONG, checkpoint_every=LONG)
    command, environment = training_command(str(write(spec)), 1), {**os.environ, PARENT_PIPE: "stdin"}
    agent = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    until(lambda: steps_done(spec) > 2)
    ranks = trainers(spec)
    assert len(ranks) == 1
    assert agent.stdin
    agent.stdin.close()
    assert agent.wait(20) == -signal.SIGKILL
    until(lambda: not trainers(spec), 20)


def test_two_ranks_of_which_one_is_killed_end_with_the_bytes_of_one_rank(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"steps": 80, "checkpoint_every": 20, "milestones": 1}
    whole, broken = (small_spec(made, tmp_path / name, **settings) for name in ("whole", "broken"))
    Trainer(whole, ALONE).train()
    told: list[int] = []
    # A busy machine may learn of a step when the run is done, so the rank kills itself.
    command = [sys.executable, "-m", killed_rank.__name__]
    monkeypatch.setattr(launcher, "training_command", lambda path, nproc: [*command, "--spec", path, "--nproc", "2"])
    train_local(broken, lambda step, values: told.append(step))
    assert told == list(range(80))
    log = (tmp_path / "broken" / LOG).read_text()
    assert log.count("[rank 0] INFO resumed at step 20 of 80") == 1
    assert "connectFullMesh" not in log  # a rank that finds an address of the previous attempt
    final = f"checkpoints/{checkpoint.name_of(80)}/*"
    assert digests(tmp_path / "whole", final) == digests(tmp_path / "broken", final) != {}
    assert curve(whole) == curve(broken)


@pytest.mark.soak
def test_twenty_kills_of_ranks_and_agents_change_no_byte(made: Made, tmp_path: Path) -> None:
    settings = {"steps": 640, "checkpoint_every": 20, "milestones": 1}
    whole, broken = (small_spec(made, tmp_path / name, **settings) for name in ("whole", "broken"))
    train_local(whole, lambda step, values: None)
    draw = random.Random(20)
    # Ten in steps that write a checkpoint, ten in any step; of a rank or of the agent.
    due = [30 * number + (20 - 30 * number % 20 if number % 2 else draw.randint(0, 19)) for number in range(1, 21)]
    victims = [draw.choice(("tasks.trainer", "tasks.trainer", "tasks.trainer.launch.agent")) for _ in due]
    kills = list(zip(due, victims, strict=True))

    def kill(step: int, values: dict[str, float]) -> None:
        if kills and step >= kills[0][0]:
            alive = trainers(broken, kills.pop(0)[1])
            draw.choice(alive).send_signal(signal.SIGKILL)

    for _ in range(21):
        with contextlib.suppress(TransientError):  # the agent was killed, or reached its limit of restarts
            train_local(on_ranks(broken, 2), kill)
            break
    assert not kills
    final = f"checkpoints/{checkpoint.name_of(640)}/*"
    assert digests(tmp_path / "whole", final) == digests(tmp_path / "broken", final) != {}
    assert [line["step"] for line in read_metrics(tmp_path / "broken" / METRICS)] == list(range(640))
    assert read_metrics(tmp_path / "broken" / FAULTS) == []


def test_sigterm_saves_and_ends_with_143(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, steps=LONG, checkpoint_every=LONG)
    agent = subprocess.Popen(training_command(str(write(spec)), 2), stdin=subprocess.DEVNULL)
    until(lambda: steps_done(spec) > 2)
    agent.terminate()
    assert agent.wait(60) == 143
    (step,) = checkpoint.steps_at(tmp_path / "checkpoints")
    assert checkpoint.verify(tmp_path / "checkpoints" / checkpoint.name_of(step))["step"] == steps_done(spec)
    assert isinstance(explain(143, tmp_path), TransientError)


def test_a_rank_stopped_before_training_is_not_restarted(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, steps=LONG, checkpoint_every=LONG)
    agent = subprocess.Popen(training_command(str(write(spec)), 1), stdin=subprocess.DEVNULL)
    until(lambda: trainers(spec))
    agent.terminate()
    assert agent.wait(60) == 143
    assert not trainers(spec)


def test_a_stopping_parent_waits_for_the_checkpoint(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, steps=LONG, checkpoint_every=LONG)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(write(spec))])
    until(lambda: steps_done(spec) > 2)
    parent.terminate()
    assert parent.wait(60) == 143
    (step,) = checkpoint.steps_at(tmp_path / "checkpoints")
    assert step == steps_done(spec)
    assert not trainers(spec)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_an_invalid_run_is_refused_with_its_cause(made: Made, tmp_path: Path, ranks: int) -> None:
    spec = small_spec(made, tmp_path).model_copy(update={"weights": {"code": 0.5, "poems": 0.5}})
    with pytest.raises(InputError, match='the source "poems" has a weight but no sequence'):
        train_local(on_ranks(spec, ranks), lambda step, values: None)
    # No rank tried twice: restarted ranks read the recorded failure. The second rank may be stopped
    # before it logs its own.
    assert 1 <= (tmp_path / LOG).read_text().count("has a weight but no sequence") <= ranks


def test_a_file_that_is_no_spec_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    path.write_text("{}")
    ended = subprocess.run(training_command(str(path), 1), check=False, capture_output=True, text=True)
    assert ended.returncode == 2
    assert f"{path} is not a training spec" in ended.stderr


def test_a_restarted_rank_exits_if_this_launch_was_refused(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path)
    command = [sys.executable, "-m", "tasks.trainer", "--spec", str(write(spec))]
    failure.write(tmp_path, failure.Failure("launch", 1, "InputError", "a weight but no sequence", ""))
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "launch"}
    assert subprocess.run(command, check=False, env=environment).returncode == 2
    assert steps_done(spec) == 0


SAVES = """
import pathlib, signal, sys, time
out = pathlib.Path(sys.argv[1])
def save(*_):
    time.sleep(0.3)
    (out / "saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
(out / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\\n')
time.sleep(60)
"""


def test_an_error_in_the_caller_stops_the_run_and_waits_until_it_has_saved(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", SAVES, str(tmp_path)]
    monkeypatch.setattr(launcher, "training_command", lambda path, nproc: command)

    def fail(step: int, values: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_local(small_spec(made, tmp_path), fail)
    assert (tmp_path / "saved").exists()


@pytest.mark.soak
def test_an_error_in_the_caller_ends_the_run_with_a_checkpoint(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, steps=LONG, checkpoint_every=LONG)

    def fail(step: int, values: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_local(spec, fail)
    assert checkpoint.steps_at(tmp_path / "checkpoints")
    assert not trainers(spec)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_reported_and_not_retried(tmp_path: Path, error: Exception) -> None:
    failure.record(tmp_path, 1, ValueError("a  bug"))
    failure.record(tmp_path, 0, error)
    explained = explain(2, tmp_path)
    assert isinstance(explained, StoreError)
    assert f"{tmp_path} cannot be written: No space left on device. Free space" in str(explained)
    failure.clear(tmp_path)
    assert failure.recorded(tmp_path) == []


def test_a_disk_too_full_to_record_the_failure_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    explained = explain(2, tmp_path)
    assert isinstance(explained, StoreError)
    assert f"{tmp_path} cannot be written: No space left on device. Free space" in str(explained)


def test_a_crash_is_reported_in_one_line_with_the_last_lines_of_the_log(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("one\n\ntwo\nMemoryError: no luck\n")
    error = explain(1, tmp_path)
    assert "exit code 1: one | two | MemoryError: no luck" in str(error)
    assert str(tmp_path / LOG) in str(error)
    assert "memory" in str(explain(137, tmp_path))


def test_the_command_does_not_depend_on_the_working_directory(tmp_path: Path) -> None:
    assert training_command("spec.json", 8)[1:] == [
        "-m",
        "tasks.trainer.launch.agent",
        "--spec",
        "spec.json",
        "--nproc",
        "8",
    ]
    assert os.path.isabs(training_command("spec.json", 8)[0])
