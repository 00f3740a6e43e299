"""Stage repeats: token shards and their suffix arrays -> runs of many tokens that occur more than once.

The stage does not change documents.
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec


class RepeatsConfig(Config):
    """Settings of the search for long repeats in the training tokens; requires the suffix arrays of `[spans]`."""

    enabled: bool = False
    """Searches for repeats: one pass over the suffix arrays, and temporarily 12 bytes on disk per token in a repeat."""

    min_tokens: int = Field(default=50, ge=2, le=1000)
    """Minimum number of tokens of a repeat. 50 is the length in Lee et al. 2022."""

    range_tokens: int = Field(default=32_000_000, ge=1)
    """Average number of suffixes per task."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled


STAGES = (
    StageSpec(
        "repeats",
        dag="tokens",
        output="repeats",
        config=RepeatsConfig,
        inputs={"shards": Input("shards"), "spans": Input("spans"), "tokenizer": Input("tokenizer")},
    ),
)
