"""How fast a run was, as the record of its checkpoint has it.

Reads and makes the metrics `step_seconds`, `timed_steps`, `flops_per_step`, `ranks`, `memory_gib` and, where it is
known, `peak_flops` (of one device).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunPerformance:
    """A run that has ended.

    Args:
        step_seconds: of all steps whose clock is known, together.
        timed_steps: the number of these.
        flops_per_step: model FLOPs of a step, over all ranks (`tasks.trainer.model.shape`).
        ranks: ranks that it ended with.
        memory_gib: most that rank 0 has had.
        peak_flops: dense bf16 FLOP/s of one device; 0 where it is not known.
        tokens: trained on, without padding.
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
        """Reads the metrics of a record; None where no clock was read, or by a version that did not record it."""
        if not metrics.get("timed_steps"):
            return None
        return cls(**{name: metrics.get(name, 0.0) for name in cls.__dataclass_fields__})

    def mfu(self, peak: float) -> float | None:
        """Returns the share of the peak over all steps; None where it was measured on devices with another peak."""
        if self.peak_flops and self.peak_flops != peak:
            return None
        return self.flops_per_step * self.timed_steps / (self.step_seconds * self.ranks * peak)


def speed_metrics(lines: Sequence[Mapping[str, Any]], start: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a run.

    Args:
        lines: of its `metrics.jsonl`; fields of the clock may be missing.
        start: the newest line of its `starts.jsonl`; {} where there is none.
    """
    timed = [line for line in lines if "step_s" in line]
    if not timed or not start:
        return {}
    found = {
        "step_seconds": sum(line["step_s"] for line in timed),
        "timed_steps": float(len(timed)),
        "flops_per_step": start["flops_per_token"] * start["tokens_per_step"],
        "ranks": float(start["ranks"]),
        "memory_gib": max((line["memory_gib"] for line in timed if "memory_gib" in line), default=0.0),
    }
    return found | ({"peak_flops": start["peak_flops"]} if start["peak_flops"] else {})
