"""Stage register: the trained model, its tokenizer and its lineage as one folder for MLflow's model registry.

Settings of the stage register. Imports pydantic only, for the Airflow dag-processor.

Wiring of the stage `register`: checkpoint, scores and tokenizer -> registered model.
"""

from tasks.core.config import Config
from tasks.core.stage_spec import StageSpec


class RegisterConfig(Config):
    """Registration of the model."""

    model: str = ""
    """Name in the registry; empty: the recipe's name."""


STAGES = (
    StageSpec(
        "register",
        "tasks.stages.register.stage",
        "registry",
        "pretrain",
        "model",
        inputs={"checkpoint": "checkpoint", "scores": "scores", "tokenizer": "tokenizer"},
        optional_inputs={"mixture": "mixture"},
    ),
)
