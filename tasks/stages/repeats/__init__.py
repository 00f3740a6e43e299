"""Stage repeats: token shards and their suffix arrays -> runs of many tokens that stand more than once.

Changes no document itself.
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec


class RepeatsConfig(Config):
    """Whether long repeats are looked for in the training tokens; needs the suffix arrays of `[spans]`."""

    enabled: bool = False
    """Look for them: one pass over the suffix arrays, and 12 bytes on disk per token in a repeat while it runs."""

    min_tokens: int = Field(default=50, ge=2, le=1000)
    """Tokens of a repeat at least. 50 is the length of Lee et al. 2022."""

    range_tokens: int = Field(default=32_000_000, ge=1)
    """Suffixes that are read in one task, on average."""

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
