"""Pairs of copies: candidates that share a band of their signatures, verified by the Jaccard similarity of their texts.

    banded/<bucket>.<n>.bin      per bucket of keys    a run of PAIR, by a hash of the pair, for each block of pairs
    crowds/<bucket>.bin                                a run of IN_CROWD: documents in groups above `max_bucket`
    crowd/<part>.bin             per part              a run of CROWDED: the same with their preference, by band key
    crowded/<bucket>.<n>.bin     per bucket of keys    candidates in these groups
    paired/<bucket>.bin          per bucket of pairs   a run of GROUPED: the distinct pairs
    wanted/<bucket>.bin                                a run of WANTED: the texts of these pairs
    equal/<bucket>.bin           per bucket of hashes  a run of LINK: links between documents with equal texts
    shingles/<part>.<n>.bin      per part              runs of SHINGLES: the distinct shingles of each wanted text
    compared/<bucket>.bin        per bucket of groups  a run of LINK, the pairs that reach the threshold, by left text
    edges/<bucket>.bin                                 a run of EDGE, the same pairs in both directions
    below/ above/                                      samples of the pairs on both sides of the threshold (`audit`)

A pair found by several bands is verified once. Its texts are in many parts, so each part sends the shingles of its
texts to the buckets that compare them. Pairs are compared by groups of texts that share a band: a text is sent once for
some of its bands, not for each of its pairs. Each wanted text of `extracted` and of the index is read once.

Exact duplicates are texts with the same hash (`signatures.text_key`): equal after normalization of case, punctuation
and layout, or for code, data and texts without words, of white space. An empty text has no hash. A text without words
has no bands, so these texts are not candidates of one another. Near duplicates are verified pairs only: bands alone
have many false positives. In one published case, unverified MinHash with connected components removed a median of 76 %
of the documents of a source.

Memory: the records of a bucket and a block of pairs; for verification, the pairs of a bucket and 64 MB of shingles.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.document_ids import row_of
from tasks.formats.dedup.exchange import Exchange
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.text import is_prose, mix, normalise, with_signs
from tasks.stages.dedup import preference
from tasks.stages.dedup.audit import write_samples
from tasks.stages.dedup.signatures import batches, shingle
from tasks.stages.dedup.verdicts import both_directions
from tasks.stages.dedup.workspace import (
    CROWDED,
    GROUPED,
    IN_CROWD,
    LINK,
    PAIR,
    SHINGLES,
    WANTED,
    Workspace,
    packed,
    pair_key,
)

Ranks = Callable[[NDArray[np.uint64]], NDArray[np.int64]]
"""Maps row ids to ranks in order of preference."""

Shared = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Texts by key, and the index of the first one of each one's key (`shared_texts`)."""

CROWDS, CROWD, WANTED_TEXTS, SETS, EDGES = "crowds", "crowd", "wanted", "shingles", "edges"

_BLOCK = 1 << 20
"""Approximate number of pairs per block: 32 MB, and three times as much to sort them."""

_CROWD = 4096
"""Texts of a large group whose pairs have a group of their own, so that no group has all pairs of a template."""

_SIGNED = np.uint64(1 << 63)

SET_PIECES = 1 << 19
"""Approximate number of pieces of shingle sets in a file, and of those that a task of the verification holds: 64 MB."""

_MOST_GROUPS = 64
"""Groups for which a set is copied at once."""


def candidates_part(work: Workspace, keys: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Finds the candidate pairs of one bucket of band keys; runs on a worker."""
    bands = work.documents(keys, number)
    if not work.config.exact:
        bands["text"] = bands["row_id"]  # every document is a text of its own
    bands, crowded, large = without_crowds(bands, work.config.minhash.max_bucket)
    part.metric("large_buckets", large)
    part.metric("crowded", len(crowded))
    records = packed(IN_CROWD, key=crowded["row_id"], band=crowded["key"], text=crowded["text"])
    sorted_runs.write(part, buckets.sibling(CROWDS).path(number), [sorted_runs.by_key(records)])
    _write_pairs(work, part, buckets, number, shared_texts(bands, work.config.minhash.max_bucket))


def without_crowds(bands: NDArray[np.void], max_bucket: int) -> tuple[NDArray[np.void], NDArray[np.void], int]:
    """Returns the records (dtype BAND) of keys of up to `max_bucket` texts, the others, and their number of keys."""
    bands = bands[np.lexsort((bands["row_id"], bands["text"], bands["key"]))]
    group, new_text = _groups(bands)
    sizes = np.bincount(group[new_text])
    is_crowded = sizes[group] > max_bucket
    return bands[~is_crowded], bands[is_crowded], int((sizes > max_bucket).sum())


def _groups(bands: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns for sorted bands the number of each one's key, and whether it is the first one of its text and key."""
    new_key = np.append(True, bands["key"][1:] != bands["key"][:-1])[: len(bands)]
    new_text = new_key.copy()
    new_text[1:] |= bands["text"][1:] != bands["text"][:-1]
    return np.cumsum(new_key) - 1, new_text


def crowd_part(work: Workspace, crowds: Exchange, part: Part, item: tuple[int, str]) -> None:
    """Writes the preference of the documents of one part that are in large groups; runs on a worker."""
    number, name = item
    wanted = crowds.records(work.own, number)
    records = preference.ranked(work, number, name, CROWDED, wanted["key"])
    records["key"], records["text"] = wanted["band"], wanted["text"]
    sorted_runs.write(part, f"{CROWD}/{name}.bin", [sorted_runs.by_key(records)])


def crowded_part(work: Workspace, crowd: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Finds the candidate pairs in the large groups of one bucket of band keys; runs on a worker."""
    records = crowd.records(work.own, number)
    shared = shared_texts(records, work.config.minhash.max_bucket, partial(_ranks, work, records))
    _write_pairs(work, part, buckets, number, shared)


def _ranks(work: Workspace, records: NDArray[np.void], row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the rank of each document among those in large groups."""
    _, first = np.unique(records["row_id"], return_index=True)
    distinct_records = records[first]
    ranks = np.empty(len(first), np.int64)
    ranks[preference.ordered(work.config, distinct_records)] = np.arange(len(first))
    return ranks[np.searchsorted(distinct_records["row_id"], row_ids)]


def _write_pairs(work: Workspace, part: Part, buckets: Buckets, number: int, shared: Shared) -> None:
    """Writes a run for each block of pairs."""
    texts, starts = shared
    for block, (left, right) in enumerate(pairs(starts, work.config.minhash.max_bucket)):
        # Texts of a group are often together in other groups, too, with the same first one.
        group = mix(texts[starts[right]] + ((right - starts[right]) // _CROWD).astype(np.uint64))
        records = _pair_records(texts[left], texts[right], group)
        # Two documents of the index were compared in an earlier version.
        records = records[records["right"] >= work.first_row_id]
        sorted_runs.write(part, buckets.path(number, f"{block:05d}.bin"), [records])


def shared_texts(bands: NDArray[np.void], max_bucket: int, ranks: Ranks | None = None) -> Shared:
    """Returns the texts that share a key with another text, grouped by key.

    Args:
        bands: band keys (fields of BAND), in any order.
        max_bucket: larger groups are ordered by preference.
        ranks: returns the ranks of documents in order of preference; None if no group is larger.

    Returns:
        uint64 array of shape (members,), the row id of each text once per key; and int64 array of the same shape, the
        index of the first member of its group.
    """
    bands = bands[np.lexsort((bands["row_id"], bands["text"], bands["key"]))]
    group, new_text = _groups(bands)
    sizes = np.bincount(group[new_text])
    rank = np.zeros(len(bands), np.int64)
    large = np.flatnonzero(sizes[group] > max_bucket)
    if len(large):
        assert ranks is not None
        rank[large] = _ranks_of_texts(ranks(bands["row_id"][large]), new_text[large])
    kept = np.flatnonzero(new_text & (sizes[group] > 1))
    kept = kept[np.lexsort((rank[kept], group[kept]))]
    group = group[kept]
    first = np.append(True, group[1:] != group[:-1])[: len(group)]
    return bands["row_id"][kept], np.maximum.accumulate(np.where(first, np.arange(len(group)), 0))


def _ranks_of_texts(ranks: NDArray[np.int64], new_text: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns for each document the rank of the most preferred document with the same text."""
    starts = np.flatnonzero(new_text)
    return np.repeat(np.minimum.reduceat(ranks, starts), np.diff(np.append(starts, len(ranks))))


def pairs(
    starts: NDArray[np.int64], max_bucket: int, block: int = _BLOCK
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yields the pairs of members to verify: each with the first `max_bucket` members before it in its group.

    These are all pairs in groups of up to `max_bucket`; in larger groups, each is paired with the most preferred ones.

    Args:
        starts: shape (members,), index of the first member of each member's group.
        max_bucket: see above.
        block: approximate number of pairs per array; exceeded by at most `max_bucket`.

    Yields:
        two int64 arrays of the same shape: indices of members.
    """
    counts = np.minimum(np.arange(len(starts)) - starts, max_bucket)
    ends = np.cumsum(counts)
    first = 0
    while first < len(starts):
        before = ends[first] - counts[first]
        last = max(first + 1, int(np.searchsorted(ends, before + block, side="right")))
        own_counts = counts[first:last]
        later = np.repeat(np.arange(first, last), own_counts)
        within = np.arange(len(later)) - np.repeat(ends[first:last] - own_counts - before, own_counts)
        yield starts[later] + within, later
        first = last


def _pair_records(first: NDArray[np.uint64], second: NDArray[np.uint64], group: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns the distinct pairs of two arrays of row ids (dtype PAIR), sorted by key."""
    left, right = np.minimum(first, second), np.maximum(first, second)
    return distinct(packed(PAIR, key=pair_key(left, right), left=left, right=right, group=group))


def distinct(records: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the distinct pairs (dtype PAIR), each with its smallest group, sorted by key."""
    records = records[np.lexsort((records["group"], records["right"], records["left"], records["key"]))]
    repeats = (records["left"][1:] == records["left"][:-1]) & (records["right"][1:] == records["right"][:-1])
    result: NDArray[np.void] = records[~np.append(False, repeats)[: len(records)]]
    return result


def paired_part(work: Workspace, candidates: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Writes the distinct pairs of one bucket by their groups; runs on a worker."""
    records = distinct(candidates.records(work.own, number))
    part.metric("candidate_pairs", len(records))
    grouped = packed(GROUPED, key=records["group"], left=records["left"], right=records["right"])
    sorted_runs.write(part, buckets.path(number), [sorted_runs.by_key(grouped)])
    texts = np.concatenate([records["left"], records["right"]])
    wanted = _distinct_wants(packed(WANTED, key=texts, group=np.concatenate([records["group"], records["group"]])))
    sorted_runs.write(part, buckets.sibling(WANTED_TEXTS).path(number), [wanted])


def _distinct_wants(records: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the distinct records (dtype WANTED), sorted by row id and group."""
    records = records[np.lexsort((records["group"], records["key"]))]
    repeats = (records["key"][1:] == records["key"][:-1]) & (records["group"][1:] == records["group"][:-1])
    result: NDArray[np.void] = records[~np.append(False, repeats)[: len(records)]]
    return result


def equal_links(texts: NDArray[np.void]) -> NDArray[np.void]:
    """Returns links (dtype LINK) from the first document of each text to the others with the same text.

    Args:
        texts: hashes of texts (dtype TEXT), in any order.
    """
    texts = texts[np.lexsort((texts["row_id"], texts["low"], texts["key"]))]
    repeats = (texts["key"][1:] == texts["key"][:-1]) & (texts["low"][1:] == texts["low"][:-1])
    copies = np.flatnonzero(repeats) + 1
    starts = np.arange(len(texts))
    starts[copies] = 0
    first = np.maximum.accumulate(starts)[copies]
    left = texts["row_id"][first]
    jaccard, equal = np.ones(len(copies), np.float32), np.ones(len(copies), np.uint8)
    return packed(LINK, key=mix(left), left=left, right=texts["row_id"][copies], jaccard=jaccard, equal=equal)


def equal_part(work: Workspace, keys: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Links the equal texts of one bucket; runs on a worker."""
    links = equal_links(work.documents(keys, number))
    part.metric("links", len(links))
    sorted_runs.write(part, buckets.path(number), [sorted_runs.by_key(links)])


def shingle_part(work: Workspace, wanted: Exchange, part: Part, item: tuple[int, str]) -> None:
    """Writes the shingle sets of the wanted texts of one part, given by number and name; runs on a worker."""
    number, name = item
    records = _distinct_wants(wanted.records(work.own, number))
    if len(records):
        for block, pieces in enumerate(_blocks_of_pieces(work, number, name, records)):
            path = f"{SETS}/{name}.{block:05d}.bin"
            part.metric("pieces", sorted_runs.write(part, path, [sorted_runs.by_key(pieces)]))


def _blocks_of_pieces(work: Workspace, number: int, name: str, wanted: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    """Yields the shingles of the wanted texts of a part for their groups, about `SET_PIECES` at a time."""
    row_ids, starts = np.unique(wanted["key"], return_index=True)
    groups = np.split(wanted["group"], starts[1:])
    held, size = list[NDArray[np.void]](), 0
    for row_id, of_text, shingles in zip(row_ids, groups, _sets(work, number, name, row_of(row_ids)), strict=True):
        for first in range(0, len(of_text), _MOST_GROUPS):
            held.append(in_pieces(shingles, row_id, of_text[first : first + _MOST_GROUPS]))
            size += len(held[-1])
            if size >= SET_PIECES:
                yield np.concatenate(held)
                held, size = [], 0
    if held:
        yield np.concatenate(held)


def in_pieces(shingles: NDArray[np.uint64], row_id: np.uint64, groups: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns the shingles of a text, at least one, for some groups (dtype SHINGLES)."""
    (width,) = SHINGLES["shingles"].shape
    padded = np.full(-(-len(shingles) // width) * width, shingles[-1])
    padded[: len(shingles)] = shingles
    records = np.empty((len(groups), len(padded) // width), SHINGLES)
    records["key"], records["row_id"] = groups[:, None], row_id
    records["shingles"] = padded.reshape(-1, width)
    return records.ravel()


def _sets(work: Workspace, number: int, name: str, rows: NDArray[np.int64]) -> Iterator[NDArray[np.uint64]]:
    if number < work.index.count:
        texts = work.index.texts(number, rows)
    else:
        column = work.extracted.table(f"documents/{name}.parquet", columns=["text"]).column("text")
        texts = column.take(pa.array(rows)).to_pylist()
    yield from shingle_sets(texts, work.config.minhash.shingle)


def shingle_sets(texts: Sequence[str], size: int) -> Iterator[NDArray[np.uint64]]:
    """Yields the distinct shingles of each text, sorted: those of words, and of code and data also those with signs.

    The highest bit of a hash tells which one it is (`_SIGNED`).
    """
    for batch in batches(texts):
        of_words = _shingles([normalise(text) for text in batch], size)
        of_signs = _shingles(["" if is_prose(text) else with_signs(text) for text in batch], size)
        for words, signs in zip(of_words, of_signs, strict=True):
            yield np.unique(np.concatenate([words & ~_SIGNED, signs | _SIGNED]))


def _shingles(texts: Sequence[str], size: int) -> list[NDArray[np.uint64]]:
    hashes, counts = shingle(texts, size)
    return np.split(hashes, np.cumsum(counts)[:-1])


def sets_of(pieces: NDArray[np.void]) -> dict[tuple[int, int], NDArray[np.uint64]]:
    """Returns the shingle sets, sorted, by group and row id.

    Args:
        pieces: pieces of whole sets (dtype SHINGLES); those of a set are in their order.
    """
    pieces = pieces[np.lexsort((pieces["row_id"], pieces["key"]))]
    new = np.append(True, (pieces["key"][1:] != pieces["key"][:-1]) | (pieces["row_id"][1:] != pieces["row_id"][:-1]))
    starts = np.flatnonzero(new[: len(pieces)])
    names = zip(pieces["key"][starts].tolist(), pieces["row_id"][starts].tolist(), strict=True)
    bounds = pairwise([*starts.tolist(), len(pieces)])
    # Of an array of its own, because each slice of a field of records would be a copy.
    shingles = np.ascontiguousarray(pieces["shingles"])
    return {name: _unpadded(shingles[first:end].ravel()) for name, (first, end) in zip(names, bounds, strict=True)}


def _unpadded(shingles: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return shingles[: np.searchsorted(shingles, shingles[-1]) + 1]


def jaccard(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Returns the Jaccard similarity of two sorted sets, |intersection| / |union|; 0 if one is empty."""
    if len(left) > len(right):
        left, right = right, left
    if len(left) == 0:
        return 0.0
    places = np.searchsorted(right, left)
    places[places == len(right)] = 0  # beyond the end: any index will do, because the values differ
    common = int(np.count_nonzero(right[places] == left))
    return common / (len(left) + len(right) - common)


def similarity(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Returns the Jaccard similarity of two results of `shingle_sets`: if both have shingles with signs, of these.

    So two short functions that differ in an operator are no copies, and a copy of code in prose is one.
    """
    words, signs = zip(*(np.split(one, [np.searchsorted(one, _SIGNED)]) for one in (left, right)), strict=True)
    return jaccard(*signs) if all(map(len, signs)) else jaccard(*words)


def verify_part(work: Workspace, grouped: Exchange, sets: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Verifies the pairs of one bucket of groups; runs on a worker."""
    records = grouped.records(work.own, number)
    records = records[np.lexsort((records["right"], records["left"]))]
    shares = similarities(records, sets_of(sets.records(work.own, number)))
    is_duplicate = shares >= work.config.jaccard
    part.metric("verified_pairs", int(is_duplicate.sum()))
    write_samples(part, buckets, number, records, shares, work.config.jaccard)
    left, right = records["left"][is_duplicate], records["right"][is_duplicate]
    links = packed(LINK, key=mix(left), left=left, right=right, jaccard=shares[is_duplicate].astype(np.float32))
    sorted_runs.write(part, buckets.path(number), [sorted_runs.by_key(links)])
    sorted_runs.write(part, buckets.sibling(EDGES).path(number), [both_directions(left, right)])


def similarities(records: NDArray[np.void], sets: Mapping[tuple[int, int], NDArray[np.uint64]]) -> NDArray[np.float64]:
    """Returns the similarity of each pair (dtype GROUPED), shape (pairs,), from the sets of its texts by group."""
    columns = zip(*(records[name].tolist() for name in ("key", "left", "right")), strict=True)
    return np.fromiter(
        (similarity(sets[group, left], sets[group, right]) for group, left, right in columns),
        np.float64,
        len(records),
    )
