"""Prevents Arrow from importing pandas, which no stage uses: 0.2 s and 49 MB in every process of a stage.

pyarrow imports pandas, where it is installed, at the first `pa.array` or `pa.table`, to check whether its argument is
a pandas object, and tries only once: where the import fails, the process continues without pandas. Code that imports
pandas itself (`Table.to_pandas`, MLflow) finds it as before.
"""

import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa


class _Absent:
    """Module finder that raises ModuleNotFoundError for pandas in the thread that created it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is left out", name=name)
        return None


def leave_out_pandas() -> None:
    """Makes pyarrow try, and fail, to import pandas now; does nothing where pandas is imported already."""
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])  # not empty: other code that checks the elements tries the import too
    finally:
        sys.meta_path.remove(absent)
