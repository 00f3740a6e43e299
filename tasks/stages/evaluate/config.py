"""Settings of the stage evaluate. Imports pydantic only, for the Airflow dag-processor."""

from pydantic import Field

from tasks.core.config import Config


class EvaluateConfig(Config):
    """Bits per byte on held-out documents."""

    max_tokens: int = Field(default=200_000, ge=1)
    """Maximum number of held-out tokens per source to score, in whole documents (at least one)."""
    batch_windows: int = Field(default=16, ge=1)
    """Windows of context per forward pass."""
    threads: int = Field(default=1, ge=1)
    """CPU threads. Their number may change the rounding."""
