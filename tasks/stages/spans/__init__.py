"""Stage spans: token shards -> suffix arrays, in which any run of training tokens is found by binary search.

A suffix array lists where every suffix of the training tokens begins, in lexicographic order.
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec


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
        dag="tokens",
        output="spans",
        config=SpansConfig,
        inputs={"shards": Input("shards", files=("shards/",))},
    ),
)
