"""Stage dedup_index: the documents that a version publishes -> what dedup of the next one compares with."""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Input, PreviousInput, StageSpec, Takedowns


class DedupIndexConfig(Config):
    """What dedup remembers of earlier versions. For recipes whose versions follow one another, as crawl cycles do."""

    enabled: bool = False
    """Compare the documents of a version with those that all versions before it have published. Every version then
    publishes what is new in it."""

    merge: int = Field(default=8, ge=2)
    """So many neighbouring small parts are written again as one, so that an index of many versions has few files."""

    documents_per_part: int = Field(default=100_000, ge=1)
    """Documents at most in a part that is merged; about 500 bytes each are in memory. Larger parts stay as they are."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled


STAGES = (
    StageSpec(
        "dedup_index",
        dag="corpus",
        output="dedup_index",
        config=DedupIndexConfig,
        inputs={
            "extracted": Input("extracted"),
            "duplicates": Input("duplicates"),
            "documents": Input("documents"),
        },
        previous={
            "index": PreviousInput("dedup_index", completed_by="dedup_index", accumulates=True, when="dedup_index.enabled")
        },
        decided_by="duplicates",
        takedowns=Takedowns(),
    ),
)
