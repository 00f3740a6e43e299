"""Canaries: small models trained on candidate mixtures, and the statistical decision between the mixtures.

arms (select the mixtures) -> canary (one small model per mixture and seed) -> finalist (the best mixture, if it looks
better than the current one) -> confirm (fresh seeds of these two) -> decide (promote, or keep the current one)
"""

from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from tasks.core.config import Config, Problems, field_errors
from tasks.core.stage_spec import Input, PreviousInput, StageSpec
from tasks.formats.tokens.mixture import check_weights
from tasks.trainer.config import ModelConfig, OptimConfig, TrainConfig


class CanaryConfig(Config):
    """Settings of one cycle of canaries."""

    current: dict[str, float] = {}
    """The current mixture: share of the sequences of a batch by source; sums to 1. An arm replaces it only if it is
    significantly better. Empty: the natural mixture, each source by its number of sequences. A later cycle starts from
    the decision of the previous one, until this setting changes."""
    arms: int = Field(default=4, ge=0)
    """Mixtures sampled around the natural one, in addition to the current one and the anchors."""
    anchors: tuple[Literal["natural", "uniform", "drop_one"], ...] = ("natural", "uniform")
    """Mixtures in every cycle: natural, uniform, and the current one without each of its sources in turn."""
    spread: tuple[float, float] = (0.5, 5.0)
    """Range of the concentration of the sampled mixtures: each is Dirichlet(s * sources * natural) with log(s) drawn
    uniformly between the logarithms of these values. Small values give extreme mixtures."""
    repetition_cap: float = Field(default=4.0, gt=0)
    """Maximum number of epochs of one source in an arm; beyond four, repetition has little value (Muennighoff et al.
    2023, "Scaling Data-Constrained Language Models")."""
    sample_seed: int = Field(default=0, ge=0)
    """Seed of the sampled mixtures."""

    seeds: tuple[int, ...] = (0,)
    """Seeds of the screening: each arm is trained once per seed, which determines initial weights and data order."""
    confirmations: int = Field(default=5, ge=3, le=20)
    """Number of fresh seeds, those after the largest of `seeds`, with which the finalist and the current mixture are
    trained again. Only these runs decide (`statistics`)."""
    steps: int = Field(default=120, ge=1)
    """Optimizer steps of each small run."""
    batch_size: int = Field(default=16, ge=1)
    """Sequences per step."""
    microbatch: int = Field(default=8, ge=1)
    """Sequences per forward and backward pass."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of each small run."""
    model: ModelConfig = ModelConfig(layers=2, dim=64, heads=4, kv_heads=2)
    """The small model."""
    optim: OptimConfig = OptimConfig(warmup_steps=10)
    """Optimizer of the small model."""
    heldout_tokens: int = Field(default=200_000, ge=1)
    """Maximum number of held-out tokens per source on which an arm is scored."""

    target: dict[str, float] = {}
    """The objective: weight of the held-out bits per byte by source, regardless of `[pack] by`; sums to 1. Empty: equal
    weights."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the interval that must exclude 0, on the seeds of the confirmation."""
    guard_share: float = Field(default=0.02, ge=0)
    """Tolerated relative increase of the bits per byte of a guarded source over the current mixture."""
    guarded: tuple[str, ...] = ()
    """Sources of documents that must not regress, regardless of `[pack] by`; empty: all of them."""

    @field_validator("current", "target")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        if weights:
            check_weights(weights)
        return weights

    @field_validator("seeds")
    @classmethod
    def _distinct_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError("name at least one seed, and none twice")
        return seeds

    @field_validator("spread")
    @classmethod
    def _range(cls, spread: tuple[float, float]) -> tuple[float, float]:
        if not 0 < spread[0] <= spread[1]:
            raise ValueError("spread is a lowest and a highest concentration, both above 0")
        return spread

    @model_validator(mode="after")
    def _run_fits(self) -> "CanaryConfig":
        try:
            self.training(self.seeds[0])
        except ValidationError as error:
            raise Problems(": ".join(filter(None, fault)) for fault in field_errors(error)) from None
        return self

    @property
    def fresh_seeds(self) -> tuple[int, ...]:
        """The seeds of the confirmation."""
        first = max(self.seeds) + 1
        return tuple(range(first, first + self.confirmations))

    def training(self, seed: int) -> TrainConfig:
        """Returns the settings of one small run."""
        return TrainConfig(
            model=self.model,
            optim=self.optim,
            steps=self.steps,
            batch_size=self.batch_size,
            microbatch=self.microbatch,
            threads=self.threads,
            init_seed=seed,
            seed=seed,
            checkpoint_every=max(1, self.steps // 4),
            milestones=1,
        )


_PLAN = Input("plan", files=("plan/",))
"""Only the content counts: a plan packed again after a takedown of other documents is the same plan."""

STAGES = (
    StageSpec(
        "arms",
        dag="canary",
        output="arms",
        config=CanaryConfig,
        section="canary",
        module="arms",
        inputs={"plan": _PLAN},
        previous={"previous": PreviousInput("mixture", completed_by="mixture")},
    ),
    StageSpec(
        "canary",
        dag="canary",
        output="canary",
        config=CanaryConfig,
        module="run",
        inputs={"arms": Input("arms"), "shards": Input("shards"), "plan": _PLAN},
        mapped=True,
    ),
    StageSpec(
        "finalist",
        dag="canary",
        output="finalist",
        config=CanaryConfig,
        section="canary",
        module="finalist",
        inputs={"arms": Input("arms"), "canaries": Input("canary", members_of="arms")},
    ),
    StageSpec(
        "confirm",
        dag="canary",
        output="confirmation",
        config=CanaryConfig,
        section="canary",
        module="run",
        inputs={"arms": Input("finalist"), "shards": Input("shards"), "plan": _PLAN},
        mapped=True,
    ),
    StageSpec(
        "decide",
        dag="canary",
        output="mixture",
        config=CanaryConfig,
        section="canary",
        module="decide",
        asset="mixture",
        inputs={
            "finalist": Input("finalist"),
            "confirmations": Input("confirmation", members_of="finalist"),
        },
    ),
)
