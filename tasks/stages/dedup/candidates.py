"""Candidate pairs: texts that share a band of their signatures.

Pure functions over arrays. A pair is ordered (better, worse) by rank, so that each pair occurs once.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def pairs_of_band(keys: NDArray[np.uint64], ranks: NDArray[np.int64], max_bucket: int) -> tuple[NDArray[np.int64], int]:
    """Returns the candidate pairs of one band.

    Args:
        keys: uint64 array of shape (texts,), the key of the band of each text.
        ranks: int64 array of shape (texts,), distinct, 0 for the most preferred.
        max_bucket: size up to which all pairs of a bucket are returned; in a larger bucket each text is paired only
            with the `max_bucket` most preferred ones.

    Returns:
        int64 array of shape (pairs, 2) of indices into `keys`, better first; and the number of larger buckets.
    """
    order = np.lexsort((ranks, keys))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(keys[order])) + 1)) if len(keys) else np.empty(0, np.int64)
    sizes = np.diff(np.append(starts, len(keys)))
    found = []
    for size in np.unique(sizes[sizes > 1]):
        # Vectorised over buckets of one size: most have two or three members, and a Python loop over them is slow.
        members = order[starts[sizes == size][:, None] + np.arange(size)]
        worse, better = _within(int(size), max_bucket)
        found.append(np.stack([members[:, better].ravel(), members[:, worse].ravel()], axis=1))
    pairs = np.concatenate(found) if found else np.empty((0, 2), dtype=np.int64)
    return pairs, int((sizes > max_bucket).sum())


def _within(size: int, max_bucket: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns indices (worse, better) of the pairs to verify in one bucket that is sorted by rank."""
    if size <= max_bucket:
        return np.tril_indices(size, -1)
    worse, better = np.tril_indices(size, -1, max_bucket)
    return worse, better


def all_pairs(
    bands: Iterable[NDArray[np.uint64]], ranks: NDArray[np.int64], max_bucket: int
) -> tuple[NDArray[np.int64], int]:
    """Returns the union of the candidate pairs of all bands; see `pairs_of_band`.

    Args:
        bands: keys of each band; an iterator keeps only one band in memory.
        ranks: as for `pairs_of_band`.
        max_bucket: as for `pairs_of_band`.

    Returns:
        int64 array of shape (pairs, 2), distinct and sorted; and the number of buckets larger than `max_bucket`.
    """
    united = np.empty(0, dtype=np.int64)
    large = 0
    width = np.int64(max(1, len(ranks)))  # a pair as one integer: two indices below 2^31.5 fit into 63 bits
    for keys in bands:
        pairs, more = pairs_of_band(keys, ranks, max_bucket)
        united = np.union1d(united, pairs[:, 0] * width + pairs[:, 1])
        large += more
    return np.stack([united // width, united % width], axis=1), large
