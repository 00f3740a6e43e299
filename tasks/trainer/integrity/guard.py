"""Loss guard: skips steps whose loss or gradient is not finite or whose loss is a spike; selects rollback targets.

A spike is a loss more than 6 standard deviations above the mean of the last 128 applied steps, with the rule and the
numbers of OLMo-core's SkipStep optimizer. SkipStep also checks the gradient norm; here clipping bounds the norm, and
its distribution is too heavy-tailed for the rule (6.6 deviations in a clean run). The decision is the same on every
rank, because losses are summed over all ranks. The state is part of the checkpoint, so a resumed run makes the same
decisions as an uninterrupted one.

After several refused steps in a row, the weights are assumed to be damaged by earlier steps, as in PaLM (Chowdhery et
al. 2022, arXiv 2204.02311, section 5.1): the run loads a checkpoint from before the first refused step and passes over
all steps from there to the last refused one. The ranges of these steps are part of the state of later checkpoints.
"""

import math
import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev

from tasks.core.errors import InputError
from tasks.trainer.checkpoints import checkpoint

WINDOW = 128
"""Number of losses that a loss is compared with; with fewer, only values that are not finite are refused."""
DEVIATIONS = 6.0
ROLL_BACK_AFTER = 5
"""Refused steps in a row after which the run loads an earlier checkpoint, if possible (`rollback_target`)."""
MAX_REFUSED = 10
"""Refused steps in a row that end the run."""
PASSED_OVER = "passed_over"
"""Skip reason of a step that is passed over after a rollback."""
MAX_ROLLBACKS = 3
StepRanges = list[tuple[int, int]]
"""Ranges of steps, [first, end)."""


class LossGuard:
    """Checks the losses of a run.

    Args:
        losses: losses of the latest applied steps, oldest first.
        refused: number of consecutive refused steps; also an attribute.
    """

    def __init__(self, losses: Sequence[float] = (), refused: int = 0) -> None:
        self._losses = deque(losses, maxlen=WINDOW)
        self.refused = refused

    def refusal(self, loss: float, norm: float) -> str | None:
        """Returns the reason to skip a step, or None; adds the loss of an applied step to the window.

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
        """Mean of the latest losses; 0 if there are none."""
        return fmean(self._losses) if self._losses else 0.0

    @property
    def bound(self) -> float:
        """The largest loss that is not a spike."""
        full = len(self._losses) == WINDOW
        return fmean(self._losses) + DEVIATIONS * pstdev(self._losses) if full else math.inf

    def check_refused(self, step: int) -> None:
        """Raises InputError if too many steps in a row were refused, because skipping does not help."""
        if self.refused >= MAX_REFUSED:
            raise InputError(
                f"the loss was not finite or out of bounds for {MAX_REFUSED} steps in a row, up to step {step}",
                "lower optim.lr, or see the documents in skipped.jsonl",
            )

    def state(self) -> dict[str, list[float] | int]:
        """Returns the constructor arguments of an equal guard."""
        return {"losses": list(self._losses), "refused": self.refused}


def may_roll_back_to(step: int, first_refused: int, committed: int, passed: Sequence[tuple[int, int]]) -> bool:
    """Returns whether the run may load the checkpoint of a step; never after too many rollbacks.

    Args:
        step: of the checkpoint.
        first_refused: the first of the refused steps.
        committed: the last milestone so far, which may be committed already and is not replaced; 0: none.
        passed: ranges that are passed over so far. Checkpoints within them, or at their ends, have weights that an
            earlier rollback loaded.
    """
    is_passed = any(first <= step <= end for first, end in passed)
    return len(passed) < MAX_ROLLBACKS and committed <= step < first_refused and not is_passed


def drop_after(root: Path, step: int) -> None:
    """Deletes the checkpoints after a step, so that a resumed run does not start from them."""
    for later in [later for later in checkpoint.steps_at(root) if later > step]:
        shutil.rmtree(root / checkpoint.name_of(later), ignore_errors=True)


def in_ranges(passed: Sequence[tuple[int, int]], step: int) -> bool:
    """Returns whether a step is in one of the ranges.

    >>> in_ranges([(3, 5)], 4), in_ranges([(3, 5)], 5)
    (True, False)
    """
    return any(first <= step < end for first, end in passed)
