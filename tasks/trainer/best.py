"""The best checkpoint of a run by held-out text, and the end of a run that becomes no better.

The measure is `bpb` of the step log: the mean over sources of the bits per byte of the documents of `[train.heldout]`.
It counts after every `[train.best] every` steps and after the last one, unless the step before was skipped. The best
checkpoint is the one with the lowest value, of equal ones the first. A value that is not finite is no improvement.

`every` is a setting of its own, because it determines the result, and `[train.heldout] every` may change during a run.
The state is part of each checkpoint, so a resumed run has the same best checkpoint and ends at the same step. Imports
no torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.errors import InputError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import BestConfig

KEY = checkpoint.BEST
"""Key in the state of a checkpoint: {step, bpb, reference, since}."""


class Best:
    """The best checkpoint so far.

    Args:
        config: settings; None: the run has no best checkpoint.
        steps: planned steps of the run.

    Attributes:
        step: number of completed steps of the best checkpoint; 0: there is none yet.
        bpb: its value, in bits per byte.
    """

    def __init__(self, config: BestConfig | None, steps: int) -> None:
        self.config, self.steps = config, steps
        self.restore(None)

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Sets the state, as `state` returns it; None: that of the first step."""
        first: dict[str, Any] = {"step": 0, "bpb": None, "reference": None, "since": 0}
        self._state = {**first, **(state or {})} if self.config else first

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint has of it; {} without settings."""
        return {KEY: dict(self._state)} if self.config else {}

    @property
    def step(self) -> int:
        """See the class."""
        return int(self._state["step"])

    @property
    def ended(self) -> bool:
        """Whether the run ends here, because as many values as `patience` were no improvement by `min_delta`."""
        return bool(self.config and 0 < self.config.patience <= self._state["since"])

    def needs(self, step: int) -> bool:
        """Returns whether the checkpoint of a step is needed: it is the best one, or that of an early end."""
        return step == self.step or self.ended

    def measure(self, step: int, bpb: float | None) -> None:
        """Takes the value after `step` completed steps, which is ignored if it is not due.

        The two conditions differ: any lower value is the best one, but patience begins anew only with a value that is
        lower by more than `min_delta` than the one with which it began.
        """
        if self.config is None or (step % self.config.every and step != self.steps):
            return
        lowest, reference = self._state["bpb"], self._state["reference"]
        if bpb is not None and (lowest is None or bpb < lowest):
            self._state |= {"step": step, "bpb": bpb}
        if bpb is not None and (reference is None or bpb < reference - self.config.min_delta):
            self._state |= {"reference": bpb, "since": 0}
        else:
            self._state["since"] += 1


class End(NamedTuple):
    """How a run ended."""

    steps: int
    """Number of completed steps."""
    best: Mapping[str, Any] | None
    """State of the best checkpoint (`KEY`); None without settings, or if no value was finite."""
    early: str
    """Why the run ended before its last planned step; "" if it did not."""

    @classmethod
    def of(cls, root: Path, config: BestConfig | None, steps: int) -> "End":
        """Returns the end of a complete run by its newest checkpoint.

        Args:
            root: folder of its checkpoints on this machine.
            config: settings; None: it has all steps.
            steps: planned steps.

        Raises:
            InputError: there is no readable checkpoint.
        """
        if config is None:
            return cls(steps, None, "")
        state, _ = checkpoint.read_state(root / checkpoint.name_of(max(checkpoint.steps_at(root), default=0)))
        best = Best(config, steps)
        best.restore(state.get(KEY))
        if state["step"] != steps and not best.ended:
            raise InputError(f"{root} has checkpoints of {state['step']:,} of {steps:,} steps", "run again")
        early = ""
        if state["step"] < steps:
            less = f" by more than {config.min_delta:g}" if config.min_delta else ""
            early = f"{config.patience} measurements of held-out text in a row were not lower{less}"
        return cls(state["step"], state[KEY] if best.step else None, early)

    def described(self, planned: int) -> dict[str, Any]:
        """Returns what `run.json` says: the best checkpoint, and planned steps and reason of an early end."""
        best = {"best": {name: self.best[name] for name in ("step", "bpb")}} if self.best else {}
        return best | ({"ended_early": {"planned_steps": planned, "why": self.early}} if self.early else {})
