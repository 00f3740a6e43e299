"""Wiring of the stage `spans`: token shards -> suffix arrays."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "spans",
        "tasks.stages.spans.stage",
        "spans",
        "tokens",
        "spans",
        inputs={"shards": "shards"},
        input_files={"shards": ("shards/",)},
        conditional=True,
    ),
)
