"""Main text of a page by trafilatura: a higher precision than resiliparse at a tenth of its speed.

Reads the source of a page. trafilatura (Barbaresi, ACL 2021 System Demonstrations) is an extra and is imported on first
use only.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING

from tasks.core.errors import InputError

if TYPE_CHECKING:
    from tasks.stages.extract.config import ExtractConfig


def check_installed(config: ExtractConfig) -> None:
    """Raises InputError if the recipe's extractor is not installed."""
    if config.extractor == "trafilatura" and importlib.util.find_spec("trafilatura") is None:
        raise InputError(
            'the recipe says [extract] extractor = "trafilatura", and trafilatura is not installed here',
            "install it where the stage runs (pip install 'sluice[careful]'), or choose extractor = \"blocks\"",
        )


def careful_text(html: str, *, comments: bool = False) -> str:
    """Returns trafilatura's main text, favouring precision; "" if it finds none."""
    import trafilatura

    # It logs a warning for every page without main text; the stage counts them.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    found: str | None = trafilatura.extract(html, favor_precision=True, include_comments=comments)
    return found or ""
