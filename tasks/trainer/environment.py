"""What the place of a process configures for training: ranks, layout, checks, locations of checkpoints, preemption.

The settings reach a stage, and the processes of its run, by environment variables; none of them affects a result.
"""

import os
from typing import TypeVar

from tasks.core.config import Config
from tasks.core.errors import RecipeError
from tasks.trainer.place import CHECK_EVERY, CheckpointLocations, Layout, PreemptionNotice

RANKS_VARIABLE, LAYOUT_VARIABLE, CHECK_VARIABLE = "SLUICE_NPROC", "SLUICE_LAYOUT", "SLUICE_CHECK_EVERY"
"""Ranks per node, a Layout as JSON where the place has one, and steps between two checks."""
CHECKPOINTS_VARIABLE, PREEMPTION_VARIABLE = "SLUICE_CHECKPOINTS", "SLUICE_PREEMPTION"
"""CheckpointLocations and PreemptionNotice as JSON, where the place has them."""

C = TypeVar("C", bound=Config)


def ranks_here() -> int:
    """Returns the number of ranks per node; raises RecipeError where it is no number."""
    configured = os.environ.get("PET_NPROC_PER_NODE") or os.environ.get(RANKS_VARIABLE) or "1"
    if not configured.isdecimal() or int(configured) < 1:
        raise RecipeError(
            f'"{configured}" is not a number of ranks', "set [place.train] nproc, or PET_NPROC_PER_NODE of the pod"
        )
    return int(configured)


def layout_here() -> Layout | None:
    """Returns the layout; None: each rank has all of the model."""
    return _configured(Layout, LAYOUT_VARIABLE)


def check_every_here() -> int:
    """Returns the steps between two checks of the ranks."""
    return int(os.environ.get(CHECK_VARIABLE) or CHECK_EVERY)


def checkpoints_here() -> CheckpointLocations:
    """Returns the locations of checkpoints."""
    return _configured(CheckpointLocations, CHECKPOINTS_VARIABLE) or CheckpointLocations()


def preemption_here() -> PreemptionNotice | None:
    """Returns who announces a preemption; None: there is no notice."""
    return _configured(PreemptionNotice, PREEMPTION_VARIABLE)


def _configured(kind: type[C], name: str) -> C | None:
    text = os.environ.get(name)
    return kind.model_validate_json(text) if text else None
