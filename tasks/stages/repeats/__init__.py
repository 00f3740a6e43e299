"""Repeats: runs of many tokens that stand more than once in the training documents; changes no document itself.

shards (train), spans -> repeats/<shard>.parquet   (which tokens of each document stand elsewhere, too)

Settings of the stage `repeats`. Imports pydantic only, for the Airflow dag-processor.

Wiring of the stage `repeats`: token shards and their suffix arrays -> long repeats.
"""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import StageSpec


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
        "tasks.stages.repeats.stage",
        "repeats",
        "tokens",
        "repeats",
        inputs={"shards": "shards", "spans": "spans", "tokenizer": "tokenizer"},
        conditional=True,
    ),
)
