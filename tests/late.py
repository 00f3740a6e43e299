"""Modules that are imported when a test uses them: at the top of a test file, every collecting process imports them."""

import importlib
from typing import Any


class LateModule:
    """Stands for a module; imports it for its first attribute."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


transformers = LateModule("transformers")
"""Takes four CPU-seconds."""
