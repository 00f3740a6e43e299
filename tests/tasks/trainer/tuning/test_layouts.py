"""Every method of fine-tuning gives the loss and gradient of one rank in every layout of FSDP, with a sharded base.

Run the soak test after a change of tasks/trainer/tuning or tasks/trainer/parallel.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch._dynamo.utils import counters

from tasks.trainer.config import TuningSpec
from tasks.trainer.model.transformer import build
from tasks.trainer.parallel import compilation
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.place import Layout
from tasks.trainer.tuning.model import fill
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port
from tests.tasks.trainer.parallel.parallel_worker import LEARNING_RATE, SEQ_LEN, VOCABULARY, batch, config
from tests.tasks.trainer.tuning.filled import filled, stored

METHODS: dict[str, dict[str, Any]] = {
    "all weights": {"loss": "sft"},
    "adapters": {"loss": "sft", "lora": {"rank": 4}},
    "adapters on 4 bits": {"loss": "sft", "lora": {"rank": 4, "base": "nf4", "targets": ["wq", "w2"]}},
    "preferences": {"loss": "dpo"},
    "preferences with adapters": {"loss": "dpo", "lora": {"rank": 4, "base": "nf4"}},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "fsdp": {"shard": 2},
    "zero-2": {"shard": 2, "zero": 2},
    "zero-1": {"shard": 2, "zero": 1},
    "replicas": {"replicate": 2},
    "recompute": {"shard": 2, "recompute": "full"},
    "selective": {"shard": 2, "recompute": "selective"},
}
FOUR: dict[str, dict[str, Any]] = {
    "fsdp of four": {"shard": 4},
    "hsdp": {"replicate": 2, "shard": 2},
    "hsdp, recomputed": {"replicate": 2, "shard": 2, "recompute": "selective"},
}
RUN = config(tie=False)


def tuning_of(method: str) -> TuningSpec:
    return TuningSpec.model_validate(
        {"vocab_size": VOCABULARY, "eos_id": 0, "seq_len": SEQ_LEN, "beta": 0.5, **METHODS[method]}
    )


def base() -> Any:
    """A base with a head that is not zero."""
    plain = build(RUN.model, VOCABULARY, 3)
    with torch.no_grad():
        plain.head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr]
    return plain


def sharded(method: str, layout: Layout, ranks: Ranks, folder: Path) -> Sharded:
    model = Sharded(RUN, layout, VOCABULARY, SEQ_LEN, ranks, tuning_of(method))
    folder.mkdir(exist_ok=True)
    fill(model.chunks[0], stored(base(), folder), 0)
    return model


def curve(model: Replicated | Sharded, steps: int) -> list[tuple[float, float]]:
    """Trains, and returns loss and gradient norm of every step."""
    found = []
    for step in range(steps):
        loss, _, _ = model.forward_backward({number: batch(step, number) for number in model.numbers})
        found.append((loss, model.clip(1.0)))
        model.optimizer.step(LEARNING_RATE)
    return found


def alone(method: str, steps: int) -> list[tuple[float, float]]:
    """The curve of one rank with the whole model."""
    tuning = tuning_of(method)
    model = filled(base(), tuning.lora, loss=tuning.loss, beta=tuning.beta)
    return curve(Replicated(RUN, VOCABULARY, Ranks(0, 1, 0), model), steps)


def work(rank: int, world: int, port: int, jobs: list[tuple[str, dict[str, Any]]], steps: int, folder: Path) -> None:
    """One rank: trains each job, and writes its curve and the bytes of its part of the frozen weights."""
    os.environ |= {"WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    results = []
    with Ranks.from_environment() as ranks:
        for method, layout in jobs:
            model = sharded(method, Layout(**layout), ranks, folder / str(rank))
            frozen = [weight for weight in model.chunks[0].parameters() if not weight.requires_grad]
            here, whole = (sum(map(size, frozen)) for size in (lambda w: w.to_local().nbytes, torch.Tensor.numel))
            results.append({"curve": curve(model, steps), "frozen": here, "elements": whole})
    (folder / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)


def check(folder: Path, world: int, jobs: list[tuple[str, dict[str, Any]]], steps: int) -> list[list[dict[str, Any]]]:
    """Checks the curves of jobs; returns the results of all ranks."""
    port = free_port()
    assert forked(work, [(rank, world, port, jobs, steps, folder) for rank in range(world)], 600) == [0] * world
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    expected = {method: alone(method, steps) for method, _ in jobs}
    for (method, layout), result in zip(jobs, found[0], strict=True):
        message = f"{method} in {layout}"
        np.testing.assert_allclose(result["curve"], expected[method], rtol=0, atol=1e-5, err_msg=message)
        assert min(norm for _, norm in expected[method]) > 1e-3
    return found


def test_two_ranks_train_like_one_and_share_the_frozen_weights(tmp_path: Path) -> None:
    names = ("recompute", "zero-1", "fsdp", "fsdp", "selective")
    found = check(tmp_path, 2, [(method, LAYOUTS[name]) for method, name in zip(METHODS, names, strict=True)], 3)
    for method, first, second in zip(METHODS, *found, strict=True):
        # Four bytes of float32, or those of codes and scales: all of them are counted once, apart from padding.
        lora = tuning_of(method).lora
        if lora is None and tuning_of(method).loss == "sft":
            assert first["frozen"] == 0
            continue
        assert first["frozen"] == pytest.approx(second["frozen"], rel=0.02)
        quantized = sum(p.numel() for n, p in base().named_parameters() if n.startswith("layers") and p.ndim == 2)
        total = sum(p.numel() for p in base().parameters())
        size = 4 * total if lora is None or lora.base == "fp32" else 4 * (total - quantized) + quantized * 4.5 / 8
        assert first["frozen"] + second["frozen"] == pytest.approx(size, rel=1e-6)


@pytest.mark.soak
@pytest.mark.parametrize(("world", "layouts"), [(2, LAYOUTS), (4, FOUR)])
def test_every_method_trains_like_one_rank_in_every_layout(
    tmp_path: Path, world: int, layouts: dict[str, dict[str, Any]]
) -> None:
    jobs = [(method, layout) for method in METHODS for layout in layouts.values()]
    context = [(method, {"context": world}) for method in METHODS if METHODS[method]["loss"] == "sft"]
    check(tmp_path, world, [*jobs, *context], 4)


@pytest.fixture
def process_group() -> Iterator[Ranks]:
    """The only rank of a process group; leaves the compiler as it was."""
    with torch._dynamo.config.patch(recompile_limit=torch._dynamo.config.recompile_limit):
        yield Ranks(0, 1, 0)
    torch._dynamo.reset()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("method", "graphs"),
    [pytest.param("adapters on 4 bits", 2, marks=pytest.mark.soak), ("preferences with adapters", 3)],
)
def test_layers_with_adapters_are_compiled_whole_and_compute_the_same(
    process_group: Ranks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, graphs: int
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.reset()
    counters.clear()
    compiled = sharded(method, Layout(compile=True), process_group, tmp_path)
    np.testing.assert_allclose(curve(compiled, 2), alone(method, 2), rtol=0, atol=1e-5)
    # The input of the first layer has no gradient; nor has the reference of preferences, which has no adapters either.
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]
