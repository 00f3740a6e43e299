"""Collectives of a step: number and bytes by dimension of the layout, and the time that they take. Without torch.

The formulas are those of `tasks/trainer/parallel/apply`. With m microbatches of a rank, n of its layers, width w of the
compute dtype in bytes, P the weights of a group of parameters / tensor, and h = w x positions of a rank x dim, a step
has

    state     all_gather      w P        zero 3: 2 m per layer and for the last norm, m for embedding and head;
                                         zero 1, 2: one per group
              reduce_scatter  4 P        zero 2, 3: m per group; zero 1: one per group
    replicate all_reduce      4 P / state, one per group, after the last reduce_scatter
    tensor    all_gather      h          m (4 n, with recomputation 6 n; 1 for the embedding, 1 for the head)
              reduce_scatter  h          m (4 n, with recomputation of everything 5 n; 1 and 1)
              all_reduce      w dim      per norm, as often as the state's reduce_scatter; and m x 2 per chunk of logits
    context   all_gather      keys or values of all positions, m x 2 n; with recomputation 4 n
              reduce_scatter  the same, m x 2 n
    expert    all_to_all      w k positions x dim for k experts of a token, m x 4 n; with recomputation 6 n; and the
                              number of rows of each expert, m x n; with recomputation 2 n
    pipeline  send            h / tensor, m forward unless last, m backward unless first, per chunk of layers

FSDP gathers and sums the experts over the state / expert ranks that have the same ones, and
where groups are the layers, the embedding, the head and the last norm; a tied head makes one of the last three. Not
counted are sums of scalars, Muon's gathers, and compression.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.trainer.config import TrainConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import FP32, chunks_of_rank, loss_rows
from tasks.trainer.place import Layout


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind in a dimension of the layout, over a step of one rank.

    Attributes:
        dimension: that whose ranks take part; "state" is shard x context.
        kind: all_gather, reduce_scatter, all_reduce, all_to_all or send.
        calls: number.
        size: bytes of their largest buffers, summed: the result of a gather, and the input of the others.
        ranks: that take part.
        apart: distance of the first two in the numbering of ranks.
    """

    dimension: str
    kind: str
    calls: int
    size: float
    ranks: int
    apart: int

    @property
    def sent(self) -> float:
        """Bytes that the rank sends, assuming ring algorithms."""
        share = (self.ranks - 1) / self.ranks
        return self.size * {"send": 1.0, "all_reduce": 2 * share}.get(self.kind, share)

    def ranks_per_node(self, gpus_per_node: int) -> int:
        """Returns how many of the ranks that take part are on one node."""
        return min(self.ranks, max(1, gpus_per_node // self.apart))


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank sends in a step, and seconds.

    Attributes:
        inside: bytes of collectives whose ranks are all on one node.
        across: bytes of other collectives.
        hideable: seconds of the gathers and sums of the state, which run beside the computation.
        exposed: seconds of the others, for which the computation waits.
    """

    inside: float
    across: float
    hideable: float
    exposed: float


def traffic(
    layout: Layout,
    run: TrainConfig,
    shape: ModelShape,
    seq_len: int,
    gpus_per_node: int,
    inside: float,
    across: float,
) -> Traffic:
    """Returns the traffic of the rank with the most.

    Args:
        layout: how ranks share the work.
        run: settings of the run.
        shape: of the model.
        seq_len: positions of a training sequence.
        gpus_per_node: GPUs that NVLink connects.
        inside: bytes per second between GPUs of a node.
        across: bytes per second and GPU between nodes.
    """
    ends = {0, layout.pipeline - 1}
    return max(
        (_summed(list(collectives(layout, run, shape, seq_len, end)), gpus_per_node, inside, across) for end in ends),
        key=lambda one: one.hideable + one.exposed,
    )


def _summed(all_of: list[Collective], gpus_per_node: int, inside: float, across: float) -> Traffic:
    sent, seconds = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for one in all_of:
        local = one.ranks_per_node(gpus_per_node)
        within = local == one.ranks
        sent[within] += one.sent
        # Several rings share the ports of the ranks on a node, so that a byte leaves the node once.
        rate = inside if within else min(inside, across * local)
        seconds[one.dimension in ("state", "experts of a rank", "replicate")] += one.sent / rate
    return Traffic(inside=sent[True], across=sent[False], hideable=seconds[True], exposed=seconds[False])


def collectives(
    layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int, stage: int, gpu: bool = True
) -> Iterator[Collective]:
    """Yields the collectives of a step of a rank.

    Args:
        layout: how ranks share the work.
        run: settings of the run.
        shape: of the model.
        seq_len: positions of a training sequence.
        stage: the rank's coordinate in the pipeline.
        gpu: whether the loss has the chunks of a GPU.
    """
    width = FP32 if run.precision == "fp32" else 2
    microbatches = run.batch_size // run.microbatch // layout.data_ranks
    apart = {"tensor": 1, "context": layout.tensor, "state": layout.tensor, "expert": layout.tensor}
    apart["experts of a rank"] = layout.tensor * layout.expert
    apart["pipeline"] = layout.tensor * layout.context * layout.shard
    apart["replicate"] = apart["pipeline"] * layout.pipeline
    found = [
        *_of_state(layout, shape, stage, microbatches, width),
        *_of_tensor(layout, run, shape, seq_len, stage, microbatches, width, gpu),
        *_of_context(layout, run, shape, seq_len, stage, microbatches, width),
        *_of_experts(layout, run, shape, seq_len, stage, microbatches, width),
        *_of_pipeline(layout, run, shape, seq_len, stage, microbatches, width),
    ]
    sizes = {name: getattr(layout, name) for name in ("tensor", "context", "expert", "pipeline", "replicate")}
    sizes["state"] = layout.shard * layout.context
    sizes["experts of a rank"] = sizes["state"] // layout.expert
    for dimension, kind, calls, size in found:
        if calls and sizes[dimension] > 1:
            yield Collective(dimension, kind, calls, calls * size, sizes[dimension], apart[dimension])


Found = tuple[str, str, int, float]
"""Dimension, kind, calls, and mean bytes of a call."""


def _of_state(layout: Layout, shape: ModelShape, stage: int, microbatches: int, width: int) -> Iterator[Found]:
    weights, layers = shape.weights, sum(map(len, chunks_of_rank(shape.layers, layout, stage)))
    first, last = stage == 0, stage == layout.pipeline - 1
    norms = (shape.layer_norms * layers + last) * shape.norm_vectors * shape.dim
    matrices = layers * (weights["layers"] / shape.layers - shape.expert_matrices * (layout.expert > 1))
    ends = [weights["embedding"]] * first + [weights["head"]] * (last and not shape.tied)
    one_way, both_ways = (0, 0.0), (layers, matrices)
    if shape.tied:
        both_ways = (layers + 1, matrices + sum(ends) + weights["norm"])
    else:
        one_way = (len(ends), float(sum(ends)))
        both_ways = (layers + last, matrices + last * weights["norm"])
    # Norms are not split over the ranks of tensor parallelism.
    whole = norms * (1 - 1 / layout.tensor)
    each_pass = microbatches if layout.zero == 3 else 1
    gathers = each_pass * (one_way[0] + (2 if layout.zero == 3 else 1) * both_ways[0])
    gathered = each_pass * (
        one_way[1] / layout.tensor + (2 if layout.zero == 3 else 1) * (both_ways[1] / layout.tensor + whole)
    )
    yield "state", "all_gather", gathers, width * gathered / gathers
    groups = one_way[0] + both_ways[0]
    sums = (microbatches if layout.zero > 1 else 1) * groups
    reduced = (one_way[1] + both_ways[1]) / layout.tensor + whole
    yield "state", "reduce_scatter", sums, FP32 * reduced / groups
    yield "replicate", "all_reduce", groups, FP32 * reduced / groups / (layout.shard * layout.context)


def _of_tensor(
    layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int, stage: int, m: int, width: int, gpu: bool
) -> Iterator[Found]:
    layers = sum(map(len, chunks_of_rank(shape.layers, layout, stage)))
    first, last = stage == 0, stage == layout.pipeline - 1
    positions = run.microbatch * seq_len // layout.context
    hidden = width * positions * shape.dim
    gathers = layers * (4 if layout.recompute == "none" else 6) + first + last
    sums = layers * (5 if layout.recompute == "full" else 4) + first + last
    yield "tensor", "all_gather", m * gathers, hidden
    yield "tensor", "reduce_scatter", m * sums, hidden
    norms = (shape.norm_vectors > 0) * (shape.layer_norms * layers + last) * (m if layout.zero > 1 else 1)
    # Summed gradients are fp32.
    yield "tensor", "all_reduce", norms, (FP32 if layout.zero == 1 and m > 1 else width) * shape.dim
    chunks = math.ceil(positions / loss_rows(layout, gpu))
    # The largest logit of each position, then the sum of exponentials and the logit of the label.
    yield "tensor", "all_reduce", last * m * 2 * chunks, FP32 * 3 * positions / (2 * chunks)


def _of_context(
    layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int, stage: int, m: int, width: int
) -> Iterator[Found]:
    layers = sum(map(len, chunks_of_rank(shape.layers, layout, stage)))
    keys = width * run.microbatch * seq_len * shape.kv_heads * shape.head_dim / layout.tensor
    yield "context", "all_gather", m * layers * (2 if layout.recompute == "none" else 4), keys
    yield "context", "reduce_scatter", m * layers * 2, keys


def _of_experts(
    layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int, stage: int, m: int, width: int
) -> Iterator[Found]:
    layers = sum(map(len, chunks_of_rank(shape.layers, layout, stage)))
    rows = run.microbatch * seq_len / layout.context * shape.active_experts
    yield "expert", "all_to_all", m * layers * (4 if layout.recompute == "none" else 6), width * rows * shape.dim
    yield "expert", "all_to_all", m * layers * (1 if layout.recompute == "none" else 2), 8.0 * shape.experts
    if layout.expert == 1:  # they are gathered with the layers
        return
    held = shape.expert_matrices / layout.expert
    times = 2 * m if layout.zero == 3 else 1
    yield "experts of a rank", "all_gather", layers * times, width * held
    yield "experts of a rank", "reduce_scatter", layers * (m if layout.zero > 1 else 1), FP32 * held
    own = FP32 * held * layout.expert / (layout.shard * layout.context)
    yield "replicate", "all_reduce", layers, own


def _of_pipeline(
    layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int, stage: int, m: int, width: int
) -> Iterator[Found]:
    hidden = width * run.microbatch * seq_len * shape.dim / layout.context / layout.tensor
    chunks = 2 * layout.chunks_per_rank
    ends = (stage == 0) + (stage == layout.pipeline - 1)
    yield "pipeline", "send", m * (chunks - ends), hidden
