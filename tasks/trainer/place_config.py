"""Settings of a training run that belong to its place: where checkpoints are kept, and who announces a preemption.

Imports pydantic only, so that the Airflow dag-processor can load it. Nothing here affects the result of a run. The
settings reach the processes of a run by its environment (`environment`).
"""

from typing import Literal

from pydantic import Field, field_validator

from tasks.core.config import Config, absolute


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
