"""Candidate pairs: texts that have a whole band of their signatures in common.

Pure functions over arrays. A pair is (better, worse) by rank, so that a pair is found once.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def pairs_of_band(keys: NDArray[np.uint64], ranks: NDArray[np.int64], max_bucket: int) -> tuple[NDArray[np.int64], int]:
    """Finds the pairs that one band makes.

    Args:
        keys: uint64 array of shape (texts,), the band's key of each text.
        ranks: int64 array of shape (texts,), 0 most preferred, all different.
        max_bucket: size up to which all pairs of a bucket are made; in a larger one each text is paired with the
            `max_bucket` most preferred ones.

    Returns:
        int64 array of shape (pairs, 2) of positions in `keys`, better first; and the number of larger buckets.
    """
    order = np.lexsort((ranks, keys))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(keys[order])) + 1)) if len(keys) else np.empty(0, np.int64)
    sizes = np.diff(np.append(starts, len(keys)))
    found = []
    for size in np.unique(sizes[sizes > 1]):
        # All buckets of one size at once: most have two or three members, and a Python loop over them would be slow.
        members = order[starts[sizes == size][:, None] + np.arange(size)]
        worse, better = _within(int(size), max_bucket)
        found.append(np.stack([members[:, better].ravel(), members[:, worse].ravel()], axis=1))
    pairs = np.concatenate(found) if found else np.empty((0, 2), dtype=np.int64)
    return pairs, int((sizes > max_bucket).sum())


def _within(size: int, max_bucket: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns positions (worse, better) of the pairs to verify inside one bucket that is sorted by rank."""
    if size <= max_bucket:
        return np.tril_indices(size, -1)
    worse, better = np.tril_indices(size, -1, max_bucket)
    return worse, better


def all_pairs(
    bands: Iterable[NDArray[np.uint64]], ranks: NDArray[np.int64], max_bucket: int
) -> tuple[NDArray[np.int64], int]:
    """Unites the pairs of all bands; see `pairs_of_band`.

    Args:
        bands: the keys of one band after the other, so that only one needs to be in memory.
        ranks: as for `pairs_of_band`.
        max_bucket: as for `pairs_of_band`.

    Returns:
        int64 array of shape (pairs, 2), each pair once, sorted; and the number of buckets larger than `max_bucket`.
    """
    united = np.empty(0, dtype=np.int64)
    large = 0
    width = np.int64(max(1, len(ranks)))  # a pair as one number: two texts below 2^31.5 fit into 63 bits
    for keys in bands:
        pairs, more = pairs_of_band(keys, ranks, max_bucket)
        united = np.union1d(united, pairs[:, 0] * width + pairs[:, 1])
        large += more
    return np.stack([united // width, united % width], axis=1), large
