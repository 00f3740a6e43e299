"""Replicas that span nodes, each with its own disk: the result of one rank, and checkpoints that all can read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import ModelConfig
from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.loop import Trainer
from tasks.trainer.place import Layout
from tests.corpora import Made
from tests.tasks.trainer.nodes import STOPPED, merged, specs, train
from tests.tasks.trainer.small_run import small_spec
from tests.tasks.trainer.test_loop import ALONE

SETTINGS = {"model": ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, tie_embeddings=False), "steps": 8}


@pytest.fixture(scope="module")
def alone(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of one rank."""
    spec = small_spec(made, tmp_path_factory.mktemp("alone"), **SETTINGS)
    Trainer(spec, ALONE).train()
    return Path(spec.out)


def check_equal(run: Path, whole: Path, alone: Path) -> None:
    """Compares losses and gradient norms of a run, and the weights of a checkpoint, with those of one rank."""
    curves = [
        torch.tensor([[line["loss"], line["grad_norm"]] for line in read_metrics(folder / METRICS)])
        for folder in (run, alone)
    ]
    torch.testing.assert_close(*curves, atol=1e-5, rtol=0)
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
