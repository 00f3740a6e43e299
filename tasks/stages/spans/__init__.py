"""Spans: a suffix array over the training tokens, in which any run of tokens is found by binary search.

shards (train) -> spans/<group>.arrow   (where every suffix of the training tokens begins, in lexicographic order)

Settings of the stage `spans`. Imports pydantic only, for the Airflow dag-processor.

Wiring of the stage `spans`: token shards -> suffix arrays.
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import StageSpec


class SpansConfig(Config):
    """Whether the training tokens are indexed, so that `explain` finds the pages of a text."""

    enabled: bool = False
    """4 bytes on disk per training token, besides the tokens themselves."""
    group_tokens: int = Field(default=256_000_000, ge=1, le=500_000_000)
    """Tokens of one suffix array at most; a single shard of more has one of its own. Sorting takes 12 bytes of memory
    per token with a vocabulary up to 65,536 entries, 16 with a larger one."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled


STAGES = (
    StageSpec(
        "spans",
        "tasks.stages.spans.stage",
        "spans",
        "tokens",
        "spans",
        inputs={"shards": "shards"},
        input_files={"shards": ("shards/",)},
        conditional=True,
    ),
)
