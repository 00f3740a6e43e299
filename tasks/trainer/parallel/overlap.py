"""Which communication runs beside computation, and why: gathered weights of FSDP, collectives of tensor parallelism.

FSDP gathers the weights of a module while the one before it computes, in the forward and in the backward pass. Without
this a GPU gathers ahead only as far as Python is ahead of it.

Tensor parallelism is asynchronous if the compiler divides a matrix product and the gather or sum next to it into pieces
that overlap ("async TP": Wang et al. 2023, "Overlap communication with dependent computation via decomposition"). The
pieces are exchanged through memory of the other GPUs, so the ranks that share a matrix are on one machine.
"""

import logging
import warnings
from functools import cache
from itertools import combinations, pairwise
from typing import NamedTuple, cast

import torch
from torch.distributed.fsdp import FSDPModule

from tasks.trainer.config import TrainConfig
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.parallel.compilation import Decision
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.place import Layout

log = logging.getLogger(__name__)


class Overlap(NamedTuple):
    """Whether weights are gathered one module ahead, and whether tensor parallelism is asynchronous."""

    weights: Decision
    tensor: Decision


def decide(
    layout: Layout, run: TrainConfig, compiled: Decision, device: torch.device, ranks_per_node: int, *, connected: bool
) -> Overlap:
    """Decides what overlaps.

    Args:
        layout: of the ranks.
        run: settings of the run.
        compiled: whether layers are compiled.
        device: of the model.
        ranks_per_node: number of ranks on each node.
        connected: whether the GPUs of the ranks that share a matrix can read each other's memory.
    """
    return Overlap(_weights(layout), _tensor(layout, run, compiled, device, ranks_per_node, connected=connected))


def _weights(layout: Layout) -> Decision:
    if layout.shard * layout.context == 1:
        return Decision(False, "each rank has them")
    return Decision(True, "they are sharded")


def _tensor(
    layout: Layout, run: TrainConfig, compiled: Decision, device: torch.device, ranks_per_node: int, *, connected: bool
) -> Decision:
    reasons = {
        "no matrix is split": layout.tensor == 1,
        "async_tensor = false in [place.train.layout]": not layout.async_tensor,
        "only GPUs share memory": device.type != "cuda",
        "layers are not compiled": not compiled.on,
        "an fp8 product needs the largest value of its whole input": run.precision == "fp8",
        "ranks that share a matrix are on several nodes": bool(ranks_per_node % layout.tensor),
        "the GPUs cannot read each other's memory": not connected,
    }
    for reason, applies in reasons.items():
        if applies:
            return Decision(False, reason)
    if run.microbatch == 1:
        return Decision(True, "sums only; with microbatch = 1 the compiler does not recognize the gathers")
    return Decision(True, "gathers and sums")


def overlap_of(mesh: Mesh, run: TrainConfig, compiled: Decision) -> Overlap:
    """Returns the decision for this rank, equal on all ranks that share a matrix, and logs it once."""
    found = decide(mesh.layout, run, compiled, mesh.device, mesh.ranks_per_node, connected=_connected(mesh))
    _report(found)
    return found


def _connected(mesh: Mesh) -> bool:
    """Whether all GPUs of the ranks that share a matrix with this one are on its node, and read each other's memory."""
    degree = mesh.layout.tensor
    if mesh.device.type != "cuda" or mesh.ranks_per_node % degree:
        return False
    assert mesh.device.index is not None
    first = mesh.device.index - mesh.device.index % degree
    pairs = combinations(range(first, first + degree), 2)
    return all(torch.cuda.can_device_access_peer(one, other) for one, other in pairs)


def gather_ahead(model: Transformer) -> None:
    """Makes FSDP gather the weights of each module of a sharded decoder before the one before it computes."""
    parts = (model.embedding, *model.layers.values(), model.head)
    modules = [cast(FSDPModule, part) for part in parts if isinstance(part, FSDPModule)]
    assert isinstance(model, FSDPModule)
    forward: list[FSDPModule] = [model, *modules]
    for this, following in pairwise(forward):
        this.set_modules_to_forward_prefetch([following])
    # After the first module comes the model, which is never sharded before the end of the pass. With no module there,
    # FSDP would gather the one that it computed before, which in a pipeline belongs to another microbatch.
    backward: list[FSDPModule] = [model, *reversed(modules), model]
    for this, following in pairwise(backward):
        this.set_modules_to_backward_prefetch([following])


def make_tensor_asynchronous(mesh: Mesh) -> None:
    """Makes the compiler overlap the collectives of tensor parallelism in the layers that it compiles from now on."""
    from torch._inductor import config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    config._micro_pipeline_tp = True
    with warnings.catch_warnings():
        # torch 2.13 says that the call is not needed, but its compiler overlaps only groups for which it was made.
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(mesh.tensor.get_group().group_name)


@cache
def _report(found: Overlap) -> None:
    """Logs a decision once, also if a rank has several chunks of the model."""
    log.info(
        "weights are %s ahead: %s; tensor parallelism is %s: %s",
        "gathered" if found.weights.on else "not gathered",
        found.weights.reason,
        "asynchronous" if found.tensor.on else "not asynchronous",
        found.tensor.reason,
    )
