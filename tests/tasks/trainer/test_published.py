"""The plan beside published runs: Llama 3.1 of 8 B, 70 B and 405 B on 8 to 512 H100 with torchtitan.

Rows are from torchtitan's `benchmarks/llama3_h100_202412_torchtitan.md`: H100 of 96 GB at 500 W, 8 a machine, 400 Gb/s
a GPU. Each has a tolerance and the reason for it. The other trainer differs from this one in two ways, which the test
adds to the plan of a rank's memory:

- Its loss has the logits of a whole microbatch, where this one has `loss_rows`: in bf16 and fp32, their softmax, and
  the gradients in both, 16 bytes each. They are a third to three quarters of its memory, and most of why it needs 68 to
  72 GiB for 70 B, where the plan of this one has 41.
- Its selective checkpoints keep the result of every second product, of q, v, w1 and w2.

What it reports is the memory that torch has reserved, which is never less than that of living tensors, the plan's.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.fake_ranks import LLAMA_405B
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import SIZES, ModelShape
from tasks.trainer.parallel.fit import layers_in_flight, memory_of_rank
from tasks.trainer.place import Layout
from tasks.trainer.planning.config import PlanConfig
from tasks.trainer.planning.step import UNCOMPILED, Machine, step_time
from tasks.trainer.tuning.memory import Workload

VOCABULARY, GIB = 128_256, 2**30
LOGIT = 16
"""Bytes of a logit in the loss of the other trainer."""
M8, M70 = SIZES["8b"].model, SIZES["70b"].model
FULL, OP = {"recompute": "full"}, {"recompute": "selective"}
TENSOR = FULL | {"tensor": 8}
PIPE = TENSOR | {"pipeline": 8, "zero": 1}  # its stages keep weights and gradients whole


@dataclass(frozen=True)
class Row:
    """A published run.

    `least` and `most` are bounds of planned / published; sequences are `microbatches` x `microbatch` per replica.
    """

    name: str
    model: ModelConfig
    precision: str
    layout: dict[str, Any]
    microbatch: int
    microbatches: int
    seq_len: int
    tokens_per_s: float
    gib: float
    speed: tuple[float, float]
    memory: tuple[float, float]
    reason: str


CLOSE = (0.95, 1.06)
IN_FP8 = "the loss and the attention, which stay in bf16, are as large a share"
LARGE = "0.4 of the peak is that of 8 B; matrices of this width reach more, and overlap tensor traffic"
HELD = "reserved, not living: buffers of tensor parallelism and of stages that the allocator keeps"
ROWS = [
    Row("8b eager", M8, "bf16", OP | {"shard": 8, "compile": False}, 2, 1, 8192, 5762, 82.4, CLOSE, (0.9, 1.0),
        "without a compiler, norms and SwiGLU keep more intermediate results while a layer is computed again"),
    Row("8b", M8, "bf16", OP | {"shard": 8}, 2, 1, 8192, 6667, 77.0, CLOSE, CLOSE, "the same terms"),
    Row("8b fp8", M8, "fp8", OP | {"shard": 8}, 2, 1, 8192, 8532, 76.8, CLOSE, CLOSE, IN_FP8),
    Row("8b on 128", M8, "bf16", OP | {"shard": 128}, 2, 1, 8192, 6514, 62.0, CLOSE, (0.95, 1.08), "the same terms"),
    Row("8b on 128 fp8", M8, "fp8", OP | {"shard": 128}, 2, 1, 8192, 8380, 61.8, CLOSE, (0.95, 1.08), IN_FP8),
    Row("8b context 1", M8, "fp8", FULL | {"shard": 8}, 1, 1, 32_768, 3890, 83.9, (0.9, 1.0), CLOSE,
        "attention counts all keys, and long causal sequences compute half of them"),
    Row("8b context 2", M8, "fp8", FULL | {"shard": 4, "context": 2}, 1, 1, 65_536, 2540, 84.2, (0.75, 1.0), CLOSE,
        "the same; this row is fast: to the next one, FLOPs grow 1.8 and published times 2.4 times"),
    Row("8b context 4", M8, "fp8", FULL | {"shard": 2, "context": 4}, 1, 1, 131_072, 1071, 84.0, (0.95, 1.1), CLOSE,
        "counted keys that are not computed, and waits of context parallelism that are not planned"),
    Row("8b context 8", M8, "fp8", FULL | {"shard": 1, "context": 8}, 1, 1, 262_144, 548, 84.5, (0.95, 1.1), CLOSE,
        "counted keys that are not computed, and waits of context parallelism that are not planned"),
    Row("70b", M70, "fp8", TENSOR | {"shard": 32}, 16, 1, 8192, 829, 71.9, (0.8, 1.0), (0.75, 1.0), f"{LARGE}; {HELD}"),
    Row("70b async", M70, "fp8", TENSOR | {"shard": 32}, 16, 1, 8192, 876, 67.6, (0.8, 1.0), (0.8, 1.0),
        f"{LARGE}; {HELD}"),
    Row("405b 1f1b", LLAMA_405B, "fp8", PIPE | {"shard": 8}, 4, 8, 8192, 100, 82.5, (0.75, 1.0), (0.85, 1.0),
        f"{LARGE}; {HELD}"),
    Row("405b interleaved", LLAMA_405B, "fp8", PIPE | {"shard": 8, "schedule": "interleaved"}, 4, 8, 8192, 128, 72.7,
        (0.75, 1.0), CLOSE, LARGE),
    Row("405b context 1", LLAMA_405B, "fp8", PIPE | {"shard": 8}, 1, 8, 32_768, 76, 75.3, (0.75, 1.0),
        (0.9, 1.0), LARGE),
    Row("405b context 2", LLAMA_405B, "fp8", PIPE | {"shard": 4, "context": 2}, 1, 8, 65_536, 47, 75.9, (0.85, 1.05),
        (0.9, 1.0), LARGE),
    Row("405b context 4", LLAMA_405B, "fp8", PIPE | {"shard": 2, "context": 4}, 1, 8, 131_072, 31, 77.1, (0.85, 1.05),
        (0.9, 1.0), LARGE),
    Row("405b context 8", LLAMA_405B, "fp8", PIPE | {"shard": 1, "context": 8}, 1, 8, 262_144, 16, 84.9, (0.95, 1.1),
        (0.8, 1.0), "no tensor of the plan explains why this row has 8 GiB more than the last"),
]  # fmt: skip


def load_of(row: Row) -> tuple[Workload, Layout]:
    layout = Layout(**row.layout)
    batch_size = row.microbatch * row.microbatches * layout.data_ranks
    sizes = {"batch_size": batch_size, "microbatch": row.microbatch}
    run = TrainConfig.model_validate({"model": row.model, "precision": row.precision, **sizes})
    return Workload(run, ModelShape.of(row.model, VOCABULARY), row.seq_len), layout


def memory_with_its_loss(row: Row) -> float:
    """Returns the plan in GiB, with the two terms of the other trainer, of the rank with the most."""
    load, layout = load_of(row)
    shape, last = load.shape, layout.pipeline - 1
    planned = [memory_of_rank(layout, load.run, shape, row.seq_len, stage) for stage in {0, last}]
    tokens = row.microbatch * row.seq_len / layout.context
    kept = 2 * shape.dim / layout.tensor
    if layout.recompute == "selective":
        kept += 2 * (shape.dim + shape.head_dim * (2 * shape.heads + shape.kv_heads) + shape.ffn_dim)
    layers = layers_in_flight(load.run, layout, shape.layers / layout.pipeline, last)
    in_loss = {
        "state": planned[-1]["weights"] + planned[-1]["moments"],
        "gradients": planned[-1]["gradients"] if row.microbatches > 1 else 0,
        "gathered": planned[-1]["gathered"] if layout.zero == 1 else 2 * 2 * shape.weights["head"] / layout.tensor,
        "layers": tokens * kept * layers,
        "last norm": tokens * 10 * shape.dim / layout.tensor,
        "hidden states of the head": 2 * 2 * tokens * shape.dim,
        "logits": tokens * LOGIT * VOCABULARY / layout.tensor,
    }
    # The peak is in the loss, or with a pipeline in a layer of its first rank.
    return max(sum(in_loss.values()), sum(planned[0].values()) if layout.pipeline > 1 else 0) / GIB


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_plan_of_a_published_run_is_as_close_as_its_row_says(row: Row) -> None:
    load, layout = load_of(row)
    plan = PlanConfig()
    time = step_time(load, layout, layout.ranks, Machine(plan.mfu * plan.peak("bf16"), 8, 450e9, 50e9))
    # The other trainer compiles layers with tensor parallelism and full recomputation, which this one does not.
    busy = time.busy * (UNCOMPILED if layout.tensor > 1 else 1)
    speed = load.run.batch_size * row.seq_len / layout.ranks / (busy + time.exposed)
    memory = memory_with_its_loss(row)
    assert row.speed[0] <= speed / row.tokens_per_s <= row.speed[1], row.reason
    assert row.memory[0] <= memory / row.gib <= row.memory[1], row.reason
