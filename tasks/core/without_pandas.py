"""Keeps Arrow from importing pandas, which nothing here uses: 0.2 s and 49 MB in every process of a stage.

pyarrow imports pandas, where it is installed, at the first `pa.array` or `pa.table`, to ask whether what it was given
is one of pandas' own types, and asks once: where pandas cannot be imported it goes on without for as long as the
process lives. What names pandas itself (`Table.to_pandas`, MLflow) finds it as before.
"""

import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa


class _Absent:
    """A finder of modules that finds no pandas in the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is left out", name=name)
        return None


def leave_out() -> None:
    """Lets pyarrow find out now that there is no pandas; does nothing where pandas is imported already."""
    if "pandas" in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pa.array([0])  # not empty: its elements are looked at by other code, which asks too
    finally:
        sys.meta_path.remove(absent)
