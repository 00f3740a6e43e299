"""Settings of the stage `finetune`, and a check of the place. Imports only pydantic, for the dag-processor."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tasks.core.config import OPERATION, Config
from tasks.core.errors import RecipeError
from tasks.trainer.config import LoraConfig, OptimConfig, TrainConfig, TuningSpec
from tasks.trainer.interchange.address import check_model_name
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.place import Layout

_BASE = re.compile(r"[a-z][a-z0-9_-]*/(checkpoint|finetuned)@[A-Za-z0-9][A-Za-z0-9._-]*")
_SHARD = "use shard and replicate, or fine-tune in a recipe without it"


class FinetuneConfig(Config):
    """Settings of a fine-tuning; a recipe without `base` has none."""

    base: str = ""
    """Base model: "demo/checkpoint@2026.10", or "demo/finetuned@sft" of an earlier fine-tuning;
    "demo/checkpoint@previous" is the newest one when the run started. A model from elsewhere is the path or URL of a
    Hugging Face model folder, or "hf://owner/name@revision"; it is imported first."""
    loss: Literal["sft", "dpo"] = "sft"
    """`sft`: cross-entropy of the responses, from instructions. `dpo`: direct preference optimization, from
    preferences."""
    beta: float = Field(default=0.1, gt=0)
    """Of `dpo`: strength of the regularization toward the base."""
    lora: LoraConfig | None = None
    """Adapters on a frozen base; None: all weights are trained."""
    optim: OptimConfig = OptimConfig(lr=5e-4, weight_decay=0.0, warmup_steps=10, schedule="cosine")
    """Optimizer and schedule."""
    steps: int = Field(default=100, ge=1)
    """Optimizer steps."""
    batch_size: int = Field(default=8, ge=1)
    """Packed sequences per step."""
    microbatch: int = Field(default=4, ge=1)
    """Packed sequences per forward and backward pass; a divisor of `batch_size`."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the forward and backward pass."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per rank."""
    seed: int = Field(default=0, ge=0)
    """Seed of the order of sequences, and of the adapters' initial weights."""
    checkpoint_every: Annotated[int, OPERATION] = Field(default=50, ge=1)
    """Steps between checkpoints that a restart resumes from."""
    milestones: int = Field(default=1, ge=1)
    """Evenly spaced checkpoints that become part of the artifact."""

    @field_validator("base")
    @classmethod
    def _address(cls, name: str) -> str:
        check_model_name(name, _BASE, "a base is <recipe>/checkpoint@<version> or <recipe>/finetuned@<version>")
        return name

    @field_validator("precision", mode="before")
    @classmethod
    def _arithmetic(cls, precision: object) -> object:
        if precision == "fp8":
            raise ValueError('adapters and a base in 4 bits have no products in fp8: set "bf16"')
        return precision

    @model_validator(mode="after")
    def _fits(self) -> "FinetuneConfig":
        self.training(ModelConfig())  # its checks of batches and milestones
        return self

    @property
    def active(self) -> bool:
        """Whether the recipe has a fine-tuning."""
        return bool(self.base)

    @property
    def makes_model(self) -> bool:
        """Whether the artifact has a whole model."""
        return self.active and (self.lora is None or self.lora.merge)

    def training(self, model: ModelConfig) -> TrainConfig:
        """Returns the settings of the training loop, for a model with the shape of the base.

        Raises:
            RecipeError: the base has experts, and the fine-tuning adapters or pairs.
        """
        if model.experts and (self.lora or self.loss == "dpo"):
            what = "[finetune.lora]" if self.lora else 'loss = "dpo"'
            raise RecipeError(f"[finetune] {what}: the base has experts", 'train all of its weights with loss = "sft"')
        shared = ("optim", "steps", "batch_size", "microbatch", "precision", "threads", "seed", "checkpoint_every")
        values = {name: getattr(self, name) for name in (*shared, "milestones")}
        values["optim"] = self.optim.model_copy(update={"lr": self.optim.lr})  # set, so not that of a size
        return TrainConfig(model=model, init_seed=self.seed, **values)

    def tuning_spec(self, vocab_size: int, eos_id: int, seq_len: int) -> TuningSpec:
        """Returns the settings that a rank needs in addition to those of the loop; see `TuningSpec`."""
        return TuningSpec(
            loss=self.loss, beta=self.beta, lora=self.lora, vocab_size=vocab_size, eos_id=eos_id, seq_len=seq_len
        )


def unsupported_settings(layout: Layout | None, loss: str = "sft") -> Iterator[str]:
    """Yields the settings of a place that a fine-tuning does not support, as "setting: reason: remedy".

    Args:
        layout: of the place; None: it has none.
        loss: of the fine-tuning.
    """
    if layout is None:
        return
    for name, degree in (("tensor", layout.tensor), ("pipeline", layout.pipeline)):
        if degree > 1:
            yield f"place.train.layout.{name}: {degree}, and a fine-tuning has no {name} parallelism: {_SHARD}"
    if layout.context > 1 and loss == "dpo":
        cause = f"{layout.context}, and the loss of a pair is over whole answers"
        yield f"place.train.layout.context: {cause}: {_SHARD}"
