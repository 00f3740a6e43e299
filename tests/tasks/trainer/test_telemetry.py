"""The measurements of a rank's steps, with and without a GPU."""

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from tasks.trainer.config import TrainConfig
from tasks.trainer.logs import read_starts
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import ModelShape, flops_per_token
from tasks.trainer.model.transformer import build
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout
from tasks.trainer.telemetry import GIB, SLOWDOWN_REASONS, Nvml, Telemetry

RUN = TrainConfig(model=ModelConfig(layers=2, dim=32), batch_size=8)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML of a machine with one GPU, GPU-1, that has fixed counters and no clock."""

    def handle(uuid: str) -> int:
        if uuid != "GPU-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 7

    def no_clock(device: int, kind: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": handle,
        "nvmlDeviceGetUtilizationRates": {7: SimpleNamespace(gpu=93, memory=40)}.__getitem__,
        "nvmlDeviceGetPowerUsage": {7: 650_500}.__getitem__,
        "nvmlDeviceGetTemperature": lambda device, sensor: {(7, pynvml.NVML_TEMPERATURE_GPU): 61}[device, sensor],
        "nvmlDeviceGetClockInfo": no_clock,
        "nvmlDeviceGetCurrentClocksThrottleReasons": {7: 0x4 | 0x40}.__getitem__,  # power cap, heat
    }
    for name, function in functions.items():
        monkeypatch.setattr(pynvml, name, function)


def test_a_step_on_a_cpu_has_its_memory_and_no_mfu(tmp_path: Path) -> None:
    telemetry = Telemetry(RUN, 300, 32, Ranks(0, 2, 0))
    telemetry.started(tmp_path, 5, Layout(shard=2))
    values = telemetry.of_step(0.5, telemetry.tokens_per_step)
    assert values.keys() == {"memory_gib"}
    assert 0.05 < values["memory_gib"] < 100
    telemetry.started(tmp_path, 7, None)
    start, again = read_starts(tmp_path)
    assert (start["layout"], again["layout"]) == ({"shard": 2}, None)
    assert start["parameters"] == sum(weight.numel() for weight in build(RUN.model, 300, 0).parameters())
    assert (start["step"], start["ranks"], start["device"], start["peak_flops"]) == (5, 2, "CPU", None)
    assert (start["tokens_per_step"], start["flops_per_token"]) == (
        8 * 32,
        flops_per_token(ModelShape.of(RUN.model, 300), 32),
    )


def test_mfu_is_the_share_of_the_peak_of_all_ranks() -> None:
    telemetry = Telemetry(RUN, 300, 32, Ranks(0, 2, 0))
    telemetry.peak = 4 * 8 * 32 * telemetry.flops_per_token  # each rank could do four such steps a second
    assert telemetry.of_step(0.25, telemetry.tokens_per_step)["mfu"] == 0.5


@pytest.mark.usefixtures("driver")
def test_counters_missing_on_a_gpu_are_omitted() -> None:
    found = Nvml.of("GPU-1")
    assert found is not None
    assert found.counters() == {"gpu/busy": 0.93, "gpu/power_w": 650.5, "gpu/temperature_c": 61.0, "gpu/slowed": 1.0}


@pytest.mark.usefixtures("driver")
def test_without_such_a_gpu_there_are_no_counters() -> None:
    assert Nvml.of("GPU-2") is None


def test_without_a_driver_there_are_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert Nvml.of("GPU-1") is None


def test_slowdown_reasons_are_faults_of_the_machine() -> None:
    names = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert sum(getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in names) == SLOWDOWN_REASONS


def test_peak_memory_is_in_gib() -> None:
    before = Telemetry(RUN, 300, 32, Ranks(0, 1, 0)).of_step(1.0, 1)["memory_gib"]
    held = torch.ones(GIB // 4 // 4)  # 256 MiB of fp32
    # The peak of the process may have been higher before.
    grown = Telemetry(RUN, 300, 32, Ranks(0, 1, 0)).of_step(1.0, 1)["memory_gib"]
    assert before <= grown < before + 0.5
    assert held.numel() * 4 / GIB <= grown
