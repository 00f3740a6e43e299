"""Hooks of the training loop: what changes or watches a run beside forward, backward, clip and the optimizer's step.

The loop (`Trainer.hooks`) calls every hook, in their order, at four points of a step:

| point | who uses it |
|---|---|
| `before_step` | `Withheld` makes documents blank that are taken down or poisoned |
| `after_backward` | `PoisonSearch` finds the documents that spoil a gradient, and computes it without them |
| `after_step` | `SlowRanks`, `Telemetry` and `HeldoutBpb` measure, and add fields to the step log |
| `before_checkpoint` | `Withheld` reads which takedowns have come |

All ranks call a hook at the same time, so that it can use collectives.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.trainer.data.batches import Batch


class Gradient(NamedTuple):
    """The mean gradient of a step's batch, clipped, in `.grad` of the parameters; equal values on all ranks."""

    loss: float
    """Mean over the batch, nats per token."""
    norm: float
    """Before clipping."""
    labels: int
    """Tokens with a label in the batch."""
    stop: bool
    """Whether any rank has got a SIGTERM."""


class Hook:
    """Does nothing at any point; a hook overrides what it needs."""

    def before_step(self, step: int, parts: Mapping[int, Batch]) -> Mapping[int, Batch]:
        """Returns what to train on, of the microbatches of a step by number: this rank's, or those of one it checks."""
        return parts

    def after_backward(self, step: int, parts: Mapping[int, Batch], found: Gradient) -> Gradient:
        """Returns the gradient to go on with; `parts` are this rank's microbatches that it was computed from."""
        return found

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Called when the step is done, taken or not; may add fields to its line of the step log."""

    def before_checkpoint(self, step: int) -> None:
        """Called where a checkpoint after `step` steps is due, and before the first step of a run with 0."""
