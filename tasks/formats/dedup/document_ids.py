"""Documents as integers: a 64-bit row id, or the two halves of a document id. Pure functions over arrays.

A row id is the number of the document's part in name order times 2**32, plus its row in the part. Unlike a row number
in the whole corpus, it does not depend on the row counts of other parts. The first half has the first 16 hex digits.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.errors import InputError

HALVES = np.dtype((">u8", 2))
"""A document id in a packed record: 16 bytes."""


def row_ids_of(part: int, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns the row ids of rows of a part."""
    return (np.uint64(part) << np.uint64(32)) + rows.astype(np.uint64)


def range_of(part: int) -> tuple[int, int]:
    """Returns the smallest row id of a part and that of the next part."""
    return part << 32, (part + 1) << 32


def part_of(row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the part numbers of row ids."""
    return (row_ids >> np.uint64(32)).astype(np.int64)


def row_of(row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the rows within their parts."""
    return (row_ids & np.uint64(0xFFFFFFFF)).astype(np.int64)


def by_part(row_ids: NDArray[np.uint64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yields the number of each part in row ids, and the positions of its row ids, in ascending order of rows."""
    order = np.argsort(row_ids, kind="stable")
    parts = part_of(row_ids[order])
    for part in np.unique(parts).tolist():
        yield part, order[np.searchsorted(parts, part) : np.searchsorted(parts, part, side="right")]


def pack(ids: pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """Returns the halves of document ids, shape (ids, 2).

    Raises:
        InputError: an id does not have 32 hex digits.
    """
    try:
        return np.frombuffer(bytes.fromhex("".join(ids.to_pylist())), ">u8").reshape(len(ids), 2)
    except (TypeError, ValueError):
        raise InputError("a document id is not of 32 hex digits", "run extract on these documents again") from None


def unpack(halves: NDArray[np.uint64]) -> pa.Array:
    """Returns document ids as strings, from halves of shape (ids, 2)."""
    digits = np.frombuffer(halves.astype(">u8").tobytes().hex().encode(), "S32")
    return pa.array(digits, pa.binary(32)).cast(pa.binary()).cast(pa.string())
