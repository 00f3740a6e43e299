"""Loss guard: skips steps whose loss or gradient is not finite or whose loss is a spike; the rules of rollbacks.

A spike is a loss more than 6 standard deviations above the mean of the last 128 finite losses, refused ones included,
with the rule and the numbers of OLMo-core's SkipStepOptimizer. So a new level of the loss is refused for four steps at
most: a fifth of equal height is within the bound, which these four have moved. SkipStep also refuses losses far below
the mean and outliers of the gradient norm; here a low loss is never refused, clipping bounds the norm, and the
distribution of norms is too heavy-tailed for the rule (6.6 deviations in a clean run).

Two exceptions. Where the data is planned to change (`TrainSpec.data_changes`), the window starts empty. A loss that
damaged weights cause does not enter the window, because it is no level of the data.

The decision is the same on every rank, because losses are summed over all ranks. The state is part of the checkpoint,
so a resumed run makes the same decisions as an uninterrupted one.

After several refused steps in a row, unless their data is the cause, the weights are assumed to be damaged by earlier
steps, as in PaLM (Chowdhery et al. 2022, arXiv 2204.02311, section 5.1): the run loads a checkpoint from before the
first refused step and passes over all steps from there to the last refused one. The ranges of these steps are part of
the state of later checkpoints.
"""

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, stdev

from tasks.core.errors import InputError
from tasks.trainer.gradient import Cause, Gradient

WINDOW = 128
"""Number of losses that a loss is compared with."""
MIN_LOSSES = WINDOW // 2 - 1
"""Minimum number of them; with fewer, only values that are not finite are refused."""
DEVIATIONS = 6.0
ROUNDING = 1e-6
"""Relative difference of two losses that is rounding: the least deviation of losses that are all the same."""
ROLL_BACK_AFTER = 5
"""Refused steps in a row after which the run loads an earlier checkpoint, if possible (`may_roll_back_to`)."""
MAX_REFUSED = 10
"""Refused steps in a row that end the run."""
PASSED_OVER = "passed_over"
"""Skip reason of a step that is passed over after a rollback."""
MAX_ROLLBACKS = 3
StepRanges = list[tuple[int, int]]
"""Ranges of steps, [first, end)."""


class LossGuard:
    """Checks the losses of a run; takes the arguments of `restore`."""

    def __init__(self, losses: Sequence[float] = (), refused: int = 0, trained: int | None = None) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self.restore(losses, refused, trained)

    def restore(self, losses: Sequence[float], refused: int, trained: int | None) -> None:
        """Sets the state, as `state` returns it.

        Args:
            losses: the latest losses, oldest first.
            refused: number of consecutive refused steps; also an attribute.
            trained: the last step that was not refused, or None; also an attribute.
        """
        self._losses = deque(losses, maxlen=WINDOW)
        self.refused, self.trained = refused, trained

    def restart(self) -> None:
        """Empties the window, before a step from which losses do not compare with earlier ones."""
        self._losses.clear()

    def refusal(self, step: int, gradient: Gradient) -> str | None:
        """Returns the reason to skip a step (0-based) with a gradient, or None; adds the loss to the window."""
        reason, loss, cause = self.reason(gradient), gradient.loss, gradient.cause
        self.refused = self.refused + 1 if reason else 0
        if not reason:
            self.trained = step
        if math.isfinite(loss) and not (cause and cause.of_weights):
            self._losses.append(loss)
        return reason

    def reason(self, gradient: Gradient) -> str | None:
        """Returns the reason to skip a step with a gradient; None if there is none, or the batch has no labels."""
        if not gradient.labels:
            return None
        if not math.isfinite(gradient.loss):
            return "loss_not_finite"
        if not math.isfinite(gradient.norm):
            return "gradient_not_finite"
        return "loss_spike" if gradient.loss > self.bound else None

    @property
    def mean(self) -> float:
        """Mean of the latest losses; 0 if there are none."""
        return fmean(self._losses) if self._losses else 0.0

    @property
    def bound(self) -> float:
        """The largest loss that is not a spike."""
        if len(self._losses) < MIN_LOSSES:
            return math.inf
        return self.mean + DEVIATIONS * max(stdev(self._losses), ROUNDING * abs(self.mean))

    def check_refused(self, step: int, reason: str, cause: Cause | None) -> None:
        """Raises InputError, with the cause of the last one, if too many steps in a row were refused.

        Args:
            step: the last one.
            reason: why it was refused.
            cause: of the refusal, if it was searched for.
        """
        if self.refused >= MAX_REFUSED:
            found = f": {cause.what}" if cause else ""
            raise InputError(
                f"{MAX_REFUSED} steps in a row were refused, up to step {step} ({reason}){found}",
                cause.do if cause else "see skipped.jsonl",
            )

    def state(self) -> dict[str, list[float] | int | None]:
        """Returns the arguments of `restore`, which are part of a checkpoint."""
        return {"losses": list(self._losses), "refused": self.refused, "trained": self.trained}


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


def in_ranges(passed: Sequence[tuple[int, int]], step: int) -> bool:
    """Returns whether a step is in one of the ranges.

    >>> in_ranges([(3, 5)], 4), in_ranges([(3, 5)], 5)
    (True, False)
    """
    return any(first <= step < end for first, end in passed)
