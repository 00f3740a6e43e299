"""Expert parallelism: the experts of a layer are divided over ranks, which exchange the rows of their tokens.

The ranks are `expert` consecutive ones of those that share the state (`shard` x `context`), each with other tokens.
Every rank has an equal part of the experts of each layer; FSDP shards it over the ranks that have the same part. Rows
go to the ranks of their experts and back in one all-to-all each (GShard, arXiv 2006.16668), with the sizes that the
router decides, so nothing is padded or dropped. Everything else of a layer is as without expert parallelism.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from tasks.trainer.model.experts import Experts, Matrices, Mixture, Permuted
from tasks.trainer.model.transformer import Transformer


def divide_experts(model: Transformer, mesh: DeviceMesh) -> list[Experts]:
    """Divides the experts of every layer over the ranks of a mesh, in place; returns them."""
    mixtures = [module for module in model.modules() if isinstance(module, Mixture)]
    for mixture in mixtures:
        for matrices in mixture.experts.children():
            assert isinstance(matrices, Matrices)
            for name, parameter in list(matrices.named_parameters()):
                part = distribute_tensor(parameter, mesh, [Shard(0)], src_data_rank=None)
                matrices.register_parameter(name, nn.Parameter(part))
        mixture.compute = Exchange(mixture.experts, mesh.get_group())
    return [mixture.experts for mixture in mixtures]


class Exchange:
    """A `Compute` of rows whose experts are on the ranks of a group, in equal parts in rank order."""

    def __init__(self, experts: Experts, group: dist.ProcessGroup) -> None:
        self._experts, self._group = experts, group

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Maps the rows of this rank; all ranks call this."""
        sent = counts.view(self._group.size(), -1)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self._group)
        there, here = rows_of_ranks(sent, received)
        arrived = _AllToAll.apply(rows, there, here, self._group)  # type: ignore[no-untyped-call]
        # They arrive by rank, and within a rank by expert.
        expert = torch.arange(received.shape[1], device=counts.device).repeat(len(received))
        order = expert.repeat_interleave(received.flatten(), output_size=sum(here)).argsort(stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        computed = self._experts(Permuted.apply(arrived, order, inverse), received.sum(dim=0))  # type: ignore[no-untyped-call]
        by_rank = Permuted.apply(computed, inverse, order)  # type: ignore[no-untyped-call]
        back: Tensor = _AllToAll.apply(by_rank, here, there, self._group)  # type: ignore[no-untyped-call]
        return back


def rows_of_ranks(sent: Tensor, received: Tensor) -> tuple[list[int], list[int]]:
    """Returns the numbers of rows to and from each rank, of counts [ranks, experts]; waits for the device once."""
    there, here = torch.stack((sent.sum(dim=1), received.sum(dim=1))).tolist()
    return there, here


class _AllToAll(torch.autograd.Function):
    """Sends consecutive rows of [rows, width] to each rank, and returns those of all ranks in rank order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grads[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _exchanged(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    found = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found
