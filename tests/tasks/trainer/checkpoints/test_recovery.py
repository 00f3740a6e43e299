"""Checkpoints in the store: a run survives the loss of its machine, and deletes them at its end."""

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.engine import open_engine
from tasks.core.errors import StoreError, TransientError
from tasks.core.stage import Inputs, Listener, Output
from tasks.core.store import Store
from tasks.stages.train import stage
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.copies import FOLDER
from tasks.trainer.checkpoints.recovery import Recovery
from tasks.trainer.config import TrainConfig
from tasks.trainer.logs import METRICS, SKIPPED
from tasks.trainer.place import TrainPlace
from tests.corpora import Made
from tests.s3_server import S3Server
from tests.tasks.trainer.gangs import contents, ended, pod, recipe_of, store_with
from tests.tasks.trainer.small_run import WEIGHTS, save_whole, small_config

ADDRESS = ArtifactId("test/checkpoint", "dev")
RESUME = f"{ADDRESS.path}/{FOLDER}"


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that is not a local folder; scratch folders are in the folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Store(f"memory://{tmp_path.name}")


def pushed(store: Store) -> list[int]:
    """The steps with complete checkpoints in the store, ascending."""
    return [int(path[-13:-5]) for path in store.list(RESUME) if path.count("/") == RESUME.count("/") + 1]


def output_in(store: Store, fingerprint: str = "a run", place: TrainPlace | None = None) -> Output:
    return Output(store, ADDRESS, fingerprint, place=place)


def grown(run: Path, step: int, state: Mapping[str, object] = MappingProxyType({})) -> Path:
    """Puts the folder of a run into the state after `step` steps."""
    run.mkdir(parents=True, exist_ok=True)
    for name in (METRICS, SKIPPED):
        lines = [{"step": n, "loss": 1.5, "lr": 0.1, "grad_norm": 1.0, "tokens": n, "step_s": 9.9} for n in range(step)]
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines if name == METRICS))
    return save_whole(
        run / "checkpoints", step, {"w": torch.full((3,), step)}, {"m": torch.zeros(3)}, {"run": {}, **state}
    )


def copy_due(recovery: Recovery) -> None:
    """Copies the newest checkpoint to the locations that are due, and waits."""
    recovery.keep_up(0)
    recovery.wait()


def recovery_of(store: Store, run: Path, fingerprint: str = "a run", **more: tuple[int, ...]) -> Recovery:
    run.mkdir(parents=True, exist_ok=True)
    return Recovery(output_in(store, fingerprint), run, more.get("milestones", ()))


def move(store: Store, folder: Path, **more: tuple[int, ...]) -> Path:
    """Restores to an empty machine; returns the folder of the run there."""
    recovery_of(store, folder, **more).restore()
    return folder


def test_another_machine_resumes_from_the_newest_checkpoint_in_the_store(remote: Store, tmp_path: Path) -> None:
    run = tmp_path / "here"
    recovery = recovery_of(remote, run)
    for step in (2, 4, 6):
        grown(run, step)
        copy_due(recovery)
    assert pushed(remote) == [4, 6]
    there = move(remote, tmp_path / "there")
    assert load_file(there / "checkpoints" / checkpoint.name_of(6) / checkpoint.MODEL)["w"].tolist() == [6, 6, 6]
    lines = [json.loads(line) for line in (there / METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(6))
    assert "step_s" not in lines[0]


def test_the_best_checkpoint_is_copied_before_those_that_follow_it_and_kept(remote: Store, tmp_path: Path) -> None:
    run = tmp_path / "here"
    recovery, best = recovery_of(remote, run), {"best": {"step": 2}}
    grown(run, 2, best)  # not copied: the run was too fast
    for step in (4, 6, 8):
        grown(run, step, best)
        copy_due(recovery)
        copy_due(recovery)
        assert pushed(remote)[:1] == [2]
    assert pushed(remote) == [2, 6, 8]
    there = move(remote, tmp_path / "there")
    assert checkpoint.steps_at(there / "checkpoints") == [2, 6, 8], "6 is for a rollback"


def test_a_damaged_checkpoint_falls_back_to_the_previous_one(
    remote: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "here"
    recovery = recovery_of(remote, run)
    for step in (2, 4):
        grown(run, step)
        copy_due(recovery)
    (weights,) = [path for path in remote.list(RESUME) if f"{checkpoint.name_of(4)}-" in path and "model" in path]
    with remote.write(weights) as file:
        file.write(b"bad")
    there = move(remote, tmp_path / "there")
    assert checkpoint.steps_at(there / "checkpoints") == [2]
    assert "step 4 in the store cannot be used" in caplog.text


def test_newer_local_checkpoints_are_kept(remote: Store, tmp_path: Path) -> None:
    run = tmp_path / "here"
    recovery = recovery_of(remote, run)
    grown(run, 4)
    copy_due(recovery)
    there = tmp_path / "there"
    grown(there, 6)
    assert checkpoint.steps_at(move(remote, there) / "checkpoints") == [4, 6], "4 is for a rollback"
    assert len((there / METRICS).read_text().splitlines()) == 6
    shutil.rmtree(there / "checkpoints")
    grown(there, 3)
    assert checkpoint.steps_at(move(remote, there) / "checkpoints") == [3, 4]


def test_an_incompletely_uploaded_checkpoint_does_not_exist_and_is_removed(remote: Store, tmp_path: Path) -> None:
    run = tmp_path / "here"
    recovery = recovery_of(remote, run)
    with remote.write(f"{RESUME}/{checkpoint.name_of(3)}-killed/{checkpoint.MODEL}") as file:
        file.write(b"half")
    assert not (move(remote, tmp_path / "there") / "checkpoints").exists()
    for step in (4, 6):
        grown(run, step)
        copy_due(recovery)
    assert not [path for path in remote.list(RESUME) if "killed" in path]


def test_checkpoints_of_another_run_at_the_same_address_are_removed(remote: Store, tmp_path: Path) -> None:
    run = tmp_path / "here"
    recovery = recovery_of(remote, run)
    grown(run, 4)
    copy_due(recovery)
    recovery_of(remote, tmp_path / "there", "another run").restore()
    assert remote.list(RESUME) == []


def test_milestones_are_committed_before_newer_checkpoints(remote: Store, tmp_path: Path) -> None:
    run = tmp_path / "here"
    recovery = recovery_of(remote, run, milestones=(4, 8))
    grown(run, 4)
    grown(run, 6)
    copy_due(recovery)
    assert list(recovery.output.committed) == [checkpoint.name_of(4)]
    there = move(remote, tmp_path / "there", milestones=(4, 8))
    assert checkpoint.steps_at(there / "checkpoints") == [4, 6]
    assert [json.loads(line)["step"] for line in (there / METRICS).read_text().splitlines()] == list(range(6))


def test_a_machine_without_checkpoints_resumes_from_the_newest_milestone(tmp_path: Path) -> None:
    store, run = Store(str(tmp_path / "store")), tmp_path / "store" / "run"
    grown(run, 4)
    grown(run, 8)
    recovery_of(store, run, milestones=(4, 8, 12)).publish(8)
    there = move(store, tmp_path / "there", milestones=(4, 8, 12))
    assert checkpoint.steps_at(there / "checkpoints") == [8], "no rollback goes behind a milestone"
    assert [json.loads(line)["step"] for line in (there / METRICS).read_text().splitlines()] == list(range(8))


def test_a_store_outage_does_not_stop_the_run(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(path: str) -> None:
        raise TransientError("the store does not answer")

    run = tmp_path / "here"
    recovery = recovery_of(remote, run, milestones=(4,))
    grown(run, 4)
    grown(run, 6)
    with monkeypatch.context() as outage:
        outage.setattr(recovery.output.store, "write", away)
        recovery.keep_up(4)
        recovery.wait()
    assert "milestones are late: the store does not answer" in caplog.text
    assert "step 6 is not in the store: the store does not answer" in caplog.text
    recovery.keep_up(5)
    recovery.wait()
    assert list(recovery.output.committed) == [checkpoint.name_of(4)]
    assert pushed(remote) == [6]


def test_a_permanent_refusal_of_the_store_ends_the_run(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise StoreError("no right to write there")

    run = tmp_path / "here"
    recovery = recovery_of(remote, run, milestones=(4,))
    grown(run, 4)
    monkeypatch.setattr(recovery.output.store, "write", refuse)
    with pytest.raises(StoreError):
        recovery.keep_up(4)


def test_nothing_is_copied_if_the_scratch_folder_is_in_the_store(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    run = Path(output_in(store).scratch)
    grown(run, 4)
    copy_due(recovery_of(store, run))
    assert store.list(RESUME) == []


class Fate(Listener):
    """Calls a function once, at a step."""

    def __init__(self, step: int, happen: Callable[[], None]) -> None:
        self.step, self.happen = step, happen

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self.step:
            self.happen()


class Asked(BaseException):
    """A request to stop the stage."""


class Lost(BaseException):
    """The machine is lost."""


def train(
    made: Made, store: Store, config: TrainConfig, fate: Fate | None = None, place: TrainPlace | None = None
) -> Artifact:
    output = output_in(store, place=place)
    if fate:
        output.listen(fate)
    with open_engine() as engine:
        report = stage.run(config, Inputs({"shards": made.shards, "plan": made.plan}), output, engine)
    return commit(output, "train", 1, config, [], report)


@pytest.mark.soak
def test_a_run_that_moves_between_machines_ends_with_the_same_bytes(
    made: Made, remote: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(steps=120, checkpoint_every=10)
    scratch = Path(output_in(remote).scratch)

    def stop() -> None:
        raise Asked

    def lose() -> None:
        """Loss of the whole machine: no process can save."""
        processes = psutil.Process().children(recursive=True)
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, 10)
        shutil.rmtree(scratch)
        raise Lost

    caplog.set_level(logging.INFO)
    with pytest.raises(Asked):
        train(made, remote, config, Fate(25, stop))
    (saved,) = pushed(remote)[-1:]
    assert saved == checkpoint.steps_at(scratch / "epoch-000001" / "checkpoints")[-1] > 25
    shutil.rmtree(scratch)
    with pytest.raises(Lost):
        train(made, remote, config, Fate(90, lose))
    assert f"step {saved} fetched from the store: this machine has step 0" in caplog.text
    moved = train(made, remote, config)
    assert caplog.text.count("fetched from the store: this machine has step 0") == 2
    assert contents(moved) == contents(train(made, Store(str(tmp_path / "stayed")), config))
    assert remote.list(RESUME) == []


@pytest.mark.soak
def test_a_pod_that_gets_sigterm_saves_to_the_store_and_exits_as_resumable(
    made: Made, s3: S3Server, tmp_path: Path
) -> None:
    store = store_with(made, f"s3://sluice/{tmp_path.name}", WEIGHTS)
    endless = small_config(steps=100_000, checkpoint_every=100_000)
    told_to_go = pod(recipe_of(store, endless), TMPDIR=str(tmp_path), SLUICE_CACHE=str(tmp_path / "cache"))
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 1000 for path in tmp_path.glob(f"sluice-scratch/*/epoch-*/{METRICS}")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    told_to_go.terminate()
    ((code, said),) = ended([told_to_go])
    assert code == 143, said
    (step,) = pushed(Store(store))
    assert f"stopped on request after {step} of 100000 steps" in said
