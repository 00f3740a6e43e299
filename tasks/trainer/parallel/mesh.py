"""The ranks of a layout as a mesh of processes.

Reads the process group of this process; makes a group per dimension.
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout

DIMENSIONS = ("replicate", "pipeline", "shard", "context", "tensor")


@dataclass(frozen=True)
class Mesh:
    """A rank's place in the layout."""

    layout: Layout
    device: torch.device
    dimensions: DeviceMesh
    """All five dimensions."""
    states: DeviceMesh
    """[replicate, pipeline, state, tensor]: those who share a sequence share the state as those of `shard` do."""

    @classmethod
    def of(cls, layout: Layout, ranks: Ranks) -> "Mesh":
        """Makes the mesh; every rank of the world calls this."""
        sizes = (layout.replicate, layout.pipeline, layout.shard, layout.context, layout.tensor)
        merged = (layout.replicate, layout.pipeline, layout.shard * layout.context, layout.tensor)
        device = ranks.device.type
        return cls(
            layout,
            ranks.device,
            init_device_mesh(device, sizes, mesh_dim_names=DIMENSIONS),
            init_device_mesh(device, merged, mesh_dim_names=("replicate", "pipeline", "state", "tensor")),
        )

    @property
    def state(self) -> DeviceMesh:
        """The ranks over which FSDP shards, [state], or with replicas [replicate, state] (HSDP)."""
        return self.states["replicate", "state"] if self.layout.replicate > 1 else self.states["state"]

    @property
    def tensor(self) -> DeviceMesh:
        """The ranks that share every matrix."""
        return self.states["tensor"]

    @property
    def data_rank(self) -> int:
        """Which of `layout.data_ranks` shares of the microbatches this rank has."""
        return self.at("replicate") * self.layout.shard + self.at("shard")

    def at(self, dimension: str) -> int:
        """Returns the coordinate of this rank in a dimension."""
        return int(self.dimensions.get_local_rank(dimension))

    def ranks_along(self, *dimensions: str) -> list[list[int]]:
        """Returns the ranks that differ in these dimensions alone, group by group; each rank is in one group."""
        grid = self.dimensions.mesh
        last = tuple(range(grid.ndim - len(dimensions), grid.ndim))
        grid = grid.movedim(tuple(DIMENSIONS.index(one) for one in dimensions), last)
        found: list[list[int]] = grid.reshape(-1, math.prod(grid.shape[at] for at in last)).tolist()
        return found

    def group(self, dimension: str) -> dist.ProcessGroup:
        """Returns the ranks that differ from this one in a dimension alone."""
        return self.dimensions.get_group(dimension)
