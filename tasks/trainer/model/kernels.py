"""The attention kernels of GPUs (`attention` chooses between them and the reference).

`varlen`: variable-length flash attention over concatenated documents (Dao 2023, arXiv 2307.08691); GPUs only.
`flex`: FlexAttention (He et al. 2024, arXiv 2412.05496), which skips masked blocks; on a GPU it is compiled, and on a
CPU torch has only an uncompiled forward pass.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import attention
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from torch.nn.attention.varlen import varlen_attn

from tasks.core.errors import InputError
from tasks.trainer.model.attention import PLAIN, Attend, Bounds, Scores, document_starts, soft_capped

_FLASH = {"FA4": (9, 10), "FA3": (9,)}
"""Flash attention packages that torch can use, newest first, and the SM major versions that they support."""
_CAUSAL = (-1, 0)
"""Window of causal attention: all earlier positions, and none later."""


def varlen(
    documents: Tensor, rows: Tensor | None = None, bounds: Bounds | None = None, scores: Scores = PLAIN
) -> Attend:
    """A `Kernel`: causal attention within documents, of bf16 or fp16, for all positions of the sequences.

    Without `bounds` they are computed here, which waits for the GPU; batches of a training have them.

    Raises:
        InputError: `rows` is not None, or scores have a cap; its result, if a layer has sinks.
    """
    if scores.cap:
        raise InputError("the attention kernel `varlen` has no cap of scores", "use `flex`")
    if rows is not None:
        raise InputError("the attention kernel `varlen` computes only whole sequences", "use `flex`")
    if bounds is None:
        bounds = Bounds.of(documents.cpu().numpy())
    starts, longest = bounds.starts.to(documents.device), bounds.longest
    window = (scores.window - 1, 0) if scores.window else _CAUSAL

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        if sinks is not None:
            raise InputError("the attention kernel `varlen` has no sinks", "use `flex`")
        flat = _flat(q), _flat(k), _flat(v), starts, starts, longest, longest
        out: Any = varlen_attn(*flat, window_size=window, enable_gqa=True, scale=scores.scale)
        joined: Tensor = out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)
        return joined

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


def _flat(x: Tensor) -> Tensor:
    """Flattens [batch, heads, sequence, head_dim] to [batch x sequence, heads, head_dim]."""
    return x.transpose(1, 2).flatten(0, 1)


BLOCK = 128
"""Queries and keys per block, the unit in which work is skipped; torch's default."""


def flex(documents: Tensor, rows: Tensor | None = None, bounds: Bounds | None = None, scores: Scores = PLAIN) -> Attend:
    """A `Kernel`: causal attention within documents, of any float dtype."""
    mask = block_mask(documents, rows, scores.window)
    attention = _compiled() if documents.is_cuda else flex_attention
    cap = _capped(scores.cap) if scores.cap else None

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        settings = {"score_mod": cap, "block_mask": mask, "scale": scores.scale, "enable_gqa": q.shape[1] != k.shape[1]}
        if sinks is None:
            out: Tensor = attention(q, k, v, **settings)
            return out
        out, aux = attention(q, k, v, **settings, return_aux=AuxRequest(lse=True))
        return out * torch.sigmoid(aux.lse - sinks.float()[:, None])[..., None].to(out.dtype)

    return attend


@cache
def _capped(cap: float) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Returns a `score_mod` of FlexAttention; the same one for the same cap, so that nothing is compiled again."""

    def modified(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return soft_capped(score, cap)

    return modified


def block_mask(documents: Tensor, rows: Tensor | None = None, window: int = 0) -> BlockMask:
    """Returns the block mask, computed from the bounds of each block without a dense mask.

    A query at position p of a document that begins at s attends to the keys s to p, where s is not below the begin of
    its window. So a block of keys is needed by a
    block of queries if it ends at or after the smallest s and begins at or before the largest p. It is needed in full
    if it begins at or after the largest s and ends at or before the smallest p. If the positions of a block of queries
    have a gap, the key blocks in the gap are computed as well, and masked key by key.

    Args:
        documents: int64 [batch, sequence].
        rows: int64 [queries], ascending within pieces; None: all.
        window: keys up to its own that a query attends to; 0: all.
    """
    keys = documents.shape[1]
    positions = torch.arange(keys, device=documents.device) if rows is None else rows
    starts = document_starts(documents)[:, positions]
    if window:
        starts = torch.maximum(starts, positions - window + 1)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= positions[query]) & (key >= starts[batch, query])

    first, last = _by_block(starts), _by_block(positions[None])
    begin = torch.arange(0, keys, BLOCK, device=documents.device)
    end = begin + BLOCK - 1
    some = (end >= first.amin(-1)[..., None]) & (begin <= last.amax(-1)[..., None])
    whole = torch.arange(first.shape[1], device=documents.device) < len(positions) // BLOCK
    full = (begin >= first.amax(-1)[..., None]) & (end <= last.amin(-1)[..., None]) & whole[:, None]
    return BlockMask.from_kv_blocks(
        *_ordered(some & ~full),
        *_ordered(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(len(positions), keys),
    )


def _by_block(values: Tensor) -> Tensor:
    """Splits [batch, queries] into [batch, blocks, BLOCK]; the last block is padded with the last value."""
    count = values.shape[1]
    padded = torch.arange(-(-count // BLOCK) * BLOCK, device=values.device).clamp(max=count - 1)
    return values[:, padded].view(values.shape[0], -1, BLOCK)


def _ordered(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the number of true key blocks in bool [batch, query blocks, key blocks], and all indices, true first.

    The shapes are int32 [batch, 1, query blocks] and int32 [batch, 1, query blocks, key blocks].
    """
    order = mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return mask.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None]


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)
