"""The time of a step in a layout: computation, recomputation, the bubble of the pipeline, and exposed traffic.

With m microbatches of a data-parallel rank, p ranks and v chunks per rank, a pipeline takes (m + (p - 1) / v) times as
long as its slowest rank needs for a microbatch, so that (p - 1) / (v m + p - 1) of a balanced pipeline is its bubble
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2). The ranks with the most layers, or with the head, are the
slowest.

Not counted are the optimizer (memory traffic of the sharded state), loading, checkpoints and slow links.
"""

from dataclasses import dataclass

from tasks.trainer.parallel.fit import chunks_of_rank, compile_reasons
from tasks.trainer.place import Layout
from tasks.trainer.planning.traffic import Traffic, traffic
from tasks.trainer.tuning.memory import Workload

RECOMPUTED = {"none": 0.0, "selective": 0.02, "full": 1 / 3}
"""Time of recomputation, relative to that of a layer. `full` repeats its forward pass, a third of it. `selective`
repeats norms, rotary positions and SwiGLU: about 17 bytes of memory traffic for each value of the hidden state, 1 to
2 % of the time at 3 TB/s in layers of 4,096 and wider."""
FP8_GAIN = 1.45
"""Rate of the products of the layers in fp8, with their rounding, relative to bf16: steps are then 1.28 times as fast
for 8 B, like torchtitan's (8 H100: 6,667 and 8,532 tokens/s per GPU)."""
UNCOMPILED = 5_762 / 6_667
"""Rate of layers that are not compiled, relative to compiled ones (torchtitan, 8 B on 8 H100)."""
FLEX = 0.86
"""Rate of flex attention, which context parallelism needs, relative to flash attention: 0.9 in the forward, 0.85 in the
backward pass (PyTorch's blog, "FlexAttention: The Flexibility of PyTorch with the Performance of FlashAttention")."""
NO_TRAFFIC = Traffic(inside=0, across=0, hideable=0, exposed=0)


@dataclass(frozen=True)
class Machine:
    """What a plan assumes of its GPUs.

    Attributes:
        flops: FLOP/s of a GPU while it computes in the run's precision; of fp8, those in bf16.
        gpus_per_node: GPUs that NVLink connects.
        inside: bytes per second between GPUs of a node.
        across: bytes per second and GPU between nodes.
    """

    flops: float
    gpus_per_node: int
    inside: float
    across: float


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step.

    Attributes:
        compute: of the FLOPs that count for MFU, evenly over the ranks.
        recompute: of recomputed activations.
        bubble: that ranks of a pipeline wait for one another.
        sent: the traffic.
    """

    compute: float
    recompute: float
    bubble: float
    sent: Traffic

    @property
    def busy(self) -> float:
        """Seconds without traffic."""
        return self.compute + self.recompute + self.bubble

    @property
    def exposed(self) -> float:
        """Seconds of traffic for which the computation waits: that which it needs at once, and what it cannot hide."""
        return self.sent.exposed + max(0.0, self.sent.hideable - self.busy)

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.busy + self.exposed


def step_time(load: Workload, layout: Layout | None, ranks: int, machine: Machine, *, gpu: bool = True) -> StepTime:
    """Returns the time of a step.

    Args:
        load: what is trained.
        layout: how ranks share the work; None: each has the whole model.
        ranks: number of ranks.
        machine: the GPUs.
        gpu: whether there are GPUs; the traffic of CPUs is not planned, nor is that of a fine-tuning.
    """
    one, run = layout or Layout(), load.run
    rate = machine.flops * (UNCOMPILED if gpu and _is_uncompiled(one) else 1)
    tokens = run.batch_size * load.seq_len
    in_layers, in_head = _flops(load, one)
    compute = tokens * (in_layers * load.shape.layers + in_head) / ranks / rate
    again = RECOMPUTED[one.recompute] * tokens * in_layers * load.shape.layers / ranks / rate
    # The first rank has the most layers, the last one the head.
    ends = {0: 0.0, one.pipeline - 1: in_head}
    work = [in_layers * (1 + RECOMPUTED[one.recompute]) * _layers(load, one, end) + head for end, head in ends.items()]
    microbatches = run.batch_size // run.microbatch / one.data_ranks
    of_microbatch = max(work) * run.microbatch * load.seq_len / (one.context * one.tensor) / rate
    turns = microbatches + (one.pipeline - 1) / one.chunks_per_rank
    waiting = turns * of_microbatch - compute - again if one.pipeline > 1 else 0.0
    sent = NO_TRAFFIC
    if layout and gpu and load.tuning is None and microbatches >= 1:
        rates = machine.gpus_per_node, machine.inside, machine.across
        sent = traffic(layout, run, load.shape, load.seq_len, *rates)
    return StepTime(compute, again, waiting, sent)


def computing_share(load: Workload, layout: Layout | None, ranks: int, machine: Machine, step_s: float) -> float:
    """Returns how much slower GPUs compute than `machine.flops` if a step takes `step_s` in a layout; at most 1."""
    found = step_time(load, layout, ranks, machine)
    return min(1.0, found.busy / max(step_s - found.sent.exposed, found.busy))


def _flops(load: Workload, layout: Layout) -> tuple[float, float]:
    """Returns the FLOPs per token of a layer, and of the head: those that a GPU computes in bf16 in the same time."""
    shape = load.shape
    head = 6 * shape.vocab_size * shape.dim
    layer = (load.flops_per_token - head) / shape.layers
    if load.run.precision == "fp8":
        layer -= 6 * shape.layer_matrices * (1 - 1 / FP8_GAIN)
    if layout.context > 1:
        layer += 12 * shape.heads * shape.head_dim * load.seq_len * (1 / FLEX - 1)
    return layer, head


def _layers(load: Workload, layout: Layout, stage: int) -> int:
    return sum(map(len, chunks_of_rank(load.shape.layers, layout, stage)))


def _is_uncompiled(layout: Layout) -> bool:
    return layout.compile is False or bool(compile_reasons(layout))
