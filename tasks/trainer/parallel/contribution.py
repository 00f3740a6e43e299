"""Contribution: a fingerprint of what a rank adds to gradients that are summed over ranks.

FSDP has a rank's own gradient nowhere but in the buffers that it sums, one per layer and reduction.
"""

from collections.abc import Sequence

import torch
from torch import SymInt, Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.self_test import BITS, hash_of

GPU_TOLERANCE = 0.01
"""Relative difference of two norms of one gradient on a GPU, whose kernels add in no fixed order."""


class Contribution(DefaultReduceScatter):
    """The sum over ranks of some layers' gradients, which reads what this rank adds.

    On a CPU, where a gradient has the same bits when it is computed again, the fingerprint is a hash of them. On a GPU
    it is the Euclidean norm.

    Args:
        device: of the gradients.
    """

    def __init__(self, device: torch.device) -> None:
        self.tolerance = 0.0 if device.type == "cpu" else GPU_TOLERANCE
        self._total = torch.zeros((), dtype=torch.float64 if self.tolerance else torch.int64, device=device)
        self._filling: Tensor | None = None

    def allocate(self, size: Sequence[int | SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns memory for what is added, and with the next call for the sum: then the first is filled, and read."""
        memory: Tensor = super().allocate(size, dtype=dtype, device=device)
        if self._filling is None:
            self._filling = memory
            return memory
        if self.tolerance:
            self._total += torch.linalg.vector_norm(self._filling).double().square()
        else:
            self._total += hash_of([self._filling])
        self._filling = None
        return memory

    def take(self) -> float:
        """Returns the fingerprint of all that was added since the last call."""
        total = float(self._total.sqrt() if self.tolerance else self._total.bitwise_and(2**BITS - 1))
        self._total.zero_()
        return total


def contribution_of(chunks: Sequence[torch.nn.Module], mesh: Mesh) -> Contribution:
    """Returns what reads the gradients of all FSDP modules of this rank from now on."""
    made = Contribution(mesh.device)
    for chunk in chunks:
        for module in chunk.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_reduce_scatter(made)
    return made
