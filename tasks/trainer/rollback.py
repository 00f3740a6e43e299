"""Rolling back: which checkpoint a run goes back to when skipping does not help, and which steps it then passes over.

After some refused steps in a row the weights are taken to be damaged by steps before them, as in PaLM (Chowdhery et al.
2022, arXiv 2204.02311, section 5.1): the run goes back to a checkpoint before the first refused step and passes over
all steps from there to the last refused one. Steps that are passed over are in the state of every later checkpoint.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.core.errors import InputError
from tasks.trainer.checkpoints import checkpoint

PASSED_OVER = "passed_over"
"""Why a step is skipped whose batch a rolled-back run does not read again."""
MAX_ROLLBACKS = 3

Passed = list[tuple[int, int]]
"""Ranges of steps, [first, end)."""


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


def is_passed(passed: Sequence[tuple[int, int]], step: int) -> bool:
    """Whether a step is passed over.

    >>> is_passed([(3, 5)], 4), is_passed([(3, 5)], 5)
    (True, False)
    """
    return any(first <= step < end for first, end in passed)
