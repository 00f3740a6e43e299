"""Attention over packed documents: causal, and masked at document boundaries.

A kernel takes the documents of a batch and returns the attention function that every layer calls. Everything that
depends only on the documents is computed once per batch.

| kernel | devices | dtypes | queries of a rank |
|---|---|---|---|
| `sdpa_mask` | CPU | all | some or all |
| `flex` | GPU; CPU forward | all | some or all |
| `varlen` | GPU from SM 8.0 | bf16, fp16 | all |
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps queries [batch, heads, queries, head_dim], keys and values [batch, kv_heads, keys, head_dim] to
[batch, heads, queries, head_dim]."""
Kernel = Callable[[Tensor, Tensor | None], Attend]
"""Maps documents, int64 [batch, sequence], equal within a document and different between neighbors, to an Attend; the
second argument is int64 [queries], the positions of the queries if a rank has only some of them, else None."""
_FLASH = {"FA4": (9, 10), "FA3": (9,)}
"""Flash attention packages that torch can use, newest first, and the SM major versions that they support."""


def best_kernel(device: torch.device, dtype: torch.dtype, context: int = 1) -> Kernel:
    """Returns the kernel to train with. On a GPU this is never SDPA with a mask, which has no fast kernel there.

    Args:
        device: of the model.
        dtype: of queries, keys and values.
        context: ranks that share the positions of a sequence.
    """
    if device.type == "cpu":
        return sdpa_mask
    # Imported here, because they import torch._dynamo, which takes a second or two that CPU runs do not need.
    flash = dtype in (torch.bfloat16, torch.float16) and torch.cuda.get_device_capability(device) >= (8, 0)
    if flash and context == 1:
        from tasks.trainer.model.varlen import varlen

        return varlen
    from tasks.trainer.model.flex import flex

    return flex


def sdpa_mask(documents: Tensor, rows: Tensor | None = None) -> Attend:
    """A `Kernel`: SDPA with a boolean mask; the reference for the others, and the only one that trains on a CPU."""
    mask = document_mask(documents, rows)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Repeated explicitly, because SDPA's grouped mode has no fused CPU kernel.
        share = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return attend


def activate_flash(device: torch.device) -> str:
    """Activates the newest flash attention implementation that the GPU and the installed packages support.

    Returns:
        "FA4" (package flash-attn-4), "FA3" (flash-attn-3), or "FA2", which is built into torch.
    """
    major, _ = torch.cuda.get_device_capability(device)
    for name, majors in _FLASH.items():
        if major in majors and name in attention.list_flash_attention_impls():
            try:
                attention.activate_flash_attention_impl(name)
            except ImportError:
                continue
            return name
    return "FA2"


def document_starts(documents: Tensor) -> Tensor:
    """Returns int64 [batch, sequence]: the position of the first token of each token's document."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return torch.where(begins, index, 0).cummax(dim=1).values


def document_positions(documents: Tensor) -> Tensor:
    """Returns int64 [batch, sequence]: the position of each token within its document."""
    return torch.arange(documents.shape[1], device=documents.device) - document_starts(documents)


def document_mask(documents: Tensor, rows: Tensor | None = None) -> Tensor:
    """Returns bool [batch, 1, queries, sequence]: a query attends to the keys of its document up to its own position.

    Args:
        documents: int64 [batch, sequence], equal within a document.
        rows: int64 [queries], positions of the queries; None: all.
    """
    positions = torch.arange(documents.shape[1], device=documents.device)
    rows = positions if rows is None else rows
    causal = rows[:, None] >= positions
    return (documents[:, None, rows, None] == documents[:, None, None, :]) & causal
