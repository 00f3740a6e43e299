"""The plan's memory and collectives of a rank equal those that its code has, counted with fake ranks and tensors."""

from typing import Any

import pytest
import torch
from torch.distributed.tensor import distribute_tensor

from benchmarks.fake_ranks import CASES, VOCABULARY, Storages, counted, fake_group, planned
from tasks.trainer.config import ModelConfig, TrainConfig
from tasks.trainer.model.shape import SIZES, ModelShape
from tasks.trainer.model.transformer import build
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.sharded import initialize_shards, shards_of
from tasks.trainer.place import Layout

LAYOUTS: dict[str, tuple[dict[str, Any], bool]] = {
    "replicas of fsdp": ({"shard": 8, "replicate": 2}, False),
    "tensor, selective": ({"shard": 8, "tensor": 8, "recompute": "selective"}, False),
    "first of a pipeline": ({"shard": 8, "tensor": 8, "pipeline": 2, "zero": 1, "recompute": "selective"}, False),
    "last of a pipeline": ({"shard": 8, "tensor": 8, "pipeline": 2, "recompute": "full"}, True),
}
"""Layouts, and whether to count the last rank instead of the first."""


def check(layout: Layout, model: ModelConfig, batch_size: int, seq_len: int, *, last: bool, memory: bool) -> None:
    run = TrainConfig(model=model, precision="bf16", batch_size=batch_size, microbatch=1)
    rank, stage = (layout.ranks - 1, layout.pipeline - 1) if last else (0, 0)
    found = counted(run, layout, VOCABULARY, seq_len, rank)
    plan = planned(run, layout, ModelShape.of(model, VOCABULARY), seq_len, stage)
    assert found.calls == plan["calls"]
    assert found.sizes == pytest.approx(plan["sizes"], rel=0.01)
    if memory:
        assert plan["peak"] == pytest.approx(found.peak, rel=0.1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_plan_of_a_rank_is_what_its_code_has(name: str) -> None:
    settings, last = LAYOUTS[name]
    layout = Layout(**settings, compile=False)
    model = SIZES["70b"].model.model_copy(update={"layers": 2})
    check(layout, model, 3 * layout.data_ranks, 4096, last=last, memory=True)


def test_keys_and_values_are_gathered_as_planned() -> None:
    layout = Layout(shard=2, context=2, recompute="selective", compile=False)
    model = SIZES["70b"].model.model_copy(update={"layers": 1})
    check(layout, model, 4, 256, last=False, memory=False)  # kernels are those of a CPU


@pytest.mark.soak
@pytest.mark.parametrize("size", CASES)
@pytest.mark.parametrize("last", [False, True])
def test_a_rank_of_thousands_is_built_and_counted(size: str, last: bool) -> None:
    model, layout, batch_size = CASES[size]
    check(layout, model, batch_size, 8192, last=last, memory=True)


def test_a_rank_initializes_its_shards_to_the_same_bytes_with_one_whole_parameter_at_a_time() -> None:
    model = ModelConfig(layers=2, dim=64, heads=4, kv_heads=4, tie_embeddings=False)
    run, layout = TrainConfig(model=model), Layout(shard=4, tensor=2, compile=False)
    whole = dict(build(model, 512, run.init_seed).named_parameters())
    with fake_group(5, layout.ranks):
        (chunk,) = shards_of(run, Mesh.of(layout, Ranks(5, layout.ranks, 0, layout.ranks)), 512, 32)
        chunk.to_empty(device="cpu")
        parameters: Any = dict(chunk.named_parameters())
        with Storages() as alive:
            initialize_shards(parameters, run)
        largest = max(parameter.nbytes for parameter in whole.values())
        own = sum(parameter.to_local().nbytes for parameter in parameters.values())
        # The half of a rank of tensor parallelism is a copy, too.
        assert largest <= alive.peak - own < 1.7 * largest
        for name, parameter in parameters.items():
            mesh, places = parameter.device_mesh, parameter.placements
            expected = distribute_tensor(whole[name].detach(), mesh, places, src_data_rank=None).to_local()
            assert torch.equal(parameter.to_local(), expected)
        assert own < 0.2 * sum(parameter.nbytes for parameter in whole.values())
