"""Telemetry of a step, measured on its rank: MFU, memory, and GPU counters.

Appends each start of the ranks to `starts.jsonl` in the run's folder. Memory and counters are those of this rank's
device; MFU is over all ranks.
"""

import contextlib
import resource
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tasks.trainer.config import TrainConfig, TuningSpec
from tasks.trainer.logs import write_start
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout
from tasks.trainer.planning.config import peak_flops
from tasks.trainer.tuning.memory import Workload

SAMPLE_S = 5.0
"""Seconds between two readings of the GPU counters, which are means over less than a second, not over the step."""
GIB = 2**30
SLOWDOWN_REASONS = 0x8 | 0x20 | 0x40 | 0x80
"""Bit mask of throttle reasons that are faults of the machine: hardware slowdown, thermal (software or hardware), and
power brake. The normal power cap is not included."""


class Telemetry:
    """Measures the steps of a run.

    Args:
        run: settings of the run.
        vocab_size: columns of the output head.
        seq_len: tokens of a sequence.
        ranks: the process group; all devices are of the same kind.
        tuning: settings of a fine-tuning, which has other FLOPs per token.
    """

    def __init__(
        self, run: TrainConfig, vocab_size: int, seq_len: int, ranks: Ranks, tuning: TuningSpec | None = None
    ) -> None:
        self.ranks, self._run, self._seq_len = ranks, run, seq_len
        cuda = ranks.device.type == "cuda"
        self.device = torch.cuda.get_device_name(ranks.device) if cuda else "CPU"
        self.tokens_per_step = run.samples(run.steps) * seq_len // run.steps  # the mean, if the batch grows
        shape = ModelShape.of(run.model, vocab_size)
        self.flops_per_token = Workload(run, shape, seq_len, tuning).flops_per_token
        self.parameters = shape.weights["total"]
        self.peak = peak_flops(self.device, run.precision)
        self._nvml = Nvml.of(f"GPU-{torch.cuda.get_device_properties(ranks.device).uuid}") if cuda else None
        self._sampled_at = float("-inf")

    def started(self, out: Path, step: int, layout: Layout | None) -> None:
        """Records in the run's folder `out` that the ranks start with `step` in `layout`."""
        line = {"step": step, "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", "host": socket.gethostname()}
        line |= {"ranks": self.ranks.world, "device": self.device, "peak_flops": self.peak}
        line |= {"flops_per_token": self.flops_per_token, "tokens_per_step": self.tokens_per_step}
        line |= {"parameters": self.parameters}
        line |= {"layout": layout.model_dump(exclude_defaults=True) if layout else None}
        write_start(out, line)

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Adds `of_step` to the line of a step."""
        tokens = (self._run.samples(step + 1) - self._run.samples(step)) * self._seq_len
        line |= self.of_step(line["step_s"], tokens)

    def of_step(self, seconds: float, tokens: int) -> dict[str, float]:
        """Returns the values of a step that read `tokens` in `seconds`.

        Returns:
            mfu: see `model.shape`, at the sequence length and with padding; omitted if the peak is unknown.
            memory_gib: peak memory of this rank so far: allocated by torch on a GPU, resident on a CPU.
            gpu/...: counters of NVML (`Nvml.counters`), every `SAMPLE_S` seconds, on a GPU.
        """
        values = {"memory_gib": round(self._memory() / GIB, 4)}
        if self.peak:
            rate = tokens * self.flops_per_token / seconds
            values["mfu"] = round(rate / (self.peak * self.ranks.world), 5)
        if self._nvml and time.monotonic() - self._sampled_at >= SAMPLE_S:
            self._sampled_at = time.monotonic()
            values |= self._nvml.counters()
        return values

    def _memory(self) -> int:
        """Returns the peak memory in bytes."""
        if self.ranks.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.ranks.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Nvml:
    """The counters of one GPU from NVML, the library of NVIDIA's driver; those that it does not support are omitted.

    Args:
        nvml: the module `pynvml`, whose library is initialized.
        device: handle of the GPU in it.
    """

    def __init__(self, nvml: Any, device: Any) -> None:
        self._nvml, self._device = nvml, device

    @classmethod
    def of(cls, uuid: str) -> "Nvml | None":
        """Returns the counters of the GPU with this UUID ("GPU-5f..."); None without a driver or without such a GPU."""
        import pynvml  # only ranks with a GPU need it

        try:
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            return None

    def counters(self) -> dict[str, float]:
        """Reads the counters.

        Returns:
            gpu/busy (share of the last sampling period, a second or less, in which a kernel ran), gpu/power_w,
            gpu/temperature_c, gpu/clock_mhz (of the multiprocessors) and gpu/slowed (1 with a reason in
            `SLOWDOWN_REASONS`, else 0).
        """
        nvml, device = self._nvml, self._device
        readings: dict[str, Callable[[], float]] = {
            "gpu/busy": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
            "gpu/power_w": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
            "gpu/temperature_c": lambda: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
            "gpu/clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
            "gpu/slowed": lambda: bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device) & SLOWDOWN_REASONS),
        }
        counters = {}
        for name, read in readings.items():
            with contextlib.suppress(nvml.NVMLError):
                counters[name] = float(read())
        return counters
