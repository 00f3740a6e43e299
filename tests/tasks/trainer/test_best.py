"""The best checkpoint by held-out text, and the early end of a run."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, TransientError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.tokens.readings import Readings
from tasks.run.export import weights_file
from tasks.stages.registry import RegisterConfig
from tasks.trainer.best import Best
from tasks.trainer.checkpoints.checkpoint import name_of, prune, steps_at
from tasks.trainer.checkpoints.recovery import Recovery
from tasks.trainer.config import BestConfig, HeldoutConfig, OptimConfig, TrainConfig
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.logs import FAULTS, read_metrics
from tasks.trainer.loop import Trainer
from tasks.trainer.model.model_file import Which
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.tasks.stages.train.test_stage import STAGE, contents, train
from tests.tasks.trainer.checkpoints.test_recovery import grown
from tests.tasks.trainer.in_process import in_process
from tests.tasks.trainer.small_run import small_config

__all__ = ["in_process"]


def after(values: Sequence[float | None], **settings: float) -> tuple[int, int]:
    """The best step and the number of values until the end, of a run that measures after each step."""
    best = Best(BestConfig.model_validate({"every": 1, **settings}), len(values))
    for step, value in enumerate(values, 1):
        best.measure(step, value)
        if best.ended:
            return best.step, step
    return best.step, len(values)


def test_the_lowest_value_is_the_best_and_patience_counts_those_that_are_not_lower_by_min_delta() -> None:
    assert after([3.0, 2.0, 2.0, 2.5]) == (2, 4), "of equal values the first"
    assert after([3.0, 2.0, 2.0, 2.5, 1.0], patience=2) == (2, 4)
    assert after([3.0, 2.9, 2.8, 2.7], patience=3, min_delta=0.5) == (4, 4), "2.7 is the best, but no improvement"
    assert after([3.0, 2.4, 2.4, 1.8, 1.8, 1.8], patience=2, min_delta=0.5) == (4, 6)
    assert after([None, 2.0, None, None, 1.0], patience=2) == (2, 4), "a value that is not finite is no improvement"


def test_only_the_settings_of_the_run_choose_the_steps_that_count() -> None:
    best = Best(BestConfig(every=4), 10)
    for step in range(1, 11):
        best.measure(step, 10.0 - step if step != 10 else 5.0)
    assert best.step == 8, "after steps 4, 8 and 10, whatever [train.heldout] every measures in between"


def config(**settings: object) -> TrainConfig:
    """A run that is better at first, and then too fast: its held-out loss rises from some step on."""
    usual: dict[str, object] = {
        "steps": 24,
        "milestones": 2,
        "checkpoint_every": 3,
        "optim": OptimConfig(lr=0.3, warmup_steps=24),
        "heldout": HeldoutConfig(every=5, max_tokens=300),
        "best": BestConfig(every=2, patience=2),
    }
    return small_config(**{**usual, **settings})


@pytest.fixture(scope="module")
def ended(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return train(made, tmp_path_factory.mktemp("ended"), config())


def test_a_run_that_becomes_no_better_ends_and_names_its_best_checkpoint(made: Made, ended: Artifact) -> None:
    run = json.loads(ended.read("run.json"))
    values = {line["step"] + 1: line["bpb"] for line in lines_of(ended) if "bpb" in line and line["step"] % 2}
    best, steps = run["best"]["step"], run["steps"]
    assert values[best] == min(values.values()) == run["best"]["bpb"]
    assert (best + 4, run["ended_early"]["planned_steps"]) == (steps, 24), "two values in a row were not lower"
    assert run["checkpoint_steps"] == [step for step in (12,) if step < steps] + [steps]
    assert ended.record.metrics["steps"] == steps == len(lines_of(ended))
    assert ended.record.metrics["best_step"] == best
    assert f"after {steps} steps of 24, since 2 measurements" in ended.record.note
    for step in (best, steps):
        assert ended.files(f"checkpoints/{name_of(step)}/")
    assert (Readings(None, None, ended).settings or {})["best"] == run["best"]


def lines_of(artifact: Artifact) -> list[dict]:
    files = [path for path in artifact.files("steps/")]
    return [json.loads(line) for path in files for line in artifact.read(path).splitlines()]


@pytest.mark.parametrize("lost", [False, True], ids=["killed", "lost"])
@pytest.mark.parametrize("late", [1, 3])
def test_a_run_that_resumes_has_the_same_best_checkpoint_and_the_same_end(
    made: Made, ended: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, lost: bool
) -> None:
    """Stopped after the best step, at the latest in the last step before the end, on this machine or on another one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    store, run = f"memory://{tmp_path.name}", json.loads(ended.read("run.json"))
    train_step, stop = Trainer._train_step, run["best"]["step"] + late

    def stopping(trainer: Trainer, *args: Any) -> object:
        if trainer.step == stop:
            raise TransientError("the node is gone")
        return train_step(trainer, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_train_step", stopping)
        with pytest.raises(TransientError):
            stored(made, store, config())
    if lost:
        shutil.rmtree(tmp_path / "scratch")
    assert contents(stored(made, store, config())) == contents(ended)


def test_a_checkpoint_whose_best_one_is_lost_is_not_resumed_from(made: Made, tmp_path: Path) -> None:
    output = Output(Store(str(tmp_path / "store")), ArtifactId("test/checkpoint", "dev"), "a run")
    run = tmp_path / "run"
    for step, best in ((2, 2), (4, 2), (6, 6), (8, 6)):
        grown(run, step, {"best": {"step": best}})
    prune(run / "checkpoints", 1, 0, ())
    assert steps_at(run / "checkpoints") == [6, 8], "the best one is kept beside the newest one"
    grown(run, 4, {"best": {"step": 4}})
    grown(run, 8, {"best": {"step": 6}})
    shutil.rmtree(run / "checkpoints" / name_of(6))
    Recovery(output, run, ()).restore()
    assert steps_at(run / "checkpoints") == [4]
    assert "the best one, which is nowhere" in read_metrics(run / FAULTS)[0]["what"]


def stored(made: Made, store: str, settings: TrainConfig) -> Artifact:
    return run_stage_in(store, STAGE, settings, {"shards": made.shards, "plan": made.plan}, kind="checkpoint")


def test_the_best_checkpoint_is_scored_registered_and_exported_by_setting(
    made: Made, ended: Artifact, tmp_path: Path
) -> None:
    run = json.loads(ended.read("run.json"))
    inputs = {"checkpoint": ended, "shards": made.shards, "tokenizer": made.tokenizer}
    steps: dict[Which, int] = {"best": run["best"]["step"], "last": run["steps"]}
    for which, step in steps.items():
        settings = EvaluateConfig(max_tokens=300, checkpoint=which)
        scores = run_stage_in(tmp_path / which, "tasks.stages.evaluate.stage", settings, inputs, kind="scores")
        found = json.loads(scores.read("scores.json"))
        assert found["step"] == step
        if which == "best":
            assert found["bpb"] == pytest.approx(run["best"]["bpb"], rel=1e-6)
        model = run_stage_in(
            tmp_path / which, "tasks.stages.registry.register", RegisterConfig(), {**inputs, "scores": scores}
        )
        ours = load_file(ended.local(weights_file(ended, which)))["embedding.weight"]
        assert ours.equal(load_file(model.local("model/model.safetensors"))["model.embed_tokens.weight"])
        assert json.loads(model.read("model/lineage.json"))["checkpoint"] == f"checkpoints/{name_of(step)}"


def test_a_run_without_a_best_checkpoint_says_so(made: Made, tmp_path: Path) -> None:
    plain = train(made, tmp_path, small_config(steps=4, milestones=1))
    assert "best" not in json.loads(plain.read("run.json"))
    with pytest.raises(InputError, match="has no best checkpoint"):
        weights_file(plain, "best")
    with pytest.raises(ValueError, match=r"train\.heldout"):
        small_config(best=BestConfig(every=1))
