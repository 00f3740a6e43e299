"""What the process of `guard` needs of the stage's settings, as plain values.

Made by `captures` and `html`, read by `content` and `html`. The settings themselves are made of pydantic, whose import
takes as long as all else that the process loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.extract.config import ExtractConfig


@dataclass(frozen=True)
class Choices:
    """Settings of tasks.extract.config.ExtractConfig under the same names; see there."""

    extractor: str
    comments: bool
    min_main_share: float
    max_payload_bytes: int
    honour_noindex: bool

    @classmethod
    def of(cls, config: ExtractConfig) -> Choices:
        """Returns what the settings say."""
        return cls(
            config.extractor, config.comments, config.min_main_share, config.max_payload_bytes, config.honour_noindex
        )
