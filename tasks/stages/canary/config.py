"""Settings of the canaries: which mixtures are tried, how they are trained and how the decision is made.

pydantic only: the Airflow dag-processor imports it.
"""

from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from tasks.core.config import Config, Problems, faults
from tasks.formats.tokens.mixture import check_weights
from tasks.trainer.config import ModelConfig, OptimConfig, TrainConfig


class CanaryConfig(Config):
    """One cycle of canaries."""

    current: dict[str, float] = {}
    """The mixture in use: source -> share of the sequences of a batch; sums to 1. It stays unless an arm is surely
    better. Empty: the natural one, each source by its number of sequences. A later cycle begins with what the one
    before it decided, until another mixture is written here."""
    arms: int = Field(default=4, ge=0)
    """Mixtures sampled around the natural one, in addition to the current one and the anchors."""
    anchors: tuple[Literal["natural", "uniform", "drop_one"], ...] = ("natural", "uniform")
    """Mixtures always tried: natural, uniform, and the current one without each of its sources in turn."""
    spread: tuple[float, float] = (0.5, 5.0)
    """Range of the concentration of the sampled mixtures: each is Dirichlet(s * sources * natural) with log(s) drawn
    evenly between the logarithms of these. Small values give extreme mixtures."""
    repetition_cap: float = Field(default=4.0, gt=0)
    """Epochs of one source that an arm may need at most; beyond four, repeated text teaches little
    (Muennighoff et al. 2023, "Scaling Data-Constrained Language Models")."""
    sample_seed: int = Field(default=0, ge=0)
    """Another seed samples other mixtures."""

    seeds: tuple[int, ...] = (0, 1)
    """Each arm is trained once per seed; a seed sets the initial weights and the order, the same for all arms."""
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
    """Its optimizer."""
    heldout_tokens: int = Field(default=200_000, ge=1)
    """Held-out tokens per source on which an arm is scored at most."""

    target: dict[str, float] = {}
    """What is to be good: source -> weight of its held-out bits per byte; sums to 1. Empty: every source alike."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the interval that must exclude 0, over all arms of the cycle together."""
    guard_share: float = Field(default=0.02, ge=0)
    """Share by which the bits per byte of any guarded source may be worse than the current mixture's."""
    guarded: tuple[str, ...] = ()
    """Sources that must not become worse; empty: all of them."""

    @field_validator("current", "target")
    @classmethod
    def _shares(cls, weights: dict[str, float]) -> dict[str, float]:
        if weights:
            check_weights(weights)
        return weights

    @field_validator("seeds")
    @classmethod
    def _several_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < 2 or len(set(seeds)) < len(seeds):
            raise ValueError("name at least two different seeds: one run cannot tell a better mixture from luck")
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
            raise Problems(": ".join(filter(None, one)) for one in faults(error)) from None
        return self

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
            keep_checkpoints=1,
            milestones=1,
        )
