"""Document ids as two 64-bit integers each, in the order of their hex digits. Pure functions over arrays."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.errors import InputError

HALVES = np.dtype((">u8", 2))
"""An id in a packed record: 16 bytes."""


def pack(ids: pa.Array | pa.ChunkedArray) -> NDArray[np.uint64]:
    """Returns the halves of document ids, shape (ids, 2).

    Raises:
        InputError: an id is not of 32 hex digits.
    """
    try:
        return np.frombuffer(bytes.fromhex("".join(ids.to_pylist())), ">u8").reshape(len(ids), 2)
    except (TypeError, ValueError):
        raise InputError("a document id is not of 32 hex digits", "run extract on these documents again") from None


def unpack(halves: NDArray[np.uint64]) -> pa.Array:
    """Returns ids as text, from an array of shape (ids, 2)."""
    digits = np.frombuffer(halves.astype(">u8").tobytes().hex().encode(), "S32")
    return pa.array(digits, pa.binary(32)).cast(pa.binary()).cast(pa.string())
