"""Settings of the stage for the child process of `guard`, as plain values.

Without pydantic, whose import takes as long as all other imports of the process together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.stages.extract.config import ExtractConfig


@dataclass(frozen=True)
class Choices:
    """Settings of tasks.stages.extract.config.ExtractConfig under the same names; see there."""

    extractor: str
    comments: bool
    min_main_share: float
    max_payload_bytes: int
    honour_noindex: bool
    parsers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name of the parser and its settings as JSON, by media type."""

    @classmethod
    def of(cls, config: ExtractConfig) -> Choices:
        """Returns the choices of some settings."""
        from tasks.stages.extract.parser import by_media_type

        return cls(
            *(config.extractor, config.comments, config.min_main_share, config.max_payload_bytes),
            *(config.honour_noindex, by_media_type(config.parsers)),
        )
