"""The stage `register`: a checkpoint, its scores and its tokenizer in, a registered model out."""

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
