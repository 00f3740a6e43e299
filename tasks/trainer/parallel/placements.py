"""Where each matrix is split under tensor parallelism, and what the activations between them are.

Megatron-LM's split (Shoeybi et al. 2019, arXiv 1909.08053): the first matrix of a pair by its outputs, the second by
its inputs. Between pairs ranks have some positions each (Korthikanti et al. 2022, arXiv 2205.05198).
"""

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

POSITIONS = 1
"""The dimension of [batch, positions, width] that is split between pairs of matrices."""

LAYER: dict[str, ParallelStyle] = {
    "attention_norm": SequenceParallel(use_local_output=True),
    "attention": PrepareModuleInput(
        input_layouts=(Shard(POSITIONS), None, None, None), desired_input_layouts=(Replicate(), None, None, None)
    ),
    "attention.wq": ColwiseParallel(),
    "attention.wk": ColwiseParallel(),
    "attention.wv": ColwiseParallel(),
    "attention.wo": RowwiseParallel(output_layouts=Shard(POSITIONS)),
    "ffn_norm": SequenceParallel(use_local_output=True),
    "ffn": PrepareModuleInput(input_layouts=(Shard(POSITIONS),), desired_input_layouts=(Replicate(),)),
    "ffn.w1": ColwiseParallel(),
    "ffn.w3": ColwiseParallel(),
    "ffn.w2": RowwiseParallel(output_layouts=Shard(POSITIONS)),
}
"""Of every layer."""

EMBEDDING: dict[str, ParallelStyle] = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(POSITIONS))
}
"""Rows of the vocabulary; the head reads the same rows where it is tied."""

NORM: dict[str, ParallelStyle] = {"norm": SequenceParallel()}

HEAD: dict[str, ParallelStyle] = {"head": ColwiseParallel()}
"""Rows of the vocabulary, as the loss reads them."""
