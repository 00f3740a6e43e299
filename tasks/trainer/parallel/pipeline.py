"""Pipeline parallelism: chunks of layers on different ranks, and the schedule of microbatches.

The schedules are torch's: 1F1B (Narayanan et al. 2019, PipeDream) with one chunk per rank, and interleaved 1F1B
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2) with several.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.stage import _PipelineStageBase

from tasks.trainer.model.transformer import Transformer
from tasks.trainer.parallel.mesh import Mesh


class PipelineChunk(Transformer):
    """Consecutive layers of a decoder, as a stage of the pipeline."""

    def forward(self, x: Tensor, documents: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """Returns the hidden state for the next chunk, or in the last one the summed loss, float32 [1]."""
        return self.hidden(x, documents) if self.norm is None else self.loss(x, documents, labels)[None]


def chunks_of(layers: int, mesh: Mesh) -> list[range]:
    """Returns the layers of each chunk of this rank; chunk c is on pipeline rank c modulo the degree.

    Chunk sizes differ by at most one layer; the later chunks are smaller, because the last one has the head.
    """
    count = mesh.layout.pipeline * mesh.layout.chunks_per_rank
    sizes = [layers // count + (index < layers % count) for index in range(count)]
    starts = [sum(sizes[:index]) for index in range(count)]
    own = range(mesh.at("pipeline"), count, mesh.layout.pipeline)
    return [range(starts[index], starts[index] + sizes[index]) for index in own]


class Pipeline:
    """The pipeline schedule of this rank.

    Args:
        chunks: this rank's chunks, sharded.
        mesh: this rank's position in the layout.
        microbatches: microbatches per step of a data-parallel rank.
    """

    def __init__(self, chunks: Sequence[Transformer], mesh: Mesh, microbatches: int) -> None:
        degree, here = mesh.layout.pipeline, mesh.at("pipeline")
        self.mesh, self.is_last, self.is_first = mesh, here == degree - 1, here == 0
        self.chunks, self.degree = chunks, degree
        stages: list[_PipelineStageBase] = [
            PipelineStage(chunk, here + degree * index, degree * len(chunks), mesh.device, group=mesh.group("pipeline"))
            for index, chunk in enumerate(chunks)
        ]
        if mesh.layout.schedule == "interleaved":
            self.schedule: Schedule1F1B | ScheduleInterleaved1F1B = ScheduleInterleaved1F1B(
                stages, microbatches, loss_fn=_loss, scale_grads=False
            )
        else:
            self.schedule = Schedule1F1B(stages[0], microbatches, loss_fn=_loss, scale_grads=False)

    def backward(self, microbatches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """Computes the gradients of the summed loss of all microbatches; returns it on the last rank, 0 on others.

        Args:
            microbatches: tokens, labels and documents, as for `Transformer.loss`.
        """
        tokens, labels, documents = (torch.cat(tensors) for tensors in zip(*microbatches, strict=True))
        losses: list[Tensor] = []
        inputs = (tokens,) if self.is_first else ()
        self.schedule.step(
            *inputs,
            documents=documents,
            labels=labels,
            target=labels if self.is_last else None,
            losses=losses if self.is_last else None,
        )
        return torch.stack([torch.zeros((), device=tokens.device), *(loss.detach() for loss in losses)]).sum()

    def loss(self, tokens: Tensor, labels: Tensor, documents: Tensor, group: dist.ProcessGroup) -> float:
        """Returns the summed loss of sequences on the last rank, 0 on others; without gradients.

        The chunks compute one after the other, which is too slow for training. Unlike the schedule, this accepts any
        number of sequences.

        Args:
            tokens: at this rank's positions, as for `Transformer.loss`.
            labels: likewise.
            documents: likewise.
            group: all ranks, over gloo.
        """
        x, last = tokens, self.degree * len(self.chunks) - 1
        for index in range(last + 1):
            if index % self.degree != self.mesh.at("pipeline"):
                continue
            if index:
                received: list[Tensor] = [x]
                dist.recv_object_list(received, self._rank_of(index - 1), group)
                x = received[0].to(tokens.device)
            with torch.no_grad():
                x = self.chunks[index // self.degree](x, documents, labels)
            if index < last:
                dist.send_object_list([x.cpu()], self._rank_of(index + 1), group)
        return float(x) if self.is_last else 0.0

    def _rank_of(self, index: int) -> int:
        return dist.get_global_rank(self.mesh.group("pipeline"), index % self.degree)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the output of the last chunk, which is the loss."""
    return output.sum()
