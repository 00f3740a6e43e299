"""Attention by flash kernels over documents laid end to end (Dao 2023, arXiv 2307.08691), on GPUs alone."""

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from tasks.core.errors import InputError
from tasks.trainer.model.attention import Attend, document_starts

FEWEST = 16
"""Least number of documents for which there is room."""
_PARAMETERS = inspect.signature(varlen_attn).parameters
# Since torch 2.13 the window says "causal", before it a flag; and fewer heads of keys than of queries are announced.
_OPTIONS: dict[str, Any] = {
    **({"window_size": (-1, 0)} if "window_size" in _PARAMETERS else {"is_causal": True}),
    **({"enable_gqa": True} if "enable_gqa" in _PARAMETERS else {}),
}


def varlen(documents: Tensor, rows: Tensor | None = None) -> Attend:
    """A `Kernel`: causal attention within documents, of bf16 or fp16, for all positions of the sequences.

    Where the documents begin is read here once per batch, outside of what is compiled; the host waits for it.

    Raises:
        InputError: `rows` are given.
    """
    if rows is not None:
        raise InputError("the attention kernel `varlen` computes whole sequences alone", "use `flex`")
    lengths = cu_seqlens(documents)
    longest = documents.shape[1]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Any = varlen_attn(_flat(q), _flat(k), _flat(v), lengths, lengths, longest, longest, **_OPTIONS)
        joined: Tensor = out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)
        return joined

    return attend


def cu_seqlens(documents: Tensor) -> Tensor:
    """Returns where each document begins in the sequences laid end to end, then their length until the end.

    int32 [n + 1] with n a power of two of at least FEWEST, so that batches with other documents rarely have another
    shape: a function compiled for one is compiled again for a few at most. Documents of no tokens fill it up.

    Args:
        documents: int64 [batch, sequence].
    """
    index = torch.arange(documents.shape[1], device=documents.device)
    begins = (document_starts(documents) == index).flatten().nonzero()[:, 0]
    room = max(FEWEST, 1 << (len(begins) - 1).bit_length())
    ends = begins.new_full((room + 1 - len(begins),), documents.numel())
    return torch.cat((begins, ends)).to(torch.int32)


def _flat(x: Tensor) -> Tensor:
    """Lays [batch, heads, sequence, head_dim] end to end: [batch x sequence, heads, head_dim]."""
    return x.transpose(1, 2).flatten(0, 1)
