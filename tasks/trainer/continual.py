"""Continual training: the settings of a month's run, and the checkpoint of the earlier run that it begins from.

Reads `run.json` of the earlier run (role `initial`): its month, and the step after which its learning rate fell. A run
with `[train.continual]` writes these into its own (`described`). Does not import torch.
"""

import json
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.formats.tokens.exposure import FROM_STEP, INITIAL
from tasks.trainer.config import TrainConfig

MONTH, STABLE = "month", "stable_step"
"""Keys of `run.json`."""


def settings_of_month(config: TrainConfig, inputs: Inputs) -> TrainConfig:
    """Returns the settings of a run: those of its month, which is one more than that of the earlier run."""
    return config.of_month(month(config, inputs))


def month(config: TrainConfig, inputs: Inputs) -> int:
    """Returns the number of a run in its chain; 1 without an earlier run, or without `[train.continual]`."""
    if config.continual is None or INITIAL not in inputs:
        return 1
    return int(_run_of(inputs[INITIAL]).get(MONTH, 1)) + 1


def start_step(config: TrainConfig, inputs: Inputs) -> int | None:
    """Returns the step of the earlier run's checkpoint from which a run begins; None for the last one.

    Raises:
        InputError: the earlier run has kept no checkpoint from before its decay.
    """
    if config.continual is None or config.continual.start == "last" or INITIAL not in inputs:
        return None
    earlier = inputs[INITIAL]
    run = _run_of(earlier)
    step = run.get(STABLE)
    if step is None or step not in run["checkpoint_steps"]:
        raise InputError(
            f"[train.continual] start: {earlier.address} has kept no checkpoint from before its decay",
            'set start = "last" for this month; runs with [train.continual] start = "stable" keep one',
        )
    return int(step)


def described(run: TrainConfig, inputs: Inputs, steps: int) -> dict[str, Any]:
    """Returns what `run.json` says about a month's run, whose settings are `run`; {} without `[train.continual]`.

    `steps` are those it has: one that ended before its decay is continued from its last checkpoint.
    """
    if run.continual is None:
        return {}
    start = start_step(run, inputs)
    first = {} if start is None else {FROM_STEP: start}
    return {MONTH: month(run, inputs), STABLE: min(run.stable_step, steps), **first}


def note(run: TrainConfig, inputs: Inputs) -> str:
    """Returns a clause for the note of a later month: its number, its first weights and its peak; "" for other runs."""
    if run.continual is None or INITIAL not in inputs:
        return ""
    start = start_step(run, inputs)
    begins = "" if start is None else f" after {start:,} steps, before its decay"
    return f"{begins}, as month {month(run, inputs)} with the peak learning rate {run.optim.lr:.2g}"


def _run_of(checkpoint: Artifact) -> dict[str, Any]:
    """Returns `run.json` of a checkpoint; {} of an imported model, which has none."""
    run: dict[str, Any] = json.loads(checkpoint.read("run.json")) if checkpoint.files("run.json") else {}
    return run
