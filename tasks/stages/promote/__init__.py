"""Stages compare and promote: whether a new model is surely better than the champion, and which one is the champion.

Settings of the stages compare and promote. Imports pydantic only, for the Airflow dag-processor.

Wiring of the stages compare and promote: a registered model and the last decision -> the champion.
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Previous, StageSpec
from tasks.trainer.evaluation.config import EvaluateConfig


class PromoteConfig(Config):
    """Champion and challenger: when a new model takes the place of the one in use."""

    enabled: bool = False
    """Compare every new model with the champion, and name the champion in the registry."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the intervals: the one of the score must be above 0, the guarded ones must not be below it."""
    guarded: tuple[str, ...] = ()
    """Sources and tasks that must not become worse; empty: all of them."""
    guard_share: float = Field(default=0.0, ge=0)
    """Tolerated loss of a guarded source or task, as a share of the champion's value."""
    evaluate: EvaluateConfig | None = None
    """Held-out text, tasks and batches: those of [evaluate], which the recipe fills in."""

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return self.enabled


CHAMPION = Previous("champion", completed_by="champion")

STAGES = (
    StageSpec(
        "compare",
        "tasks.stages.promote.compare",
        "promote",
        "pretrain",
        "comparison",
        inputs={"model": "model", "shards": "shards", "tokenizer": "tokenizer"},
        previous={"decided": CHAMPION},
        conditional=True,
    ),
    StageSpec(
        "promote",
        "tasks.stages.promote.stage",
        "promote",
        "pretrain",
        "champion",
        inputs={"comparison": "comparison"},
        previous={"decided": CHAMPION},
        conditional=True,
    ),
)
