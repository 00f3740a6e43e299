"""The estimate of a run, from settings alone: FLOPs, time, memory, the layout that fits, checkpoints, cost.

`RunPerformance` is the measured counterpart, recorded with the checkpoint as the metrics `step_seconds`, `timed_steps`,
`flops_per_step`, `ranks`, `memory_gib` and, if it is known, `peak_flops` (of one device).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

from tasks.trainer.config import TrainConfig
from tasks.trainer.defaults import origins
from tasks.trainer.parallel.fit import FP32
from tasks.trainer.parallel.start import Device, Start, start_of
from tasks.trainer.place import Layout
from tasks.trainer.planning.config import NODE, PlanConfig
from tasks.trainer.planning.proposals import Proposal, nodes_of, proposals
from tasks.trainer.planning.step import Machine, StepTime, computing_share, step_time
from tasks.trainer.tuning.memory import Workload

HOUR, DAY, GIB, GB = 3600.0, 86400.0, 2**30, 1e9
CHECKPOINT_BYTES_PER_S = 1e9
"""Write rate of one rank, used if the plan does not set the duration of a checkpoint."""
FROM_PLAN = "the plan"
"""Origin of an MFU that no run has measured."""
FASTER = 1.1
"""How much faster a step of another layout must be for it to be proposed although the run fits."""


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
        """Reads the metrics of a record; returns None if no step was timed."""
        if not metrics.get("timed_steps"):
            return None
        return cls(**{name: metrics.get(name, 0.0) for name in cls.__dataclass_fields__})

    def mfu(self, peak: float) -> float | None:
        """Returns the MFU over all timed steps; None if the devices of the run had another peak."""
        if self.peak_flops and self.peak_flops != peak:
            return None
        return self.flops_per_step * self.timed_steps / (self.step_seconds * self.ranks * peak)


class ModelEstimate(TypedDict):
    """Size of the model; the sequence length is in tokens. `trained`: parameters that a fine-tuning trains."""

    parameters: int
    trained: NotRequired[int]
    matmul_weights: int
    seq_len: int


class TimeEstimate(TypedDict):
    """Work and time of the run: `step_seconds` without, `wall_seconds` with checkpoints and restarts.

    `gpus` train; `idle` have no rank, and cost as much. `mfu` is that of whole steps, relative to `peak_flops` (of one
    GPU, in the precision of the run).
    """

    gpu: str
    gpus: int
    idle: int
    peak_flops: float
    tokens: int
    flops_per_token: float
    flops: float
    mfu: float
    mfu_from: str
    tokens_per_s: float
    step_seconds: float
    wall_seconds: float
    gpu_days: float


class ProposalEstimate(TypedDict):
    """A layout that fits: nodes and GPUs of each, its settings, and what a step needs.

    `microbatch` is there if it is not that of the run.
    """

    nodes: int
    nproc: int
    microbatch: NotRequired[int]
    layout: dict[str, Any]
    step_s: float
    mfu: float
    needed_gib: float


class MemoryEstimate(TypedDict):
    """Peak memory of a rank, in GiB, and whether it fits."""

    layout: dict[str, Any] | None
    per_rank_gib: dict[str, float]
    needed_gib: float
    usable_gib: float
    fits: bool


class StepEstimate(TypedDict):
    """Seconds of a step, which is the sum of the others (`planning.step`).

    If the MFU is measured, the computation has what is left of the measured step.
    """

    seconds: float
    compute_s: float
    recompute_s: float
    bubble_s: float
    exposed_s: float


class CommunicationEstimate(TypedDict):
    """Collectives of a step of the rank with the most, in 10^9 bytes that it sends, and seconds.

    `beside_s` is the duration of those of FSDP, which run beside the computation; `exposed_s` that of the others, and
    what of FSDP's is longer than the computation of a step.
    """

    inside_gb: float
    across_gb: float
    beside_s: float
    exposed_s: float


class CheckpointEstimate(TypedDict):
    """Size and frequency of checkpoints, and the share of time lost to saving them and to restarts."""

    bytes: float
    artifact_gb: float
    scratch_gb: float
    mtbf_hours: float
    delay_s: float
    best_interval_s: float
    best_every: int
    every: int
    lost_share: float
    lost_share_at_best: float


class CostEstimate(TypedDict):
    """Price in the currency of the plan, energy and emissions."""

    region: str
    gpu_hours: float
    price: float
    kwh: float
    kg_co2: float


class RunEstimate(TypedDict):
    """Content of `estimate.json`. The run is `refused` for the reasons for which its launcher and its ranks refuse it.

    There are `proposals` if the run is refused, does not fit, or would be `FASTER` in the first of them.
    """

    model: ModelEstimate
    settings: NotRequired[dict[str, dict[str, Any]]]
    time: TimeEstimate
    step: StepEstimate
    memory: MemoryEstimate
    refused: list[str]
    warnings: list[str]
    proposals: list[ProposalEstimate]
    communication: NotRequired[CommunicationEstimate]
    checkpoints: CheckpointEstimate
    cost: CostEstimate


def planned_start(
    plan: PlanConfig, load: Workload, layout: Layout | None, nodes: int, nproc: int, device: Device | None = None
) -> Start:
    """Returns how a planned run starts.

    Args:
        plan: the assumptions; with `gpus` the run is planned for other machines.
        load: what is trained.
        layout: the layout of the place; None: it has none.
        nodes: nodes of the place.
        nproc: ranks of each.
        device: of the ranks; None: the GPU of the plan.
    """
    if plan.gpus:
        nodes, nproc = nodes_of(plan.gpus, plan.gpus_per_node or max(nproc, min(NODE, plan.gpus)))
    return start_of(
        layout, load.run, load.shape, load.seq_len, nodes, nproc, device or plan.device, tunes=load.tuning is not None
    )


def estimate(
    plan: PlanConfig, load: Workload, start: Start, before: RunPerformance | None = None, before_name: str = ""
) -> RunEstimate:
    """Returns the estimate of a run.

    Args:
        plan: the assumptions.
        load: what is trained.
        start: how the run starts.
        before: an earlier run; its MFU is used if its devices had the same peak.
        before_name: the artifact of the earlier run.
    """
    run, ranks, peak = load.run, start.ranks, plan.peak(load.run.precision)
    measured = before.mfu(peak) if before else None
    samples = run.samples(run.steps) - run.samples(run.first_step)
    tokens, of_step = samples * load.seq_len, run.batch_size * load.seq_len * load.flops_per_token
    machine = machine_of(plan, start, peak * plan.mfu)
    timed = step_time(load, start.layout, ranks, machine, gpu=plan.device.is_gpu)
    step_s = of_step / (peak * measured * ranks) if measured else timed.total
    if measured:
        whole = replace(machine, flops=peak)
        machine = replace(machine, flops=peak * computing_share(load, start.layout, ranks, whole, step_s))
    seconds = samples / run.batch_size * step_s
    saving, idle = _checkpoints(plan, load, ranks, seconds), start.nodes * start.per_node - ranks
    wall = seconds * (1 + saving["lost_share"])
    found: RunEstimate = {
        "model": _model(load),
        "time": {
            "gpu": plan.gpu,
            "gpus": ranks,
            "idle": idle,
            "peak_flops": peak,
            "tokens": tokens,
            "flops_per_token": load.flops_per_token,
            "flops": tokens * load.flops_per_token,
            "mfu": of_step / (step_s * peak * ranks),
            "mfu_from": before_name if measured else FROM_PLAN,
            "tokens_per_s": tokens / seconds,
            "step_seconds": seconds,
            "wall_seconds": wall,
            "gpu_days": wall * (ranks + idle) / DAY,
        },
        "step": _step(timed, step_s),
        "memory": _memory(plan, load, start),
        "refused": list(start.reasons),
        "warnings": list(start.warnings),
        "proposals": [],
        "checkpoints": saving,
        "cost": cost(plan, wall * (ranks + idle) / HOUR),
    }
    if load.tuning is None:
        found["settings"] = origins(run, load.seq_len)
    if start.layout and plan.device.is_gpu and load.tuning is None:
        found["communication"] = _communication(timed)
    found["proposals"] = _proposals(plan, load, start, machine, found)
    return found


def machine_of(plan: PlanConfig, start: Start, flops: float) -> Machine:
    """Returns the GPUs of a plan, which compute `flops` operations per second."""
    return Machine(flops, plan.gpus_per_node or start.per_node, plan.nvlink_gb_s * GB, plan.network_gb_s * GB)


def _step(timed: StepTime, seconds: float) -> StepEstimate:
    recompute, bubble, exposed = timed.recompute, timed.bubble, timed.exposed
    if seconds != timed.total:  # measured: parts of the computation are as large a share of it as planned
        exposed = min(timed.sent.exposed, seconds)
        recompute, bubble = (part * (seconds - exposed) / timed.busy for part in (recompute, bubble))
    return {
        "seconds": seconds,
        "compute_s": seconds - recompute - bubble - exposed,
        "recompute_s": recompute,
        "bubble_s": bubble,
        "exposed_s": exposed,
    }


def _model(load: Workload) -> ModelEstimate:
    total, matrices = load.shape.weights["total"], load.shape.matmul_weights
    model: ModelEstimate = {"parameters": total, "matmul_weights": matrices, "seq_len": load.seq_len}
    if load.tuning:
        model["trained"] = load.trained_weights
    return model


def _communication(timed: StepTime) -> CommunicationEstimate:
    return {
        "inside_gb": timed.sent.inside / GB,
        "across_gb": timed.sent.across / GB,
        "beside_s": timed.sent.hideable,
        "exposed_s": timed.exposed,
    }


def cost(plan: PlanConfig, gpu_hours: float) -> CostEstimate:
    """Returns price, energy and emissions of a number of GPU-hours.

    kWh = GPU-hours x watts x PUE / 1000; kg of CO2 equivalent = kWh x g/kWh / 1000 (Patterson et al. 2021, "Carbon
    Emissions and Large Neural Network Training", arXiv 2104.10350, section 2). The emissions of manufacturing are not
    included.
    """
    kwh = gpu_hours * plan.watts * plan.place.pue / 1000
    return {
        "region": plan.region,
        "gpu_hours": gpu_hours,
        "price": gpu_hours * plan.place.price_per_gpu_hour,
        "kwh": kwh,
        "kg_co2": kwh * plan.place.gco2_per_kwh / 1000,
    }


def _memory(plan: PlanConfig, load: Workload, start: Start) -> MemoryEstimate:
    components = load.memory_per_rank(start.layout, start.ranks, plan.device.is_gpu)
    needed = sum(components.values())
    return {
        "layout": start.layout.model_dump(exclude_defaults=True) if start.layout else None,
        "per_rank_gib": {name: size / GIB for name, size in components.items()},
        "needed_gib": needed / GIB,
        "usable_gib": plan.memory / GIB,
        "fits": needed <= plan.memory,
    }


def _proposals(
    plan: PlanConfig, load: Workload, start: Start, machine: Machine, found: RunEstimate
) -> list[ProposalEstimate]:
    """Returns what to train in instead, if the run is refused, does not fit, or would be `FASTER`."""
    runs = found["memory"]["fits"] and not start.reasons
    if runs and not (start.layout and plan.device.is_gpu):
        return []
    per_node = plan.gpus_per_node or start.per_node
    best = proposals(load, plan.memory, start.nodes * start.per_node, per_node, machine)
    if runs and not (best and FASTER * best[0].time.total < found["step"]["seconds"]):
        return []
    return [_proposal(one, load, per_node, found["time"]["peak_flops"]) for one in best]


def _proposal(one: Proposal, load: Workload, per_node: int, peak: float) -> ProposalEstimate:
    nodes, nproc = nodes_of(one.layout.ranks, per_node)
    flops = load.run.batch_size * load.seq_len * load.flops_per_token
    made: ProposalEstimate = {
        "nodes": nodes,
        "nproc": nproc,
        "layout": one.layout.model_dump(exclude_defaults=True),
        "step_s": one.time.total,
        "mfu": flops / (one.time.total * peak * one.layout.ranks),
        "needed_gib": one.memory / GIB,
    }
    if one.microbatch != load.run.microbatch:
        made["microbatch"] = one.microbatch
    return made


def _checkpoints(plan: PlanConfig, load: Workload, ranks: int, seconds: float) -> CheckpointEstimate:
    """Returns size and frequency of checkpoints; milestones and the best one are in the artifact."""
    run, size = load.run, checkpoint_bytes(load)
    delay = plan.checkpoint_s or size / ranks / CHECKPOINT_BYTES_PER_S
    mtbf = plan.gpu_mtbf_hours * HOUR / ranks
    step = seconds / (run.steps - run.first_step)
    best, chosen = best_interval(delay, mtbf), run.checkpoint_every * step
    return {
        "bytes": size,
        "artifact_gb": kept_checkpoints(run) * size / GB,
        "scratch_gb": (kept_checkpoints(run) + run.keep_checkpoints) * size / GB,
        "mtbf_hours": mtbf / HOUR,
        "delay_s": delay,
        "best_interval_s": best,
        "best_every": max(1, round(best / step)),
        "every": run.checkpoint_every,
        "lost_share": lost_share(chosen, delay, plan.restart_s, mtbf),
        "lost_share_at_best": lost_share(best, delay, plan.restart_s, mtbf),
    }


def checkpoint_bytes(load: Workload) -> float:
    """Returns the bytes of a checkpoint: trained weights, their moments, and their mean if there is one, in fp32."""
    shape, is_muon = load.shape, load.run.optim.name == "muon"
    moments = 2 - (shape.layers * shape.layer_matrices / shape.weights["total"] if is_muon else 0)
    return FP32 * load.trained_weights * (1 + moments + bool(load.run.ema))


def kept_checkpoints(run: TrainConfig) -> int:
    """Returns the number of checkpoints in the artifact: milestones, and the best one if it is kept."""
    return len(run.milestone_steps) + (run.best is not None)


def best_interval(delay_s: float, mtbf_s: float) -> float:
    """Returns the time between two checkpoints, in seconds of training, that minimizes lost time.

    With d the seconds that a checkpoint delays the run and M the mean time between failures, it is about sqrt(2 d M)
    (Young 1974, "A first order approximation to the optimum checkpoint interval"); Daly 2006 ("A higher order estimate
    of the optimum checkpoint interval for restart dumps", equation 37) adds terms for larger d.

    >>> round(best_interval(10, 36_000)), round((2 * 10 * 36_000) ** 0.5)
    (842, 849)
    """
    if delay_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = delay_s / (2 * mtbf_s)
    return math.sqrt(2 * delay_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delay_s


def lost_share(interval_s: float, delay_s: float, restart_s: float, mtbf_s: float) -> float:
    """Returns the time lost to checkpoints and failures as a share of the training time (Young's first order).

    Checkpoints take d of every interval; a failure loses half an interval and the restart.

    >>> round(lost_share(842, 10, 300, 36_000), 4)
    0.0319
    """
    return delay_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


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
