"""A run with sharded state writes the same artifact as any other run."""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from tasks.core.artifact import Artifact
from tasks.core.errors import RecipeError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.model import model_file
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.place import Layout, TrainPlace
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.tasks.stages.train.test_stage import STAGE, kill_when, train
from tests.tasks.trainer.small_run import small_config

CONFIG = small_config(model=ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, tie_embeddings=False), steps=60)


@pytest.fixture(scope="module")
def alone(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return train(made, tmp_path_factory.mktemp("alone"), CONFIG)


def curve(artifact: Artifact) -> np.ndarray:
    with artifact.open("loss.parquet") as file:
        table = pq.read_table(file)
    return np.stack([table[name].to_numpy() for name in ("loss", "grad_norm")])


def place(**layout: int) -> TrainPlace:
    made = Layout.model_validate(layout)
    return TrainPlace(nproc=made.ranks, layout=made)


@pytest.mark.soak
def test_a_sharded_run_killed_and_resumed_in_another_layout_equals_a_single_rank(
    made: Made, alone: Artifact, tmp_path: Path
) -> None:
    kill_when(made, tmp_path, CONFIG, checkpoint.name_of(9), place(shard=2))
    found = train(made, tmp_path, CONFIG, place(tensor=2))
    assert found.files() == alone.files()
    # From the first step on; rounding errors grow with steps because Adam divides by the root of small squares.
    np.testing.assert_allclose(curve(found)[:, :10], curve(alone)[:, :10], atol=1e-5, rtol=0)
    np.testing.assert_allclose(curve(found), curve(alone), atol=1e-3, rtol=0)
    for step in CONFIG.milestone_steps:
        folder = f"checkpoints/{checkpoint.name_of(step)}"
        assert load_file(found.local(f"{folder}/{checkpoint.MODEL}")).keys() == (
            load_file(alone.local(f"{folder}/{checkpoint.MODEL}")).keys()
        )
        stated = checkpoint.read_state(Path(found.local(f"{folder}/{checkpoint.STATE}")).parent)[1]
        assert stated[checkpoint.MODEL] == hashlib.sha256(found.read(f"{folder}/{checkpoint.MODEL}")).hexdigest()
    last = f"checkpoints/{checkpoint.name_of(60)}/{checkpoint.MODEL}"
    model, _ = model_file.load_model(Path(found.local("model.json")), Path(found.local(last)))
    assert sum(weight.numel() for weight in model.parameters()) > 10_000


@pytest.mark.soak
@pytest.mark.parametrize("layout", [{"tensor": 2}, {"shard": 2}, {"pipeline": 2}])
def test_ranks_of_a_layout_start_from_the_weights_of_an_earlier_run(
    made: Made, alone: Artifact, tmp_path: Path, layout: dict[str, int]
) -> None:
    config = CONFIG.model_copy(update={"init_from": str(alone.address), "steps": 3, "milestones": 1})
    inputs = {"shards": made.shards, "plan": made.plan, "initial": alone}
    one = run_stage_in(tmp_path / "one", STAGE, config, inputs, kind="checkpoint")
    there = place(**layout)
    shared = run_stage_in(tmp_path / "shared", STAGE, config, inputs, kind="checkpoint", place=there)
    np.testing.assert_allclose(curve(shared), curve(one), atol=1e-5, rtol=0)
    assert curve(one)[0, 0] < curve(alone)[0, 0] - 0.5


def test_a_layout_that_does_not_match_the_ranks_of_the_place_is_refused(made: Made, tmp_path: Path) -> None:
    halves = place(shard=2).model_copy(update={"nproc": 3})
    with pytest.raises(RecipeError, match="it has 2 ranks, and there are 3"):
        train(made, tmp_path, CONFIG, halves)
