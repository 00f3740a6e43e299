"""Stage `evaluate`: checkpoint, held-out text and tasks -> scores."""

from tasks.core.stage_spec import Input, NamedInput, StageSpec
from tasks.trainer.evaluation.config import EvaluateConfig

STAGES = (
    StageSpec(
        "evaluate",
        dag="pretrain",
        output="scores",
        config=EvaluateConfig,
        inputs={
            "checkpoint": Input("checkpoint"),
            "shards": Input("shards"),
            "tokenizer": Input("tokenizer"),
            "contamination": Input("contamination", optional=True),
            "replicas": NamedInput("replicas"),
        },
    ),
)
