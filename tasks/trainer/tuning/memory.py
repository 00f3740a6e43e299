"""Trained weights, FLOPs and memory of a run, from settings alone. Does not import torch.

The memory of a fine-tuning is that of `parallel.fit` with other weights: frozen ones have no gradient and no moments,
those in 4 bits take 4.5 bits each and are dequantized one matrix at a time, and a frozen matrix does not store its
input.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.trainer.config import LoraConfig, Target, TrainConfig, TuningSpec
from tasks.trainer.model.shape import ModelShape, flops_per_token
from tasks.trainer.parallel.fit import FP32, loss_rows, memory_per_rank
from tasks.trainer.place import Layout

NF4 = 0.5 + FP32 / 64
"""Bytes per weight in 4 bits, with its share of the scale of a block."""
DEQUANTIZING = FP32 + 2
"""Bytes per weight while a matrix is dequantized: the result, and an index of 4 bytes per two weights."""


@dataclass(frozen=True)
class Workload:
    """What a run trains.

    Attributes:
        run: settings of the run; of a fine-tuning, those of its loop.
        shape: of the model; of a fine-tuning, that of the base.
        seq_len: positions of a training sequence.
        tuning: settings of a fine-tuning; None: a pretraining.
    """

    run: TrainConfig
    shape: ModelShape
    seq_len: int
    tuning: TuningSpec | None = None

    @property
    def trained_weights(self) -> int:
        """Number of weights that are trained."""
        return trained_weights(self.tuning.lora if self.tuning else None, self.shape)

    @property
    def flops_per_token(self) -> float:
        """FLOPs of forward and backward pass per token, at the sequence length."""
        if self.tuning:
            return tuning_flops_per_token(self.tuning, self.shape, self.seq_len)
        return flops_per_token(self.shape, self.seq_len)

    def memory_per_rank(self, layout: Layout | None, ranks: int = 1, gpu: bool = True) -> Mapping[str, int]:
        """Returns an estimate of the peak memory of a rank, in bytes by category; arguments as for the functions."""
        if self.tuning:
            return tuning_memory_per_rank(layout, self.run, self.tuning, self.shape, ranks, gpu)
        return memory_per_rank(layout, self.run, self.shape, self.seq_len, ranks, gpu)


def matrices(shape: ModelShape) -> dict[Target, tuple[int, int]]:
    """Returns (outputs, inputs) of the projections of a layer."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "wq": (query, shape.dim),
        "wk": (key, shape.dim),
        "wv": (key, shape.dim),
        "wo": (shape.dim, query),
        "w1": (shape.ffn_dim, shape.dim),
        "w2": (shape.dim, shape.ffn_dim),
        **({"w3": (shape.ffn_dim, shape.dim)} if shape.gated else {}),
    }


def trained_weights(lora: LoraConfig | None, shape: ModelShape) -> int:
    """Returns the number of weights that a fine-tuning trains."""
    if lora is None:
        return shape.weights["total"]
    sizes = matrices(shape)
    return shape.layers * sum(lora.rank * sum(sizes[target]) for target in lora.targets if target in sizes)


def tuning_flops_per_token(tuning: TuningSpec, shape: ModelShape, attended: float) -> float:
    """Returns the FLOPs of forward and backward pass per token; arguments as for `shape.flops_per_token`.

    A frozen weight has no gradient, which is a third of its FLOPs. `dpo` has another forward pass, of the reference.
    """
    whole = flops_per_token(shape, attended)
    without = 2 * shape.matmul_weights - 6 * trained_weights(tuning.lora, shape) if tuning.lora else 0
    return whole - without + (whole / 3 if tuning.loss == "dpo" else 0)


def frozen_bytes(tuning: TuningSpec, shape: ModelShape) -> float:
    """Returns the bytes of the frozen weights: the base, or for `dpo` without adapters its copy as reference."""
    total, lora = shape.weights["total"], tuning.lora
    if lora is None:
        return FP32 * total if tuning.loss == "dpo" else 0.0
    quantized = shape.layers * shape.layer_matrices if lora.base == "nf4" else 0
    return NF4 * quantized + FP32 * (total - quantized)


def tuning_memory_per_rank(
    layout: Layout | None,
    run: TrainConfig,
    tuning: TuningSpec,
    shape: ModelShape,
    ranks: int = 1,
    gpu: bool = True,
) -> Mapping[str, int]:
    """Returns an estimate of the peak memory of a rank of a fine-tuning, in bytes by category.

    Args:
        layout: how ranks share the work; None: each rank has the whole model.
        run: settings of the loop.
        tuning: of the fine-tuning.
        shape: of the base.
        ranks: number of ranks without a layout.
        gpu: whether to assume GPU kernels.

    Returns:
        Those of `parallel.fit.memory_per_rank` (without a layout, `reduced` is 0), `frozen` (weights), `dequantized` (a
        matrix), and `loading` (what reading the largest tensor of the base takes beyond the other categories). For
        `dpo`, `loss` assumes that every position is learned.
    """
    width = FP32 if run.precision == "fp32" else 2
    usual = memory_per_rank(layout, run, shape, tuning.seq_len, ranks, gpu)
    trained, frozen = trained_weights(tuning.lora, shape), frozen_bytes(tuning, shape)
    sharded = layout.shard * layout.context if layout else 1
    one_moment = run.optim.name == "muon" and tuning.lora is not None
    sizes: dict[str, float] = {
        "weights": FP32 * trained / sharded,
        "frozen": frozen / sharded,
        "moments": usual["moments"] if tuning.lora is None else FP32 * (1 if one_moment else 2) * trained / sharded,
        "gradients": usual["gradients"] * trained / shape.weights["total"],
        "reduced": usual.get("reduced", 0) * trained / shape.weights["total"],
        "gathered": _gathered(layout, tuning, shape, width, trained),
        "dequantized": _dequantized(tuning, shape, width),
        "activations": usual["activations"] - _unstored(layout, run, tuning, shape, width, gpu),
        "loss": _loss(layout, run, tuning, shape, width, gpu, usual["loss"]),
    }
    largest = FP32 * max(shape.vocab_size * shape.dim, *(rows * columns for rows, columns in matrices(shape).values()))
    loading = sizes["weights"] + sizes["frozen"] + largest
    sizes["loading"] = max(0.0, loading - sum(sizes.values()))
    return {name: round(size) for name, size in sizes.items()}


def _gathered(layout: Layout | None, tuning: TuningSpec, shape: ModelShape, width: int, trained: int) -> float:
    """Returns the bytes of weights that are gathered, or cast to another dtype, at a time."""
    lora = tuning.lora
    narrow = width * trained if width < FP32 else 0
    if layout is None:  # casts of frozen weights are not kept
        return narrow
    sharded = layout.shard * layout.context
    if sharded == 1 and not narrow:
        return 0
    weights, in_layers = shape.weights, shape.layers * shape.layer_matrices
    matrix = NF4 if lora and lora.base == "nf4" else width
    layers = matrix * in_layers + width * (weights["layers"] - in_layers) + (width * trained if lora else 0)
    ends = width * (weights["embedding"] + weights["head"] + weights["norm"])
    if layout.zero < 3:
        return ends + layers
    if shape.tied:  # gathered for the whole pass
        return ends + 2 * layers / shape.layers
    return max(2 * layers / shape.layers, 2 * width * weights["head"])


def _dequantized(tuning: TuningSpec, shape: ModelShape, width: int) -> float:
    if not tuning.lora or tuning.lora.base != "nf4":
        return 0
    largest = max(rows * columns for rows, columns in matrices(shape).values())
    return largest * (DEQUANTIZING + (width if width < FP32 else 0))


def _unstored(
    layout: Layout | None, run: TrainConfig, tuning: TuningSpec, shape: ModelShape, width: int, gpu: bool
) -> float:
    """Returns the bytes of activations that a pretraining stores, and a model with adapters does not.

    The input of a matrix is stored only for the gradient of it or of its adapter; on a CPU, the normalized input of a
    norm for the gradient of its weight.
    """
    if tuning.lora is None:
        return 0
    targets, layout = set(tuning.lora.targets), layout or Layout()
    query = shape.heads * shape.head_dim
    readers = ({"wq", "wk", "wv"}, shape.dim), ({"wo"}, query), ({"w1", "w3"}, shape.dim), ({"w2"}, shape.ffn_dim)
    unstored = [size for of_input, size in readers if not targets & of_input]
    added = tuning.lora.rank * len(targets)  # between the two matrices of an adapter
    norms = 0 if gpu else 2 * FP32 * shape.dim
    layers = shape.layers if layout.recompute == "none" else 1
    return run.microbatch * tuning.seq_len / layout.context * layers * (width * (sum(unstored) - added) + norms)


def _loss(
    layout: Layout | None,
    run: TrainConfig,
    tuning: TuningSpec,
    shape: ModelShape,
    width: int,
    gpu: bool,
    usual: float,
) -> float:
    vocabulary, tokens = shape.vocab_size, run.microbatch * tuning.seq_len / (layout.context if layout else 1)
    narrow = 0 if width == FP32 else width
    if tuning.loss == "dpo":
        # Logits, their softmax, and its gradient; the gradient of the head.
        head = 0 if tuning.lora else FP32 * vocabulary * shape.dim
        return tokens * (vocabulary * (3 * FP32 + narrow) + width * shape.dim) + head
    if tuning.lora is None or not usual:  # 0: a layer needs more than the loss
        return usual
    rows = min(loss_rows(layout, gpu), tokens)
    return 2 * width * tokens * shape.dim + rows * vocabulary * (2 * FP32 + 2 * narrow if narrow else 3 * FP32)
