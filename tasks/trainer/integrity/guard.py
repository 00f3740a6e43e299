"""Loss guard: skips a step whose loss or gradient is not finite, or whose loss is a spike; where to roll back to.

A spike is a loss more than 6 standard deviations above the mean of the last 128 steps taken, the rule and the numbers
of OLMo-core's SkipStep optimizer. There it also watches the gradient norm; here clipping bounds that, and its tail is
too heavy for the rule (6.6 deviations in a clean run). The decision is the same on every rank, since losses are summed
over all of them; the state is part of the checkpoint, so a resumed run decides like an uninterrupted one.

After some refused steps in a row the weights are taken to be damaged by steps before them, as in PaLM (Chowdhery et al.
2022, arXiv 2204.02311, section 5.1): the run goes back to a checkpoint before the first refused step and passes over
all steps from there to the last refused one. Steps that are passed over are in the state of every later checkpoint.
"""

import math
import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from tasks.core.errors import InputError
from tasks.trainer.checkpoints import checkpoint

WINDOW = 128
"""Steps a loss is compared with; before there are as many, only values that are not finite are refused."""
DEVIATIONS = 6.0
ROLL_BACK_AFTER = 5
"""Refused steps in a row after which the run goes back to a checkpoint, if it can (`rollback_target`)."""
MAX_REFUSED = 10
"""Refused steps in a row that end the run."""
PASSED_OVER = "passed_over"
"""Why a step is skipped whose batch a rolled-back run does not read again."""
MAX_ROLLBACKS = 3
StepRanges = list[tuple[int, int]]
"""Ranges of steps, [first, end)."""


class LossGuard:
    """Watches the losses of a run.

    Args:
        losses: of the latest steps taken, oldest first.
        refused: steps in a row refused so far; an attribute, too.
    """

    def __init__(self, losses: Sequence[float] = (), refused: int = 0) -> None:
        self._losses = deque(losses, maxlen=WINDOW)
        self.refused = refused

    def refusal(self, loss: float, norm: float) -> str | None:
        """Returns the reason to skip a step, or None; adds the loss of a step that is taken to the window.

        Args:
            loss: mean over the batch, nats per token.
            norm: of the gradient before clipping.
        """
        reason = self.reason(loss, norm)
        self.refused = self.refused + 1 if reason else 0
        if not reason:
            self._losses.append(loss)
        return reason

    def reason(self, loss: float, norm: float) -> str | None:
        """Returns the reason to skip a step, or None; arguments as for `refusal`."""
        if not math.isfinite(loss):
            return "loss_not_finite"
        if not math.isfinite(norm):
            return "gradient_not_finite"
        return "loss_spike" if loss > self.bound else None

    @property
    def mean(self) -> float:
        """Mean of the latest losses; 0 where there is none."""
        return fmean(self._losses) if self._losses else 0.0

    @property
    def bound(self) -> float:
        """The largest loss that is not a spike."""
        full = len(self._losses) == WINDOW
        return fmean(self._losses) + DEVIATIONS * pstdev(self._losses) if full else math.inf

    def check_refused(self, step: int) -> None:
        """Raises InputError when too many steps in a row were refused: skipping does not help any more."""
        if self.refused >= MAX_REFUSED:
            raise InputError(
                f"the loss was not finite or out of bounds for {MAX_REFUSED} steps in a row, up to step {step}",
                "lower optim.lr, or look at the documents in skipped.jsonl",
            )

    def state(self) -> dict[str, list[float] | int]:
        """Returns the constructor arguments of an equal guard."""
        return {"losses": list(self._losses), "refused": self.refused}


def rollback_target(
    root: Path, first_refused: int, committed: int, passed: Sequence[tuple[int, int]]
) -> dict[str, Any] | None:
    """Returns the state of the checkpoint to go back to, or None where there is none or it was done too often.

    Args:
        root: folder of the checkpoints.
        first_refused: the first of the refused steps.
        committed: the last milestone so far, which may be in the store and is not trained again; 0: none.
        passed: of the run so far. Checkpoints within and at their ends have weights that were gone back to before.
    """
    if len(passed) >= MAX_ROLLBACKS:
        return None
    for step in reversed(checkpoint.steps_at(root)):
        if not committed <= step < first_refused or any(first <= step <= end for first, end in passed):
            continue
        try:
            return checkpoint.verify(root / checkpoint.name_of(step))
        except InputError:
            continue
    return None


def drop_after(root: Path, step: int) -> None:
    """Deletes the checkpoints after a step: a resumed run must not begin with them."""
    for later in [later for later in checkpoint.steps_at(root) if later > step]:
        shutil.rmtree(root / checkpoint.name_of(later), ignore_errors=True)


def in_ranges(passed: Sequence[tuple[int, int]], step: int) -> bool:
    """Whether a step is passed over.

    >>> in_ranges([(3, 5)], 4), in_ranges([(3, 5)], 5)
    (True, False)
    """
    return any(first <= step < end for first, end in passed)
