"""Stage train: packed tokens and a mixture -> a checkpoint.

Wiring of the stage `train`: shards, plan and mixture -> checkpoint.
"""

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
        # A plan that is made again, because of a takedown that met none of it, is the same plan.
        input_files={"plan": ("plan/",)},
        optional_inputs={"mixture": "mixture"},
        named={"initial": "init_from"},
    ),
)
