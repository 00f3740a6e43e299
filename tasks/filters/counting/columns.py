"""Chunked array operations with 32-bit indices, to limit the memory of splits.

A document of 16 MB can contain sixteen million words or lines. NumPy returns and uses 64-bit indices, and each step of
an expression allocates an array: eight or ten of those would exceed a worker's memory. All counts here are positions in
a column of text, which Arrow addresses with 32 bits. A batch of ordinary size is one portion, without extra cost.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

PORTION = 1 << 20

Kind = TypeVar("Kind", bound=np.generic)


def portions(size: int, step: int | None = None) -> Iterator[slice]:
    """Yields slices of `step` (PORTION) that together are range(size), in order."""
    step = step or PORTION
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def places(mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Returns where a mask is true: `np.flatnonzero` in half the memory."""
    if len(mask) <= PORTION:
        return np.flatnonzero(mask).astype(np.int32)
    found = np.empty(np.count_nonzero(mask), np.int32)
    end = 0
    for part in portions(len(mask)):
        some = np.flatnonzero(mask[part])
        found[end : end + len(some)] = some + part.start
        end += len(some)
    return found


def looked_up(table: NDArray[Kind], at: NDArray[np.int32]) -> NDArray[Kind]:
    """Returns table[at], without a copy of `at` in 64 bits."""
    if len(at) <= PORTION:
        return table[at]
    found = np.empty(len(at), table.dtype)
    for part in portions(len(at)):
        found[part] = table[at[part]]
    return found


def insertions(ordered: NDArray[np.int32], values: NDArray[Any]) -> NDArray[np.int32]:
    """Returns where the values would be inserted: `np.searchsorted` in half the memory."""
    found = np.empty(len(values), np.int32)
    for part in portions(len(values)):
        # Of another type than the values, all of `ordered` would be copied.
        found[part] = np.searchsorted(ordered, values[part].astype(np.int32, copy=False))
    return found


def running_sums(values: NDArray[Any]) -> NDArray[np.int32]:
    """Returns the sum of all values before each one, and of all, shape (n + 1,)."""
    found = np.zeros(len(values) + 1, np.int32)
    np.cumsum(values, dtype=np.int32, out=found[1:])
    return found
