"""A model whose parameters, gradients and optimizer state are sharded over ranks.

Gradients are those of one rank up to rounding: sums over ranks are taken by the collectives, in their order.
"""

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tasks.trainer.batches import Batch
from tasks.trainer.config import TrainConfig
from tasks.trainer.loss import IGNORED
from tasks.trainer.model import initial_weight
from tasks.trainer.optim import AdamW
from tasks.trainer.parallel.apply import apply
from tasks.trainer.parallel.layout import Layout, check_fit
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.pipeline import Chunk, Pipeline, chunks_of
from tasks.trainer.ranks import Ranks


class Sharded:
    """The part of a run's model that this rank has.

    Args:
        run: settings of the run.
        layout: how ranks share the work.
        vocab_size: tokens of the vocabulary.
        seq_len: positions of a training sequence.
        ranks: the process group, already connected.

    Raises:
        RecipeError: the run cannot be trained in this layout.
    """

    def __init__(self, run: TrainConfig, layout: Layout, vocab_size: int, seq_len: int, ranks: Ranks) -> None:
        check_fit(layout, run, vocab_size, seq_len, ranks.world)
        self.run, self.layout, self.mesh = run, layout, Mesh.of(layout, ranks)
        self.numbers = range(run.batch_size // run.microbatch)[self.mesh.data_rank :: layout.data_ranks]
        with torch.device("meta"):
            self.chunks = [Chunk(run.model, vocab_size, layers) for layers in chunks_of(run.model.layers, self.mesh)]
        for chunk in self.chunks:
            apply(chunk, self.mesh, run, seq_len)
            chunk.to_empty(device=self.mesh.device)
        self.parameters: dict[str, DTensor] = {
            name: parameter for chunk in self.chunks for name, parameter in chunk.named_parameters()
        }
        self._initialise(run)
        self.optimizer = AdamW(self.parameters, run.optim)
        self.pipeline = Pipeline(self.chunks, self.mesh, len(self.numbers)) if layout.pipeline > 1 else None

    def _initialise(self, run: TrainConfig) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                whole = initial_weight(run.model, name, parameter.shape, run.init_seed).to(self.mesh.device)
                mine = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
                parameter.to_local().copy_(mine.to_local())

    def gradient(self, parts: Mapping[int, Batch], stop: bool) -> tuple[float, int, bool]:
        """Computes the mean gradient of the whole batch into the `.grad` of the parameters.

        Args:
            parts: the microbatches `numbers` of this rank.
            stop: whether this rank got a SIGTERM.

        Returns:
            Mean loss in nats per token, tokens with a label, and whether any rank got a SIGTERM.
        """
        for parameter in self.parameters.values():
            parameter.grad = None
        loss, count = self._backward([parts[number] for number in self.numbers])
        # Ranks that share matrices or layers have computed the same tokens.
        counts = self.mesh.at("tensor") == 0 and self.mesh.at("pipeline") == self.layout.pipeline - 1
        sums = torch.tensor([loss * counts, count * counts, stop], dtype=torch.float64, device=self.mesh.device)
        if dist.is_initialized():
            dist.all_reduce(sums)
        loss_sum, total, stopped = sums.tolist()
        for parameter in self.parameters.values():
            assert isinstance(parameter.grad, DTensor)
            parameter.grad.to_local().div_(max(total, 1))
        return loss_sum / max(total, 1), int(total), stopped > 0

    def _backward(self, parts: list[Batch]) -> tuple[float, int]:
        """Sums the gradients of microbatches; returns their summed loss and the number of labels of this rank."""
        rows = self.chunks[0].rows
        if self.pipeline:
            loss = self.pipeline.backward(parts, rows)
            labels = [part.labels if rows is None else part.labels[:, rows] for part in parts]
            return float(loss), sum(int((one != IGNORED).sum()) for one in labels)
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        count = torch.zeros((), dtype=torch.int64, device=self.mesh.device)
        (model,) = self.chunks
        assert isinstance(model, FSDPModule)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            model.set_is_last_backward(last)
            model.set_requires_gradient_sync(last or self.layout.zero > 1)
            model.set_reshard_after_backward(last or self.layout.zero > 2)
            tokens, labels, documents = (
                getattr(part, name).to(self.mesh.device, non_blocking=True) for name in ("tokens", "labels", "documents")
            )
            if rows is not None:
                tokens, labels = tokens[:, rows], labels[:, rows]
            loss = model.loss(tokens, documents, labels)
            loss.backward()
            total += loss.detach()
            count += (labels != IGNORED).sum()
        return float(total), int(count)

    def clip(self, limit: float) -> float:
        """Scales the gradient so that its Euclidean norm over all ranks is at most `limit`; returns the norm before.

        Every rank adds the squares of the values that it has, each divided by the number of ranks that have it, too.
        """
        ranks = self.layout.ranks // self.layout.pipeline
        total = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        for parameter in self.parameters.values():
            grad = parameter.grad
            assert isinstance(grad, DTensor)
            shares = math.prod(
                grad.device_mesh.size(dim) for dim, place in enumerate(grad.placements) if isinstance(place, Shard)
            )
            total += torch.linalg.vector_norm(grad.to_local(), dtype=torch.float64).square() * shares / ranks
        if dist.is_initialized():
            dist.all_reduce(total)
        norm = math.sqrt(float(total)) if float(total) >= 0 else math.nan
        if limit < norm < math.inf:
            for parameter in self.parameters.values():
                assert isinstance(parameter.grad, DTensor)
                parameter.grad.to_local().mul_(limit / norm)
        return norm
