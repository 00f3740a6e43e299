"""Forks: a run that goes on from a milestone of another run, and ends as if it had been planned so from the start.

Reads a checkpoint of the other artifact and its log lines; writes them into scratch, like any other location of
checkpoints (`locations`), and serves its files to the other nodes (`sources`). The first step of the fork compares the
identities of the two runs (`differences`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.core.config import changes, identity_of
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.locations import install, lines_until
from tasks.trainer.config import ForkSpec, TrainConfig
from tasks.trainer.optim import learning_rate
from tasks.trainer.spec import open_artifact

_IN_OTHER_FIELDS = {"mixture", "alpha", "replay", "repetition_cap", "init_from", "continual"}
"""Settings whose effect is in the weights of the sources or in the initial weights, which are compared."""
_LATER = {"steps", "milestones", "fork", "anneal", "heldout"}
"""Settings that affect no step before the fork, or are compared by what they do there."""
_SCHEDULE = {"lr", "warmup_steps", "schedule", "decay_share", "min_lr_share"}


class Fork:
    """A checkpoint of another run, as a location and a source of checkpoints.

    Args:
        spec: the checkpoint.
        run: folder of the run that goes on from it.

    Raises:
        InputError: the other run is gone, or was made again.
    """

    name, required = "the run that it is a fork of", True

    def __init__(self, spec: ForkSpec, run: Path) -> None:
        self.spec, self.run = spec, run
        self.artifact = open_artifact(spec.run)
        self.store = self.artifact.store

    def steps(self) -> list[int]:
        """See `Location`."""
        return [self.spec.step]

    def folder_of(self, step: int) -> str:
        """See `Source`."""
        return f"{self.artifact.path}/checkpoints/{checkpoint.name_of(step)}"

    def fetch(self, step: int) -> dict[str, bytes]:
        """See `Location`."""
        records = {part.name: part for part in self.artifact.parts}
        lines = lines_until(self.store, self.artifact.path, records, step)
        install(self.store, self.folder_of(step), self.run, step, lines)
        return lines

    def drop(self, step: int) -> None:
        """Does nothing: the checkpoint is of another artifact."""


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], step: int) -> Iterator[str]:
    """Yields what differs between two runs, by their identities, in the steps before `step`; nothing for a fork of one.

    Args:
        theirs: identity of the run that wrote a checkpoint (`Trainer._identity`).
        ours: identity of the run that reads it.
        step: completed steps of the checkpoint.
    """
    for name in sorted({*theirs, *ours} - {"config"}):
        for path, old, new in changes(theirs.get(name), ours.get(name), name):
            yield f"{path} was {old} and is {new}"
    there, here = (TrainConfig.model_validate(identity["config"]) for identity in (theirs, ours))
    for path, old, new in changes(_compared(there), _compared(here), "train"):
        yield f"{path} was {old} and is {new}"
    for at in range(step):
        rates = [learning_rate(run.optim, at, run.steps) for run in (there, here)]
        if rates[0] != rates[1]:
            yield f"the learning rate of step {at:,} was {rates[0]:.4g} and is {rates[1]:.4g}"
            break
    stages = [(min(run.anneal_from, step), run.anneal if run.anneal_from < step else None) for run in (there, here)]
    if stages[0] != stages[1]:
        yield "train.anneal changes the mixture before the checkpoint"


def _compared(run: TrainConfig) -> dict[str, Any]:
    settings: dict[str, Any] = identity_of(run)
    optim = {name: value for name, value in settings["optim"].items() if name not in _SCHEDULE}
    kept = {name: value for name, value in settings.items() if name not in _LATER | _IN_OTHER_FIELDS}
    return {**kept, "optim": optim}
