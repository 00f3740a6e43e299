"""A sharded model: parameters, gradients and optimizer state are distributed over ranks.

Gradients equal those of one rank up to rounding, because collectives determine the order of their sums. `apply` and
`fsdp` shard the model, `sharded_state` is its state; here is the gradient of a step.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tasks.trainer.config import TrainConfig, TuningSpec
from tasks.trainer.data.batches import Batch
from tasks.trainer.integrity.pace import Stopwatch
from tasks.trainer.model.experts import Loads, choice_biases
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.optim import build_optimizer, local, parts_of, sum_of_squares
from tasks.trainer.parallel.apply import shards_of
from tasks.trainer.parallel.fit import check_fit, layout_warnings
from tasks.trainer.parallel.fsdp import accumulate, install_fingerprint
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.pipeline import Pipeline
from tasks.trainer.parallel.ranks import Ranks, build_sum
from tasks.trainer.parallel.replica import hash_of
from tasks.trainer.parallel.sharded_state import ShardedState
from tasks.trainer.place import Layout
from tasks.trainer.tuning.memory import Workload

log = logging.getLogger(__name__)


class Sharded(ShardedState):
    """This rank's shard of model and optimizer of a run; the caller loads the weights, or sets them by `initialize`.

    Args:
        run: settings of the run.
        layout: how ranks share the work.
        vocab_size: tokens of the vocabulary.
        seq_len: positions of a training sequence.
        ranks: the process group, already connected.
        tuning: settings of a fine-tuning, whose frozen weights are sharded, too.

    Raises:
        RecipeError: the run cannot be trained in this layout.
    """

    def __init__(
        self,
        run: TrainConfig,
        layout: Layout,
        vocab_size: int,
        seq_len: int,
        ranks: Ranks,
        tuning: TuningSpec | None = None,
    ) -> None:
        nodes = ranks.world // ranks.local_world
        check_fit(layout, run, vocab_size, seq_len, nodes, ranks.local_world)
        if ranks.rank == 0:
            for warning in layout_warnings(layout, nodes, ranks.local_world):
                log.warning("%s", warning)
            load = Workload(run, ModelShape.of(run.model, vocab_size), seq_len, tuning)
            _log_memory(load.memory_per_rank(layout, gpu=ranks.device.type == "cuda"))
        ranks.join_alone()
        mesh = Mesh.of(layout, ranks)
        self.chunks = shards_of(run, mesh, vocab_size, seq_len, tuning)
        for chunk in self.chunks:
            chunk.to_empty(device=mesh.device)
        named = (one for chunk in self.chunks for one in chunk.named_parameters())
        parameters = {name: cast(DTensor, parameter) for name, parameter in named if parameter.requires_grad}
        biases = {name: bias for chunk in self.chunks for name, bias in choice_biases(chunk)}
        super().__init__(parameters, build_optimizer(parameters, run), run, mesh, ranks, biases)
        self.numbers = self.numbers_of(0)
        rows = self.chunks[0].rows
        self._positions = None if rows is None else rows.cpu()
        """This rank's positions of a sequence, on the CPU; None: all."""
        self.loads = Loads(run.model, (item for chunk in self.chunks for item in chunk.layers.items()))
        self._fingerprint = install_fingerprint(self.chunks, self.mesh)
        self.share: float | None = None
        self.share_tolerance = self._fingerprint.tolerance
        self._norm, self._labels = 0.0, 1.0
        """Euclidean norm of the last gradient over all ranks before it is divided by the number of labels; this."""
        self.peers = next(group for group in self.mesh.ranks_along("replicate", "shard") if ranks.rank in group)
        if layout.expert > 1:  # a rank also computes rows of others, so that another one cannot compute its share alone
            self.peers = [ranks.rank]
        parts = [parts_of(parameter) for parameter in self.parameters.values()]
        self._parts = torch.tensor(parts, dtype=torch.float64, device=self.mesh.device)
        self._stopwatch = Stopwatch(self.mesh.device)
        self.hashes, self.seconds, self.timed = list[list[float]](), list[float](), "fixed matrix product"
        self.stop_requested = False
        compressed = run.compression if layout.replicate > 1 else None
        self._compressed = build_sum(compressed, self.mesh.group("replicate")) if compressed else None
        self.pipeline = Pipeline(self.chunks, self.mesh, run, seq_len) if layout.pipeline > 1 else None

    def forward_backward(self, parts: Mapping[int, Batch], compared: bool = False) -> tuple[float, int, bool]:
        """Computes the summed gradient, see `Replica`; `seconds` is the duration of a fixed problem on each rank.

        The step reads the device here and nowhere else, once, after all of its microbatches: sums, norm, fingerprint,
        hashes and times are in one collective.
        """
        weights = (self._select(copies, self.parameters).values() for copies in self.copies)
        own: list[Tensor | float] = [*(hash_of(map(local, some)) for some in weights), self._stopwatch.seconds()]
        for parameter in self.parameters.values():
            parameter.grad = None
        self.loads.take()
        self._fingerprint.start(compared)
        loss, count = self._backward(list(parts.values()))
        own.append(self._fingerprint.total())
        gradients = {name: local(cast(DTensor, parameter.grad)) for name, parameter in self.parameters.items()}
        if self._compressed:
            self._compressed.sum(gradients, self.optimizer.steps_taken)
        # Ranks of tensor or pipeline parallelism have processed the same tokens, so only one of them counts.
        counts = self.mesh.at("tensor") == 0 and self.mesh.at("pipeline") == self.layout.pipeline - 1
        # Each rank sums the squares of its values, each divided by the number of ranks with a copy of it.
        square = sum_of_squares(list(gradients.values()), self._parts, self.layout.ranks // self.layout.pipeline)
        z_loss = sum((chunk.z_loss.take().to(square) for chunk in self.chunks), torch.zeros_like(square))
        numbers = torch.tensor([count * counts, self.stop_requested], dtype=torch.float64)
        sums = torch.cat(
            (
                torch.stack((loss * counts, square, z_loss * counts)),
                numbers.to(self.mesh.device, non_blocking=True),
                self.loads.take().to(self.mesh.device, non_blocking=True),
            )
        )
        numbers_of_all, (*self.hashes, seconds, shares) = self.ranks.sum_and_collect(sums, own)
        loss_sum, square_sum, z_sum, total, stopped, *loads = numbers_of_all
        self.loads.set(loads)
        self.seconds = seconds if any(seconds) else []
        self.share = shares[self.ranks.rank] if compared else None
        self._norm, self._labels = math.sqrt(square_sum) if square_sum >= 0 else math.nan, max(total, 1.0)
        self.z_loss = z_sum / self._labels
        return loss_sum / self._labels, int(total), stopped > 0

    def _backward(self, parts: list[Batch]) -> tuple[Tensor, int]:
        """Accumulates the gradients of microbatches; returns their loss, float64 scalar, and labels on this rank."""
        count = sum(self._count(part) for part in parts)
        microbatches = [self._to_local(part) for part in parts]
        if self.pipeline:
            return self.pipeline.backward(microbatches).double(), count
        (model,) = self.chunks
        return accumulate(model, microbatches, self.layout.zero), count

    def numbers_of(self, shift: int) -> range:
        """Returns the numbers of the microbatches of the rank `shift` positions later in `peers`."""
        first = (self.mesh.data_rank + shift) % self.layout.data_ranks
        return range(self.run.batch_size // self.run.microbatch)[first :: self.layout.data_ranks]

    def probe(self, parts: Sequence[Batch]) -> NDArray[np.float64]:
        """Returns the summed loss of each part at this rank's positions, shape (parts,), without gradients.

        Only one of the ranks of tensor parallelism, and the last rank of a pipeline, return the loss; others return
        zeros.
        """
        here = map(self._to_local, parts)
        if self.pipeline:
            losses = [self.pipeline.loss(part, self.gloo_group) for part in here]
        else:
            (model,) = self.chunks
            with torch.no_grad():
                found = [model.loss(part.tokens, part.documents, part.labels, part.bounds) for part in here]
            losses = torch.stack(found).tolist() if found else []
        # Below zero 3 a pass without a backward one leaves weights gathered, and the next pass would not see a change.
        for chunk in self.chunks:
            for module in chunk.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return np.array(losses) * (self.mesh.at("tensor") == 0)

    def terms(self, part: Batch) -> int:
        """Returns the number of terms in the loss of a whole part on the CPU."""
        return self.chunks[0].counted(part.documents, part.labels)

    def _to_local(self, part: Batch) -> Batch:
        """Returns a microbatch on the device: tokens and labels at this rank's positions, and all of its documents."""
        here, rows = part.on(self.mesh.device), self.chunks[0].rows
        return here if rows is None else replace(here, tokens=here.tokens[:, rows], labels=here.labels[:, rows])

    def _count(self, part: Batch) -> int:
        """Returns the number of terms in the loss of a microbatch on the CPU at this rank's positions."""
        labels = part.labels if self._positions is None else part.labels[:, self._positions]
        return self.chunks[0].counted(part.documents, labels)

    def clip(self, limit: float) -> float:
        """Limits the norm of the mean gradient over all ranks, see `Replica`: the optimizer divides what `.grad` has.

        Dividing and clipping take no pass over the gradient.
        """
        norm = self._norm / self._labels
        self.optimizer.divisor = self._labels * (norm / limit if limit < norm < math.inf else 1.0)
        return norm


def _log_memory(needs: Mapping[str, int]) -> None:
    """Logs the result of `memory_per_rank`."""
    parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in needs.items())
    log.info("a rank needs about %.2f GiB (%s)", sum(needs.values()) / 2**30, parts)
