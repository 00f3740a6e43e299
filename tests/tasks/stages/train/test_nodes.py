"""Stages on several nodes, each with its own disk: the artifact of one node, and no node whose loss ends the run.

Run the soak tests after a change of tasks/trainer/checkpoints.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.core.artifact import Artifact
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.trainer.checkpoints.copies import FOLDER
from tasks.trainer.checkpoints.locations import CopySource
from tasks.trainer.logs import read_starts
from tasks.trainer.model.config import ModelConfig
from tests.corpora import Made
from tests.tasks.trainer.gangs import contents, recipe_of, store_with, trained_in
from tests.tasks.trainer.nodes import StageNode, run_stages
from tests.tasks.trainer.small_run import WEIGHTS, small_config
from tests.waiting import until

MODEL = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, tie_embeddings=False)
CONFIG = small_config(model=MODEL, steps=24, checkpoint_every=4, microbatch=1)
KILLED = -9


def recipe(made: Made, folder: Path, **layout: int) -> Recipe:
    """A recipe with its own store, whose ranks have a layout."""
    store = store_with(made, folder / "store", WEIGHTS)
    return recipe_of(store, CONFIG).override({"place.train.layout": layout})


def on_disks(of: Recipe, folder: Path, nodes: int) -> list[StageNode]:
    return [StageNode(of, folder / str(node)) for node in range(nodes)]


def copied(of: Recipe) -> list[int]:
    """The steps of the copies that are committed in the store, ascending."""
    return CopySource(Store(of.place.store), f"test/checkpoint/dev/{FOLDER}", required=True).steps()


def after_a_copy(of: Recipe) -> Callable[[int], bool]:
    """Waits after the 12th step until a copy is committed, and is then true."""
    return lambda step: step == 12 and bool(until(lambda: copied(of)))


def resumed_at(disk: Path) -> int:
    """The first step of the last start."""
    (folder,) = disk.glob("scratch/epoch-*")
    return int(read_starts(folder)[-1]["step"])


def losses(artifact: Artifact | None) -> np.ndarray:
    assert artifact is not None
    with artifact.open("loss.parquet") as file:
        return pq.read_table(file)["loss"].to_numpy()


@pytest.fixture(scope="module")
def shared(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of two nodes with a shared scratch folder, in which they write like two ranks of one node."""
    folder = tmp_path_factory.mktemp("shared")
    of = recipe(made, folder, shard=2)
    assert run_stages([StageNode(of, folder), StageNode(of, folder)]) == [0, 0]
    return folder / "store"


def test_nodes_with_their_own_disks_write_the_artifact_of_one_node(made: Made, shared: Path, tmp_path: Path) -> None:
    of = recipe(made, tmp_path, shard=2)
    assert run_stages(on_disks(of, tmp_path, 2)) == [0, 0]
    assert contents(trained_in(tmp_path / "store")) == contents(trained_in(shared))
    assert not list((tmp_path / "1").rglob("*.safetensors"))


def test_a_node_that_is_killed_and_loses_its_disk_resumes_to_the_same_bytes(
    made: Made, shared: Path, tmp_path: Path
) -> None:
    of = recipe(made, tmp_path, shard=2)
    first, second = on_disks(of, tmp_path, 2)
    assert run_stages([first, StageNode(of, second.scratch, after_a_copy(of))]) == [1, KILLED]
    shutil.rmtree(second.scratch)
    newest = copied(of)[-1]
    assert run_stages([first, second]) == [0, 0]
    assert resumed_at(first.scratch) >= newest  # or from the milestone of step 12
    assert contents(trained_in(tmp_path / "store")) == contents(trained_in(shared))


@pytest.mark.parametrize(
    ("nodes", "layout"),
    [
        (1, {}),
        pytest.param(1, {"shard": 1}, marks=pytest.mark.soak),
        pytest.param(4, {"shard": 4}, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_another_number_of_nodes_resumes_from_the_checkpoint_of_two(
    made: Made, shared: Path, tmp_path: Path, nodes: int, layout: dict[str, int]
) -> None:
    of = recipe(made, tmp_path, shard=2)
    first, second = on_disks(of, tmp_path, 2)
    assert run_stages([first, StageNode(of, second.scratch, after_a_copy(of))]) == [1, KILLED]
    newest = copied(of)[-1]
    other = of.override({"place.train.layout": layout or None})
    assert run_stages(on_disks(other, tmp_path / "new", nodes)) == [0] * nodes
    assert resumed_at(tmp_path / "new" / "0") >= newest  # or from the milestone of step 12
    np.testing.assert_allclose(losses(trained_in(tmp_path / "store")), losses(trained_in(shared)), atol=1e-3, rtol=0)


@pytest.mark.soak
def test_ten_of_ten_killed_nodes_resume_to_the_same_bytes(made: Made, shared: Path, tmp_path: Path) -> None:
    of, chance = recipe(made, tmp_path, shard=2), random.Random(7)
    for kill in range(10):
        nodes, victim = on_disks(of, tmp_path, 2), chance.randrange(2)
        nodes[victim] = StageNode(of, nodes[victim].scratch, lambda step, kill=kill: step >= 2 * kill + 3)
        codes = run_stages(nodes)
        assert (codes[victim], codes[1 - victim]) == (KILLED, 1)
        if chance.random() < 0.5:
            shutil.rmtree(nodes[victim].scratch)
    assert run_stages(on_disks(of, tmp_path, 2)) == [0, 0]
    assert contents(trained_in(tmp_path / "store")) == contents(trained_in(shared))


@pytest.mark.soak
def test_the_best_checkpoint_of_two_nodes_survives_the_loss_of_a_disk(made: Made, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "train.heldout": {"every": 4, "max_tokens": 300},
        "train.best": {"every": 2, "patience": 2},
        "train.optim": {"lr": 0.3, "warmup_steps": 24},
    }
    whole, broken = (recipe(made, tmp_path / name, shard=2).override(settings) for name in ("whole", "broken"))
    assert run_stages(on_disks(whole, tmp_path / "whole", 2)) == [0, 0]
    expected = trained_in(whole.place.store)
    assert expected is not None
    run = json.loads(expected.read("run.json"))
    best = run["best"]["step"]
    assert best < run["steps"] < 24
    first, second = on_disks(broken, tmp_path / "broken", 2)
    fate = StageNode(
        broken, second.scratch, lambda step: step == best + 2 and bool(until(lambda: best in copied(broken)))
    )
    assert run_stages([first, fate]) == [1, KILLED]
    shutil.rmtree(second.scratch)
    assert run_stages([first, second]) == [0, 0]
    assert contents(trained_in(broken.place.store)) == contents(expected)
