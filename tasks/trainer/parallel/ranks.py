"""The ranks of a run: rank and device of this process, collectives, and compressed gradient sums.

Gradients are summed over microbatches in a binary tree over their numbers: root = even + odd, recursively. Rank r of a
world of size w computes the numbers r, r + w, .., which are a subtree if w is a power of two. So 1 and 2 ranks give
bit-identical results, and more ranks differ only by rounding (gloo and NCCL determine the order of their sums).

On slow networks, gradients can be sent compressed. The weights then depend on the number of ranks: with bf16 by
rounding, with PowerSGD by more.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

from tasks.trainer.config import Bf16Compression, PowerSgdCompression
from tasks.trainer.place import Timeouts

ATTEMPT = "SLUICE_ATTEMPT"
"""Number of the attempt; set for ranks on several nodes, whose rendezvous is the store of node 0's agent."""

DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of a run; a context manager that joins the process group."""

    rank: int
    world: int
    local_rank: int
    local_world: int = 1
    """Number of ranks on this node."""
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    """How long this rank waits for the others."""

    @classmethod
    def from_environment(cls, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> "Ranks":
        """Reads the variables of torchrun (RANK, WORLD_SIZE, ..); without them, this process is the only rank."""
        return cls(
            rank=int(os.environ.get("RANK", "0")),
            world=int(os.environ.get("WORLD_SIZE", "1")),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            timeouts=timeouts,
        )

    @property
    def nodes(self) -> int:
        """Number of nodes, which all have equally many ranks."""
        return self.world // self.local_world

    @property
    def node(self) -> int:
        """Index of this node."""
        return self.rank // self.local_world

    @property
    def device(self) -> torch.device:
        """The GPU of this rank if there is one, else the CPU."""
        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def __enter__(self) -> "Ranks":
        """Joins the process group."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world > 1:
            self._join("nccl" if self.device.type == "cuda" else "gloo")
        return self

    def join_alone(self) -> None:
        """Creates a process group of one rank, which DTensor needs, unless there is a group already."""
        if not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)

    def _join(self, backend: str) -> None:
        attempt, timeout = os.environ.get(ATTEMPT), timedelta(seconds=self.timeouts.start_s)
        if attempt is None:
            dist.init_process_group(backend, timeout=timeout)
            return
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        shared = TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)
        # Keys of the previous attempt refer to ranks that have ended.
        store = PrefixStore(f"attempt-{attempt}", shared)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=timeout)

    def __exit__(self, *exc: object) -> None:
        """Leaves the group, except after an error, when other ranks may not respond."""
        if dist.is_initialized() and exc[0] is None:
            dist.destroy_process_group()

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sums tensors over all ranks, in place on every rank."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def maximum(self, tensor: Tensor) -> None:
        """Replaces the values of a tensor by the largest over all ranks, in place on every rank."""
        if self.world > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def sum_and_collect(self, sums: Tensor, own: Sequence[Tensor | float]) -> tuple[list[float], list[list[float]]]:
        """Sums numbers over ranks and gathers others from each rank, in one collective and one read of the device.

        Args:
            sums: float64 [n], on the device of this rank.
            own: numbers of this rank that float64 represents exactly; tensors on that device, or floats.

        Returns:
            The sums, and for each number of `own` the numbers of all ranks, in rank order.
        """
        table = torch.zeros((len(own), self.world), dtype=torch.float64, device=sums.device)
        for row, number in zip(table, own, strict=True):
            row[self.rank] = number
        both = torch.cat((sums, table.flatten()))
        self.sum([both])
        values = both.tolist()
        first = len(values) - len(own) * self.world
        return values[:first], [values[at : at + self.world] for at in range(first, len(values), self.world)]

    def broadcast_text(self, text: str) -> str:
        """Returns the text of rank 0 on every rank."""
        if self.world == 1:
            return text
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(self.device)
        size = torch.tensor([len(data)], device=self.device)
        dist.broadcast(size, 0)
        if self.rank:
            data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(data, 0)
        return bytes(data.tolist()).decode()

    def copy(self, tensors: Iterable[Tensor]) -> None:
        """Broadcasts tensors from rank 0 to every rank, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def barrier(self) -> None:
        """Waits until every rank has called this."""
        if self.world > 1:
            dist.barrier()

    def end_start(self) -> None:
        """Sets the timeout of a step on all groups of this rank but those of checkpoints; call after the first step."""
        if self.world == 1:
            return
        for group in list(_world.pg_map):
            if group not in _checkpoint_groups:
                _set_pg_timeout(timedelta(seconds=self.timeouts.step_s), group)

    def checkpoint_group(self) -> dist.ProcessGroup:
        """Returns a new gloo group of all ranks, which wait in it for the slowest disk; all ranks must call this."""
        timeout = timedelta(seconds=self.timeouts.checkpoint_s)
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)
        _checkpoint_groups.add(group)
        return group


# Names of groups repeat in a process that trains more than once.
_checkpoint_groups: "WeakSet[dist.ProcessGroup]" = WeakSet()


def tree_sum(numbers: Sequence[int], compute: Callable[[int], Sequence[Tensor]]) -> Sequence[Tensor]:
    """Returns the sum of `compute(n)` over `numbers`, in the order of the tree described above.

    Args:
        numbers: at least one number.
        compute: returns tensors, which the next call may overwrite.
    """
    if len(numbers) == 1:
        return compute(numbers[0])
    even = [tensor.clone() for tensor in tree_sum(numbers[0::2], compute)]
    odd = tree_sum(numbers[1::2], compute)
    return [left.add_(right) for left, right in zip(even, odd, strict=True)]


class Bf16Sum:
    """Sums gradients in fp32, and sends them in bf16, which halves the traffic.

    Each rank receives one piece of all gradients, sums it in fp32, and sends the sum to all ranks. There are two
    roundings for any number of ranks; an all-reduce in bf16 would round at every addition.

    Args:
        group: the ranks; None: all.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group, self.world = group, dist.get_world_size(group)
        self.sent = 0
        """Bytes that this rank sent in the last sum, assuming ring collectives."""

    @torch.no_grad()
    def sum(self, gradients: Mapping[str, Tensor], taken: int) -> None:
        """Replaces gradients (fp32, of any shape) by their sums over ranks, bit-identical on all ranks.

        Args:
            gradients: by name; all ranks have the same names and shapes in the same order.
            taken: number of steps that the optimizer has taken.
        """
        flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
        length = flat.numel()
        flat = torch.nn.functional.pad(flat, (0, -length % self.world)).bfloat16()
        pieces = torch.empty_like(flat)
        dist.all_to_all_single(pieces, flat, group=self.group)
        summed = pieces.view(self.world, -1).float().sum(0).bfloat16()
        dist.all_gather_single(flat, summed, group=self.group)
        self.sent = 2 * summed.nbytes * (self.world - 1)
        _spread(flat[:length], gradients)


class PowerSgdSum:
    """Sums low-rank approximations of gradient matrices, with error feedback (Vogels et al. 2019, arXiv 1905.13727).

    A matrix [m, n] is sent as P [m, rank] and Q [n, rank], the result of one power iteration that starts from the Q of
    the last step. The approximation error is added to the gradient of the next step. Vectors, and matrices whose P and
    Q are no smaller, are sent uncompressed in fp32. Error and Q are not part of a checkpoint; they are reset on
    resume.

    Args:
        rank: columns of P and Q.
        group: the ranks; None: all.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup | None) -> None:
        self.rank, self.group, self.world = rank, group, dist.get_world_size(group)
        self.sent = 0
        """Bytes that this rank sent in the last sum, assuming ring collectives."""
        self.error: dict[str, Tensor] = {}
        """Approximation error of this rank's gradient in the last applied step, by name."""
        self.basis: dict[str, Tensor] = {}
        """Q of the last applied step, by name; equal on all ranks."""
        self._next: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        self._taken = 0

    @torch.no_grad()
    def sum(self, gradients: Mapping[str, Tensor], taken: int) -> None:
        """Replaces gradients (fp32) by their sums over ranks, approximated for matrices; bit-identical on all ranks.

        Args:
            gradients: by name; all ranks have the same names and shapes in the same order.
            taken: number of steps that the optimizer has taken. A refused step, such as one with an infinite gradient,
                leaves no error.
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
        uncompressed = {name: gradient for name, gradient in gradients.items() if name not in matrices}
        p = {name: matrix @ self._basis(name, matrix) for name, matrix in matrices.items()}
        self._all_reduce({f"whole.{name}": tensor for name, tensor in uncompressed.items()} | p)
        p = {name: torch.linalg.qr(tensor).Q for name, tensor in p.items()}
        q = {name: matrix.T @ p[name] for name, matrix in matrices.items()}
        self._all_reduce(q)
        for name, matrix in matrices.items():
            total = torch.mm(p[name], q[name].T, out=gradients[name])
            matrix.sub_(total, alpha=1 / self.world)
        self._next = matrices, q

    def _basis(self, name: str, matrix: Tensor) -> Tensor:
        """Returns Q [n, rank] of the last step, initially a random normal matrix that is equal on all ranks."""
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
    """Returns the compressed sum of gradients over a group of ranks (None: all)."""
    if isinstance(compression, PowerSgdCompression):
        return PowerSgdSum(compression.rank, group)
    return Bf16Sum(group)


def _spread(flat: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Copies consecutive parts of a vector into tensors."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors.values()])
    for tensor, part in zip(tensors.values(), parts, strict=True):
        tensor.copy_(part.view_as(tensor))
