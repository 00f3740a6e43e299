"""Wiring of the stage `extract`: captures and local files -> documents."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "extract",
        "tasks.stages.extract.stage",
        "extract",
        "corpus",
        "extracted",
        optional_inputs={"warc": "warc"},
    ),
)
