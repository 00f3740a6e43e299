"""Tables of the plan of a run, and of its comparison with the result: Markdown that is readable in a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from tasks.core.pages import table
from tasks.core.terminal import duration
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.estimate import (
    HOUR,
    ModelEstimate,
    ProposalEstimate,
    RunEstimate,
    RunPerformance,
    TimeEstimate,
    cost,
)


class ComparisonRow(TypedDict):
    """A planned and a real value, and ratio = real / planned; None for what does not apply or was not measured."""

    name: str
    planned: float | None
    real: float | None
    ratio: float | None


def comparison(planned: RunEstimate, plan: PlanConfig, real: RunPerformance, wall_s: float) -> list[ComparisonRow]:
    """Returns the rows of planned and real values.

    Args:
        planned: the estimate.
        plan: its assumptions; cost and energy of the run are computed for the same region.
        real: the performance of the run.
        wall_s: wall time of the run in seconds, including restarts and checkpoints.
    """
    time, money = planned["time"], planned["cost"]
    actual_cost = cost(plan, wall_s * real.ranks / HOUR)
    rows: dict[str, tuple[float, float | None]] = {
        "gpus": (time["gpus"], real.ranks),
        "tokens": (time["tokens"], real.tokens),
        "FLOPs": (time["flops"], real.flops_per_step * real.timed_steps),
        "MFU": (time["mfu"], real.mfu(time["peak_flops"])),
        "tokens per second": (time["tokens_per_s"], real.tokens / real.step_seconds),
        "seconds of steps": (time["step_seconds"], real.step_seconds),
        "seconds in all": (time["wall_seconds"], wall_s),
        "memory of a rank, GiB": (planned["memory"]["needed_gib"], real.memory_gib or None),
        "GPU-hours": (money["gpu_hours"], actual_cost["gpu_hours"]),
        "price": (money["price"], actual_cost["price"]),
        "kWh": (money["kwh"], actual_cost["kwh"]),
        "kg CO2e": (money["kg_co2"], actual_cost["kg_co2"]),
    }
    return [
        {
            "name": name,
            "planned": estimated,
            "real": measured,
            "ratio": measured / estimated if measured is not None and estimated else None,
        }
        for name, (estimated, measured) in rows.items()
    ]


_ON_ANY_DEVICE = ("gpus", "tokens", "FLOPs")
_PER_GPU = ("MFU", "price", "kWh", "kg CO2e")


def comparable_on_any_device(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Returns the rows of a run on another device than planned, without the planned rates and the costs of a GPU."""
    return [
        row
        if row["name"] in _ON_ANY_DEVICE
        else {**row, "planned": None, "real": None if row["name"] in _PER_GPU else row["real"], "ratio": None}
        for row in rows
    ]


def number(value: Any) -> str:
    """Returns a number with four digits, and an SI prefix if it is large.

    >>> number(8_030_261_248), number(0.4), number(None), number(12)
    ('8.03 G', '0.4', '-', '12')
    """
    if value is None or isinstance(value, str):
        return value or "-"
    for size, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:,.4g} {unit}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def plan_text(estimate: RunEstimate, omitted: Mapping[str, str] = {}) -> str:
    """Returns the estimate as a table; `omitted` has the texts of rows whose figures do not apply, by their names."""
    time, memory, saving, money = estimate["time"], estimate["memory"], estimate["checkpoints"], estimate["cost"]
    parts = ", ".join(f"{name} {size:.3g}" for name, size in memory["per_rank_gib"].items())
    layout = ", ".join(f"{name} = {value}" for name, value in (memory["layout"] or {}).items())
    rows = [
        ("parameters", number(estimate["model"]["parameters"]) + _trained(estimate["model"])),
        *((name, f"{one['value']}: {one['from']}") for name, one in estimate.get("settings", {}).items()),
        ("tokens", number(time["tokens"])),
        ("FLOPs", f"{number(time['flops'])} ({number(time['flops_per_token'])} per token)"),
        ("devices", f"{time['gpus']} x {time['gpu']}{_idle(time)}"),
        ("MFU", f"{time['mfu']:.1%}, from {time['mfu_from']}"),
        ("tokens per second", number(time["tokens_per_s"])),
        ("time", f"{duration(time['wall_seconds'])}, {number(time['gpu_days'])} GPU-days"),
        ("layout", layout or "all of the model on each rank"),
        ("memory of a rank", f"{number(memory['needed_gib'])} of {number(memory['usable_gib'])} GiB ({parts})"),
        ("a step", _step(estimate)),
        ("communication of a step", _communication(estimate)),
        ("fits", "yes" if memory["fits"] else "no"),
        *_proposals(estimate),
        ("checkpoint", f"{number(saving['bytes'] / 1e9)} GB; artifact {number(saving['artifact_gb'])} GB, scratch "
                       f"{number(saving['scratch_gb'])} GB"),
        ("failure every", f"{number(saving['mtbf_hours'])} h"),
        ("best checkpoint interval", f"{duration(saving['best_interval_s'])}, {saving['best_every']:,} steps (Daly); "
                                     f"set are {saving['every']:,}"),
        ("lost to both", f"{saving['lost_share']:.2%}; at the best interval {saving['lost_share_at_best']:.2%}"),
        ("price", f"{number(money['price'])} in {money['region']}"),
        ("energy", f"{number(money['kwh'])} kWh"),
        ("carbon", f"{number(money['kg_co2'])} kg CO2e"),
    ]  # fmt: skip
    shown = table(["", "planned"], [(name, omitted.get(name, text)) for name, text in rows])
    refused = [f"It is refused: {reason}." for reason in estimate["refused"]]
    warned = [f"Warning: {warning}." for warning in estimate["warnings"]]
    return "\n".join([*shown, *(["", *refused, *warned] if refused or warned else [])]) + "\n"


def _idle(time: TimeEstimate) -> str:
    return f" of {time['gpus'] + time['idle']}" if time["idle"] else ""


def _step(estimate: RunEstimate) -> str:
    step = estimate["step"]
    spent = {
        "computes": step["compute_s"],
        "recomputes": step["recompute_s"],
        "waits for the pipeline": step["bubble_s"],
        "waits for traffic": step["exposed_s"],
    }
    parts = [f"{seconds:.3g} s {name}" for name, seconds in spent.items() if seconds]
    return f"{step['seconds']:.3g} s: {', '.join(parts)}"


def _proposals(estimate: RunEstimate) -> list[tuple[str, str]]:
    """Returns a row for each proposal, or one that says that there is none."""
    found, runs = estimate["proposals"], estimate["memory"]["fits"] and not estimate["refused"]
    if not found and not runs:
        return [("what would", "no layout of this batch; a larger batch_size or a smaller microbatch allows more")]
    name = "faster" if runs else "what would"
    return [(name if not index else "or", _proposal(one)) for index, one in enumerate(found)]


def _proposal(one: ProposalEstimate) -> str:
    size = {"microbatch": one["microbatch"]} if "microbatch" in one else {}
    settings = {"nodes": one["nodes"], "nproc": one["nproc"], **size, **one["layout"]}
    chosen = ", ".join(f"{name} = {value}" for name, value in settings.items())
    return f"{chosen}: {one['step_s']:.3g} s a step, MFU {one['mfu']:.1%}, {number(one['needed_gib'])} GiB"


def _trained(model: ModelEstimate) -> str:
    return f", {number(model['trained'])} trained" if "trained" in model else ""


def _communication(estimate: RunEstimate) -> str:
    if (sent := estimate.get("communication")) is None:
        return "-"
    return (
        f"{number(sent['inside_gb'])} GB inside a node, {number(sent['across_gb'])} GB across; "
        f"{sent['exposed_s']:.3g} s exposed, {sent['beside_s']:.3g} s beside the computation"
    )


OF_A_GPU = (
    *("MFU", "memory of a rank", "a step", "communication of a step", "fits", "failure every"),
    *("price", "energy", "carbon"),
)
"""Rows that depend on the GPU that the plan assumes; RATES also depend on it, unless they are measured."""
RATES = ("tokens per second", "time", "best checkpoint interval", "lost to both")


def implausible(estimate: RunEstimate) -> dict[str, str]:
    """Returns texts with the reason for the rows whose formula does not hold for this run, by their names."""
    saving, run_s = estimate["checkpoints"], estimate["time"]["step_seconds"]
    rows = {}
    if saving["best_interval_s"] > run_s:
        rows["best checkpoint interval"] = f"- (longer than the run); set are {saving['every']:,} steps"
    if saving["lost_share"] >= 1:
        rows["lost to both"] = f"- (a checkpoint, {number(saving['delay_s'])} s, takes longer than the steps before it)"
    return rows


def comparison_text(rows: Sequence[ComparisonRow]) -> str:
    """Returns the rows of a comparison as a table."""
    cells = [[row["name"], number(row["planned"]), number(row["real"]), number(row["ratio"])] for row in rows]
    return "\n".join(table(["", "planned", "real", "real / planned"], cells)) + "\n"
