"""Stage extract: extracts documents from captures in WARC files and from local files, or rejects them with a reason."""

from tasks.core.stage_spec import Input, PreviousInput, StageSpec, Takedowns
from tasks.stages.extract.config import ExtractConfig

STAGES = (
    StageSpec(
        "extract",
        dag="corpus",
        output="extracted",
        config=ExtractConfig,
        inputs={"warc": Input("warc", optional=True)},
        previous={
            "index": PreviousInput(
                "dedup_index", completed_by="dedup_index", accumulates=True, when="dedup_index.enabled"
            )
        },
        takedowns=Takedowns(when="dedup_index.enabled"),
    ),
)
