"""Stages register, merge, compare and promote: registration of a new model, and selection of the champion.

checkpoint, scores, tokenizer -> register -> model; model, champion -> compare -> verdict -> promote -> champion
checkpoint, model -> merge -> merged_model, which compare reads beside the model

Fine-tuned models, which `finetune` registers, have a champion of their own: compare_tuned, promote_tuned.
"""

from pydantic import Field

from tasks.core.config import Config, RegistryName, SectionCopy
from tasks.core.stage_spec import Input, PreviousInput, StageSpec
from tasks.trainer.evaluation.config import EvaluateConfig


class RegisterConfig(Config):
    """Settings of the registration."""

    model: RegistryName = ""
    """Name in the registry; empty: the recipe's name."""


class MergeConfig(Config):
    """Settings of a second challenger: the mean of checkpoints of the stable phase."""

    COPIED = {"registry": SectionCopy("registry", when="merge.active")}

    last: int = Field(default=0, ge=0)
    """Number of milestones to average, the last ones before the decay; 0: no merged model."""
    registry: RegisterConfig | None = None
    """Name in the registry; copied from [registry] by the recipe."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.last > 0


class PromoteConfig(Config):
    """Settings for champion and challenger: when a new model replaces the current one."""

    COPIED = {"evaluate": SectionCopy("evaluate", when="promote.enabled")}

    enabled: bool = False
    """Compares every new model with the champion, and marks the champion in the registry."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the intervals: that of the score must be above 0, and no guarded interval may be below 0."""
    guarded: tuple[str, ...] = ()
    """Sources and tasks that must not become worse; empty: all of them."""
    guard_share: float = Field(default=0.0, ge=0)
    """Tolerated loss of a guarded source or task, as a fraction of the champion's value."""
    evaluate: EvaluateConfig | None = None
    """Held-out text, tasks and batches; copied from [evaluate] by the recipe."""

    @property
    def active(self) -> bool:
        """Whether the stages run."""
        return self.enabled


class PromoteTunedConfig(PromoteConfig):
    """Settings for champion and challenger among the fine-tuned models of a recipe."""

    COPIED = {"evaluate": SectionCopy("evaluate", when="finetune.makes_model")}

    @property
    def active(self) -> bool:
        """Whether the stages run: they need a whole model."""
        return self.enabled and self.evaluate is not None


_CHAMPION = PreviousInput("champion", completed_by="champion")
_TUNED_CHAMPION = PreviousInput("tuned_champion", completed_by="tuned_champion")

STAGES = (
    StageSpec(
        "register",
        dag="pretrain",
        output="model",
        config=RegisterConfig,
        section="registry",
        module="register",
        inputs={
            "checkpoint": Input("checkpoint"),
            "scores": Input("scores"),
            "tokenizer": Input("tokenizer"),
            "mixture": Input("mixture", optional=True),
        },
    ),
    StageSpec(
        "merge",
        dag="pretrain",
        output="merged_model",
        config=MergeConfig,
        module="merge",
        inputs={"checkpoint": Input("checkpoint"), "model": Input("model")},
    ),
    StageSpec(
        "compare",
        dag="pretrain",
        output="comparison",
        config=PromoteConfig,
        section="promote",
        module="compare",
        inputs={
            "model": Input("model"),
            "merged": Input("merged_model", optional=True),
            "shards": Input("shards"),
            "tokenizer": Input("tokenizer"),
        },
        previous={"decided": _CHAMPION},
    ),
    StageSpec(
        "promote",
        dag="pretrain",
        output="champion",
        config=PromoteConfig,
        module="promote",
        inputs={"comparison": Input("comparison")},
        previous={"decided": _CHAMPION},
    ),
    StageSpec(
        "compare_tuned",
        dag="finetune",
        output="tuned_comparison",
        config=PromoteTunedConfig,
        section="promote_tuned",
        module="compare_tuned",
        inputs={
            "model": Input("tuned_model"),
            "finetuned": Input("finetuned"),
            "examples": Input("examples"),
            "tokenizer": Input("tokenizer", or_of_base=True),
        },
        previous={"decided": _TUNED_CHAMPION},
    ),
    StageSpec(
        "promote_tuned",
        dag="finetune",
        output="tuned_champion",
        config=PromoteTunedConfig,
        section="promote_tuned",
        module="promote",
        inputs={"comparison": Input("tuned_comparison")},
        previous={"decided": _TUNED_CHAMPION},
    ),
)
