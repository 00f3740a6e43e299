"""Forks: a run that goes on from a milestone of another run, and ends as if it had been planned so from the start.

Reads a checkpoint of the other artifact and its log lines; writes them into scratch, like any other location of
checkpoints (`locations`), and serves its files to the other nodes (`disks`). The first step of the fork compares the
identities of the two runs (`differences`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.core.config import changes
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.locations import install, lines_until
from tasks.trainer.config import ForkSpec, OptimConfig
from tasks.trainer.spec import open_artifact

_COMPARED_BY_EFFECT = {"mixture", "alpha", "replay", "repetition_cap", "init_from", "anneal", "steps", "milestones"}
"""Settings whose effect is compared: weights of the sources, initial weights, learning rates."""
_NO_EFFECT = {"continual", "fork", "heldout", "best"}
"""Settings that are not part of an identity, or affect no weights before a checkpoint."""
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
    if theirs == ours:
        return
    for name in sorted({*theirs, *ours} - {"config", "anneal"}):
        for path, old, new in changes(theirs.get(name), ours.get(name), name):
            yield f"{path} was {old} and is {new}"
    there, here = theirs["config"], ours["config"]
    for path, old, new in changes(_compared(there), _compared(here), "train"):
        yield f"{path} was {old} and is {new}"
    yield from _different_rates(there, here, step)
    stages = [_stage_before(identity.get("anneal"), step) for identity in (theirs, ours)]
    if stages[0] != stages[1]:
        yield f"the mixture of train.anneal was {stages[0]} before the checkpoint and is {stages[1]}"


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    left_out = _COMPARED_BY_EFFECT | _NO_EFFECT
    optim = {name: value for name, value in config["optim"].items() if name not in _SCHEDULE}
    return {**{name: value for name, value in config.items() if name not in left_out}, "optim": optim}


def _different_rates(there: Mapping[str, Any], here: Mapping[str, Any], step: int) -> Iterator[str]:
    """Yields the first step below `step` whose learning rate differs."""
    from tasks.trainer.optim import learning_rate  # imports torch, which the process of a run does without

    optims = [OptimConfig.model_validate(config["optim"]) for config in (there, here)]
    steps = [config["steps"] for config in (there, here)]
    if optims[0] == optims[1] and steps[0] == steps[1]:
        return
    for at in range(step):
        old, new = (learning_rate(optim, at, count) for optim, count in zip(optims, steps, strict=True))
        if old != new:
            yield f"the learning rate of step {at:,} was {old!r} and is {new!r} (train.optim, train.steps)"
            return


def _stage_before(anneal: Mapping[str, Any] | None, step: int) -> Mapping[str, Any] | None:
    """Returns the second stage of a mixture if it begins before a step."""
    return anneal if anneal and anneal["from_step"] < step else None
