"""The ranks of a layout as a device mesh, with a process group per dimension."""

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
    """A rank's position in the layout."""

    layout: Layout
    device: torch.device
    dimensions: DeviceMesh
    """All five dimensions."""
    states: DeviceMesh
    """[replicate, pipeline, state, tensor]; the state is sharded over both `shard` and `context`."""
    experts: DeviceMesh | None
    """With expert parallelism: as `states`, whose state is divided into [expert_state, expert]."""
    ranks_per_node: int

    @classmethod
    def of(cls, layout: Layout, ranks: Ranks) -> "Mesh":
        """Creates the mesh; every rank of the world calls this."""
        sizes = (layout.replicate, layout.pipeline, layout.shard, layout.context, layout.tensor)
        merged = (layout.replicate, layout.pipeline, layout.shard * layout.context, layout.tensor)
        device, experts = ranks.device.type, None
        if layout.expert > 1:
            parts = (*merged[:2], merged[2] // layout.expert, layout.expert, layout.tensor)
            names = ("replicate", "pipeline", "expert_state", "expert", "tensor")
            experts = init_device_mesh(device, parts, mesh_dim_names=names)
        return cls(
            layout,
            ranks.device,
            init_device_mesh(device, sizes, mesh_dim_names=DIMENSIONS),
            init_device_mesh(device, merged, mesh_dim_names=("replicate", "pipeline", "state", "tensor")),
            experts,
            ranks.local_world,
        )

    @property
    def state(self) -> DeviceMesh:
        """The ranks of FSDP: [state], or with replicas [replicate, state] (HSDP)."""
        return self.states["replicate", "state"] if self.layout.replicate > 1 else self.states["state"]

    @property
    def tensor(self) -> DeviceMesh:
        """The ranks of tensor parallelism."""
        return self.states["tensor"]

    @property
    def data_rank(self) -> int:
        """Index of this rank's share of the microbatches, below `layout.data_ranks`."""
        return self.at("replicate") * self.layout.shard + self.at("shard")

    def at(self, dimension: str) -> int:
        """Returns the coordinate of this rank in a dimension."""
        return int(self.dimensions.get_local_rank(dimension))

    def ranks_along(self, *dimensions: str) -> list[list[int]]:
        """Returns groups of ranks that differ only in these dimensions; each rank is in one group."""
        grid = self.dimensions.mesh
        last = tuple(range(grid.ndim - len(dimensions), grid.ndim))
        grid = grid.movedim(tuple(DIMENSIONS.index(dimension) for dimension in dimensions), last)
        groups: list[list[int]] = grid.reshape(-1, math.prod(grid.shape[at] for at in last)).tolist()
        return groups

    def ranks_of_stage(self) -> list[int]:
        """Returns the ranks whose chunks of the model are those of this one, ascending."""
        dimensions = [dimension for dimension in DIMENSIONS if dimension != "pipeline"]
        return next(sorted(ranks) for ranks in self.ranks_along(*dimensions) if dist.get_rank() in ranks)

    def group(self, dimension: str) -> dist.ProcessGroup:
        """Returns the group of ranks that differ from this one only in a dimension."""
        return self.dimensions.get_group(dimension)
