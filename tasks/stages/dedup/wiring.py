"""The stage `dedup`: documents in, groups of copies out."""

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
