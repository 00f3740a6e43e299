"""The sweep of the GPU benchmark, on a CPU: everything runs, is written, and respects the time budget."""

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from tasks.trainer.model.shape import SIZES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def train_gpu() -> ModuleType:
    """Imported inside tests and not at collection, because it imports torch._dynamo, which takes a CPU-second."""
    return importlib.import_module("benchmarks.train_gpu")


@pytest.fixture
def configurations(train_gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of configurations of the tiny sweep: the first of each precision."""
    first = {one.precision: one for one in reversed(train_gpu.TINY)}
    monkeypatch.setattr(train_gpu, "TINY", {one: train_gpu.TINY[one] for one in reversed(first.values())})
    return sum(map(len, train_gpu.TINY.values()))


@pytest.fixture(autouse=True)
def one_rank_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_kernels_are_compared_steps_timed_and_the_first_configuration_profiled(
    train_gpu: ModuleType, configurations: int, tmp_path: Path
) -> None:
    train_gpu.Sweep(tmp_path / "figures.json", 60.0, tiny=True).run()
    figures = json.loads((tmp_path / "figures.json").read_text())
    flex = figures["parity"]["kernels"]["flex"]
    assert flex["equal"]
    assert flex["leak"] == 0
    assert [line.get("failed") for line in figures["configurations"]] == [None] * configurations
    assert {line["precision"] for line in figures["configurations"]} == {"bf16", "fp8"}
    assert all(line["tokens_per_s"] > 0 and math.isfinite(line["loss"]) for line in figures["configurations"])
    assert figures["profile"]["top"][0]["ms_per_step"] > 0


def test_a_configuration_that_does_not_fit_is_noted_and_the_next_one_runs(
    train_gpu: ModuleType, configurations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(train_gpu, "engine_of", full)
    monkeypatch.setattr(train_gpu, "parity", lambda *arguments: {})
    train_gpu.Sweep(tmp_path / "figures.json", 60.0, tiny=True).run()
    lines = json.loads((tmp_path / "figures.json").read_text())["configurations"]
    assert [line["failed"] for line in lines] == ["out of memory"] * configurations


def test_configurations_that_time_did_not_allow_are_listed(
    train_gpu: ModuleType, configurations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_gpu, "parity", lambda *arguments: {})
    train_gpu.Sweep(tmp_path / "figures.json", 0.0, tiny=True).run()
    lines = json.loads((tmp_path / "figures.json").read_text())["configurations"]
    assert ["not_run" in line for line in lines] == [True] * configurations


def test_the_sweep_names_existing_model_sizes(train_gpu: ModuleType) -> None:
    assert {variant.size for variant in train_gpu.SWEEP} <= SIZES.keys()
