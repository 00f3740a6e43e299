"""Wiring of the stage `dedup`: documents and prose scores -> duplicates."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "dedup",
        "tasks.stages.dedup.stage",
        "dedup",
        "corpus",
        "duplicates",
        inputs={"extracted": "extracted"},
        groups={"prose_score": ("attributes", "prose_score")},
    ),
)
