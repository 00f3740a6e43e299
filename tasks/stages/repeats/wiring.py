"""Wiring of the stage `repeats`: token shards and their suffix arrays -> long repeats."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "repeats",
        "tasks.stages.repeats.stage",
        "repeats",
        "tokens",
        "repeats",
        inputs={"shards": "shards", "spans": "spans", "tokenizer": "tokenizer"},
        conditional=True,
    ),
)
