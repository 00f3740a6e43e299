"""Context parallelism: the positions of a sequence shared by ranks, with the document mask.

Every rank computes the queries of its own positions against the keys and values of all, which are gathered in each
layer (as in Llama 3: arXiv 2407.21783, section 3.3.2). Of 2 x degree equal pieces of the sequence, rank r has r and
2 x degree - 1 - r, so that all ranks have the same number of causal pairs.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tasks.trainer.model.attention import Attend, Kernel


def rows_of(rank: int, degree: int, seq_len: int) -> Tensor:
    """Returns the positions of a rank, int64 [seq_len / degree], ascending within each of its two pieces."""
    pieces = torch.arange(seq_len).chunk(2 * degree)
    return torch.cat((pieces[rank], pieces[2 * degree - 1 - rank]))


class _Gather(torch.autograd.Function):
    """Gathers [batch, heads, positions, width] from all ranks along the positions, in the order of the sequence."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, order: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Returns [batch, heads, sequence, width]; `order`: where in the sequence each gathered position belongs."""
        ctx.order, ctx.group = order, group
        first = own.movedim(2, 0).contiguous()
        gathered = first.new_empty(len(order), *first.shape[1:])
        dist.all_gather_single(gathered, first, group=group)
        whole = torch.empty_like(gathered)
        whole[order] = gathered
        return whole.movedim(0, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Sums the gradients of all ranks, each for the rank that has the positions."""
        gathered = grads[0].movedim(2, 0)[ctx.order].contiguous()
        own = gathered.new_empty(len(ctx.order) // ctx.group.size(), *gathered.shape[1:])
        dist.reduce_scatter_single(own, gathered, group=ctx.group)
        return own.movedim(0, 2), None, None


def context_kernel(kernel: Kernel, group: dist.ProcessGroup, seq_len: int, device: torch.device) -> Kernel:
    """Returns `kernel` for ranks that share positions: keys and values are gathered before it.

    Args:
        kernel: computes attention for some queries and all keys.
        group: ranks that share a sequence, each with the queries of `rows_of`.
        seq_len: positions of the whole sequence.
        device: of the tensors.
    """
    order = torch.cat([rows_of(rank, group.size(), seq_len) for rank in range(group.size())]).to(device)

    def of_documents(documents: Tensor, rows: Tensor | None) -> Attend:
        attend = kernel(documents, rows)

        def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = _Gather.apply(k, order, group), _Gather.apply(v, order, group)  # type: ignore[no-untyped-call]
            return attend(q, k, v)

        return gathered

    return of_documents
