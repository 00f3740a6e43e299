"""Values of a step that only its rank can measure: MFU, memory, counters of the GPU.

Writes the start of the ranks into the run's folder (`starts`). Memory and counters are those of this rank's device; MFU
counts all ranks.
"""

import resource
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from tasks.trainer.config import TrainConfig
from tasks.trainer.flops import flops_per_token
from tasks.trainer.logs import write_start
from tasks.trainer.model.shape import Shape
from tasks.trainer.nvml import Nvml
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout
from tasks.trainer.planning.config import peak_flops

SAMPLE_S = 5.0
"""Seconds between two readings of the GPU's counters: they are means over a part of a second, and not of the step."""
GIB = 2**30


class Telemetry:
    """Measures the steps of a run.

    Args:
        run: settings of the run.
        vocab_size: columns of the output head.
        seq_len: tokens of a sequence.
        ranks: the process group; all its devices are of one kind.
    """

    def __init__(self, run: TrainConfig, vocab_size: int, seq_len: int, ranks: Ranks) -> None:
        self.ranks = ranks
        cuda = ranks.device.type == "cuda"
        self.device = torch.cuda.get_device_name(ranks.device) if cuda else "CPU"
        self.tokens_per_step = run.batch_size * seq_len
        self.flops_per_token = flops_per_token(Shape.of(run.model, vocab_size), seq_len)
        self.parameters = Shape.of(run.model, vocab_size).weights["total"]
        self.peak = peak_flops(self.device)
        self._nvml = Nvml.of(f"GPU-{torch.cuda.get_device_properties(ranks.device).uuid}") if cuda else None
        self._sampled = float("-inf")

    def started(self, out: Path, step: int, layout: Layout | None) -> None:
        """Records in the run's folder `out` that the ranks begin with `step`, sharing the work as in `layout`."""
        line = {"step": step, "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", "host": socket.gethostname()}
        line |= {"ranks": self.ranks.world, "device": self.device, "peak_flops": self.peak}
        line |= {"flops_per_token": self.flops_per_token, "tokens_per_step": self.tokens_per_step}
        line |= {"parameters": self.parameters}
        line |= {"layout": layout.model_dump(exclude_defaults=True) if layout else None}
        write_start(out, line)

    def of_step(self, seconds: float) -> dict[str, float]:
        """Returns the values of a step that took `seconds`.

        Returns:
            mfu: see `tasks.trainer.flops`, at the sequence length and with padding; left out where no peak is known.
            memory_gib: most that this rank has had so far: allocated by torch on a GPU, resident on a CPU.
            gpu/...: counters of NVML (`Nvml.counters`), every `SAMPLE_S` seconds, where there is a GPU.
        """
        values = {"memory_gib": round(self._memory() / GIB, 4)}
        if self.peak:
            rate = self.tokens_per_step * self.flops_per_token / seconds
            values["mfu"] = round(rate / (self.peak * self.ranks.world), 5)
        if self._nvml and time.monotonic() - self._sampled >= SAMPLE_S:
            self._sampled = time.monotonic()
            values |= self._nvml.counters()
        return values

    def _memory(self) -> int:
        """Returns bytes."""
        if self.ranks.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.ranks.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
