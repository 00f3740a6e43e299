"""Settings of the stage evaluate. pydantic only: the Airflow dag-processor imports it."""

from pydantic import Field

from tasks.core.config import Config


class EvaluateConfig(Config):
    """Bits per byte on held-out documents."""

    max_tokens: int = Field(default=200_000, ge=1)
    """Held-out tokens per source to score at most, in whole documents (at least one)."""
    batch_windows: int = Field(default=16, ge=1)
    """Windows of context per forward pass."""
    threads: int = Field(default=1, ge=1)
    """CPU threads. Another number may round differently."""
