"""Variable-length flash attention over concatenated documents (Dao 2023, arXiv 2307.08691); GPUs only."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from tasks.core.errors import InputError
from tasks.trainer.model.attention import Attend, document_starts

MIN_DOCUMENTS = 16
"""Minimum capacity, in documents."""
_PARAMETERS = inspect.signature(varlen_attn).parameters
# Since torch 2.13 the window size sets causal attention, before that a flag; grouped queries must be enabled.
_OPTIONS: dict[str, Any] = {
    **({"window_size": (-1, 0)} if "window_size" in _PARAMETERS else {"is_causal": True}),
    **({"enable_gqa": True} if "enable_gqa" in _PARAMETERS else {}),
}


def varlen(documents: Tensor, rows: Tensor | None = None) -> Attend:
    """A `Kernel`: causal attention within documents, of bf16 or fp16, for all positions of the sequences.

    The document boundaries are computed here once per batch, outside of compiled code; this synchronizes with the GPU.

    Raises:
        InputError: `rows` is not None.
    """
    if rows is not None:
        raise InputError("the attention kernel `varlen` computes only whole sequences", "use `flex`")
    lengths = cu_seqlens(documents)
    longest = documents.shape[1]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Any = varlen_attn(_flat(q), _flat(k), _flat(v), lengths, lengths, longest, longest, **_OPTIONS)
        joined: Tensor = out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)
        return joined

    return attend


def cu_seqlens(documents: Tensor) -> Tensor:
    """Returns the start of each document in the concatenated sequences, padded with their total length.

    The shape is int32 [n + 1], with n a power of two of at least MIN_DOCUMENTS, so that shapes rarely change between
    batches and compiled functions are rarely recompiled. The padding represents empty documents.

    Args:
        documents: int64 [batch, sequence].
    """
    index = torch.arange(documents.shape[1], device=documents.device)
    begins = (document_starts(documents) == index).flatten().nonzero()[:, 0]
    capacity = max(MIN_DOCUMENTS, 1 << (len(begins) - 1).bit_length())
    ends = begins.new_full((capacity + 1 - len(begins),), documents.numel())
    return torch.cat((begins, ends)).to(torch.int32)


def _flat(x: Tensor) -> Tensor:
    """Flattens [batch, heads, sequence, head_dim] to [batch x sequence, heads, head_dim]."""
    return x.transpose(1, 2).flatten(0, 1)
