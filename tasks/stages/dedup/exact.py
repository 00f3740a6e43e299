"""Exact duplicates: texts that are equal after normalisation of case, punctuation and layout.

Pure functions over arrays. A text without words has no key, so that empty texts are not duplicates of one another.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.formats.text import digest128

KEY_BYTES = 16


def text_key(normalised: str) -> bytes | None:
    """Returns the 16-byte hash of a normalised text, or None for a text without words."""
    return bytes.fromhex(digest128(normalised)) if normalised else None


def group_equal(keys: NDArray[np.uint64], has_key: NDArray[np.bool_], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns for every document the most preferred one with the same text.

    Args:
        keys: shape (documents, 2), the two halves of each text key; ignored where `has_key` is False.
        has_key: shape (documents,).
        order: shape (documents,), rank of each document, distinct, 0 for the most preferred.

    Returns:
        int64 array of shape (documents,): index of the most preferred copy, or its own index for one without copies.
    """
    best = np.arange(len(keys), dtype=np.int64)
    rows = np.flatnonzero(has_key)
    rows = rows[np.lexsort((order[rows], keys[rows, 1], keys[rows, 0]))]
    if len(rows) == 0:
        return best
    changed = np.any(keys[rows[1:]] != keys[rows[:-1]], axis=1)
    starts = np.concatenate(([0], np.flatnonzero(changed) + 1))
    sizes = np.diff(np.append(starts, len(rows)))
    best[rows] = np.repeat(rows[starts], sizes)
    return best
