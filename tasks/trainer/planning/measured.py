"""Performance of a completed run, as recorded with its checkpoint.

Reads and computes the metrics `step_seconds`, `timed_steps`, `flops_per_step`, `ranks`, `memory_gib` and, if it is
known, `peak_flops` (of one device).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunPerformance:
    """Measured performance of a completed run.

    Args:
        step_seconds: total duration of all timed steps.
        timed_steps: number of timed steps.
        flops_per_step: model FLOPs of a step, over all ranks (`tasks.trainer.model.shape`).
        ranks: number of ranks at the end of the run.
        memory_gib: peak memory of rank 0.
        peak_flops: dense bf16 FLOP/s of one device; 0 if unknown.
        tokens: tokens trained on, without padding.
    """

    step_seconds: float
    timed_steps: float
    flops_per_step: float
    ranks: float
    memory_gib: float
    peak_flops: float
    tokens: float

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> "RunPerformance | None":
        """Reads the metrics of a record; returns None if no step was timed, or if an old version did not record it."""
        if not metrics.get("timed_steps"):
            return None
        return cls(**{name: metrics.get(name, 0.0) for name in cls.__dataclass_fields__})

    def mfu(self, peak: float) -> float | None:
        """Returns the MFU over all timed steps; None if the devices of the run had another peak."""
        if self.peak_flops and self.peak_flops != peak:
            return None
        return self.flops_per_step * self.timed_steps / (self.step_seconds * self.ranks * peak)


def has_gpu() -> bool:
    """Returns whether torch finds a GPU on this machine."""
    import torch

    return torch.cuda.is_available()


def speed_metrics(lines: Sequence[Mapping[str, Any]], start: Mapping[str, Any]) -> dict[str, float]:
    """Returns the performance metrics of a run; {} if no step was timed.

    Args:
        lines: lines of its `metrics.jsonl`; fields that depend on the clock may be missing.
        start: the newest line of its `starts.jsonl`; {} if there is none.
    """
    timed = [line for line in lines if "step_s" in line]
    if not timed or not start:
        return {}
    metrics = {
        "step_seconds": sum(line["step_s"] for line in timed),
        "timed_steps": float(len(timed)),
        "flops_per_step": start["flops_per_token"] * start["tokens_per_step"],
        "ranks": float(start["ranks"]),
        "memory_gib": max((line["memory_gib"] for line in timed if "memory_gib" in line), default=0.0),
    }
    return metrics | ({"peak_flops": start["peak_flops"]} if start["peak_flops"] else {})
