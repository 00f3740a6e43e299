"""Attention by FlexAttention (He et al. 2024, arXiv 2412.05496): one kernel that skips blocks which the mask excludes.

On a GPU the kernel is compiled. On a CPU torch has its forward pass alone, uncompiled.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from tasks.trainer.model.attention import Attend, document_starts

BLOCK = 128
"""Queries and keys of a block: the unit in which work is skipped, and torch's own default."""


def flex(documents: Tensor, rows: Tensor | None = None) -> Attend:
    """A `Kernel`: causal attention within documents, of any float dtype."""
    mask = block_mask(documents, rows)
    attention = _compiled() if documents.is_cuda else flex_attention

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = attention(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        return out

    return attend


def block_mask(documents: Tensor, rows: Tensor | None = None) -> BlockMask:
    """Returns the mask, with its blocks by the bounds of what their queries see: no dense mask is made.

    A query at position p of a document that begins at s sees the keys s to p. So a block of keys has something to see
    for a block of queries if it ends at or after the least s and begins at or before the greatest p; and all of it is
    seen if it begins at or after the greatest s and ends at or before the least p. Where the positions of a block of
    queries have a gap, blocks in the gap are computed, too, and excluded key by key.

    Args:
        documents: int64 [batch, sequence].
        rows: int64 [queries], ascending within pieces; None: all.
    """
    keys = documents.shape[1]
    positions = torch.arange(keys, device=documents.device) if rows is None else rows
    starts = document_starts(documents)[:, positions]

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
    """Cuts [batch, queries] into [batch, blocks, BLOCK]; the last value fills up the last block."""
    count = values.shape[1]
    padded = torch.arange(-(-count // BLOCK) * BLOCK, device=values.device).clamp(max=count - 1)
    return values[:, padded].view(values.shape[0], -1, BLOCK)


def _ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns for bool [batch, query blocks, key blocks] how many are chosen, and all numbers, the chosen first."""
    order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None]


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)
