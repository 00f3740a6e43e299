"""Hooks of the training loop: everything that changes or observes a step beside forward, backward, clip and update.

The loop calls the hooks (`Trainer.hooks`) in order at four points of a step:

| point | used by |
|---|---|
| `before_step` | `Withheld` blanks documents that are taken down or poisoned |
| `after_backward` | `PoisonSearch` finds what spoils a gradient, and recomputes it without poisoned documents |
| `after_step` | `SlowRanks`, `Telemetry`, `HeldoutBpb` and `TaskMetrics` measure, and add fields to the step log |
| `before_checkpoint` | `Withheld` reads new takedowns |

All ranks call each hook at the same time, so a hook can use collectives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasks.trainer.data.batches import Batch


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


class Hook:
    """Base class of hooks; its methods do nothing."""

    def before_step(self, step: int, parts: Mapping[int, Batch]) -> Mapping[int, Batch]:
        """Returns the microbatches to train on, by number, given those of this rank or of a rank that it checks."""
        return parts

    def after_backward(self, step: int, parts: Mapping[int, Batch], gradient: Gradient) -> Gradient:
        """Returns the gradient to apply; `parts` are the microbatches of this rank that it was computed from."""
        return gradient

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Called after every step, applied or skipped; may add fields to its line of the step log."""

    def before_checkpoint(self, step: int) -> None:
        """Called before the checkpoint after `step` steps, and with 0 before the first step of a run."""
