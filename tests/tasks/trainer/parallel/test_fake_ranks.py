"""The plan's memory and collectives of a rank equal those that its code has, counted with fake ranks and tensors."""

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.fake_ranks import CASES, VOCABULARY, counted, fake_group, planned
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.model.config import ExpertsConfig, ModelConfig
from tasks.trainer.model.shape import SIZES, ModelShape
from tasks.trainer.optim import ITERATIONS, Muon
from tasks.trainer.place import Layout

LAYOUTS: dict[str, tuple[dict[str, Any], bool]] = {
    "replicas of fsdp": ({"shard": 8, "replicate": 2}, False),
    "replicas of a pipeline": ({"shard": 4, "replicate": 2, "pipeline": 2, "recompute": "selective"}, True),
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


def model_of_experts(layers: int) -> ModelConfig:
    experts = ExpertsConfig(count=64, per_token=8, width=768)
    return ModelConfig(layers=layers, dim=2048, heads=32, kv_heads=4, tie_embeddings=False, experts=experts)


def test_rows_of_experts_are_exchanged_as_planned() -> None:
    check(Layout(shard=8, expert=4, compile=False), model_of_experts(1), 16, 256, last=False, memory=False)


@pytest.mark.soak
@pytest.mark.parametrize(
    "settings",
    [
        {"shard": 8, "expert": 4},
        {"shard": 8, "expert": 4, "recompute": "full"},
        {"shard": 8, "recompute": "selective"},
        {"replicate": 2, "shard": 8, "expert": 2, "zero": 1},
        {"shard": 4, "expert": 2, "pipeline": 2},
    ],
)
def test_the_plan_of_experts_is_what_their_code_has(settings: dict[str, Any]) -> None:
    layout = Layout(**settings, compile=False)
    check(layout, model_of_experts(8), 4 * layout.data_ranks, 4096, last=False, memory=True)


def test_of_four_ranks_each_computes_a_quarter_of_muons_products_and_exchanges_twice_a_round() -> None:
    shapes = {f"layers.{number}": (24, 48) for number in range(4)} | {f"layers.{number}": (12, 6) for number in (4, 5)}
    optim = OptimConfig(name="muon")
    whole = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
    alone = flops_of_step(Muon(whole, optim, torch.float32))
    with fake_group(0, 4), mock.patch.object(dist, "all_to_all_single", wraps=dist.all_to_all_single) as exchange:
        mesh = init_device_mesh("cpu", (4,))
        parts = {name: distribute_tensor(matrix, mesh, [Shard(0)]) for name, matrix in whole.items()}
        found = flops_of_step(Muon(parts, optim, torch.float32))
        sizes = [call.args[1].numel() for call in exchange.call_args_list]
    large = 24 * 24 * 48 * 2 * 2 + 2 * 24**3
    small = 6 * 6 * 12 * 2 * 2 + 2 * 6**3
    assert alone == ITERATIONS * (4 * large + 2 * small)
    assert found == ITERATIONS * (large + small)
    # What it sends: its parts of four matrices, then one matrix; its parts of two, then one of these.
    assert sizes == [24 * 48, 24 * 48, 2 * 12 * 6 // 4, 12 * 6]


def flops_of_step(optimizer: Muon) -> int:
    for matrix in optimizer.matrices.values():
        matrix.grad = torch.ones_like(matrix)
    with FlopCounterMode(display=False) as counter:
        optimizer.step(1e-2)
    return int(counter.get_total_flops())


@pytest.mark.soak
@pytest.mark.parametrize("size", CASES)
@pytest.mark.parametrize("last", [False, True])
def test_a_rank_of_thousands_is_built_and_counted(size: str, last: bool) -> None:
    model, layout, batch_size = CASES[size]
    check(layout, model, batch_size, 8192, last=last, memory=True)
