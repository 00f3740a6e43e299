"""Checks whether a layout fits a run, and estimates the peak memory of a rank. Does not import torch.

The estimate counts the tensors that are alive at the end of a forward pass. Activations are counted as in Korthikanti
et al. 2022 (arXiv 2205.05198, section 4) for the operations of this model: the tensors that autograd stores for
RMSNorm, attention with rotary positions, and SwiGLU. Fragmentation, libraries, collective buffers, and the copy of the
state for a checkpoint are not counted.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial

from tasks.core.errors import RecipeError
from tasks.trainer.config import TrainConfig
from tasks.trainer.model.shape import LOSS_ROWS, ModelShape
from tasks.trainer.place import Layout

FP32 = 4
"""Bytes per weight, moment and summed gradient."""
FP8_MULTIPLE = 16
"""All dimensions of an fp8 product must be multiples of this."""


def layout_reasons(
    layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int, nodes: int, ranks_per_node: int
) -> list[str]:
    """Returns all reasons why a run cannot be trained in a layout; none if it can.

    Every dimension may span nodes. What is valid but slow is in `layout_warnings`.

    Args:
        layout: the layout of the place.
        run: settings of the run.
        shape: of its model.
        seq_len: positions of a training sequence.
        nodes: number of nodes.
        ranks_per_node: number of ranks on each node.
    """
    return [
        *_rank_reasons(layout, nodes, ranks_per_node),
        *_batch_reasons(layout, run),
        *_tensor_reasons(layout, shape, seq_len),
        *_expert_reasons(layout, run),
        *_pipeline_reasons(layout, run, shape),
        *(_fp8_reasons(layout, run, shape, seq_len) if run.precision == "fp8" else ()),
        *(compile_reasons(layout) if layout.compile else ()),
    ]


def layout_warnings(layout: Layout, nodes: int, ranks_per_node: int) -> list[str]:
    """Returns what makes a valid layout slow on these nodes."""
    if nodes > 1 and ranks_per_node % layout.tensor:
        return [
            f"tensor = {layout.tensor} does not divide the {ranks_per_node} ranks of a node: parts of every matrix "
            "are exchanged over the network in every layer"
        ]
    return []


def check_fit(layout: Layout, run: TrainConfig, vocab_size: int, seq_len: int, nodes: int, ranks_per_node: int) -> None:
    """Raises RecipeError with all `layout_reasons`, if there are any."""
    shape = ModelShape.of(run.model, vocab_size)
    refuse(layout_reasons(layout, run, shape, seq_len, nodes, ranks_per_node))


def refuse(reasons: Sequence[str]) -> None:
    """Raises RecipeError with all reasons, if there are any."""
    if reasons:
        raise RecipeError(
            f"this run cannot be trained at its place: {'; '.join(reasons)}",
            "change [place.train.layout], or the settings above",
        )


def memory_per_rank(
    layout: Layout | None, run: TrainConfig, shape: ModelShape, seq_len: int, ranks: int = 1, gpu: bool = True
) -> Mapping[str, int]:
    """Returns an estimate of the peak memory of the rank with the most memory, in bytes by category.

    Args:
        layout: how ranks share the work; None: each rank has the whole model.
        run: settings of the run.
        shape: of the model.
        seq_len: positions of a training sequence.
        ranks: number of ranks without a layout.
        gpu: whether to assume GPU kernels; on a CPU, attention has a mask, and keys and values for every head.

    Returns:
        `weights`, `moments`, `gradients`, `gathered` (weights gathered from other ranks, or cast to another dtype),
        `activations`, and `loss` (logits of a chunk, and the gradients of the head); with a layout also `reduced`.
    """
    if layout is None:
        return _whole_bytes(_replicated(run, shape, seq_len, ranks, gpu))
    ends = {0, layout.pipeline - 1}
    return max(
        (memory_of_rank(layout, run, shape, seq_len, end, gpu) for end in ends), key=lambda one: sum(one.values())
    )


def memory_of_rank(
    layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int, stage: int, gpu: bool = True
) -> Mapping[str, int]:
    """As `memory_per_rank`, for a rank of a layout with a coordinate `stage` in the pipeline.

    The peak is in the first backward pass after all forward passes that 1F1B has in flight: in the layer whose
    activations are recomputed, or on the last rank in the loss, whichever needs more. Its categories have another one,
    `reduced`: gradients on their way to the ranks that sum them.
    """
    width = FP32 if run.precision == "fp32" else 2
    last, sharded = stage == layout.pipeline - 1, layout.shard * layout.context
    layers = sum(map(len, chunks_of_rank(shape.layers, layout, stage)))
    own, layer, matrix = _own_weights(shape, layout, stage)
    # FSDP gathers only this rank's part of the experts.
    elsewhere = shape.expert_matrices * (1 - 1 / layout.expert)
    gathered_all, layer = own - layers * elsewhere, layer - elsewhere
    microbatches = run.batch_size // run.microbatch // layout.data_ranks
    tokens = run.microbatch * seq_len / layout.context
    stored = partial(_stored_activations, run, shape, layout, width, seq_len, gpu)
    whole_gradients = layout.zero == 1 and microbatches > 1
    state = {
        "weights": FP32 * own / sharded,
        "moments": _moments(shape, run) / shape.weights["total"] * own / sharded,
    }
    gradients = FP32 * (gathered_all if whole_gradients else own / sharded)
    hidden = width * tokens * shape.dim / layout.tensor
    received = microbatches * layout.chunks_per_rank * hidden * ((stage > 0) + (not last)) if layout.pipeline > 1 else 0
    kept = tokens * stored(layers_in_flight(run, layout, layers, stage)) + received
    copied = sharded > 1 or width < FP32
    # FSDP keeps the last buffer until the next: that of the embedding through the forward pass that follows.
    follows = layout.zero > 1 and stage == 0 and microbatches * layout.chunks_per_rank > _warm_up(layout, stage)
    rest = FP32 * shape.weights["embedding"] / layout.tensor * follows
    summed = 0.0 if whole_gradients else FP32 * max(layer, matrix * last)
    in_layer = {
        "gradients": gradients,
        "gathered": width * (2 * layer if layout.zero == 3 else gathered_all) * copied,
        "reduced": width * layer + max(rest, summed),
        "activations": kept + tokens * _recomputed(run, shape, layout, width, seq_len, gpu),
        "loss": 0.0,
    }
    if not last:
        return _whole_bytes(state | in_layer)
    in_loss = {
        "gradients": gradients if microbatches > 1 else 0.0,  # the first loss is before all gradients
        "gathered": width * (2 * matrix if layout.zero == 3 else gathered_all) * copied,
        "reduced": rest,
        "activations": kept,
        "loss": _loss_memory(shape, layout, width, tokens, gpu),
    }
    return _whole_bytes(state | max(in_layer, in_loss, key=lambda peak: sum(peak.values())))


def _whole_bytes(sizes: Mapping[str, float]) -> Mapping[str, int]:
    return {name: round(size) for name, size in sizes.items()}


def _own_weights(shape: ModelShape, layout: Layout, stage: int) -> tuple[float, float, float]:
    """Returns the weights of a rank before sharding, those of one of its layers, and those of its largest end.

    An end is the embedding or the head; if they are one matrix, it is gathered like a layer, but for the whole pass.
    """
    layers = sum(map(len, chunks_of_rank(shape.layers, layout, stage)))
    layer = shape.weights["layers"] / shape.layers / layout.tensor
    ends = [shape.weights["embedding"]] * (stage == 0) + [shape.weights["head"]] * (stage == layout.pipeline - 1)
    norm = shape.weights["norm"] * (stage == layout.pipeline - 1)
    return layers * layer + (sum(ends) + norm) / layout.tensor, layer, max(ends, default=0) / layout.tensor


def _replicated(run: TrainConfig, shape: ModelShape, seq_len: int, ranks: int, gpu: bool) -> Mapping[str, float]:
    """Returns the memory of a rank with the whole model; partial sums of the tree (`ranks`) count as gradients."""
    width, layout = FP32 if run.precision == "fp32" else 2, Layout()
    total, microbatches = shape.weights["total"], run.batch_size // run.microbatch // ranks
    sums = math.ceil(math.log2(microbatches)) if microbatches > 1 else 0
    tokens = run.microbatch * seq_len
    return {
        "weights": FP32 * total,
        "moments": _moments(shape, run),
        "gradients": FP32 * total * (1 + sums),
        "gathered": width * total if width < FP32 else 0,
        "activations": tokens * _stored_activations(run, shape, layout, width, seq_len, gpu, shape.layers),
        "loss": _loss_memory(shape, layout, width, tokens, gpu),
    }


def _rank_reasons(layout: Layout, nodes: int, ranks_per_node: int) -> list[str]:
    if layout.ranks == nodes * ranks_per_node:
        return []
    where = f" ({nodes} nodes x {ranks_per_node})" if nodes > 1 else ""
    return [f"it has {layout.ranks} ranks, and there are {nodes * ranks_per_node}{where}"]


def _batch_reasons(layout: Layout, run: TrainConfig) -> list[str]:
    microbatches = run.common_batch // run.microbatch
    if microbatches % layout.data_ranks:
        return [
            f"replicate x shard = {layout.data_ranks} ranks cannot share {microbatches} microbatches "
            "(batch_size / microbatch) equally"
        ]
    return []


def _tensor_reasons(layout: Layout, shape: ModelShape, seq_len: int) -> list[str]:
    degree, reasons = layout.tensor, list[str]()
    if degree > 1 and shape.qk_norm_whole:
        reasons.append(f'tensor = {degree} divides the projections that qk_norm = "projection" normalizes whole')
    if degree > 1 and (shape.sinks or shape.output_bias):
        reasons.append(f"tensor = {degree} divides neither attention_sinks nor output_bias")
    sizes = {name: getattr(shape, name) for name in ("kv_heads", "heads", "ffn_dim")}
    sizes["vocabulary"] = shape.vocab_size
    for name, size in sizes.items():
        if size % degree:
            multiple = f" (vocab_rows = {-(-size // degree) * degree} pads it)" if name == "vocabulary" else ""
            reasons.append(f"tensor = {degree} does not divide {name} = {size}{multiple}")
    if seq_len % (2 * layout.context if layout.context > 1 else 1):
        reasons.append(f"2 x context = {2 * layout.context} does not divide seq_len = {seq_len}")
    elif seq_len // layout.context % degree:
        reasons.append(f"tensor = {degree} does not divide the {seq_len // layout.context} positions of a rank")
    return reasons


def _fp8_reasons(layout: Layout, run: TrainConfig, shape: ModelShape, seq_len: int) -> list[str]:
    """Returns why the products of the layers cannot be in fp8; those of other sizes than multiples are in bf16."""
    if shape.dim % FP8_MULTIPLE:
        return []
    reasons, rows = [], run.microbatch * (seq_len // layout.context)
    widths = {"heads": shape.heads * shape.head_dim, "kv_heads": shape.kv_heads * shape.head_dim}
    widths = {name: width for name, width in (widths | {"ffn_dim": shape.ffn_dim}).items() if width % FP8_MULTIPLE == 0}
    if widths and rows % FP8_MULTIPLE:
        reasons.append(
            f"{rows} positions of a microbatch cannot be multiplied in fp8: make microbatch x seq_len (over the ranks "
            f"that share it) a multiple of {FP8_MULTIPLE}"
        )
    for name, width in widths.items():
        own, rest = divmod(width, layout.tensor)
        if not rest and own % FP8_MULTIPLE:
            reasons.append(
                f"tensor = {layout.tensor} leaves each rank {own} columns of {name}, which cannot be multiplied in "
                f"fp8, as {FP8_MULTIPLE} does not divide them"
            )
    return reasons


def _expert_reasons(layout: Layout, run: TrainConfig) -> list[str]:
    experts, sharded, reasons = run.model.experts, layout.shard * layout.context, []
    if experts is None:
        return [f"expert = {layout.expert}, and the model has no experts"] if layout.expert > 1 else []
    if experts.count % layout.expert:
        reasons.append(f"expert = {layout.expert} does not divide the {experts.count} experts")
    if sharded % layout.expert:
        reasons.append(f"expert = {layout.expert} does not divide shard x context = {sharded}")
    if layout.expert > 1 and layout.recompute == "selective":
        reasons.append('recompute = "selective" cannot repeat an exchange between experts ("full" can)')
    if layout.tensor > 1:
        reasons.append(f"tensor = {layout.tensor} does not divide experts: use expert")
    if layout.context > 1 and experts.balance == "loss":
        reasons.append(
            f'context = {layout.context} divides the sequences of a balance loss: use experts.balance = "bias"'
        )
    if run.precision == "fp8":
        reasons.append('precision = "fp8" does not multiply experts: use "bf16"')
    return reasons


def _pipeline_reasons(layout: Layout, run: TrainConfig, shape: ModelShape) -> list[str]:
    if layout.pipeline == 1:
        return []
    chunks, reasons = layout.pipeline * layout.chunks_per_rank, []
    if run.ramp:
        reasons.append("a pipeline has the same number of microbatches in every step: leave out train.ramp")
    if shape.layers < chunks:
        reasons.append(f"{shape.layers} layers cannot be {chunks} chunks (pipeline x chunks)")
    if shape.tied:
        reasons.append("with pipeline > 1 the first rank has the embedding and the last one the head: tie_embeddings")
    microbatches = run.batch_size // run.microbatch // layout.data_ranks
    if microbatches < layout.pipeline or (layout.schedule == "interleaved" and microbatches % layout.pipeline):
        reasons.append(
            f"{microbatches} microbatches per data-parallel rank for pipeline = {layout.pipeline}: "
            + ("a multiple is needed" if layout.schedule == "interleaved" else "as many are needed")
        )
    return reasons


def compile_reasons(layout: Layout) -> list[str]:
    """Returns why layers cannot be compiled in a layout; none if they can."""
    # Its compiler saves the device mesh, among the inputs that are kept for the backward pass, as if it were a tensor.
    if layout.tensor > 1 and layout.recompute == "full":
        return ['torch 2.13 cannot compile layers with tensor > 1 and recompute = "full" ("selective" it can)']
    return []


def chunks_of_rank(layers: int, layout: Layout, stage: int) -> list[range]:
    """Returns the layers of each chunk of a rank of the pipeline; chunk c is on rank c modulo the degree.

    Chunk sizes differ by at most one layer; the later chunks are smaller, because the last one has the head.
    """
    count = layout.pipeline * layout.chunks_per_rank
    size, more = divmod(layers, count)
    chunks = range(stage, count, layout.pipeline)
    return [range(n * size + min(n, more), (n + 1) * size + min(n + 1, more)) for n in chunks]


def _moments(shape: ModelShape, run: TrainConfig) -> float:
    """Returns the bytes of the optimizer state: two moments for AdamW; for Muon, one for the matrices of the layers.

    A mean of the weights (`ema`) is one more.
    """
    single_moment = shape.layers * shape.layer_matrices if run.optim.name == "muon" else 0
    return FP32 * ((3 if run.ema else 2) * shape.weights["total"] - single_moment)


def _stored_activations(
    run: TrainConfig, shape: ModelShape, layout: Layout, width: int, seq_len: int, gpu: bool, layers: float
) -> float:
    """Returns the bytes that autograd stores for a number of layers, per token of this rank's positions."""
    tensor, dim, heads = layout.tensor, shape.dim, shape.head_dim * (shape.heads + shape.kv_heads)
    per_layer = {
        "none": _layer_activations(run, shape, layout, width, seq_len, gpu),
        "full": width * dim / tensor,
        "selective": width * ((2 + max(1, shape.active_experts)) * dim + 2 * heads + 2 * shape.inner_dim) / tensor,
    }[layout.recompute]
    last_norm = (2 * FP32 + width) * dim / tensor
    return per_layer * layers + last_norm


def _recomputed(run: TrainConfig, shape: ModelShape, layout: Layout, width: int, seq_len: int, gpu: bool) -> float:
    """Returns the bytes per token of recomputed activations and gradients, in the layer whose gradient is computed."""
    tensor, heads = layout.tensor, shape.head_dim * (shape.heads + shape.kv_heads)
    gradients = width * (2 * shape.dim * max(1, shape.active_experts) + 2 * shape.inner_dim / tensor)
    if layout.recompute == "none":
        return gradients
    layer = _layer_activations(run, shape, layout, width, seq_len, gpu)
    shared = width * (heads + 2 * shape.inner_dim) / tensor if layout.recompute == "selective" else 0
    return layer - shared + gradients


def _layer_activations(
    run: TrainConfig, shape: ModelShape, layout: Layout, width: int, seq_len: int, gpu: bool
) -> float:
    """Returns the bytes per token that one layer stores without recomputation."""
    dim, query, key = shape.dim, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    # A fused norm stores its input in fp32; the composite one also the normalized input. The outputs of both are not
    # sharded, because matrices read all positions.
    norms = shape.layer_norms * ((1 if gpu else 2) * FP32 * dim / layout.tensor + width * dim)
    # Norms of queries and keys are applied to the heads of a rank.
    norms += (1 if gpu else 2) * FP32 * (query + key) / layout.tensor if shape.qk_norm else 0
    # With context parallelism, ranks gather all keys and values.
    keys = 2 * (key if gpu else query) * layout.context
    # The result of flash attention over a single sequence has the layout of its queries, and is copied.
    queries = 2 if gpu and run.microbatch > 1 else 3
    attention = width * (queries * query + keys) / layout.tensor + (0 if gpu else width * seq_len)
    # On a CPU capped scores are stored, their tanh and the probabilities; with sinks the probabilities.
    stored = 0 if gpu else 2 if shape.attention_cap else shape.sinks
    attention += stored * FP32 * shape.heads * seq_len / layout.tensor
    if shape.experts:  # the rows of a token by expert, before and after; scores and shares of the router
        rows = width * (2 * shape.active_experts * dim + 4 * shape.inner_dim) + 3 * FP32 * shape.experts
        return norms + attention + rows
    return norms + attention + width * (4 if shape.gated else 2) * shape.ffn_dim / layout.tensor


def layers_in_flight(run: TrainConfig, layout: Layout, layers: int, stage: int) -> float:
    """Returns how many layers of a rank have stored activations, over all microbatches of the pipeline.

    With 1F1B, rank r of p has p - r microbatches in flight; interleaved: Narayanan et al. 2021, arXiv 2104.04473,
    section 2.2.
    """
    microbatches, chunks = run.batch_size // run.microbatch // layout.data_ranks, layout.chunks_per_rank
    return min(_warm_up(layout, stage), microbatches * chunks) * layers / chunks


def _warm_up(layout: Layout, stage: int) -> int:
    """Returns how many chunks a rank has computed before its first backward pass, if there are enough microbatches."""
    later = layout.pipeline - 1 - stage
    chunks = layout.chunks_per_rank
    return later + 1 if chunks == 1 else 2 * later + (chunks - 1) * layout.pipeline + 1


def loss_rows(layout: Layout | None, gpu: bool) -> int:
    """Returns the number of positions whose logits exist at a time."""
    return (layout.loss_rows if layout else None) or LOSS_ROWS["cuda" if gpu else "cpu"]


def _loss_memory(shape: ModelShape, layout: Layout, width: int, tokens: float, gpu: bool) -> float:
    """Returns the bytes of the loss: a chunk of logits in several forms, and the gradients of hidden state and head."""
    rows, vocabulary = min(loss_rows(layout, gpu), tokens), shape.vocab_size / layout.tensor
    logits, head = rows * vocabulary, vocabulary * shape.dim
    hidden = 2 * width * tokens * shape.dim
    if width == FP32:
        return hidden + 3 * FP32 * logits + 2 * FP32 * head
    # While the logits of a chunk become their gradients, or while these are multiplied with the hidden state.
    return hidden + max((2 * FP32 + 2 * width) * logits + FP32 * head, width * logits + (FP32 + width) * head)
