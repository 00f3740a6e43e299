"""Settings of how gradients are sent between ranks.

Imports pydantic only, so that the Airflow dag-processor can load it.
"""

from typing import Literal

from pydantic import Field

from tasks.core.config import Config


class Bf16Compression(Config):
    """Gradients are sent in bf16 and added in fp32: half of the bytes."""

    kind: Literal["bf16"]


class PowerSgdCompression(Config):
    """Matrices of the gradient are sent as products of two narrow ones: PowerSGD."""

    kind: Literal["powersgd"]
    rank: int = Field(default=4, ge=1)
    """Columns of the two: (rows + columns) x rank numbers are sent for rows x columns."""
