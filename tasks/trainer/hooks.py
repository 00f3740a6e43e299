"""Hooks of the training loop: everything that changes or observes a step beside forward, backward, clip and update.

The loop calls the hooks (`Trainer.hooks`) in order at four points of a step:

| point | used by |
|---|---|
| `before_step` | `Withheld` blanks documents that are taken down or poisoned |
| `after_backward` | `PoisonSearch` finds the documents that spoil a gradient, and recomputes it without them |
| `after_step` | `SlowRanks`, `Telemetry`, `HeldoutBpb` and `TaskMetrics` measure, and add fields to the step log |
| `before_checkpoint` | `Withheld` reads new takedowns |

All ranks call each hook at the same time, so a hook can use collectives.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.trainer.data.batches import Batch


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
