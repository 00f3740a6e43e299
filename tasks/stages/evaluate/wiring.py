"""The stage `evaluate`: a checkpoint and held-out text in, bits per byte out."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "evaluate",
        "tasks.stages.evaluate.stage",
        "evaluate",
        "pretrain",
        "scores",
        inputs={"checkpoint": "checkpoint", "shards": "shards", "tokenizer": "tokenizer"},
    ),
)
