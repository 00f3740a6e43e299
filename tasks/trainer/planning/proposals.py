"""Proposed layouts: those in which a step fits into memory, ranked by its time.

A proposal is never refused when the run starts (`parallel.fit`), and tensor parallelism stays inside a machine. Models
with a mixture of experts have expert parallelism of every degree that divides the experts and their ranks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from tasks.trainer.config import TrainConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import FP32, layout_reasons
from tasks.trainer.place import Layout
from tasks.trainer.planning.step import Machine, StepTime, step_time
from tasks.trainer.tuning.memory import Workload

MOST_RANKS = 1 << 14
TENSOR = (1, 2, 4, 8)
"""Degrees of tensor parallelism that are proposed if they divide the GPUs of a machine, because it communicates in
every layer."""
PIPELINE, CONTEXT, CHUNKS = (1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 4)
RECOMPUTE: tuple[Literal["none", "selective", "full"], ...] = ("none", "selective", "full")
MICROBATCHES = 3
"""Sizes of a microbatch that are tried: the run's, its half, its quarter. It is part of the run's identity."""
ALIKE = 1.02
"""Layouts whose steps take at most so many times as long as the fastest are as good; the simplest is proposed."""


@dataclass(frozen=True)
class Proposal:
    """A layout that fits.

    Attributes:
        layout: how ranks share the work.
        microbatch: sequences of a forward and backward pass.
        memory: bytes of a rank.
        time: of a step.
    """

    layout: Layout
    microbatch: int
    memory: int
    time: StepTime


def proposals(
    load: Workload, memory: float, ranks: int, per_node: int, machine: Machine, most: int = 3
) -> list[Proposal]:
    """Returns layouts with the fewest ranks, at least `ranks`, in which a step fits into memory, best first.

    The first one is the simplest of those whose steps take about as long as the fastest; the others are the fastest
    with other degrees of pipeline, tensor or context parallelism, with or without expert parallelism, or another
    microbatch. A fine-tuning has layouts of FSDP on one node only.

    Args:
        load: what is trained.
        memory: usable bytes per rank.
        ranks: minimum number of ranks; it is doubled until a layout fits.
        per_node: ranks of a full node. More ranks are on full nodes.
        machine: the GPUs.
        most: length of the list.
    """
    ranks = ranks if ranks < per_node else math.ceil(ranks / per_node) * per_node
    while ranks <= MOST_RANKS:
        nodes, here = nodes_of(ranks, per_node)
        if load.tuning and nodes > 1:
            return []
        if found := list(_fitting(load, memory, nodes, here, machine)):
            return _best(found)[:most]
        ranks = 2 * ranks if 2 * ranks < per_node else math.ceil(2 * ranks / per_node) * per_node
    return []


def nodes_of(ranks: int, per_node: int) -> tuple[int, int]:
    """Returns the number of nodes that some ranks need, and the ranks on each.

    >>> nodes_of(4, 8), nodes_of(32, 8)
    ((1, 4), (4, 8))
    """
    return (1, ranks) if ranks <= per_node else (ranks // per_node, per_node)


def _best(found: list[Proposal]) -> list[Proposal]:
    limit = ALIKE * min(one.time.total for one in found)
    first = min((one for one in found if one.time.total <= limit), key=_complexity)
    others, kinds = list[Proposal](), {_kind(first)}
    for one in sorted(found, key=lambda one: one.time.total):
        if _kind(one) not in kinds:
            kinds.add(_kind(one))
            others.append(one)
    return [first, *others]


def _kind(one: Proposal) -> tuple[int, ...]:
    layout = one.layout
    return layout.pipeline, layout.tensor, layout.context, layout.expert > 1, one.microbatch


def _complexity(one: Proposal) -> tuple[float, ...]:
    layout = one.layout
    degrees = layout.pipeline, layout.context, layout.tensor, layout.expert, layout.chunks_per_rank
    return (-one.microbatch, *degrees, RECOMPUTE.index(layout.recompute), -layout.zero, layout.replicate)


def _fitting(load: Workload, memory: float, nodes: int, here: int, machine: Machine) -> Iterator[Proposal]:
    if load.tuning is None and not _can_fit(load, memory, nodes * here):
        return
    for layout in _candidates(nodes, here, load.shape.experts, load.tuning is not None):
        for run in _runs(load.run):
            if not _is_valid(layout, run, load.shape, load.seq_len, nodes, here):
                continue
            one = load if run is load.run else replace(load, run=run)
            needed = sum(one.memory_per_rank(layout, nodes * here).values())
            if needed <= memory:
                yield Proposal(layout, run.microbatch, needed, step_time(one, layout, nodes * here, machine))


def _can_fit(load: Workload, memory: float, ranks: int) -> bool:
    """Whether the sharded weights and moments alone fit (of Muon, the least that it can have)."""
    return 2 * FP32 * load.shape.weights["total"] / ranks <= memory


def _runs(run: TrainConfig) -> Iterator[TrainConfig]:
    """Yields the run, and those with smaller microbatches."""
    yield run
    size = run.microbatch
    for _ in range(MICROBATCHES - 1):
        if size % 2:
            return
        size //= 2
        yield run.model_copy(update={"microbatch": size})


def _is_valid(layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int, nodes: int, here: int) -> bool:
    if run.batch_size // run.microbatch % layout.data_ranks:  # the most frequent reason
        return False
    return not layout_reasons(layout, run, shape, seq_len, nodes, here)


@cache
def _candidates(nodes: int, here: int, experts: int, is_tuning: bool) -> tuple[Layout, ...]:
    return tuple(_all_candidates(nodes, here, experts, is_tuning))


def _all_candidates(nodes: int, here: int, experts: int, is_tuning: bool) -> Iterator[Layout]:
    for pipeline in PIPELINE[: 1 if is_tuning else None]:
        for tensor in TENSOR[: 1 if is_tuning or experts else None]:
            for context in CONTEXT[: 1 if is_tuning else None]:
                others = pipeline * tensor * context
                if nodes * here % others or here % tensor:
                    continue
                shard = nodes * here // others
                for replicate in {1, nodes} if shard % nodes == 0 else {1}:
                    degrees = {"replicate": replicate, "shard": shard // replicate, "context": context}
                    degrees |= {"tensor": tensor, "pipeline": pipeline}
                    of_state = degrees["shard"] * context
                    for expert in [1] if is_tuning else _divisors(math.gcd(experts, of_state) if experts else 1):
                        yield from _variants(degrees | {"expert": expert})


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _variants(degrees: dict[str, int]) -> Iterator[Layout]:
    for recompute in RECOMPUTE:
        if recompute == "selective" and degrees["expert"] > 1:  # cannot repeat their exchange
            continue
        if degrees["pipeline"] == 1:
            yield Layout(**degrees, recompute=recompute)
            continue
        # A pipeline that shards weights or gradients gathers or sums them for every microbatch.
        for zero in (1, 2, 3):
            for chunks in CHUNKS:
                schedule = {"schedule": "interleaved", "chunks": chunks} if chunks > 1 else {}
                yield Layout(**degrees, recompute=recompute, zero=zero, **schedule)
