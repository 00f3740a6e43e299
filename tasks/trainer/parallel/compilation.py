"""The attention kernel, whether layers and the loss are compiled, and which communication runs beside computation.

Each choice is logged with its reason.

Every layer is compiled on its own, with the same code, so one graph serves all of them and compilation takes as long
as that of one layer. Another graph computes the loss of some positions, whose logits are read and written several times
without a compiler. Collectives of FSDP are between the graphs, where they overlap with computation.

FSDP gathers the weights of a module while the one before it computes, in the forward and in the backward pass. Without
this a GPU gathers ahead only as far as Python is ahead of it.

Tensor parallelism is asynchronous if the compiler divides a matrix product and the gather or sum next to it into pieces
that overlap ("async TP": Wang et al. 2023, "Overlap communication with dependent computation via decomposition"). The
pieces are exchanged through memory of the other GPUs, so the ranks that share a matrix are on one machine.
"""

import importlib.util
import logging
import os
import shutil
import warnings
from collections.abc import Iterable
from functools import cache, partial
from itertools import combinations, pairwise
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from tasks.trainer.config import TrainConfig
from tasks.trainer.model.attention import Kernel, sdpa_mask
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.loss import LossOfRows, loss_of_rows
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.parallel.fit import compile_reasons
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.place import Layout

BACKEND = "inductor"
RECOMPILE_LIMIT = 64
"""Maximum number of graphs per layer. torch's default, 8, would end a run whose batches differ in their number of
sequences, in the capacity of their document bounds, and in whether gradients are needed."""
log = logging.getLogger(__name__)


def best_kernel(device: torch.device, dtype: torch.dtype, model: ModelConfig, context: int = 1) -> Kernel:
    """Chooses, activates and logs the kernel to train with.

    On a GPU this is never SDPA with a mask, which has no fast kernel there.

    Args:
        device: of the model.
        dtype: of queries, keys and values.
        model: whose scores can have a cap or sinks.
        context: ranks that share the positions of a sequence.
    """
    if device.type == "cpu":
        _log_once("attention by sdpa_mask: on a CPU")
        return sdpa_mask
    major, minor = torch.cuda.get_device_capability(device)
    reasons = {
        f"flash attention has no {str(dtype).removeprefix('torch.')}": dtype not in (torch.bfloat16, torch.float16),
        f"flash attention needs SM 8.0, and the GPU has {major}.{minor}": (major, minor) < (8, 0),
        f"{context} ranks share a sequence": context > 1,
        "flash attention of torch has no cap of scores": model.attention_cap > 0,
        "flash attention of torch has no gradient of sinks": model.attention_sinks,
    }
    # Imported here, because they import torch._dynamo, which takes a second or two that CPU runs do not need.
    if any(reasons.values()):
        from tasks.trainer.model.kernels import flex

        _log_once(f"attention by flex: {', '.join(reason for reason, applies in reasons.items() if applies)}")
        return flex
    from tasks.trainer.model.kernels import activate_flash, varlen

    _log_once(f"attention by varlen with {activate_flash(device)}: on SM {major}.{minor}")
    return varlen


@cache
def _log_once(choice: str) -> None:
    """Logs a choice once, also if a rank has several chunks of the model."""
    log.info("%s", choice)


class Decision(NamedTuple):
    """Whether something is done, and why."""

    on: bool
    reason: str


def decide(layout: Layout, device: torch.device) -> Decision:
    """Decides whether the layers are compiled.

    Args:
        layout: with `compile`; None there: on a GPU, if the compiler and what it calls are installed.
        device: of the model.
    """
    if layout.compile is not None:
        return Decision(layout.compile, f"compile = {str(layout.compile).lower()} in [place.train.layout]")
    if device.type != "cuda":
        return Decision(False, "on a CPU it takes longer than it saves")
    if reasons := compile_reasons(layout):
        return Decision(False, reasons[0])
    if importlib.util.find_spec("triton") is None:
        return Decision(False, "the package triton is missing: install torch with its dependencies")
    if not any(map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))):
        return Decision(False, "triton calls a C compiler, and there is none: install gcc, or set CC")
    return Decision(True, "on a GPU")


def compile_layers(layers: Iterable[nn.Module], layout: Layout, device: torch.device) -> Decision:
    """Compiles layers in place if `decide` says so; logs its decision, and returns it.

    A part that cannot be compiled is an error: it would divide the graph, and the layer would run slower without
    anyone noticing.
    """
    decision = decide(layout, device)
    _log_once(f"layers are {'compiled' if decision.on else 'not compiled'}: {decision.reason}")
    if not decision.on:
        return decision
    torch._dynamo.config.recompile_limit = max(RECOMPILE_LIMIT, torch._dynamo.config.recompile_limit)
    for layer in layers:
        layer.compile(backend=BACKEND, fullgraph=True)
    return decision


def loss_in(compiled: Decision, cap: float = 0.0) -> LossOfRows:
    """Returns the loss of some positions with capped logits, compiled if the layers are."""
    of_rows: LossOfRows = partial(loss_of_rows, cap=cap) if cap else loss_of_rows
    if not compiled.on:
        return of_rows
    loss: LossOfRows = torch.compile(of_rows, backend=BACKEND, fullgraph=True)
    return loss


class Overlap(NamedTuple):
    """Whether weights are gathered one module ahead, and whether tensor parallelism is asynchronous."""

    weights: Decision
    tensor: Decision


def decide_weights(layout: Layout) -> Decision:
    """Decides whether weights are gathered one module ahead."""
    if layout.shard * layout.context == 1:
        return Decision(False, "each rank has them")
    return Decision(True, "they are sharded")


def decide_tensor(
    layout: Layout, run: TrainConfig, compiled: Decision, device: torch.device, ranks_per_node: int, *, connected: bool
) -> Decision:
    """Decides whether tensor parallelism is asynchronous.

    Args:
        layout: of the ranks.
        run: settings of the run.
        compiled: whether layers are compiled.
        device: of the model.
        ranks_per_node: number of ranks on each node.
        connected: whether the GPUs of the ranks that share a matrix can read each other's memory.
    """
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
    weights, connected = decide_weights(mesh.layout), _connected(mesh)
    tensor = decide_tensor(mesh.layout, run, compiled, mesh.device, mesh.ranks_per_node, connected=connected)
    _log_once(
        f"weights are {'gathered' if weights.on else 'not gathered'} ahead: {weights.reason}; tensor parallelism is "
        f"{'asynchronous' if tensor.on else 'not asynchronous'}: {tensor.reason}"
    )
    return Overlap(weights, tensor)


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
