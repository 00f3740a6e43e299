"""The estimate of a run, from settings alone: FLOPs, time, memory, the layout that fits, checkpoints, cost.

`RunPerformance` is the measured counterpart, recorded with the checkpoint as the metrics `step_seconds`, `timed_steps`,
`flops_per_step`, `ranks`, `memory_gib` and, if it is known, `peak_flops` (of one device).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NotRequired, TypedDict

from tasks.trainer.config import TrainConfig, TuningSpec
from tasks.trainer.defaults import origins
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import FP32, layout_reasons
from tasks.trainer.place import Layout
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.traffic import traffic
from tasks.trainer.tuning.memory import Workload

HOUR, DAY, GIB, GB = 3600.0, 86400.0, 2**30, 1e9
CHECKPOINT_BYTES_PER_S = 1e9
"""Write rate of one rank, used if the plan does not set the duration of a checkpoint."""
FROM_PLAN = "the plan"
"""Origin of an MFU that no run has measured."""
MOST_RANKS = 1 << 14
TENSOR = (1, 2, 4, 8)
"""Degrees of tensor parallelism that are proposed if they divide the GPUs of a machine, because it communicates in
every layer."""
PIPELINE = (1, 2, 4, 8, 16)
RECOMPUTE: tuple[Literal["none", "selective", "full"], ...] = ("none", "selective", "full")


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
    """Work and time of the run: `step_seconds` without, `wall_seconds` with checkpoints and restarts."""

    gpu: str
    gpus: int
    tokens: int
    flops_per_token: float
    flops: float
    mfu: float
    mfu_from: str
    tokens_per_s: float
    step_seconds: float
    wall_seconds: float
    gpu_days: float


class MemoryEstimate(TypedDict):
    """Peak memory of a rank, in GiB, and whether it fits; `fitting` is a layout that fits, if this one does not."""

    layout: dict[str, Any] | None
    per_rank_gib: dict[str, float]
    needed_gib: float
    usable_gib: float
    fits: bool
    fitting: NotRequired[dict[str, Any] | None]


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
    """Content of `estimate.json`."""

    model: ModelEstimate
    settings: NotRequired[dict[str, dict[str, Any]]]
    time: TimeEstimate
    memory: MemoryEstimate
    communication: NotRequired[CommunicationEstimate]
    checkpoints: CheckpointEstimate
    cost: CostEstimate


def estimate(
    plan: PlanConfig,
    run: TrainConfig,
    shape: ModelShape,
    seq_len: int,
    layout: Layout | None,
    ranks: int,
    ranks_per_node: int,
    before: RunPerformance | None = None,
    before_name: str = "",
    tuning: TuningSpec | None = None,
) -> RunEstimate:
    """Returns the estimate of a run.

    Args:
        plan: the assumptions.
        run: settings of the run.
        shape: of its model.
        seq_len: positions of a training sequence.
        layout: how ranks share the work; None: each rank has the whole model.
        ranks: without a layout, the number of ranks.
        ranks_per_node: number of ranks on a machine of the place.
        before: an earlier run; its MFU is used if its devices had the same peak.
        before_name: the artifact of the earlier run.
        tuning: settings of a fine-tuning; `run` then has those of its loop, and `shape` is that of the base.
    """
    ranks, load = plan.gpus or (layout.ranks if layout else ranks), Workload(run, shape, seq_len, tuning)
    measured = before.mfu(plan.peak) if before else None
    mfu, tokens = measured or plan.mfu, (run.samples(run.steps) - run.samples(run.first_step)) * seq_len
    flops = tokens * load.flops_per_token
    seconds = flops / (plan.peak * mfu * ranks)
    saving = _checkpoints(plan, load, ranks, seconds)
    wall = seconds * (1 + saving["lost_share"])
    found: RunEstimate = {
        "model": _model(load),
        "time": {
            "gpu": plan.gpu,
            "gpus": ranks,
            "tokens": tokens,
            "flops_per_token": load.flops_per_token,
            "flops": flops,
            "mfu": mfu,
            "mfu_from": before_name if measured else FROM_PLAN,
            "tokens_per_s": tokens / seconds,
            "step_seconds": seconds,
            "wall_seconds": wall,
            "gpu_days": wall * ranks / DAY,
        },
        "memory": _memory(plan, load, layout, ranks, plan.gpus_per_node or ranks_per_node),
        "checkpoints": saving,
        "cost": cost(plan, wall * ranks / HOUR),
    }
    if tuning is None:
        found["settings"] = origins(run, seq_len)
    if layout and plan.gpu != "CPU" and tuning is None:
        found["communication"] = _communication(plan, load, layout, ranks_per_node, seconds / run.steps)
    return found


def _model(load: Workload) -> ModelEstimate:
    total, matrices = load.shape.weights["total"], load.shape.matmul_weights
    model: ModelEstimate = {"parameters": total, "matmul_weights": matrices, "seq_len": load.seq_len}
    if load.tuning:
        model["trained"] = load.trained_weights
    return model


def _communication(
    plan: PlanConfig, load: Workload, layout: Layout, per_node: int, compute_s: float
) -> CommunicationEstimate:
    rates = plan.nvlink_gb_s * GB, plan.network_gb_s * GB
    sent = traffic(layout, load.run, load.shape, load.seq_len, plan.gpus_per_node or per_node, *rates)
    return {
        "inside_gb": sent.inside / GB,
        "across_gb": sent.across / GB,
        "beside_s": sent.hideable,
        "exposed_s": sent.exposed + max(0.0, sent.hideable - compute_s),
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


def _memory(plan: PlanConfig, load: Workload, layout: Layout | None, ranks: int, per_node: int) -> MemoryEstimate:
    components = load.memory_per_rank(layout, ranks, plan.gpu != "CPU")
    needed = sum(components.values())
    memory: MemoryEstimate = {
        "layout": layout.model_dump(exclude_defaults=True) if layout else None,
        "per_rank_gib": {name: size / GIB for name, size in components.items()},
        "needed_gib": needed / GIB,
        "usable_gib": plan.memory / GIB,
        "fits": needed <= plan.memory,
    }
    if not memory["fits"]:
        fitting = layout_that_fits(load, plan.memory, ranks, per_node)
        memory["fitting"] = None
        if fitting:
            nodes, here = nodes_of(fitting.ranks, per_node)
            memory["fitting"] = {"nodes": nodes, "nproc": here, **fitting.model_dump(exclude_defaults=True)}
    return memory


def _checkpoints(plan: PlanConfig, load: Workload, ranks: int, seconds: float) -> CheckpointEstimate:
    """Returns size and frequency of checkpoints, which contain trained weights and their moments in fp32.

    Milestones are in the artifact; scratch contains them and the newest `keep_checkpoints`.
    """
    run, shape = load.run, load.shape
    moments = 2 - (shape.layers * shape.layer_matrices / shape.weights["total"] if run.optim.name == "muon" else 0)
    size = FP32 * load.trained_weights * (1 + moments + bool(run.ema))
    delay = plan.checkpoint_s or size / ranks / CHECKPOINT_BYTES_PER_S
    mtbf = plan.gpu_mtbf_hours * HOUR / ranks
    step = seconds / (run.steps - run.first_step)
    best, chosen = best_interval(delay, mtbf), run.checkpoint_every * step
    return {
        "bytes": size,
        "artifact_gb": len(run.milestone_steps) * size / GB,
        "scratch_gb": (len(run.milestone_steps) + run.keep_checkpoints) * size / GB,
        "mtbf_hours": mtbf / HOUR,
        "delay_s": delay,
        "best_interval_s": best,
        "best_every": max(1, round(best / step)),
        "every": run.checkpoint_every,
        "lost_share": lost_share(chosen, delay, plan.restart_s, mtbf),
        "lost_share_at_best": lost_share(best, delay, plan.restart_s, mtbf),
    }


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


def layout_that_fits(load: Workload, memory: float, ranks: int, per_node: int) -> Layout | None:
    """Returns a layout with the fewest ranks, at least `ranks`, in which a step fits into memory, or None.

    A fine-tuning has layouts of FSDP on one node only.

    Among layouts with the same number of ranks, the one with the least pipeline parallelism, then recomputation, then
    tensor parallelism, then sharding of a pipeline's state is chosen, because each of them reduces speed.

    Args:
        load: what is trained.
        memory: usable bytes per rank.
        ranks: minimum number of ranks; it is doubled until a layout fits.
        per_node: ranks of a full node. More ranks are on full nodes.
    """
    ranks = ranks if ranks < per_node else math.ceil(ranks / per_node) * per_node
    while ranks <= MOST_RANKS:
        nodes, here = nodes_of(ranks, per_node)
        if load.tuning and nodes > 1:
            return None
        candidates = [one for one in _candidates(ranks, here) if not load.tuning or one.tensor == one.pipeline == 1]
        # A layout is valid if its degrees are.
        one_of = {(layout.pipeline, layout.tensor): layout for layout in candidates}
        given = load.run, load.shape.vocab_size, load.seq_len, nodes, here
        valid = {degrees for degrees, layout in one_of.items() if not layout_reasons(layout, *given)}
        for layout in candidates:
            if (layout.pipeline, layout.tensor) not in valid:
                continue
            if sum(load.memory_per_rank(layout, ranks).values()) <= memory:
                return layout
        ranks = 2 * ranks if 2 * ranks < per_node else math.ceil(2 * ranks / per_node) * per_node
    return None


def nodes_of(ranks: int, per_node: int) -> tuple[int, int]:
    """Returns the number of nodes that some ranks need, and the ranks on each.

    >>> nodes_of(4, 8), nodes_of(32, 8)
    ((1, 4), (4, 8))
    """
    return (1, ranks) if ranks <= per_node else (ranks // per_node, per_node)


@cache
def _candidates(ranks: int, per_node: int) -> tuple[Layout, ...]:
    return tuple(_all_candidates(ranks, per_node))


def _all_candidates(ranks: int, per_node: int) -> Iterator[Layout]:
    for pipeline in PIPELINE:
        for recompute in RECOMPUTE:
            for tensor in TENSOR:
                if ranks % (pipeline * tensor) or per_node % tensor:
                    continue
                shard = ranks // (pipeline * tensor)
                # A pipeline that shards weights or gradients gathers or sums them for every microbatch.
                for zero in (1, 2, 3) if pipeline > 1 else (3,):
                    yield Layout(shard=shard, tensor=tensor, pipeline=pipeline, recompute=recompute, zero=zero)


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
