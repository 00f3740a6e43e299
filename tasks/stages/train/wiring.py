"""Wiring of the stage `train`: shards, plan and mixture -> checkpoint."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "train",
        "tasks.stages.train.stage",
        "train",
        "pretrain",
        "checkpoint",
        asset="checkpoint",
        inputs={"shards": "shards", "plan": "plan"},
        optional_inputs={"mixture": "mixture"},
    ),
)
