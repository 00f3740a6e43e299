"""Wiring of the stage `dedup`: documents and prose scores -> duplicates."""

from tasks.core.stage_spec import Previous, StageSpec

STAGES = (
    StageSpec(
        "dedup",
        "tasks.stages.dedup.stage",
        "dedup",
        "corpus",
        "duplicates",
        inputs={"extracted": "extracted"},
        groups={"prose_score": ("attributes", "prose_score")},
        previous={"index": Previous("dedup_index", completed_by="dedup_index", accumulates=True)},
        previous_if="dedup_index.enabled",
        previous_as="extracted",
        takedowns="takedowns",
        takedowns_if="dedup_index.enabled",
    ),
)
