"""Wiring of the stages compare and promote: a registered model and the last decision -> the champion."""

from tasks.core.stage_spec import Previous, StageSpec

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
