"""What a fine-tuning changes of a model, and by which loss. Imports pydantic only."""

from typing import Literal

from pydantic import Field, field_validator

from tasks.core.config import Config

Target = Literal["wq", "wk", "wv", "wo", "w1", "w2", "w3"]
TARGETS: tuple[Target, ...] = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")


class LoraConfig(Config):
    """Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685): W x + (alpha / rank) B A x, with W frozen."""

    rank: int = Field(default=8, ge=1)
    """Rows of A and columns of B."""
    alpha: float = Field(default=16.0, gt=0)
    """Numerator of the scale."""
    targets: tuple[Target, ...] = Field(default=TARGETS, min_length=1)
    """Projections of every layer that get an adapter; default: all, as in QLoRA."""
    base: Literal["fp32", "nf4"] = "fp32"
    """How the frozen projections of the layers are kept: as they are, or in 4 bits (QLoRA)."""
    merge: bool = True
    """Whether the artifact gets a whole model beside the adapters, B A added to the frozen matrices."""

    @field_validator("targets")
    @classmethod
    def _once(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        if len(set(targets)) < len(targets):
            raise ValueError("a target is named twice: name each once")
        return targets


class TuningSpec(Config):
    """Fine-tuning as a rank needs it, beside the settings of the loop."""

    loss: Literal["sft", "dpo"]
    """`sft`: cross-entropy of the tokens to learn; `dpo`: see `tasks.trainer.tuning.preference`."""
    beta: float = Field(default=0.1, gt=0)
    """Of `dpo`: how strongly the model is held to the reference."""
    lora: LoraConfig | None = None
    """None: all weights are trained."""
    vocab_size: int
    """Tokens of the vocabulary."""
    eos_id: int
    """End-of-text token."""
    seq_len: int
    """Positions of a packed sequence."""
