"""Wiring of the stage `extract`: captures and local files -> documents."""

from tasks.core.stage_spec import Previous, StageSpec

STAGES = (
    StageSpec(
        "extract",
        "tasks.stages.extract.stage",
        "extract",
        "corpus",
        "extracted",
        optional_inputs={"warc": "warc"},
        previous={"index": Previous("dedup_index", completed_by="dedup_index", accumulates=True)},
        previous_if="dedup_index.enabled",
        takedowns="takedowns",
        takedowns_if="dedup_index.enabled",
    ),
)
