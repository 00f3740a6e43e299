"""Wiring of the stage `register`: checkpoint, scores and tokenizer -> registered model."""

from tasks.core.stage_spec import StageSpec

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
