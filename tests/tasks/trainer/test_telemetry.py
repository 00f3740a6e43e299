"""The measurements of a rank's steps, with and without a GPU."""

import ctypes
from pathlib import Path
from typing import Any

import torch

from tasks.trainer.config import ModelConfig, TrainConfig
from tasks.trainer.logs import read_starts
from tasks.trainer.model.shape import ModelShape, flops_per_token
from tasks.trainer.model.transformer import build
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout
from tasks.trainer.telemetry import GIB, Nvml, Telemetry

RUN = TrainConfig(model=ModelConfig(layers=2, dim=32), batch_size=8)


class Driver:
    """NVML with the API of its header, a GPU with fixed counters and no clock."""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:
        device._obj.value = 7
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetUtilizationRates(self, device: ctypes.c_void_p, found: Any) -> int:
        found._obj.gpu, found._obj.memory = 93, 40
        return 0 if device.value == 7 else 2

    def nvmlDeviceGetPowerUsage(self, device: ctypes.c_void_p, found: Any) -> int:
        found._obj.value = 650_500
        return 0

    def nvmlDeviceGetTemperature(self, device: ctypes.c_void_p, sensor: ctypes.c_uint, found: Any) -> int:
        found._obj.value = 61
        return sensor.value

    def nvmlDeviceGetClockInfo(self, device: ctypes.c_void_p, clock: ctypes.c_uint, found: Any) -> int:
        return 3  # NVML_ERROR_NOT_SUPPORTED

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: ctypes.c_void_p, found: Any) -> int:
        found._obj.value = 0x4 | 0x40  # power cap, heat
        return 0


def test_a_step_on_a_cpu_has_its_memory_and_no_mfu(tmp_path: Path) -> None:
    telemetry = Telemetry(RUN, 300, 32, Ranks(0, 2, 0))
    telemetry.started(tmp_path, 5, Layout(shard=2))
    values = telemetry.of_step(0.5)
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
    assert telemetry.of_step(0.25)["mfu"] == 0.5


def test_counters_missing_on_a_gpu_are_omitted() -> None:
    found = Nvml.of("GPU-1", lambda name: Driver())
    assert found is not None
    assert found.counters() == {"gpu/busy": 0.93, "gpu/power_w": 650.5, "gpu/temperature_c": 61.0, "gpu/slowed": 1.0}


def test_without_a_driver_or_gpu_there_are_no_counters() -> None:
    assert Nvml.of("GPU-2", lambda name: Driver()) is None
    assert Nvml.of("GPU-1", lambda name: ctypes.CDLL("libno-such-library.so")) is None


def test_peak_memory_is_in_gib() -> None:
    before = Telemetry(RUN, 300, 32, Ranks(0, 1, 0)).of_step(1.0)["memory_gib"]
    held = torch.ones(GIB // 4 // 4)  # 256 MiB of fp32
    # The peak of the process may have been higher before.
    grown = Telemetry(RUN, 300, 32, Ranks(0, 1, 0)).of_step(1.0)["memory_gib"]
    assert before <= grown < before + 0.5
    assert held.numel() * 4 / GIB <= grown
