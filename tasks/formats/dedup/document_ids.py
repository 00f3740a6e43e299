"""Row ids: a document as one integer, the number of its part in name order times 2**32 plus its row in the part.

Pure functions over arrays. Unlike a row number in the whole corpus it needs no counts of other parts.
"""

import numpy as np
from numpy.typing import NDArray


def row_ids_of(part: int, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns the row ids of rows of the part with a number."""
    return (np.uint64(part) << np.uint64(32)) + rows.astype(np.uint64)


def range_of(part: int) -> tuple[int, int]:
    """Returns the least row id of a part and that of the next one."""
    return part << 32, (part + 1) << 32


def part_of(row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the numbers of the parts."""
    return (row_ids >> np.uint64(32)).astype(np.int64)


def row_of(row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the rows in their parts."""
    return (row_ids & np.uint64(0xFFFFFFFF)).astype(np.int64)
