"""The predicted memory of a rank equals that of its process: parameters, gradients, moments and activations.

Run the soak tests (processes over gloo) after a change of the model, attention, the loss, the optimizer or
tasks/trainer/parallel.
"""

from pathlib import Path
from typing import Any

import pytest

from tasks.trainer.config import TrainConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import SIZES, ModelShape
from tasks.trainer.parallel.fit import memory_per_rank
from tasks.trainer.place import Layout
from tasks.trainer.planning.proposals import proposals
from tasks.trainer.planning.step import Machine
from tasks.trainer.tuning.memory import Workload
from tests.tasks.trainer.clean_ranks import largest_growth
from tests.tasks.trainer.parallel.memory_worker import RUN, SEQ_LEN, VOCABULARY

LAYOUTS: dict[str, tuple[int, dict[str, Any] | None, dict[str, Any]]] = {
    "the whole model": (1, None, {}),
    "fsdp": (2, {"shard": 2}, {}),
    "tensor": (2, {"tensor": 2}, {}),
    "pipeline": (2, {"pipeline": 2}, {"microbatch": 1}),
    "recompute": (1, {"recompute": "full"}, {}),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_estimate_is_within_15_percent_of_the_measurement(name: str, tmp_path: Path) -> None:
    ranks, layout, settings = LAYOUTS[name]
    job = {"layout": layout, "settings": settings}
    measured = largest_growth("tests.tasks.trainer.parallel.memory_worker", ranks, job, tmp_path)
    run, shape = RUN.model_copy(update=settings), ModelShape.of(RUN.model, VOCABULARY)
    parts = memory_per_rank(Layout(**layout) if layout is not None else None, run, shape, SEQ_LEN, ranks, gpu=False)
    assert sum(parts.values()) == pytest.approx(measured, rel=0.15)


def test_state_is_sharded_according_to_the_layout() -> None:
    model = ModelConfig(layers=24, dim=2048, heads=16, kv_heads=16)
    run = TrainConfig(model=model, precision="bf16", batch_size=64, microbatch=1)
    shape = ModelShape.of(run.model, 32768)
    total = shape.weights["total"]
    alone, sharded, zero_1 = (
        memory_per_rank(Layout(**layout), run, shape, 2048) for layout in ({}, {"shard": 8}, {"shard": 8, "zero": 1})
    )
    assert (alone["weights"], alone["moments"], alone["gradients"]) == (4 * total, 8 * total, 4 * total)
    assert (sharded["weights"], sharded["moments"]) == (total / 2, total)
    assert zero_1["gradients"] == alone["gradients"]


@pytest.mark.parametrize(("size", "gpus", "expected"), [("1.3b", 1, 1), ("8b", 8, 8), ("70b", 8, 32)])
def test_the_layout_that_fits_a_gpu_of_80_gb(size: str, gpus: int, expected: int) -> None:
    given = SIZES[size]
    run = TrainConfig(model=given.model, precision="bf16", batch_size=512, microbatch=1)
    shape = ModelShape.of(given.model, given.vocab_size)
    best, *_ = proposals(Workload(run, shape, 4096), 72e9, gpus, 8, Machine(4e14, 8, 450e9, 50e9))
    assert best.layout.ranks == expected
    assert sum(memory_per_rank(best.layout, run, shape, 4096).values()) <= 72e9
