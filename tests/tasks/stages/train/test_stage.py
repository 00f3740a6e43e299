"""The stage: its outputs, which are the same after a kill."""

import hashlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, RecipeError
from tasks.core.store import Store
from tasks.formats.tokens.order import Order
from tasks.stages.tokens import PackConfig
from tasks.trainer.checkpoints import fork
from tasks.trainer.config import AnnealConfig, HeldoutConfig, OptimConfig, ReplayConfig, TrainConfig
from tasks.trainer.model import model_file
from tasks.trainer.place import TrainPlace
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config

STAGE = "tasks.stages.train.stage"
RUN = """
import sys
from tasks.core.artifact import ArtifactId, Artifact
from tasks.core.store import Store
from tasks.trainer.config import TrainConfig
from tasks.trainer.place import TrainPlace
from tests.conftest import run_stage_in
source, folder, config, place = sys.argv[1:]
inputs = {role: Artifact.open_at(Store(source), ArtifactId(f"test/{role}", "dev")) for role in ("shards", "plan")}
config, place = TrainConfig.model_validate_json(config), TrainPlace.model_validate_json(place)
run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint", place=place)
"""


def train(made: Made, folder: Path, config: TrainConfig, place: TrainPlace | None = None, **more: Artifact) -> Artifact:
    inputs = {"shards": made.shards, "plan": made.plan, **more}
    return run_stage_in(folder, STAGE, config, inputs, kind="checkpoint", place=place)  # type: ignore[arg-type]


def contents(artifact: Artifact) -> dict[str, str]:
    return {path: hashlib.sha256(artifact.read(path)).hexdigest() for path in artifact.files()}


def kill_when(made: Made, folder: Path, config: TrainConfig, sign: str, place: TrainPlace | None = None) -> None:
    """Runs the stage in a separate process and kills it as soon as a file matches `sign`."""
    settings = (config.model_dump_json(), (place or TrainPlace()).model_dump_json())
    stage = subprocess.Popen([sys.executable, "-c", RUN, made.shards.store.root, str(folder), *settings])
    deadline = time.monotonic() + 600
    while not list(folder.glob(f"**/{sign}")):
        assert time.monotonic() < deadline
        assert stage.poll() is None, "the stage ended before it could be killed"
        time.sleep(0.01)
    stage.kill()
    stage.wait()


@pytest.fixture(scope="module")
def trained(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return train(made, tmp_path_factory.mktemp("trained"), small_config())


def test_the_artifact_has_the_milestones_and_the_files_for_trace(made: Made, trained: Artifact) -> None:
    files = ("model.safetensors", "optimizer.safetensors", "state.json")
    milestones = [f"checkpoints/step-{step:08d}/{file}" for step in (6, 12) for file in files]
    steps = [f"{folder}/step-{step:08d}.jsonl" for folder in ("steps", "skipped") for step in (6, 12)]
    assert trained.files() == sorted([*milestones, *steps, "loss.parquet", "model.json", "run.json"])
    run = json.loads(trained.read("run.json"))
    assert run["checkpoint_steps"] == [6, 12]
    assert run["weights"].keys() == {"code", "my-books", "web"}
    order = Order.of_run(run)
    assert len(order.batch(run["steps"] - 1)) == 4
    assert trained.record.metrics["steps"] == 12
    read = order.count_drawn("web", 12) / order.sequences["web"]
    assert trained.record.metrics["epochs/web"] == pytest.approx(read, abs=1 / order.sequences["web"])


def test_the_loss_table_has_a_row_per_step_without_times(trained: Artifact) -> None:
    table = pq.read_table(io.BytesIO(trained.read("loss.parquet")))
    assert table.column_names == ["step", "loss", "lr", "grad_norm", "tokens"]
    assert table["step"].to_pylist() == list(range(12))
    assert table["loss"][-1].as_py() < table["loss"][0].as_py()


def test_the_model_matches_its_description(made: Made, trained: Artifact) -> None:
    weights = trained.local("checkpoints/step-00000012/model.safetensors")
    model, held = model_file.load_model(Path(trained.local("model.json")), Path(weights))
    assert held["parameters"]["total"] == sum(p.numel() for p in model.parameters())
    tokenizer = hashlib.sha256(made.tokenizer.read("tokenizer.json")).hexdigest()
    assert (held["seq_len"], held["tokenizer_sha256"]) == (32, tokenizer)


def planned(steps: int, decay: float, **settings: Any) -> TrainConfig:
    optim = OptimConfig(lr=1e-2, warmup_steps=2, decay_share=decay)
    return small_config(steps=steps, milestones=4, optim=optim, heldout=HeldoutConfig(every=3), **settings)


@pytest.mark.parametrize(("steps", "decay", "at"), [(16, 0.25, 6), (6, 0.4, 4)], ids=["prolonged", "cooled down"])
def test_a_fork_ends_like_a_run_that_was_planned_so(
    made: Made, tmp_path: Path, steps: int, decay: float, at: int
) -> None:
    origin = {"of": "test/checkpoint@dev", "step": at}
    with training_in_process():
        other = train(made, tmp_path / "other", planned(8, 0.25))
        whole = train(made, tmp_path / "whole", planned(steps, decay))
        forked = train(made, tmp_path / "forked", planned(steps, decay, fork=origin, checkpoint_every=5), fork=other)
    assert json.loads(forked.read("run.json"))["checkpoint_steps"][0] > at
    of_checkpoints = forked.files("checkpoints/")
    assert f"checkpoints/step-{steps:08d}/optimizer.safetensors" in of_checkpoints
    for path in (*of_checkpoints, "loss.parquet"):
        assert forked.read(path) == whole.read(path), path
    assert [ref.address for ref in forked.record.inputs if ref.role == "fork"] == [str(other.address)]


def test_a_fork_that_would_not_be_the_same_run_is_refused_with_the_difference(
    made: Made, tmp_path: Path, trained: Artifact
) -> None:
    origin = {"of": "test/checkpoint@dev", "step": 6}
    for settings, cause in (
        ({"fork": origin | {"step": 5}, "steps": 24}, r"no checkpoint of step 5. Name one of 6, 12"),
        ({"fork": origin, "steps": 24, "seed": 1}, r"train\.seed was 0 and is 1"),
        (
            {"fork": origin, "optim": OptimConfig(lr=2e-2, warmup_steps=2)},
            r"the learning rate of step 0 was 0\.005 and is",
        ),
    ):
        with training_in_process(), pytest.raises(InputError, match=cause):
            train(made, tmp_path / cause[:9], small_config(**settings), fork=trained)


def test_a_fork_of_a_damaged_checkpoint_is_refused_instead_of_beginning_at_step_0(made: Made, tmp_path: Path) -> None:
    with training_in_process():
        other = train(made, tmp_path / "other", planned(8, 0.25))
        Path(other.local("checkpoints/step-00000004/optimizer.safetensors")).write_bytes(b"damaged")
        origin = {"of": "test/checkpoint@dev", "step": 4}
        with pytest.raises(InputError, match=r"checkpoint of step 4 of test/checkpoint@dev cannot be used"):
            train(made, tmp_path / "forked", planned(16, 0.25, fork=origin), fork=other)


def test_what_a_fork_compares_are_settings_of_a_training() -> None:
    assert set(TrainConfig.model_fields) >= fork._COMPARED_BY_EFFECT | fork._NO_EFFECT
    assert set(OptimConfig.model_fields) >= fork._SCHEDULE


def test_a_stage_killed_in_the_middle_ends_with_the_same_bytes(made: Made, tmp_path: Path) -> None:
    config = small_config(steps=60, checkpoint_every=10)
    with training_in_process():
        whole = train(made, tmp_path / "whole", config)
    kill_when(made, tmp_path / "broken", config, ".scratch/*/epoch-*/checkpoints/step-00000020/state.json")
    assert Artifact.find(Store(str(tmp_path / "broken")), ArtifactId("test/checkpoint", "dev")) is None
    with training_in_process():
        broken = train(made, tmp_path / "broken", config)
    assert contents(whole) == contents(broken)
    assert whole.record.content == broken.record.content


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"mixture": {"en": 0.5, "fr": 0.5}}, "mixture"),
        ({"anneal": AnnealConfig(share=0.5, mixture={"fr": 1.0})}, r"anneal\.mixture"),
        ({"replay": ReplayConfig(share=0.5, old=("fr",))}, r"replay\.old"),
    ],
)
def test_a_name_missing_in_the_column_of_the_plan_is_refused_before_anything_runs(
    made: Made, tmp_path: Path, settings: dict[str, Any], field: str
) -> None:
    by_language = PackConfig(seq_len=32, by="language")
    plan = run_stage_in(tmp_path, "tasks.stages.tokens.pack", by_language, {"shards": made.shards}, kind="plan")
    with pytest.raises(RecipeError, match=rf'\[train\] {field}.* no source is called "fr"\. Choose from de, en'):
        train(made._replace(plan=plan), tmp_path, small_config(**settings))
    assert not list(tmp_path.rglob("spec.json")), "the run had begun"
