"""Pipeline parallelism: chunks of layers on different ranks, and the schedule of microbatches.

The schedules are torch's: 1F1B (Narayanan et al. 2019, PipeDream) with one chunk per rank, and interleaved 1F1B
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2) with several.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.pipelining.stage import _PipelineStageBase

from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.model.attention import Bounds
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.parallel.fsdp import compute_dtype
from tasks.trainer.parallel.mesh import Mesh


class PipelineChunk(Transformer):
    """Consecutive layers of a decoder, as a stage of the pipeline."""

    def forward(  # type: ignore[override]
        self, x: Tensor, documents: Tensor, labels: Tensor, starts: Tensor, longest: int
    ) -> Tensor:
        """Returns the hidden state for the next chunk, or in the last one the summed loss, float32 [1].

        Args:
            x: as for `Transformer.loss`, like `documents` and `labels`.
            documents: see `x`.
            labels: see `x`.
            starts: those of `Bounds` with one more dimension, int32 [1, n + 1], because a schedule divides tensors
                along the first one.
            longest: that of `Bounds`.
        """
        bounds = Bounds(starts[0], longest)
        return self.hidden(x, documents, bounds) if self.norm is None else self.loss(x, documents, labels, bounds)[None]


class _Stage(PipelineStage):
    """A stage that after each microbatch shards what `zero` says; torch's keeps all weights and gradients whole."""

    zero = 3

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> tuple[tuple[Tensor | None, ...], list[dict[str, Any]] | None]:
        """Computes the gradients of a microbatch; see torch."""
        assert isinstance(self.submod, FSDPModule)
        self.submod.set_is_last_backward(False)
        self.submod.set_requires_gradient_sync(self.zero > 1)
        self.submod.set_requires_all_reduce(last_backward)
        self.submod.set_reshard_after_backward(self.zero > 2)
        inputs = stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"])
        return inputs, None


class Pipeline:
    """The pipeline schedule of this rank.

    Args:
        chunks: this rank's chunks, sharded.
        mesh: this rank's position in the layout.
        run: settings of the run.
        seq_len: positions of a training sequence.
    """

    def __init__(self, chunks: Sequence[Transformer], mesh: Mesh, run: TrainConfig, seq_len: int) -> None:
        degree, here = mesh.layout.pipeline, mesh.at("pipeline")
        self.mesh, self.is_last, self.is_first = mesh, here == degree - 1, here == 0
        self.chunks, self.degree = chunks, degree
        microbatches = run.batch_size // run.microbatch // mesh.layout.data_ranks
        # With the shapes given, ranks do not exchange them, which takes an additional step, chunk after chunk.
        positions = seq_len // mesh.layout.context
        tokens = torch.empty(run.microbatch, positions, dtype=torch.int64, device="meta")
        hidden = torch.empty(
            (run.microbatch, positions // mesh.layout.tensor, run.model.dim),
            dtype=compute_dtype(run),
            device="meta",
            requires_grad=True,
        )
        loss = torch.empty(1, device="meta", requires_grad=True)
        stages: list[_PipelineStageBase] = [
            _Stage(
                chunk,
                here + degree * index,
                degree * len(chunks),
                mesh.device,
                input_args=hidden if chunk.embedding is None else tokens,
                output_args=hidden if chunk.norm is None else loss,
                group=mesh.group("pipeline"),
            )
            for index, chunk in enumerate(chunks)
        ]
        for stage in stages:
            assert isinstance(stage, _Stage)
            stage.zero = mesh.layout.zero
        if mesh.layout.schedule == "interleaved":
            self.schedule: Schedule1F1B | ScheduleInterleaved1F1B = ScheduleInterleaved1F1B(
                stages, microbatches, loss_fn=_loss, scale_grads=False
            )
        else:
            self.schedule = Schedule1F1B(stages[0], microbatches, loss_fn=_loss, scale_grads=False)

    def backward(self, microbatches: Sequence[Batch]) -> Tensor:
        """Computes the gradients of the summed loss of all microbatches; returns it on the last rank, 0 on others.

        Args:
            microbatches: on the device, with tokens and labels at this rank's positions.
        """
        labels = torch.cat([part.labels for part in microbatches])
        tokens = torch.cat([part.tokens for part in microbatches])
        losses: list[Tensor] = []
        inputs = (tokens,) if self.is_first else ()
        self.schedule.step(
            *inputs,
            documents=torch.cat([part.documents for part in microbatches]),
            labels=labels,
            starts=_stacked_starts(microbatches),
            longest=max(part.bounds.longest for part in microbatches),
            target=labels if self.is_last else None,
            losses=losses if self.is_last else None,
        )
        return torch.stack([torch.zeros((), device=tokens.device), *(loss.detach() for loss in losses)]).sum()

    def loss(self, part: Batch, group: dist.ProcessGroup) -> float:
        """Returns the summed loss of sequences on the last rank, 0 on others; without gradients.

        The chunks compute one after the other, which is too slow for training. Unlike the schedule, this accepts any
        number of sequences.

        Args:
            part: on the device, with tokens and labels at this rank's positions.
            group: all ranks, over gloo.
        """
        x, last = part.tokens, self.degree * len(self.chunks) - 1
        starts, longest = part.bounds.starts, part.bounds.longest
        for index in range(last + 1):
            if index % self.degree != self.mesh.at("pipeline"):
                continue
            if index:
                received: list[Tensor] = [x]
                dist.recv_object_list(received, self._rank_of(index - 1), group)
                x = received[0].to(part.tokens.device)
            with torch.no_grad():
                x = self.chunks[index // self.degree](x, part.documents, part.labels, starts[None], longest)
            if index < last:
                dist.send_object_list([x.cpu()], self._rank_of(index + 1), group)
        return float(x) if self.is_last else 0.0

    def _rank_of(self, index: int) -> int:
        return dist.get_global_rank(self.mesh.group("pipeline"), index % self.degree)


def _stacked_starts(microbatches: Sequence[Batch]) -> Tensor:
    """Returns `Bounds.starts` of each microbatch, int32 [microbatches, n + 1], all padded to the largest n."""
    most = max(len(part.bounds.starts) for part in microbatches)
    return torch.stack(
        [
            F.pad(part.bounds.starts, (0, most - len(part.bounds.starts)), value=part.documents.numel())
            for part in microbatches
        ]
    )


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the output of the last chunk, which is the loss."""
    return output.sum()
