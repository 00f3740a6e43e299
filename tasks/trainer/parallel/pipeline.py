"""Pipeline parallelism: chunks of layers on different ranks, microbatches on their way through them.

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
    """Some layers of a decoder, as a stage of the pipeline."""

    def forward(self, x: Tensor, documents: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """Returns the hidden state for the next chunk, or in the last one the summed loss, float32 [1]."""
        return self.hidden(x, documents) if self.norm is None else self.loss(x, documents, labels)[None]


def chunks_of(layers: int, mesh: Mesh) -> list[range]:
    """Returns the layers of each chunk of this rank; chunk c of all is on pipeline rank c modulo the degree.

    Chunks differ by one layer at most; the later ones have less, since the head is at the end.
    """
    count = mesh.layout.pipeline * mesh.layout.chunks_per_rank
    sizes = [layers // count + (index < layers % count) for index in range(count)]
    starts = [sum(sizes[:index]) for index in range(count)]
    mine = range(mesh.at("pipeline"), count, mesh.layout.pipeline)
    return [range(starts[index], starts[index] + sizes[index]) for index in mine]


class Pipeline:
    """The schedule of this rank.

    Args:
        chunks: this rank's chunks, sharded.
        mesh: this rank's place in the layout.
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
        """Computes the gradients of the summed loss of all microbatches; returns that loss, 0 but on the last rank.

        Args:
            microbatches: tokens, labels and documents, as for `Transformer.loss`.
        """
        tokens, labels, documents = (torch.cat(tensors) for tensors in zip(*microbatches, strict=True))
        losses: list[Tensor] = []
        given = (tokens,) if self.is_first else ()
        self.schedule.step(
            *given,
            documents=documents,
            labels=labels,
            target=labels if self.is_last else None,
            losses=losses if self.is_last else None,
        )
        return torch.stack([torch.zeros((), device=tokens.device), *(loss.detach() for loss in losses)]).sum()

    def loss(self, tokens: Tensor, labels: Tensor, documents: Tensor, group: dist.ProcessGroup) -> float:
        """Returns the summed loss of some sequences, 0 but on the last rank; without a gradient.

        One chunk after the other computes while the rest wait: this is for a search, not for training. Other than with
        the schedule any number of sequences can be given.

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
                held: list[Tensor] = [x]
                dist.recv_object_list(held, self._rank_of(index - 1), group)
                x = held[0].to(tokens.device)
            with torch.no_grad():
                x = self.chunks[index // self.degree](x, documents, labels)
            if index < last:
                dist.send_object_list([x.cpu()], self._rank_of(index + 1), group)
        return float(x) if self.is_last else 0.0

    def _rank_of(self, index: int) -> int:
        return dist.get_global_rank(self.mesh.group("pipeline"), index % self.degree)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """The last chunk has computed the loss."""
    return output.sum()
