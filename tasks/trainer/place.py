"""What the place of a training configures: ranks and layout, checks, locations of checkpoints, notice of preemption.

None of it is part of a run's identity: under every layout the batches of a step are the same, and its gradient is equal
up to rounding. The settings reach a stage and the processes of its run by environment variables. Imports pydantic only,
so that the Airflow dag-processor can load it.
"""

import os
from typing import Literal, TypeVar

from pydantic import Field, field_validator

from tasks.core.config import Config, require_absolute
from tasks.core.errors import RecipeError

CHECK_EVERY = 200
"""Steps between two checks of the ranks' shares of the gradient, where the place says nothing else."""
RANKS_VARIABLE, LAYOUT_VARIABLE, CHECK_VARIABLE = "SLUICE_NPROC", "SLUICE_LAYOUT", "SLUICE_CHECK_EVERY"
"""Ranks per node, a Layout as JSON where the place has one, and steps between two checks."""
CHECKPOINTS_VARIABLE, PREEMPTION_VARIABLE = "SLUICE_CHECKPOINTS", "SLUICE_PREEMPTION"
"""CheckpointLocations and PreemptionNotice as JSON, where the place has them."""
C = TypeVar("C", bound=Config)


class Layout(Config):
    """Degrees of the dimensions, whose product is the number of ranks.

    Neighbouring ranks differ in `tensor` first, then `context`, `shard`, `pipeline` and `replicate`: what communicates
    most stays within a node.
    """

    replicate: int = Field(default=1, ge=1)
    """Groups with all of the state each, between which gradients are summed (HSDP)."""
    shard: int = Field(default=1, ge=1)
    """Ranks that share parameters, gradients and optimizer state (FSDP)."""
    context: int = Field(default=1, ge=1)
    """Ranks that share the positions of a sequence; they share the state, too."""
    tensor: int = Field(default=1, ge=1)
    """Ranks that share every matrix, and between matrices the positions of a sequence (TP with SP)."""
    pipeline: int = Field(default=1, ge=1)
    """Ranks that share the layers."""
    zero: Literal[1, 2, 3] = 3
    """What is sharded while a step is computed: 1 the optimizer's state alone, 2 gradients too, 3 parameters too."""
    schedule: Literal["1f1b", "interleaved"] = "1f1b"
    """Of the pipeline: one chunk of layers per rank, or `chunks` of them."""
    chunks: int = Field(default=2, ge=2)
    """Chunks of layers per rank of the schedule `interleaved`."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations that the backward pass computes again: none; all but the results of matrix products and attention;
    or all within a layer."""
    compile: bool = False
    """Whether layers are compiled. It takes a minute at the start of a run and pays on GPUs."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.replicate * self.shard * self.context * self.tensor * self.pipeline

    @property
    def data_ranks(self) -> int:
        """The number of ranks with different microbatches."""
        return self.replicate * self.shard

    @property
    def chunks_per_rank(self) -> int:
        """Chunks of layers that a rank has."""
        return self.chunks if self.pipeline > 1 and self.schedule == "interleaved" else 1


class CopyPolicy(Config):
    """How often checkpoints are copied to a location, and which of them stay there until the run is done."""

    every: int = Field(default=0, ge=0)
    """Fewest steps between two copies. 0: every checkpoint. A run that ends before its last step copies in any case."""
    keep: int = Field(default=2, ge=1)
    """Newest copies that are kept."""
    keep_every: int = Field(default=0, ge=0)
    """Copies of steps that are multiples of it are kept, too; 0: none."""


class CopyFolder(CopyPolicy):
    """A second location: a file system that outlives the machine or the pod."""

    path: str
    """An existing folder, or an fsspec URL (s3://bucket/prefix)."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        return path if path.startswith("$") else require_absolute(path)


class CheckpointLocations(Config):
    """Where the checkpoints of a run are: scratch, a folder, the store, in the order in which they are looked through.

    Scratch is the local folder in which the ranks write every checkpoint; `[train] keep_checkpoints` are kept there.
    """

    keep_every: int = Field(default=0, ge=0)
    """In scratch: checkpoints of steps that are multiples of it are kept, too; 0: none."""
    folder: CopyFolder | None = None
    """None: there is no second location."""
    store: CopyPolicy = CopyPolicy()
    """In the store of the artifacts, where scratch is not in it."""


class PreemptionNotice(Config):
    """The metadata server that announces the end of a spot machine; a notice has the effect of SIGTERM."""

    provider: Literal["aws", "gcp"]
    """`aws`: IMDSv2, some two minutes before. `gcp`: the metadata server, some 30 seconds before."""
    url: str = Field(default="", pattern=r"^(http://[^/]+)?$")
    """Of the metadata server, such as http://[fd00:ec2::254]; empty: the provider's usual one."""
    poll_s: float = Field(default=5.0, gt=0)
    """Seconds between two requests."""


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
