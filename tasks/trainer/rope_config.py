"""Settings of RoPE scaling: longer wavelengths for longer sequences.

Imports pydantic only, so that the Airflow dag-processor can load it.
"""

from typing import Literal

from pydantic import Field, model_validator

from tasks.core.config import Config, Problems


class LinearRope(Config):
    """Positions divided by a factor; a model needs some training with it."""

    kind: Literal["linear"]
    factor: float = Field(gt=1)
    """How many times longer sequences may be."""


class Llama3Rope(Config):
    """Long wavelengths stretched, short ones kept: the scaling of Llama 3.1."""

    kind: Literal["llama3"]
    factor: float = Field(gt=1)
    """How many times longer sequences may be."""
    original_length: int = Field(ge=2)
    """Positions of the sequences trained on before."""
    low_freq_factor: float = Field(default=1.0, gt=0)
    """Wavelengths that fit into the original length at most so many times are stretched by the factor."""
    high_freq_factor: float = Field(default=4.0, gt=0)
    """Wavelengths that fit into it at least so many times are kept."""

    @model_validator(mode="after")
    def _ordered(self) -> "Llama3Rope":
        if self.low_freq_factor >= self.high_freq_factor:
            raise Problems([f".low_freq_factor: must be below high_freq_factor {self.high_freq_factor:g}"])
        return self


class YarnRope(Config):
    """As `Llama3Rope`, with another ramp between both and sharper attention: YaRN."""

    kind: Literal["yarn"]
    factor: float = Field(gt=1)
    """How many times longer sequences may be."""
    original_length: int = Field(ge=2)
    """Positions of the sequences trained on before."""
    beta_slow: float = Field(default=1.0, gt=0)
    """Wavelengths that fit into the original length at most so many times are stretched by the factor."""
    beta_fast: float = Field(default=32.0, gt=0)
    """Wavelengths that fit into it at least so many times are kept."""

    @model_validator(mode="after")
    def _ordered(self) -> "YarnRope":
        if self.beta_slow >= self.beta_fast:
            raise Problems([f".beta_slow: must be below beta_fast {self.beta_fast:g}"])
        return self
