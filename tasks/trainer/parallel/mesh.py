"""The ranks of a layout as a mesh of processes.

Reads the process group of this process; makes a group per dimension.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tasks.trainer.parallel.layout import Layout
from tasks.trainer.ranks import Ranks

DIMENSIONS = ("pipeline", "replicate", "shard", "context", "tensor")


@dataclass(frozen=True)
class Mesh:
    """A rank's place in the layout."""

    layout: Layout
    device: torch.device
    whole: DeviceMesh
    state: DeviceMesh
    """Over which FSDP shards: [shard x context], or [replicate, shard x context] to shard within a replica (HSDP)."""

    @classmethod
    def of(cls, layout: Layout, ranks: Ranks) -> "Mesh":
        """Makes the mesh; every rank of the world calls this."""
        sizes = tuple(getattr(layout, name) for name in DIMENSIONS)
        whole = init_device_mesh(ranks.device.type, sizes, mesh_dim_names=DIMENSIONS)
        state = whole["shard", "context"]._flatten("state")
        if layout.replicate > 1:
            state = whole["replicate", "state"]
        return cls(layout, ranks.device, whole, state)

    @property
    def data_rank(self) -> int:
        """Which of `layout.data_ranks` shares of the microbatches this rank has."""
        return self.at("replicate") * self.layout.shard + self.at("shard")

    def at(self, dimension: str) -> int:
        """Returns the coordinate of this rank in a dimension."""
        return int(self.whole.get_local_rank(dimension))

    def group(self, dimension: str) -> dist.ProcessGroup:
        """Returns the ranks that differ from this one in a dimension alone."""
        return self.whole.get_group(dimension)
