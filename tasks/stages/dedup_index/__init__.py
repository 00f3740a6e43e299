"""Stage dedup_index: the published documents of a version -> the index that dedup of the next version reads."""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Input, PreviousInput, StageSpec, Takedowns


class DedupIndexConfig(Config):
    """Settings of the index of earlier versions, for recipes with successive versions, such as crawl cycles."""

    enabled: bool = False
    """Compares the documents of a version with those that all earlier versions have published. Every version then
    publishes only its new documents."""

    merge: int = Field(default=8, ge=2)
    """Number of adjacent small parts that are merged into one, so that an index of many versions has few files."""

    documents_per_part: int = Field(default=100_000, ge=1)
    """Maximum number of documents in a merged part, at about 500 bytes of memory each. Larger parts are not merged."""

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
            "index": PreviousInput(
                "dedup_index", completed_by="dedup_index", accumulates=True, when="dedup_index.enabled"
            )
        },
        decided_by="duplicates",
        takedowns=Takedowns(),
    ),
)
