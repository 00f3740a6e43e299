"""Stage consolidate: join of documents, attributes and duplicates; filtering (`tasks.stages.consolidate.stage`).

Wiring of the stage `consolidate`: documents and all verdicts on them -> kept and rejected documents.
"""

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
        optional_inputs={"contamination": "contamination", "paragraphs": "paragraphs"},
        takedowns="takedowns",
    ),
)
