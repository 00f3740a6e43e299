"""Stage evaluate: bits per byte of a checkpoint on held-out text.

Wiring of the stage `evaluate`: checkpoint and held-out text -> scores in bits per byte.
"""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "evaluate",
        "tasks.stages.evaluate.stage",
        "evaluate",
        "pretrain",
        "scores",
        inputs={"checkpoint": "checkpoint", "shards": "shards", "tokenizer": "tokenizer"},
        optional_inputs={"contamination": "contamination"},
        named={"replicas": "replicas"},
    ),
)
