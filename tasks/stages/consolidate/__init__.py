"""Stage consolidate: documents and all verdicts on them -> kept and rejected documents."""

from tasks.core.stage_spec import Input, StageSpec, Takedowns
from tasks.stages.consolidate.config import ConsolidateConfig

STAGES = (
    StageSpec(
        "consolidate",
        dag="corpus",
        output="documents",
        config=ConsolidateConfig,
        asset="documents",
        inputs={
            "extracted": Input("extracted"),
            "attributes": Input("attributes"),
            "duplicates": Input("duplicates"),
            "contamination": Input("contamination", optional=True),
            "paragraphs": Input("paragraphs", optional=True),
        },
        takedowns=Takedowns(),
    ),
)
