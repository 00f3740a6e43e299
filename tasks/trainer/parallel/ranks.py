"""The ranks of one run: rank and device of this process, and the collectives between them.

The sum over microbatches is taken as a binary tree over their numbers: root = even + odd, and so on down. Rank r of a
world of size w computes the numbers r, r + w, ..: a subtree when w is a power of two. So 1 and 2 ranks give the same
bits, and more ranks differ by rounding only (gloo and NCCL choose the order of their own sums).
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]

ATTEMPT = "SLUICE_ATTEMPT"
"""Set for the ranks of several nodes: number of the attempt. Their rendezvous is the store of node 0's agent."""
TIMEOUT = timedelta(seconds=120)
"""A collective that takes longer counts as hung and ends the rank; the agent then restarts all of them."""


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of a run, from the environment torchrun sets."""

    rank: int
    world: int
    local_rank: int
    local_world: int = 1
    """Ranks of this node."""

    @classmethod
    def from_environment(cls) -> "Ranks":
        """Reads what torchrun sets: RANK, WORLD_SIZE, ..; without it this process is the only rank."""
        names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        return cls(*(int(os.environ.get(name, default)) for name, default in names.items()))

    @property
    def device(self) -> torch.device:
        """The GPU of this rank where there is one, else the CPU."""
        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def __enter__(self) -> "Ranks":
        """Joins the process group."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world > 1:
            self._join("nccl" if self.device.type == "cuda" else "gloo")
        return self

    def join_alone(self) -> None:
        """Makes a process group of one rank, which DTensor needs; with more ranks there is one."""
        if not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)

    def _join(self, backend: str) -> None:
        attempt = os.environ.get(ATTEMPT)
        if attempt is None:
            dist.init_process_group(backend, timeout=TIMEOUT)
            return
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        shared = TCPStore(address, port, is_master=False, timeout=TIMEOUT, wait_for_workers=False)
        # Keys of the previous attempt name ranks that have ended.
        store = PrefixStore(f"attempt-{attempt}", shared)
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.world, timeout=TIMEOUT)

    def __exit__(self, *exc: object) -> None:
        """Leaves the group; not after an error, when the other ranks may not respond any more."""
        if dist.is_initialized() and exc[0] is None:
            dist.destroy_process_group()

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Adds the tensors of all ranks, in place, on every rank."""
        if self.world > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def sum_and_collect(self, sums: Tensor, own: Sequence[Tensor]) -> tuple[list[float], list[list[float]]]:
        """Adds sums over ranks and collects some numbers of each rank, in one collective.

        Args:
            sums: float64 [n].
            own: numbers of this rank, scalars that float64 has exactly.

        Returns:
            The sums, and for each number of `own` those of all ranks in their order.
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
        """Copies the tensors of rank 0 to every rank, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def barrier(self) -> None:
        """Waits until every rank has called this."""
        if self.world > 1:
            dist.barrier()


def tree_sum(numbers: Sequence[int], compute: Callable[[int], Sequence[Tensor]]) -> Sequence[Tensor]:
    """Returns the sum of `compute(n)` over `numbers`, added as the tree described above.

    Args:
        numbers: at least one.
        compute: returns tensors that may be overwritten by the next call.
    """
    if len(numbers) == 1:
        return compute(numbers[0])
    even = [tensor.clone() for tensor in tree_sum(numbers[0::2], compute)]
    odd = tree_sum(numbers[1::2], compute)
    return [left.add_(right) for left, right in zip(even, odd, strict=True)]
