"""Applies parallelism to a model: context and tensor parallelism, fp8, recomputation, FSDP, overlap.

The order matters: context before tensor parallelism; both and fp8 before recomputation and compilation, which wrap the
result; FSDP last.
"""

from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OperatorBase
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tasks.trainer.config import TrainConfig, TuningSpec
from tasks.trainer.model.attention import PLAIN, Attend, Bounds, Kernel, Scores
from tasks.trainer.model.loss import LossOfRows, ZLoss, head_cross_entropy
from tasks.trainer.model.transformer import Recompute, Transformer, TransformerBlock
from tasks.trainer.parallel.compilation import (
    best_kernel,
    compile_layers,
    gather_ahead,
    loss_in,
    make_tensor_asynchronous,
    overlap_of,
)
from tasks.trainer.parallel.experts import divide_experts
from tasks.trainer.parallel.fit import chunks_of_rank
from tasks.trainer.parallel.fp8 import use_fp8
from tasks.trainer.parallel.fsdp import compute_dtype, shard
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.pipeline import PipelineChunk
from tasks.trainer.tuning.model import outline, with_frozen_parameters

POSITIONS, HEADS = 1, 2
"""The dimension of [batch, positions, width] that is split between pairs of matrices, and of [batch, positions, heads,
head_dim] that is split within attention."""
LAYER: dict[str, ParallelStyle] = {
    "attention_norm": SequenceParallel(use_local_output=True),
    "attention": PrepareModuleInput(
        input_layouts=(Shard(POSITIONS), None, None, None), desired_input_layouts=(Replicate(), None, None, None)
    ),
    "attention.wq": ColwiseParallel(),
    "attention.wk": ColwiseParallel(),
    "attention.wv": ColwiseParallel(),
    "attention.q_norm": SequenceParallel(sequence_dim=HEADS, use_local_output=True),
    "attention.k_norm": SequenceParallel(sequence_dim=HEADS, use_local_output=True),
    "attention.wo": RowwiseParallel(output_layouts=Shard(POSITIONS)),
    "attention_post_norm": SequenceParallel(use_local_output=True),
    "ffn_norm": SequenceParallel(use_local_output=True),
    "ffn": PrepareModuleInput(input_layouts=(Shard(POSITIONS),), desired_input_layouts=(Replicate(),)),
    "ffn.w1": ColwiseParallel(),
    "ffn.w3": ColwiseParallel(),
    "ffn.w2": RowwiseParallel(output_layouts=Shard(POSITIONS)),
    "ffn_post_norm": SequenceParallel(use_local_output=True),
}
"""Tensor parallelism of a layer, as in Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053): the first matrix of a pair
is split by outputs, with their biases, the second by inputs. Between pairs, positions are sharded (sequence
parallelism, Korthikanti et al. 2022, arXiv 2205.05198). All ranks have the weights of the norms of queries and keys,
and apply them to their heads."""
NORM: dict[str, ParallelStyle] = {"norm": SequenceParallel()}
HEAD: dict[str, ParallelStyle] = {"head": ColwiseParallel()}
"""Split by rows of the vocabulary, as the loss requires."""
_STORED_OPERATORS = {
    "aten::mm",
    "aten::addmm",
    "aten::_scaled_mm",
    "aten::_grouped_mm",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_cudnn_attention",
    "torch_attn::_varlen_attn",
    "flex_attention",
    "_c10d_functional::reduce_scatter_tensor",
}
"""Operators whose results `selective` recomputation stores: matrix products and attention, which take the most time,
and the sums of tensor parallelism. Their summands, the products of matrices split by inputs, are as many times larger
as there are ranks; they are not stored."""


def shards_of(
    run: TrainConfig, mesh: Mesh, vocab_size: int, seq_len: int, tuning: TuningSpec | None = None
) -> list[Transformer]:
    """Returns this rank's chunks of the model, sharded, on the meta device; of a fine-tuning, the whole model."""
    if tuning is None:
        with torch.device("meta"):
            own = chunks_of_rank(run.model.layers, mesh.layout, mesh.at("pipeline"))
            chunks = [PipelineChunk(run.model, vocab_size, layers) for layers in own]
        for chunk in chunks:
            apply(chunk, mesh, run, seq_len)
        return list(chunks)
    whole = with_frozen_parameters(outline(run.model, tuning))
    # A model that contains another one, its frozen reference, is sharded after it.
    for model in [module for module in whole.modules() if isinstance(module, Transformer)][::-1]:
        apply(model, mesh, run, seq_len)
    if tuning.loss == "dpo" and isinstance(whole.head, FSDPModule):
        whole.head.set_unshard_in_backward(True)  # this loss computes its gradients in the backward pass
    return [whole]


def apply(model: Transformer, mesh: Mesh, run: TrainConfig, seq_len: int) -> None:
    """Shards `model` in place; its parameters become DTensors.

    Args:
        model: a decoder, or a chunk of it.
        mesh: this rank's position in the layout.
        run: settings of the run.
        seq_len: positions of a training sequence.
    """
    layout = mesh.layout
    dtype = compute_dtype(run) or torch.float32
    model.kernel = best_kernel(mesh.device, dtype, run.model, layout.context)
    if layout.context > 1:
        model.kernel = context_kernel(model.kernel, mesh.group("context"), seq_len, mesh.device)
        model.rows = rows_of(mesh.at("context"), layout.context, seq_len).to(mesh.device)
    if layout.tensor > 1:
        _split(model, mesh.tensor)
    divided = divide_experts(model, mesh.experts["expert"]) if mesh.experts else []
    if run.precision == "fp8":
        use_fp8(model.layers, mesh.device)
    for layer in model.layers.values():
        assert isinstance(layer, TransformerBlock)
        layer.recompute = _RECOMPUTE.get(layout.recompute)
    # What a router decides changes the shapes of each batch, so that of such a layer only the attention is compiled.
    parts = [cast(nn.Module, layer.attention) if run.model.experts else layer for layer in model.layers.values()]
    compiled = compile_layers(parts, layout, mesh.device)
    model.head_loss = partial(model.head_loss, chunk=layout.loss_rows, of_rows=loss_in(compiled, run.model.logit_cap))
    if run.z_loss:
        model.add_z_loss(run.z_loss)
    shard(model, divided, mesh, run)
    overlap = overlap_of(mesh, run, compiled)
    if overlap.weights.on:
        gather_ahead(model)
    if overlap.tensor.on:
        make_tensor_asynchronous(mesh)


def _split(model: Transformer, mesh: DeviceMesh) -> None:
    """Splits matrices over the ranks of `mesh`."""
    for layer in model.layers.values():
        modules = dict(layer.named_modules())
        parallelize_module(layer, mesh, {name: style for name, style in LAYER.items() if name in modules})
    if model.embedding is not None:
        _split_embedding(model.embedding, mesh)
    if model.norm is not None:
        parallelize_module(model, mesh, dict(NORM))
    if model.head is not None:
        parallelize_module(model, mesh, dict(HEAD))
    model.head_loss = partial(_sharded_loss, mesh)


def _split_embedding(embedding: nn.Embedding, mesh: DeviceMesh) -> None:
    """Splits an embedding by rows of the vocabulary, which a tied head uses as well, and its result by positions.

    RowwiseParallel of torch 2.13 does the same, but computes the gradient of all rows on each rank.
    """
    embedding.weight = nn.Parameter(distribute_tensor(embedding.weight, mesh, [Shard(0)], src_data_rank=None))

    def forward(tokens: Tensor) -> Tensor:
        assert isinstance(embedding.weight, DTensor)
        rows = embedding.weight.to_local()
        index = tokens - mesh.get_local_rank() * len(rows)
        is_local = (index >= 0) & (index < len(rows))
        found = F.embedding(torch.where(is_local, index, 0), rows) * is_local[..., None]
        summed = DTensor.from_local(found, mesh, [Partial()], run_check=False).redistribute(
            placements=[Shard(POSITIONS)]
        )
        return summed.to_local()

    cast(Any, embedding).forward = forward


def _sharded_loss(
    mesh: DeviceMesh,
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    tokens: int,
    *,
    chunk: int | None,
    of_rows: LossOfRows,
    z: ZLoss | None = None,
) -> Tensor:
    """Computes the loss when each rank has some rows of the head and some positions of the hidden state."""
    assert isinstance(hidden, DTensor)
    assert isinstance(weight, DTensor)
    whole = hidden.redistribute(mesh, [Replicate()]).to_local(grad_placements=[Partial()])
    return head_cross_entropy(whole, weight.to_local(), labels, tokens, mesh.get_group(), chunk, of_rows, z)


def rows_of(rank: int, degree: int, seq_len: int) -> Tensor:
    """Returns the positions of a rank, int64 [seq_len / degree], ascending within each of its two pieces.

    The sequence is split into 2 x degree equal pieces; rank r has pieces r and 2 x degree - 1 - r, so that all ranks
    have the same number of causal pairs.
    """
    pieces = torch.arange(seq_len).chunk(2 * degree)
    return torch.cat((pieces[rank], pieces[2 * degree - 1 - rank]))


def context_kernel(kernel: Kernel, group: dist.ProcessGroup, seq_len: int, device: torch.device) -> Kernel:
    """Returns a kernel for context parallelism, which gathers keys and values.

    Each rank computes attention of the queries at its own positions over all keys and values, which are gathered in
    each layer (as in Llama 3: arXiv 2407.21783, section 3.3.2).

    Args:
        kernel: kernel that computes attention for some queries and all keys.
        group: ranks that share a sequence, each with the queries of `rows_of`.
        seq_len: positions of the whole sequence.
        device: of the tensors.
    """
    order = torch.cat([rows_of(rank, group.size(), seq_len) for rank in range(group.size())]).to(device)

    def of_documents(
        documents: Tensor, rows: Tensor | None = None, bounds: Bounds | None = None, scores: Scores = PLAIN
    ) -> Attend:
        attend = kernel(documents, rows, bounds, scores)

        def gathered(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
            k, v = _Gather.apply(k, order, group), _Gather.apply(v, order, group)  # type: ignore[no-untyped-call]
            return attend(q, k, v, sinks)

        return gathered

    return of_documents


class _Gather(torch.autograd.Function):
    """Gathers [batch, heads, positions, width] from all ranks along the positions, in the order of the sequence."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, order: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Returns [batch, heads, sequence, width]; `order` has the sequence position of each gathered position."""
        ctx.order, ctx.group = order, group
        first = own.movedim(2, 0).contiguous()
        gathered = first.new_empty(len(order), *first.shape[1:])
        dist.all_gather_single(gathered, first, group=group)
        whole = torch.empty_like(gathered)
        whole[order] = gathered
        return whole.movedim(0, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Sums the gradients of all ranks, and scatters them by position."""
        gathered = grads[0].movedim(2, 0)[ctx.order].contiguous()
        own = gathered.new_empty(len(ctx.order) // ctx.group.size(), *gathered.shape[1:])
        dist.reduce_scatter_single(own, gathered, group=ctx.group)
        return own.movedim(0, 2), None, None


def _policy(ctx: object, op: OperatorBase, *args: object, **kwargs: object) -> CheckpointPolicy:
    name = op.name()  # type: ignore[no-untyped-call]
    matrix = args[-1] if name in ("aten::mm", "aten::addmm") else None
    is_summand = isinstance(matrix, DTensor) and Shard(0) in matrix.placements
    stored = name in _STORED_OPERATORS and not is_summand
    return CheckpointPolicy.MUST_SAVE if stored else CheckpointPolicy.PREFER_RECOMPUTE


_RECOMPUTE: dict[str, Recompute] = {
    "full": partial(checkpoint, use_reentrant=False),
    "selective": partial(
        checkpoint, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, _policy)
    ),
}
