"""Stage `train`: packed tokens and a mixture -> a checkpoint."""

from tasks.core.stage_spec import Input, NamedInput, StageSpec
from tasks.trainer.config import TrainConfig

STAGES = (
    StageSpec(
        "train",
        dag="pretrain",
        output="checkpoint",
        config=TrainConfig,
        asset="checkpoint",
        inputs={
            "shards": Input("shards"),
            # Only these files count: a plan that is rebuilt after a takedown of other documents is unchanged.
            "plan": Input("plan", files=("plan/",)),
            "mixture": Input("mixture", optional=True),
            "initial": NamedInput("init_from"),
            "fork": NamedInput("fork.of"),
        },
    ),
)
