"""Clusters of duplicates, and the order of preference of documents.

Pure functions over arrays. A cluster is a connected component of verified pairs and equal texts; it serves reports and
the division of work. Which documents are dropped is decided by the rule in `tasks.formats.duplicate_resolution`.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def preference(quality: pa.ChunkedArray, fetched_at: pa.ChunkedArray, ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """Ranks documents: highest quality first, then earliest fetch (unknown last), then smallest id.

    Returns:
        int64 array of shape (documents,): the rank of each, 0 for the most preferred.
    """
    table = pa.table({"quality": quality, "fetched_at": fetched_at, "id": ids})
    # Unknown values come last by default.
    keys = [("quality", "descending"), ("fetched_at", "ascending"), ("id", "ascending")]
    order = pc.sort_indices(table, sort_keys=keys).to_numpy()
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def components(count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns connected components, by propagation of the smallest node along the pairs.

    Pointer jumping (Shiloach and Vishkin 1982) halves the distance to the smallest node in each round, so a chain of n
    texts takes about log2(n) rounds.

    Args:
        count: number of nodes.
        pairs: int64 array of shape (pairs, 2).

    Returns:
        int64 array of shape (count,): the smallest node of each node's component.
    """
    label = np.arange(count, dtype=np.int64)
    while len(pairs):
        left, right = label[pairs[:, 0]], label[pairs[:, 1]]
        if np.array_equal(left, right):
            break
        smaller, larger = np.minimum(left, right), np.maximum(left, right)
        np.minimum.at(label, larger, smaller)
        while not np.array_equal(label, label[label]):
            label = label[label]
    return label
