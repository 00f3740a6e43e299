"""Candidate pairs: texts that share a band of their signatures.

Reads the runs `bands/` of all parts, one bucket of keys at a time, and `preference/` of texts in large groups. Writes

    candidates/<bucket>.bin   a run of PAIR, by a hash of the pair: what several buckets find meets in one batch
    wanted/<bucket>.bin       a run of ROW_ID: the texts of these pairs

Memory: the records of the bucket, and a block of pairs.

Exact duplicates are texts that are equal after normalisation of case, punctuation and layout. `equal_part` reads the
runs `texts/` of all parts, one bucket of hashes at a time, and writes `equal/<bucket>.bin`, a run of LINK: each text
that several documents have, and the others of these. A text without words has no hash, so that empty texts are not
duplicates of one another.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import BANDS, TEXTS
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.mix import mix
from tasks.stages.dedup import preference
from tasks.stages.dedup.workspace import LINK, PAIR, ROW_ID, Workspace, packed, pair_key

Preferences = Callable[[NDArray[np.uint64]], NDArray[np.void]]
"""Maps row ids to records of preference."""

WANTED = "wanted"
_BLOCK = 1 << 20
"""Pairs per block, about: 24 MB, and as much again three times to sort them."""


def candidates_part(work: Workspace, made: Buckets, part: Part, number: int) -> None:
    """Finds the pairs of one bucket of `made`; runs on a worker."""
    config = work.config
    bands = work.bucket_of_documents(BANDS, number, made.count)
    if not config.exact:
        bands["text"] = bands["row_id"]  # every document stands for itself
    shared, starts, large = shared_texts(bands, config.minhash.max_bucket, partial(preference.read, work))
    del bands
    part.metric("large_buckets", large)
    blocks = (_distinct(shared[left], shared[right]) for left, right in pairs(starts, config.minhash.max_bucket))
    # Two documents of the index were compared when the later one was new.
    blocks = (block[block["right"] >= work.first_row_id] for block in blocks)
    wanted: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    part.metric("found_pairs", sorted_runs.write(part, made.path(number), _noting_texts(blocks, wanted)))
    texts = packed(ROW_ID, key=np.unique(np.concatenate(wanted)))
    sorted_runs.write(part, made.beside(WANTED).path(number), [texts])


def shared_texts(
    bands: NDArray[np.void], max_bucket: int, preferences: Preferences
) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
    """Returns the texts that share a key with another text, grouped by key.

    Args:
        bands: dtype BAND, in any order.
        max_bucket: a group of more texts is ordered by preference.
        preferences: of texts in such groups.

    Returns:
        uint64 array of shape (members,), the row id of each text once per key; int64 array of the same shape, the index
        of the first member of its group; and the number of groups larger than `max_bucket`.
    """
    bands = bands[np.lexsort((bands["row_id"], bands["text"], bands["key"]))]
    new_key = np.append(True, bands["key"][1:] != bands["key"][:-1])[: len(bands)]
    new_text = new_key.copy()
    new_text[1:] |= bands["text"][1:] != bands["text"][:-1]
    group = np.cumsum(new_key) - 1
    sizes = np.bincount(group[new_text], minlength=0)
    rank = np.zeros(len(bands), np.int64)
    large = np.flatnonzero(sizes[group] > max_bucket)
    if len(large):
        rank[large] = _ranks_of_texts(bands["row_id"][large], new_text[large], preferences)
    kept = np.flatnonzero(new_text & (sizes[group] > 1))
    kept = kept[np.lexsort((rank[kept], group[kept]))]
    group = group[kept]
    first = np.append(True, group[1:] != group[:-1])[: len(group)]
    starts = np.maximum.accumulate(np.where(first, np.arange(len(group)), 0))
    return bands["row_id"][kept], starts, int((sizes > max_bucket).sum())


def _ranks_of_texts(
    row_ids: NDArray[np.uint64], new_text: NDArray[np.bool_], preferences: Preferences
) -> NDArray[np.int64]:
    """Returns for each document of some groups the rank of the most preferred one with its text."""
    order = preference.order(preferences(row_ids), row_ids)
    ranks = np.empty(len(row_ids), np.int64)
    ranks[order] = np.arange(len(row_ids))
    starts = np.flatnonzero(new_text)
    return np.repeat(np.minimum.reduceat(ranks, starts), np.diff(np.append(starts, len(row_ids))))


def pairs(
    starts: NDArray[np.int64], max_bucket: int, block: int = _BLOCK
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yields the pairs of members to verify: each with all before it in its group, but with no more than `max_bucket`.

    In a group of up to `max_bucket` that is all pairs; in a larger one each is paired with the most preferred ones.

    Args:
        starts: shape (members,), index of the first member of each one's group.
        max_bucket: see above.
        block: pairs per array, about; the most is `max_bucket` more.

    Yields:
        two int64 arrays of one shape: indices of members.
    """
    counts = np.minimum(np.arange(len(starts)) - starts, max_bucket)
    ends = np.cumsum(counts)
    first = 0
    while first < len(starts):
        before = ends[first] - counts[first]
        last = max(first + 1, int(np.searchsorted(ends, before + block, side="right")))
        mine = counts[first:last]
        later = np.repeat(np.arange(first, last), mine)
        within = np.arange(len(later)) - np.repeat(ends[first:last] - mine - before, mine)
        yield starts[later] + within, later
        first = last


def _noting_texts(blocks: Iterable[NDArray[np.void]], wanted: list[NDArray[np.uint64]]) -> Iterator[NDArray[np.void]]:
    """Yields blocks of pairs, and adds the texts of each to `wanted`."""
    for block in blocks:
        wanted.append(np.unique(np.concatenate([block["left"], block["right"]])))
        yield block


def _distinct(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns pairs (dtype PAIR), each once, sorted by key."""
    left, right = np.minimum(one, other), np.maximum(one, other)
    return distinct(packed(PAIR, key=pair_key(left, right), left=left, right=right))


def distinct(found: NDArray[np.void]) -> NDArray[np.void]:
    """Returns each pair once (dtype PAIR), sorted by key."""
    found = found[np.lexsort((found["right"], found["left"], found["key"]))]
    again = (found["left"][1:] == found["left"][:-1]) & (found["right"][1:] == found["right"][:-1])
    kept: NDArray[np.void] = found[~np.append(False, again)[: len(found)]]
    return kept


def equal_links(texts: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the links (dtype LINK) from the first document of each text to the others with it.

    Args:
        texts: dtype TEXT, in any order.
    """
    texts = texts[np.lexsort((texts["row_id"], texts["low"], texts["key"]))]
    repeats = (texts["key"][1:] == texts["key"][:-1]) & (texts["low"][1:] == texts["low"][:-1])
    again = np.flatnonzero(repeats) + 1
    starts = np.arange(len(texts))
    starts[again] = 0
    first = np.maximum.accumulate(starts)[again]
    left = texts["row_id"][first]
    jaccard, equal = np.ones(len(again), np.float32), np.ones(len(again), np.uint8)
    return packed(LINK, key=mix(left), left=left, right=texts["row_id"][again], jaccard=jaccard, equal=equal)


def equal_part(work: Workspace, made: Buckets, part: Part, number: int) -> None:
    """Links the equal texts of one bucket of `made`; runs on a worker."""
    links = equal_links(work.bucket_of_documents(TEXTS, number, made.count))
    part.metric("links", len(links))
    sorted_runs.write(part, made.path(number), [sorted_runs.by_key(links)])
