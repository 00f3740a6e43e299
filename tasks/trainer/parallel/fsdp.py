"""Fully sharded data parallelism: which module has which part, when ranks sum, and what a rank contributes.

FSDP is torch's. It is also applied at degree 1, as in OLMo-core and torchtitan, so that mixed precision has a single
code path. There it has no collective, and no pass over weights or gradients but casts and the sum over microbatches.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import SymInt, Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.model.experts import Experts
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.replica import BITS, GPU_TOLERANCE, hash_of


def compute_dtype(run: TrainConfig) -> torch.dtype | None:
    """Returns the dtype of the forward and backward pass if it is not that of the weights, else None."""
    return None if run.precision == "fp32" else torch.bfloat16


def shard(model: Transformer, divided: Sequence[Experts], mesh: Mesh, run: TrainConfig) -> None:
    """Shards the parameters of a model in place, and thereby gradients and optimizer state.

    Args:
        model: a decoder, or a chunk of it.
        divided: its experts, if ranks have different ones.
        mesh: this rank's position in the layout.
        run: settings of the run.
    """
    layout = mesh.layout
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype(run), reduce_dtype=torch.float32, cast_forward_inputs=False)
    # With compression, gradients are summed over replicas after the last microbatch, and not by FSDP.
    over = mesh.states["state"] if run.compression else mesh.state
    # A tied head uses the embedding again, so the two are gathered with the model as a whole.
    candidates: tuple[nn.Module | None, ...] = () if model.config.tie_embeddings else (model.embedding, model.head)
    ends = [part for part in candidates if part is not None]
    for part in (*divided, *ends, *model.layers.values(), model):
        ranks = _same_experts(mesh, run) if part in divided else over
        fully_shard(part, mesh=ranks, mp_policy=policy, reshard_after_forward=layout.zero == 3)
        assert isinstance(part, FSDPModule)
        if ranks.size() > 1:  # else there is no mean, and FSDP would divide by 1, in a pass of its own
            part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        # The backward pass of the embedding reads tokens; that of the head, gradients that the loss has computed.
        part.set_unshard_in_backward(part not in ends)
    if layout.pipeline == 1:  # else `forward` calls it
        register_fsdp_forward_method(model, "loss")
    if model.head is not None:
        _gather_for_loss(model, model.head)


def _same_experts(mesh: Mesh, run: TrainConfig) -> DeviceMesh:
    """Returns the ranks of FSDP that have the same part of the experts; see `Mesh.state`."""
    assert mesh.experts is not None
    is_replicated = mesh.layout.replicate > 1 and not run.compression
    return mesh.experts["replicate", "expert_state"] if is_replicated else mesh.experts["expert_state"]


def _gather_for_loss(model: Transformer, head: nn.Module) -> None:
    """Makes the loss a method of the head, whose matrix FSDP gathers before it."""
    loss = model.head_loss

    def of_head(hidden: Tensor, labels: Tensor, tokens: int) -> Tensor:
        return loss(hidden, cast(Tensor, head.weight), labels, tokens)

    cast(Any, head).loss = of_head
    register_fsdp_forward_method(head, "loss")
    model.head_loss = partial(_loss_of_head, head)


def _loss_of_head(head: nn.Module, hidden: Tensor, weight: Tensor, labels: Tensor, tokens: int) -> Tensor:
    return cast(Tensor, cast(Any, head).loss(hidden, labels, tokens))


def accumulate(model: Transformer, microbatches: Sequence[Batch], zero: int) -> Tensor:
    """Adds the gradients of microbatches to those of a model without a pipeline; returns their loss, float64 scalar."""
    assert isinstance(model, FSDPModule)
    total = torch.zeros((), dtype=torch.float64, device=microbatches[0].tokens.device)
    for index, part in enumerate(microbatches, start=1):
        last = index == len(microbatches)
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last or zero > 1)
        model.set_requires_all_reduce(last)  # replicas sum once a step; until then a rank sums its own shards
        model.set_reshard_after_backward(last or zero > 2)
        loss = model.loss(part.tokens, part.documents, part.labels, part.bounds)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


class FingerprintReduceScatter(DefaultReduceScatter):
    """A reduce-scatter for FSDP that can compute a fingerprint of this rank's contribution to the gradient.

    With FSDP, the gradient of a single rank exists only in the input buffers of the reduce-scatter.

    On a CPU, where recomputed gradients are bit-identical, the fingerprint is a hash. On a GPU it is the Euclidean
    norm.

    Args:
        device: of the gradients.
        alone: whether there is nothing to sum, since the rank has no other to share its state with. Then FSDP copies
            the input to the output, and both are the same memory.
    """

    def __init__(self, device: torch.device, *, alone: bool) -> None:
        self.tolerance, self.alone = 0.0 if device.type == "cpu" else GPU_TOLERANCE, alone
        self._total = torch.zeros((), dtype=torch.float64 if self.tolerance else torch.int64, device=device)
        self._filling: Tensor | None = None
        self._on = False

    def start(self, on: bool) -> None:
        """Begins a gradient, with or without a fingerprint."""
        self._on = on
        self._total.zero_()

    def allocate(self, size: Sequence[int | SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns the input buffer, or on the next call the output buffer, and then reads the complete input."""
        if self._filling is None:
            self._filling = super().allocate(size, dtype=dtype, device=device)
            return self._filling
        filled, self._filling = self._filling, None
        if self._on and self.tolerance:
            self._total += torch.linalg.vector_norm(filled).double().square()
        elif self._on:
            self._total += hash_of([filled])
        if not self.alone:
            output: Tensor = super().allocate(size, dtype=dtype, device=device)
            return output
        if filled.is_cuda:
            filled.record_stream(torch.cuda.current_stream())  # FSDP allocates an output in the stream that reads it
        return filled

    def total(self) -> Tensor:
        """Returns the fingerprint of all inputs since `start`, a scalar that float64 represents exactly."""
        return self._total.sqrt() if self.tolerance else self._total.bitwise_and(2**BITS - 1)


def install_fingerprint(chunks: Sequence[torch.nn.Module], mesh: Mesh) -> FingerprintReduceScatter:
    """Installs one fingerprinting reduce-scatter in all FSDP modules of this rank, and returns it."""
    reduce_scatter = FingerprintReduceScatter(mesh.device, alone=mesh.state.size() == 1)
    for chunk in chunks:
        for module in chunk.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_reduce_scatter(reduce_scatter)
    return reduce_scatter
