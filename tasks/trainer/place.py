"""Settings of a training that belong to the place: ranks and layout, checks, timeouts, checkpoints, preemption.

They are not part of a run's identity: under every layout a step has the same batch, and its gradient is equal up to
rounding. A stage reads them from its output (`TrainPlace.of`), and the processes of its run from their `TrainSpec`.
Imports only pydantic, so that the Airflow dag-processor can load it.
"""

from typing import Literal

from pydantic import Field, field_validator

from tasks.core.config import Config, require_absolute


class Layout(Config):
    """Degrees of parallelism, whose product is the number of ranks.

    The innermost dimension is `tensor`, then `context`, `shard`, `pipeline` and `replicate`, so that the dimensions
    with the most communication are within a node.
    """

    replicate: int = Field(default=1, ge=1)
    """Groups that each have the whole state; gradients are summed between them (HSDP)."""
    shard: int = Field(default=1, ge=1)
    """Ranks that share parameters, gradients and optimizer state (FSDP)."""
    context: int = Field(default=1, ge=1)
    """Ranks that share the positions of a sequence; the state is sharded over them, too."""
    tensor: int = Field(default=1, ge=1)
    """Ranks that share every matrix, and between matrices the positions of a sequence (TP with SP)."""
    pipeline: int = Field(default=1, ge=1)
    """Ranks that share the layers."""
    expert: int = Field(default=1, ge=1)
    """Ranks, of those of `shard` x `context`, among which the experts of a layer are divided; the innermost ones."""
    zero: Literal[1, 2, 3] = 3
    """What is sharded during a step: 1 optimizer state; 2 also gradients; 3 also parameters."""
    schedule: Literal["1f1b", "interleaved"] = "1f1b"
    """Schedule of the pipeline: one chunk of layers per rank, or `chunks` chunks per rank."""
    chunks: int = Field(default=2, ge=2)
    """Chunks of layers per rank of the schedule `interleaved`."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations that the backward pass recomputes: none; all but the results of matrix products and attention; or all
    within a layer."""
    compile: bool | None = None
    """Whether layers are compiled, which takes a minute at the start of a run; None: on GPUs with a compiler
    (`parallel.compilation`)."""
    async_tensor: bool = True
    """Whether collectives of `tensor` overlap with the products next to them, where they can (`compilation`)."""
    loss_rows: int | None = Field(default=None, ge=1)
    """Positions of a microbatch whose logits exist at a time; None: 4,096 on a GPU, 512 on a CPU."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.replicate * self.shard * self.context * self.tensor * self.pipeline

    @property
    def sharding(self) -> dict[str, int]:
        """What determines which rank of a replica has which shard of the state."""
        degrees = self.model_dump(include={"shard", "context", "tensor", "pipeline"})
        divided = {"expert": self.expert} if self.expert > 1 else {}
        return {**degrees, **divided, "chunks": self.chunks_per_rank}

    @property
    def data_ranks(self) -> int:
        """The number of ranks with different microbatches."""
        return self.replicate * self.shard

    @property
    def chunks_per_rank(self) -> int:
        """Number of chunks of layers per rank."""
        return self.chunks if self.pipeline > 1 and self.schedule == "interleaved" else 1


class CopyPolicy(Config):
    """How often checkpoints are copied to a location, and which copies are kept until the run is complete."""

    every: int = Field(default=0, ge=0)
    """Minimum number of steps between two copies; 0: every checkpoint. An interrupted run always copies its last
    one."""
    keep: int = Field(default=2, ge=1)
    """Number of newest copies that are kept."""
    keep_every: int = Field(default=0, ge=0)
    """Copies of steps that are multiples of this are kept, too; 0: none."""


class CopyFolder(CopyPolicy):
    """A second location: a file system that outlives the machine or the pod."""

    path: str
    """An existing folder, or an fsspec URL (s3://bucket/prefix)."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        return path if path.startswith("$") else require_absolute(path)


class CheckpointLocations(Config):
    """Locations of a run's checkpoints, in search order: scratch, a folder, the store.

    Scratch is the local folder to which the ranks write every checkpoint; it keeps `[train] keep_checkpoints` of them.
    """

    keep_every: int = Field(default=0, ge=0)
    """In scratch: checkpoints of steps that are multiples of this are kept, too; 0: none."""
    folder: CopyFolder | None = None
    """Second location; None: none."""
    store: CopyPolicy = CopyPolicy()
    """Copies in the artifact store, unless scratch is inside the store."""


class Timeouts(Config):
    """Seconds that a rank waits for the others. Then it ends, and the agents restart all ranks.

    A rank or a node that has died is found much sooner: its connections break, or its heartbeats end.
    """

    start_s: float = Field(default=600.0, gt=0)
    """In a collective up to the end of the first step, in which ranks may compile."""
    step_s: float = Field(default=120.0, gt=0)
    """In a collective of a later step."""
    checkpoint_s: float = Field(default=1800.0, gt=0)
    """For the slowest disk that writes, verifies or fetches a checkpoint."""


class PreemptionNotice(Config):
    """The metadata server that announces the end of a spot machine; a notice has the effect of SIGTERM."""

    provider: Literal["aws", "gcp"]
    """`aws`: IMDSv2, about two minutes in advance. `gcp`: the metadata server, about 30 seconds in advance."""
    url: str = Field(default="", pattern=r"^(http://[^/]+)?$")
    """URL of the metadata server, such as http://[fd00:ec2::254]; empty: the provider's default."""
    poll_s: float = Field(default=5.0, gt=0)
    """Seconds between two requests."""


class Watch(Config):
    """How closely the steps of a run are looked at. The weights are the same either way."""

    profile_every: int = Field(default=500, ge=0)
    """Steps between two that are profiled on rank 0, the first after half of them. 0: none."""
    profiles_kept: int = Field(default=3, ge=1)
    """Newest traces that are kept in the run's folder, and sent to the tracker at the end."""
    exposed_communication: float = Field(default=0.1, gt=0, le=1)
    """Share of a profiled step that waits for communication alone, above which an alert is raised."""
    layers_every: int = Field(default=100, ge=0)
    """Steps between two after which norms and activations of each layer are logged, which takes the forward pass of one
    microbatch more. 0: none."""
    plateau: bool = True
    """Whether an alert is raised when the loss no longer falls as its own history predicts."""


class TrainPlace(Config):
    """Where and how training runs."""

    where: Literal["local", "kubernetes"] = "local"
    """"local": torchrun on the Airflow worker; "kubernetes": a GPU pod."""

    nproc: int = Field(default=1, ge=1)
    """Ranks per node; the variable PET_NPROC_PER_NODE of a pod replaces it."""

    nodes: int = Field(default=1, ge=1)
    """Nodes of a run, for its plan; a stage has those of `[place.kubernetes]`."""

    layout: Layout | None = None
    """How the ranks of a training run share model and batch; None if each rank has the whole model. Canaries ignore
    it."""

    check_every: int = Field(default=200, ge=0)
    """Steps between two checks for silent corruption, in which ranks recompute one another's share of the gradient. A
    step with a check takes about twice as long. 0: check only on suspicion."""

    timeouts: Timeouts = Timeouts()
    """Seconds that a rank waits for the others."""

    checkpoints: CheckpointLocations = CheckpointLocations()
    """Where checkpoints are kept. Checkpoints of canaries are always in scratch and in the store."""

    watch: Watch = Watch()
    """Profiled steps, figures of layers, and what raises alerts. Canaries have none of it."""

    preemption: PreemptionNotice | None = None
    """Source of notices that this machine will be preempted; None if SIGTERM is the notice, as in pods."""

    @classmethod
    def of(cls, place: Config | None) -> "TrainPlace":
        """Returns the place of an `Output`; the default one if it has none."""
        return place if isinstance(place, cls) else cls()

    def of_canary(self) -> "TrainPlace":
        """Returns the place of a canary: without a layout, and with the default checks and locations of checkpoints."""
        watch = Watch(profile_every=0, layers_every=0, plateau=False)
        return TrainPlace(nproc=self.nproc, timeouts=self.timeouts, preemption=self.preemption, watch=watch)
