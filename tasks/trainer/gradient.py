"""The gradient of a step: of this rank's microbatches, or of those of a rank that it checks.

The loop gets it from `PoisonSearch`, which computes it without poisoned documents; that from `Integrity`, which
computes suspicious ones again; and that from `GradientComputer`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tasks.trainer.data.batches import Batch, StepData
from tasks.trainer.data.withheld import Withheld
from tasks.trainer.parallel.replica import Replica


@dataclass(frozen=True)
class Cause:
    """What a search found about a refused step of which no document is withheld; unknown if it is neither kind.

    `what` and `do` are an observation and a recommended action, without a final period.
    """

    what: str
    do: str
    suspected: Mapping[str, Sequence[int]]
    """Rows of the suspected documents, by shard."""
    of_weights: bool = False
    """Whether earlier steps have damaged the weights."""
    of_data: bool = False
    """Whether the weights are good, so that the data of the step is the cause."""


class Gradient(NamedTuple):
    """Result of computing the mean, clipped gradient of a step's batch into `.grad`; equal on all ranks."""

    loss: float
    """Mean over the batch, nats per token."""
    norm: float
    """Euclidean norm before clipping."""
    labels: int
    """Number of tokens of the batch with a label."""
    stop: bool
    """Whether any rank has received SIGTERM."""
    cause: Cause | None = None
    """Of a gradient that the guard refuses, if a search was made."""
    z_loss: float = 0.0
    """Mean z-loss, nats per token; not in `loss`."""


class GradientComputer:
    """Computes gradients of a run, on one rank; all ranks call the methods at the same time.

    Args:
        replica: the model.
        clip: maximum Euclidean norm of a gradient.
        batches: the batches of the run.
        withheld: the documents that are blank.
    """

    def __init__(self, replica: Replica, clip: float, batches: StepData, withheld: Withheld) -> None:
        self.replica, self.batches, self.withheld, self._clip = replica, batches, withheld, clip

    def parts(self, step: int, shift: int = 0) -> Mapping[int, Batch]:
        """Returns the microbatches of the rank `shift` positions later in `replica.peers`, as it trains on them."""
        return self.withheld.without(step, self.batches.microbatches(step, self.replica.numbers_of(shift)))

    def gradient(self, parts: Mapping[int, Batch], compared: bool = False) -> Gradient:
        """Runs forward and backward passes of microbatches, sums the gradients over ranks, and clips.

        Args:
            parts: microbatches by number.
            compared: whether `replica.share` will be compared.
        """
        loss, labels, stop = self.replica.forward_backward(parts, compared)
        return Gradient(loss, self.replica.clip(self._clip), labels, stop, z_loss=self.replica.z_loss)

    def empty(self) -> Gradient:
        """Returns a gradient without labels, for a step that is passed over, and whether any rank received SIGTERM."""
        ranks = self.replica.ranks
        stop = torch.tensor([float(self.replica.stop_requested)], device=ranks.device)
        ranks.sum([stop])
        return Gradient(0.0, 0.0, 0, bool(stop > 0))
