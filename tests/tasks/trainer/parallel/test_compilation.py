"""Layers are compiled on GPUs that can, into one graph for all of them."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
from torch._dynamo.utils import counters

from tasks.trainer.parallel import compilation
from tasks.trainer.parallel.compilation import Decision, decide
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.place import Layout
from tests.tasks.trainer.parallel.parallel_worker import SEQ_LEN, VOCABULARY, batch, config

GPU, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.mark.parametrize(
    ("setting", "device", "triton", "compiler", "expected"),
    [
        (None, CPU, True, "gcc", Decision(False, "on a CPU it takes longer than it saves")),
        (None, GPU, True, "gcc", Decision(True, "on a GPU")),
        (
            None,
            GPU,
            False,
            "gcc",
            Decision(False, "the package triton is missing: install torch with its dependencies"),
        ),
        (
            None,
            GPU,
            True,
            None,
            Decision(False, "triton calls a C compiler, and there is none: install gcc, or set CC"),
        ),
        (False, GPU, True, "gcc", Decision(False, "compile = false in [place.train.layout]")),
        (True, CPU, False, None, Decision(True, "compile = true in [place.train.layout]")),
    ],
)
def test_layers_are_compiled_by_default_on_a_gpu_with_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
    setting: bool | None,
    device: torch.device,
    triton: bool,
    compiler: str | None,
    expected: Decision,
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda name: object() if triton else None)
    monkeypatch.setattr(compilation.shutil, "which", lambda name: name if name == compiler else None)
    assert decide(setting, device) == expected


@pytest.fixture
def alone() -> Iterator[Ranks]:
    """The only rank of a process group, which is left after the test."""
    yield Ranks(0, 1, 0)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{}, {"recompute": "full"}, {"recompute": "selective"}, {"precision": "fp8"}])
def test_all_layers_are_one_graph_and_compute_the_same(
    alone: Ranks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    caplog.set_level("INFO", compilation.log.name)
    monkeypatch.setattr(compilation, "BACKEND", "eager")
    compilation._report.cache_clear()
    torch._dynamo.reset()
    counters.clear()
    run = config(tie=True).model_copy(update={"precision": settings.pop("precision", "fp32")})
    layouts = (Layout(**settings), Layout(**settings, compile=True))
    plain, compiled = (Sharded(run, layout, VOCABULARY, SEQ_LEN, alone) for layout in layouts)
    for step in range(2):
        parts = {number: batch(step, number) for number in range(2)}
        assert compiled.forward_backward(parts)[0] == pytest.approx(plain.forward_backward(parts)[0], rel=1e-6)
        assert compiled.clip(1.0) == pytest.approx(plain.clip(1.0), rel=1e-5)
    assert run.model.layers == 4
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    logged = [record.getMessage() for record in caplog.records if record.name == compilation.log.name]
    assert logged == [
        "layers are not compiled: on a CPU it takes longer than it saves",
        "layers are compiled: compile = true in [place.train.layout]",
    ]
