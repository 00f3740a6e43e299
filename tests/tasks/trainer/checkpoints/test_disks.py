"""Replicas that span nodes, each with its own disk: the result of one rank, and checkpoints that all can read."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import CopySpec, TrainSpec
from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.loop import Trainer
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.place import Layout
from tests.corpora import Made
from tests.tasks.trainer.nodes import STOPPED, merged, specs, train
from tests.tasks.trainer.small_run import small_spec
from tests.tasks.trainer.test_loop import ALONE

SETTINGS = {
    "model": ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, tie_embeddings=False),
    "steps": 8,
    "microbatch": 1,
}


@pytest.fixture(scope="module")
def alone(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of one rank."""
    spec = small_spec(made, tmp_path_factory.mktemp("alone"), **SETTINGS)
    Trainer(spec, ALONE).train()
    return Path(spec.out)


def check_losses(run: Path, alone: Path) -> None:
    """Compares losses and gradient norms of a run with those of one rank."""
    curves = [
        torch.tensor([[line["loss"], line["grad_norm"]] for line in read_metrics(folder / METRICS)])
        for folder in (run, alone)
    ]
    torch.testing.assert_close(*curves, atol=1e-5, rtol=0)


def check_equal(run: Path, whole: Path, alone: Path) -> None:
    """Compares also the weights of a checkpoint."""
    check_losses(run, alone)
    found = load_file(whole / checkpoint.MODEL)
    expected = load_file(alone / "checkpoints" / checkpoint.name_of(8) / checkpoint.MODEL)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", [Layout(shard=2), Layout(pipeline=2)], ids=["shard", "pipeline"])
def test_two_nodes_that_share_a_replica_train_like_one_rank(
    made: Made, alone: Path, tmp_path: Path, layout: Layout
) -> None:
    nodes = specs(made, tmp_path, 2, layout, **SETTINGS)
    assert train(nodes, until=4) == [STOPPED, STOPPED]
    assert train(nodes) == [0, 0]
    for node in nodes:
        assert checkpoint.missing(Path(node.out) / "checkpoints" / checkpoint.name_of(8))
    check_equal(tmp_path / "0" / "run", merged(nodes, 8, tmp_path / "all"), alone)


def copied(nodes: list[TrainSpec], step: int, store: Path) -> CopySpec:
    """Commits a copy of a spread checkpoint to a store, as the stages of its nodes do."""
    folder = f"run/.resume/{checkpoint.name_of(step)}-made"
    for node in nodes:
        here = Path(node.out) / "checkpoints" / checkpoint.name_of(step)
        shutil.copytree(here, store / folder, dirs_exist_ok=True)
    marker = {"fingerprint": "", "folder": folder, "first": 0, "sha256": {}}
    (store / "run" / ".resume" / f"{checkpoint.name_of(step)}.json").write_text(json.dumps(marker))
    return CopySpec(store=str(store), folder="run/.resume", every=1, required=True)


def files_on(node: TrainSpec, step: int) -> list[str]:
    """Returns the files of a checkpoint on the disk of a node, without its state."""
    folder = Path(node.out) / "checkpoints" / checkpoint.name_of(step)
    return sorted(path.name for path in folder.glob("*.safetensors"))


def test_nodes_in_another_layout_fetch_only_the_files_with_their_own_parts(
    made: Made, alone: Path, tmp_path: Path
) -> None:
    four = specs(made, tmp_path / "four", 4, Layout(shard=4), **SETTINGS)
    assert train(four, until=4) == [STOPPED] * 4
    copy = copied(four, 4, tmp_path / "store")
    two = specs(made, tmp_path / "two", 2, Layout(shard=2), [copy], **SETTINGS)
    shutil.copy(Path(four[0].out) / METRICS, two[0].out)
    assert train(two) == [0, 0]
    for node, ranks in zip(two, ((0, 1), (2, 3)), strict=True):
        own = [file for rank in ranks for file in files_on(four[rank], 4)]
        assert files_on(node, 4) == sorted(own)
        assert len(own) == 4
    check_losses(tmp_path / "two" / "0" / "run", alone)
