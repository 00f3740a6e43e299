"""Settings of a training run that belong to its place: where checkpoints are kept, and who announces a preemption.

Imports pydantic only, so that the Airflow dag-processor can load it. Nothing here affects the result of a run. The
settings reach the processes of a run by its environment.
"""

import os
from typing import Literal, TypeVar

from pydantic import Field, field_validator

from tasks.core.config import Config, absolute

CHECKPOINTS, PREEMPTION = "SLUICE_CHECKPOINTS", "SLUICE_PREEMPTION"
"""Environment of a stage: CheckpointLocations and PreemptionNotice as JSON, where the place has them."""

C = TypeVar("C", bound=Config)


class Copies(Config):
    """How often checkpoints are copied to a location, and which of them stay there until the run is done."""

    every: int = Field(default=0, ge=0)
    """Fewest steps between two copies. 0: every checkpoint. A run that ends before its last step copies in any case."""
    keep: int = Field(default=2, ge=1)
    """Newest copies that are kept."""
    keep_every: int = Field(default=0, ge=0)
    """Copies of steps that are multiples of it are kept, too; 0: none."""


class CopyFolder(Copies):
    """A second location: a file system that outlives the machine or the pod."""

    path: str
    """An existing folder, or an fsspec URL (s3://bucket/prefix)."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        return path if path.startswith("$") else absolute(path)


class CheckpointLocations(Config):
    """Where the checkpoints of a run are: scratch, a folder, the store, in the order in which they are looked through.

    Scratch is the local folder in which the ranks write every checkpoint; `[train] keep_checkpoints` are kept there.
    """

    keep_every: int = Field(default=0, ge=0)
    """In scratch: checkpoints of steps that are multiples of it are kept, too; 0: none."""
    folder: CopyFolder | None = None
    """None: there is no second location."""
    store: Copies = Copies()
    """In the store of the artifacts, where scratch is not in it."""


class PreemptionNotice(Config):
    """The metadata server that announces the end of a spot machine; a notice has the effect of SIGTERM."""

    provider: Literal["aws", "gcp"]
    """`aws`: IMDSv2, some two minutes before. `gcp`: the metadata server, some 30 seconds before."""
    url: str = Field(default="", pattern=r"^(http://[^/]+)?$")
    """Of the metadata server, such as http://[fd00:ec2::254]; empty: the provider's usual one."""
    poll_s: float = Field(default=5.0, gt=0)
    """Seconds between two requests."""


def checkpoints_here() -> CheckpointLocations:
    """Returns the locations that the place of this process configures."""
    return _configured(CheckpointLocations, CHECKPOINTS) or CheckpointLocations()


def preemption_here() -> PreemptionNotice | None:
    """Returns the notice that the place of this process configures; None: there is none."""
    return _configured(PreemptionNotice, PREEMPTION)


def _configured(kind: type[C], name: str) -> C | None:
    text = os.environ.get(name)
    return kind.model_validate_json(text) if text else None
