"""Reference implementation of the verdicts: all documents in one process, numbered by one order of preference.

This was the stage before the division into buckets: one lexsort for the order, one union of the pairs of
all bands, components by propagation of the smallest label. Tests compare the passes with it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.formats.dedup.duplicates import choose
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.pairs import shingle_sets, similarity
from tasks.stages.dedup.signatures import sign


class Expected(NamedTuple):
    """`verdicts`: by id, the row of `duplicates/` without its bucket. `pairs`: better, worse, similarity."""

    verdicts: dict[str, tuple[str | None, str | None, float | None, str | None, str | None, int | None]]
    pairs: set[tuple[str, str, float]]
    candidates: int
    large_buckets: int


def expected(rows: Sequence[dict[str, Any]], config: DedupConfig) -> Expected:
    """Returns the verdicts on documents (`made.document`)."""
    ids = [row["id"] for row in rows]
    ranks = preference(
        pa.chunked_array([pa.array([row["prose_score"] for row in rows], pa.float32())]),
        pa.chunked_array([pa.array([row["fetched_at"] for row in rows], pa.timestamp("ms", tz="UTC"))]),
        pa.chunked_array([ids]),
    )
    signed = sign(pa.chunked_array([[row["text"] for row in rows]]), config)
    texts = np.arange(len(rows))
    if config.exact:
        texts = group_equal(signed.texts, signed.filled, ranks)
    alone = np.flatnonzero((texts == np.arange(len(texts))) & signed.words)
    bands = signed.bands[alone].T
    found, large = all_pairs(bands, ranks[alone], config.minhash.max_bucket)
    sets = list(shingle_sets([row["text"] for row in rows], config.minhash.shingle))
    pairs = alone[found]
    shares = np.array([similarity(sets[better], sets[worse]) for better, worse in pairs.tolist()])
    passed = shares >= config.jaccard if len(pairs) else np.zeros(0, np.bool_)
    pairs, shares = pairs[passed], shares[passed].astype(np.float32)
    named = {(ids[a], ids[b], share) for (a, b), share in zip(pairs.tolist(), shares.tolist(), strict=True)}
    return Expected(_judge(ids, ranks, texts, pairs, shares), named, len(found), large)


def _judge(ids: list[str], ranks: Any, texts: Any, pairs: Any, shares: Any) -> dict[str, Any]:
    equal = np.flatnonzero(texts != np.arange(len(ids)))
    label = components(len(ids), np.concatenate([pairs, np.stack([texts[equal], equal], axis=1)]))
    members = np.flatnonzero(np.bincount(label, minlength=len(ids))[label] > 1)
    members = members[np.argsort(ranks[members])]
    choice = choose(texts[members], pairs, shares)
    verdicts: dict[str, Any] = dict.fromkeys(ids, (None,) * 6)
    clusters: dict[int, list[int]] = {}
    for position, row in enumerate(members.tolist()):
        cluster = clusters.setdefault(int(label[row]), [])
        cluster.append(row)
        keeper = int(members[choice.keeper[position]])
        kind = "exact" if texts[keeper] == texts[row] else "near"
        share = float(choice.jaccard[position])
        dropped = (ids[keeper], kind, share) if keeper != row else (None, None, None)
        verdicts[ids[row]] = (*dropped, ids[cluster[0]], ids[texts[row]], len(cluster) - 1)
    return verdicts


def preference(quality: pa.ChunkedArray, fetched_at: pa.ChunkedArray, ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """Returns the rank of each document: highest quality, then earliest fetch (unknown last), then smallest id."""
    table = pa.table({"quality": quality, "fetched_at": fetched_at, "id": ids})
    keys = [("quality", "descending"), ("fetched_at", "ascending"), ("id", "ascending")]
    order = pc.sort_indices(table, sort_keys=keys).to_numpy()
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def group_equal(keys: NDArray[np.uint64], has_key: NDArray[np.bool_], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns for every document the most preferred one with the same text."""
    best = np.arange(len(keys))
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in np.flatnonzero(has_key).tolist():
        groups.setdefault(tuple(keys[row].tolist()), []).append(row)
    for group in groups.values():
        best[group] = min(group, key=lambda row: ranks[row])
    return best


def pairs_of_band(keys: NDArray[np.uint64], ranks: NDArray[np.int64], max_bucket: int) -> tuple[NDArray[np.int64], int]:
    """Returns the candidate pairs of one band, better first, and how many groups are larger than `max_bucket`."""
    order = np.lexsort((ranks, keys))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(keys[order])) + 1)) if len(keys) else np.empty(0, np.int64)
    sizes = np.diff(np.append(starts, len(keys)))
    found = []
    for size in np.unique(sizes[sizes > 1]):
        members = order[starts[sizes == size][:, None] + np.arange(size)]
        worse, better = np.tril_indices(size, -1, size if size <= max_bucket else max_bucket)
        found.append(np.stack([members[:, better].ravel(), members[:, worse].ravel()], axis=1))
    pairs = np.concatenate(found) if found else np.empty((0, 2), dtype=np.int64)
    return pairs, int((sizes > max_bucket).sum())


def all_pairs(bands: NDArray[np.uint64], ranks: NDArray[np.int64], max_bucket: int) -> tuple[NDArray[np.int64], int]:
    """Returns the distinct candidate pairs of all bands, and how many groups are larger than `max_bucket`."""
    found = [pairs_of_band(keys, ranks, max_bucket) for keys in bands]
    pairs = np.concatenate([np.empty((0, 2), np.int64), *(pairs for pairs, _ in found)])
    return np.unique(pairs, axis=0), sum(large for _, large in found)


def components(count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the smallest node of each node's component, by propagation along the pairs with pointer jumping."""
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
