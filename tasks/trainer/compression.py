"""Sums of gradients over ranks that send fewer bytes than an all-reduce in fp32.

For networks that are slower than the step. Both change the result, and with it make the weights depend on the number
of ranks: bf16 by rounding, PowerSGD by more.
"""

import zlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from tasks.trainer.config import Bf16Compression, PowerSgdCompression


class Bf16Sum:
    """Sums in fp32 of gradients that are sent in bf16: half of the bytes.

    Every rank gets a piece of all gradients, adds it in fp32, and sends the sum back: two roundings in all, however
    many ranks there are. An all-reduce in bf16 would round at every addition.

    Args:
        group: the ranks; None: all.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group, self.world = group, dist.get_world_size(group)
        self.sent = 0
        """Bytes that this rank has sent in the last sum, if collectives go round a ring."""

    @torch.no_grad()
    def sum(self, gradients: Mapping[str, Tensor], taken: int) -> None:
        """Replaces gradients (fp32, of any shape) by their sums over ranks, which are the same bits on every rank.

        Args:
            gradients: by name; all ranks have the same names and shapes in the same order.
            taken: steps that the optimizer has taken.
        """
        flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
        length = flat.numel()
        flat = torch.nn.functional.pad(flat, (0, -length % self.world)).bfloat16()
        pieces = torch.empty_like(flat)
        dist.all_to_all_single(pieces, flat, group=self.group)
        mine = pieces.view(self.world, -1).float().sum(0).bfloat16()
        dist.all_gather_single(flat, mine, group=self.group)
        self.sent = 2 * mine.nbytes * (self.world - 1)
        _spread(flat[:length], gradients)


class PowerSgdSum:
    """Sums of low-rank approximations of matrices, with error feedback (Vogels et al. 2019, arXiv 1905.13727).

    A matrix [m, n] is sent as P [m, rank] and Q [n, rank], the result of one power iteration that starts at the last
    step's Q. What the approximation leaves out is added to the next step's gradient. Vectors, and matrices whose P and
    Q are no smaller, are sent whole in fp32. Error and Q are no part of a checkpoint: they begin anew.

    Args:
        rank: columns of P and Q.
        group: the ranks; None: all.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup | None) -> None:
        self.rank, self.group, self.world = rank, group, dist.get_world_size(group)
        self.sent = 0
        """Bytes that this rank has sent in the last sum, if collectives go round a ring."""
        self.error: dict[str, Tensor] = {}
        """What the last step that was taken has left out, of this rank's gradient, by name."""
        self.basis: dict[str, Tensor] = {}
        """Q of the last step that was taken, by name; the same on all ranks."""
        self._next: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        self._taken = 0

    @torch.no_grad()
    def sum(self, gradients: Mapping[str, Tensor], taken: int) -> None:
        """Replaces gradients (fp32) by their sums over ranks, of matrices approximated; the same bits on every rank.

        Args:
            gradients: by name; all ranks have the same names and shapes in the same order.
            taken: steps that the optimizer has taken. A step that it refused, as one with an infinite gradient, leaves
                no error behind.
        """
        if taken == self._taken + 1:
            self.error, self.basis = self._next
        elif taken != self._taken:  # another state was loaded
            self.error, self.basis = {}, {}
        self._taken, self.sent = taken, 0
        matrices = {
            name: gradient + self.error[name] if name in self.error else gradient.clone()
            for name, gradient in gradients.items()
            if gradient.ndim == 2 and sum(gradient.shape) * self.rank < gradient.numel()
        }
        whole = {name: gradient for name, gradient in gradients.items() if name not in matrices}
        left = {name: matrix @ self._basis(name, matrix) for name, matrix in matrices.items()}
        self._all_reduce({f"whole.{name}": tensor for name, tensor in whole.items()} | left)
        left = {name: torch.linalg.qr(tensor).Q for name, tensor in left.items()}
        right = {name: matrix.T @ left[name] for name, matrix in matrices.items()}
        self._all_reduce(right)
        for name, matrix in matrices.items():
            total = torch.mm(left[name], right[name].T, out=gradients[name])
            matrix.sub_(total, alpha=1 / self.world)
        self._next = matrices, right

    def _basis(self, name: str, matrix: Tensor) -> Tensor:
        """Returns Q of the last step [n, rank], at first a normal one that is the same on all ranks."""
        if name in self.basis:
            return self.basis[name]
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(matrix.shape[1], self.rank, generator=generator).to(matrix.device)

    def _all_reduce(self, tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors.values()])
        dist.all_reduce(flat, group=self.group)
        self.sent += 2 * flat.nbytes * (self.world - 1) // self.world
        _spread(flat, tensors)


def build_sum(
    compression: Bf16Compression | PowerSgdCompression, group: dist.ProcessGroup | None = None
) -> Bf16Sum | PowerSgdSum:
    """Returns what sums gradients over the ranks of a group; None: over all."""
    if isinstance(compression, PowerSgdCompression):
        return PowerSgdSum(compression.rank, group)
    return Bf16Sum(group)


def _spread(flat: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Copies consecutive parts of a vector into tensors."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors.values()])
    for tensor, part in zip(tensors.values(), parts, strict=True):
        tensor.copy_(part.view_as(tensor))
