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
def configurations(train_gpu: ModuleType) -> int:
    """Number of configurations of the tiny sweep."""
    return sum(len(loads) for _, loads in [*train_gpu.TINY_MAIN, *train_gpu.TINY_REST])


@pytest.fixture(autouse=True)
def one_rank_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_kernels_are_compared_steps_timed_and_the_first_configuration_profiled(
    train_gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = [(variant, loads[:1]) for variant, loads in train_gpu.TINY_MAIN]  # one of each precision
    monkeypatch.setattr(train_gpu, "TINY_MAIN", main)
    monkeypatch.setattr(train_gpu, "TINY_REST", [])
    train_gpu.Sweep(tmp_path / "figures.json", 3600.0, tiny=True).run()
    figures = json.loads((tmp_path / "figures.json").read_text())
    flex = figures["parity"]["kernels"]["flex"]
    assert flex["equal"]
    assert flex["leak"] == 0
    assert [line.get("failed") for line in figures["configurations"]] == [None, None]
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
    train_gpu.Sweep(tmp_path / "figures.json", 3600.0, tiny=True).run()
    lines = json.loads((tmp_path / "figures.json").read_text())["configurations"]
    assert [line["failed"] for line in lines] == ["out of memory"] * configurations


def test_configurations_that_time_did_not_allow_are_listed(
    train_gpu: ModuleType, configurations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_gpu, "parity", lambda *arguments: {})
    train_gpu.Sweep(tmp_path / "figures.json", 0.0, tiny=True).run()
    lines = json.loads((tmp_path / "figures.json").read_text())["configurations"]
    assert ["not_run" in line for line in lines] == [True] * configurations


def test_a_configuration_that_the_planner_refuses_is_listed_with_its_estimate_and_not_run(
    train_gpu: ModuleType, configurations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_gpu, "usable_gib", lambda device: 1.5)
    monkeypatch.setattr(train_gpu, "estimated_gib", lambda *arguments: 2.0)
    monkeypatch.setattr(train_gpu, "parity", lambda *arguments: {})
    train_gpu.Sweep(tmp_path / "figures.json", 3600.0, tiny=True).run()
    lines = json.loads((tmp_path / "figures.json").read_text())["configurations"]
    assert [line["not_run"] for line in lines] == ["it needs about 2.0 GiB of 1.5"] * configurations


def test_results_before_a_crash_are_on_disk(
    train_gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []

    def crashes(*arguments: object) -> dict[str, int]:
        taken.append(arguments)
        if len(taken) == 2:
            raise KeyboardInterrupt
        return {"tokens_per_s": 7}

    monkeypatch.setattr(train_gpu, "engine_of", lambda *arguments: "an engine")
    monkeypatch.setattr(train_gpu, "measured", crashes)
    monkeypatch.setattr(train_gpu, "top_kernels", lambda *arguments: [])
    with pytest.raises(KeyboardInterrupt):
        train_gpu.Sweep(tmp_path / "figures.json", 3600.0, tiny=True).run()
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [line["tokens_per_s"] for line in figures["configurations"]] == [7]
    assert "profile" in figures


def test_the_main_figures_come_first_and_fit_an_80_gb_card(train_gpu: ModuleType) -> None:
    variant, (load, *_) = train_gpu.MAIN[0]
    assert (variant.size, variant.precision, load.seq_len) == ("1.3b", "bf16", 2048)
    assert {load.microbatch for _, loads in train_gpu.MAIN for load in loads} == {8, 16}
    needed = train_gpu.estimated_gib(variant, SIZES[variant.size], load, gpu=True)
    assert needed < 80e9 * 0.9 / 2**30


def test_the_sweep_names_existing_model_sizes(train_gpu: ModuleType) -> None:
    assert {variant.size for variant, _ in [*train_gpu.MAIN, *train_gpu.REST]} <= SIZES.keys()
