"""Stage spans: token shards -> suffix arrays, for lookups of any run of training tokens by binary search.

A suffix array has the positions of all suffixes of the training tokens, in lexicographic order.
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec


class SpansConfig(Config):
    """Settings of the index of the training tokens, with which `explain` finds the pages of a text."""

    enabled: bool = False
    """Builds the index, which takes 4 bytes on disk per training token in addition to the tokens."""
    group_tokens: int = Field(default=256_000_000, ge=1, le=500_000_000)
    """Maximum number of tokens per suffix array; a larger shard has a suffix array of its own. Sorting takes 12 bytes
    of memory per token for a vocabulary of up to 65,536 entries, and 16 bytes for a larger one."""

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
