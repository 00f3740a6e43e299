"""The stage `consolidate`: documents, measurements and copies in, kept and rejected documents out."""

from tasks.core.stage_spec import StageSpec

STAGES = (
    StageSpec(
        "consolidate",
        "tasks.stages.consolidate.stage",
        "consolidate",
        "corpus",
        "documents",
        asset="documents",
        inputs={"extracted": "extracted", "attributes": "attributes", "duplicates": "duplicates"},
    ),
)
