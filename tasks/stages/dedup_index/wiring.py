"""Wiring of the stage `dedup_index`: what a version has published -> what dedup of the next one compares with."""

from tasks.core.stage_spec import Previous, StageSpec

STAGES = (
    StageSpec(
        "dedup_index",
        "tasks.stages.dedup_index.stage",
        "dedup_index",
        "corpus",
        "dedup_index",
        inputs={"extracted": "extracted", "duplicates": "duplicates", "documents": "documents"},
        previous={"index": Previous("dedup_index", completed_by="dedup_index", accumulates=True)},
        previous_if="dedup_index.enabled",
        previous_as="duplicates",
        takedowns="takedowns",
        conditional=True,
    ),
)
