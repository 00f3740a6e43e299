"""Layers are compiled on GPUs that can, into one graph for all of them, and so is the loss."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch._dynamo.utils import counters

from benchmarks.fake_ranks import fake_group
from tasks.trainer.model.attention import Bounds
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.kernels import varlen
from tasks.trainer.model.loss import loss_of_rows
from tasks.trainer.model.transformer import TransformerBlock
from tasks.trainer.parallel import compilation
from tasks.trainer.parallel.compilation import Decision, compile_layers, decide
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.place import Layout
from tests.tasks.trainer.parallel.parallel_worker import SEQ_LEN, VOCABULARY, batch, config

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(
    ("layout", "device", "triton", "compiler", "expected"),
    [
        ({}, CPU, True, "gcc", Decision(False, "on a CPU it takes longer than it saves")),
        ({}, GPU, True, "gcc", Decision(True, "on a GPU")),
        (
            {},
            GPU,
            False,
            "gcc",
            Decision(False, "the package triton is missing: install torch with its dependencies"),
        ),
        (
            {},
            GPU,
            True,
            None,
            Decision(False, "triton calls a C compiler, and there is none: install gcc, or set CC"),
        ),
        (
            {"tensor": 2, "recompute": "full"},
            GPU,
            True,
            "gcc",
            Decision(
                False, 'torch 2.13 cannot compile layers with tensor > 1 and recompute = "full" ("selective" it can)'
            ),
        ),
        ({"compile": False}, GPU, True, "gcc", Decision(False, "compile = false in [place.train.layout]")),
        ({"compile": True}, CPU, False, None, Decision(True, "compile = true in [place.train.layout]")),
    ],
)
def test_layers_are_compiled_by_default_on_a_gpu_with_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
    layout: dict[str, Any],
    device: torch.device,
    triton: bool,
    compiler: str | None,
    expected: Decision,
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda name: object() if triton else None)
    monkeypatch.setattr(compilation.shutil, "which", lambda name: name if name == compiler else None)
    assert decide(Layout(**layout), device) == expected


@pytest.fixture(autouse=True)
def own_compiler_state() -> Iterator[None]:
    """Leaves the compiler as it was: without graphs, and with its limit."""
    with torch._dynamo.config.patch(recompile_limit=torch._dynamo.config.recompile_limit):
        yield
    torch._dynamo.reset()


@pytest.fixture
def alone() -> Iterator[Ranks]:
    """The only rank of a process group, which is left after the test."""
    yield Ranks(0, 1, 0)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"recompute": "full"}, marks=pytest.mark.soak),
        {"recompute": "selective"},
        {"precision": "fp8"},
    ],
)
def test_all_layers_are_one_graph_the_loss_is_another_and_both_compute_the_same(
    alone: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    caplog.set_level("INFO", compilation.log.name)
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    compilation._log_once.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    run = config(tie=True).model_copy(update={"precision": settings.pop("precision", "fp32")})
    layouts = (Layout(**settings), Layout(**settings, compile=True))
    plain, compiled = (Sharded(run, layout, VOCABULARY, SEQ_LEN, alone) for layout in layouts)
    for model in (plain, compiled):
        model.initialize()
    for step in range(2):
        parts = {number: batch(step, number) for number in range(2)}
        assert compiled.forward_backward(parts)[0] == pytest.approx(plain.forward_backward(parts)[0], rel=1e-6)
        assert compiled.clip(1.0) == pytest.approx(plain.clip(1.0), rel=1e-5)
    assert run.model.layers == 4
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    logged = [record.getMessage() for record in caplog.records if record.name == compilation.log.name]
    assert [message for message in logged if message.startswith("layers")] == [
        "layers are not compiled: on a CPU it takes longer than it saves",
        "layers are compiled: compile = true in [place.train.layout]",
    ]


@pytest.mark.filterwarnings("ignore")
def test_the_loss_of_a_split_vocabulary_is_one_graph_with_its_collectives_and_without_a_scatter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    def recorded(graph: torch.fx.GraphModule, _: object) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    monkeypatch.setattr(compilation, "BACKEND", recorded)
    torch._dynamo.reset()
    counters.clear()
    hidden, head = torch.randn(32, 16), torch.randn(24, 16)
    labels = torch.arange(32)
    with fake_group(1, 2):
        ways = (loss_of_rows, compilation.loss_in(Decision(True, "")))
        plain, compiled = (way(hidden, head, labels, 40, dist.group.WORLD) for way in ways)
    torch.testing.assert_close(compiled, plain)
    assert sum("all_reduce" in name for name in called) == 2
    assert not any("scatter_add" in name for name in called)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def test_flash_attention_needs_few_graphs_for_all_numbers_and_lengths_of_documents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    torch._dynamo.reset()
    counters.clear()
    # The kernel runs only on a GPU; tensors without data show which graphs it is in.
    nowhere = torch.device("meta")
    layer = TransformerBlock(ModelConfig(layers=1, dim=128, heads=4, kv_heads=2), 0).to(nowhere, torch.bfloat16)
    compile_layers([layer], Layout(compile=True), nowhere)
    x = torch.empty(2, 256, 128, device=nowhere, dtype=torch.bfloat16)
    angles = torch.empty(2, 1, 256, 16, device=nowhere)
    for count in (1, 2, 4, 8, 16, 64, 128, 255, 3, 1):
        documents = np.arange(256)[None].repeat(2, 0) * count // 256
        bounds = Bounds.of(documents)
        bounds = bounds._replace(starts=bounds.starts.to(nowhere))
        attend = varlen(torch.from_numpy(documents).to(nowhere), None, bounds)
        assert layer(x, angles, angles, attend).shape == x.shape
    assert counters["stats"]["unique_graphs"] <= 3
