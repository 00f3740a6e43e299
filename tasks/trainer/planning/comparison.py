"""What was planned against what came true, row by row."""

from collections.abc import Mapping
from typing import Any

from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import HOUR, cost
from tasks.trainer.planning.measured import Measured

Row = dict[str, Any]
"""name, planned, real, and their quotient real / planned; real is None where nothing was measured."""


def comparison(planned: Mapping[str, Any], plan: PlanConfig, real: Measured, wall_s: float) -> list[Row]:
    """Returns the rows.

    Args:
        planned: an estimate.
        plan: what it assumed; money and energy of the run are computed with the same region.
        real: the run.
        wall_s: seconds from its start to its end, restarts and checkpoints included.
    """
    time, money = planned["time"], planned["cost"]
    paid = cost(plan, wall_s * real.ranks / HOUR)
    rows = {
        "gpus": (time["gpus"], real.ranks),
        "tokens": (time["tokens"], real.tokens),
        "FLOPs": (time["flops"], real.flops_per_step * real.timed_steps),
        "MFU": (time["mfu"], real.mfu(plan.peak)),
        "tokens per second": (time["tokens_per_s"], real.tokens / real.step_seconds),
        "seconds of steps": (time["step_seconds"], real.step_seconds),
        "seconds in all": (time["wall_seconds"], wall_s),
        "memory of a rank, GiB": (planned["memory"]["needed_gib"], real.memory_gib or None),
        "GPU-hours": (money["gpu_hours"], paid["gpu_hours"]),
        "price": (money["price"], paid["price"]),
        "kWh": (money["kwh"], paid["kwh"]),
        "kg CO2e": (money["kg_co2"], paid["kg_co2"]),
    }
    return [
        {"name": name, "planned": was, "real": came, "ratio": came / was if came is not None and was else None}
        for name, (was, came) in rows.items()
    ]
