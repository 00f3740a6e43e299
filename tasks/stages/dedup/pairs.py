"""Pairs of copies: candidates that share a band of their signatures, verified by the Jaccard similarity of their texts.

    candidates/<bucket>.bin  per bucket of keys    a run of PAIR, by a hash of the pair, so that a pair found in
                                                   several buckets is in one batch
    wanted/<bucket>.bin                            a run of ROW_ID: the texts of these pairs
    equal/<bucket>.bin       per bucket of hashes  a run of LINK: links between documents with equal texts
    shingles/<part>.bin      per part              the distinct shingles (u64) of each wanted text, concatenated, each
                                                   set sorted; `<part>.rows.bin` (SET): their rows and ends
    verified/<batch>.bin     per batch of pairs    a run of LINK, the pairs that reach the threshold, by the left text
    edges/<batch>.bin                              a run of EDGE, the same pairs in both directions
    below/ above/                                  samples of the pairs on both sides of the threshold (`audit`)

Reads the runs `bands/` and `texts/` of all parts by ranges of keys, `preference/` of texts in large groups, and each
wanted text of `extracted` and of the index once.

Exact duplicates are texts with the same hash (`signatures.text_key`): equal after normalization of case, punctuation
and layout, or for code, data and texts without words, of white space. An empty text has no hash. A text without words
has no bands, so these texts are not candidates of one another. Near duplicates are verified pairs only: bands alone
have many false positives. In one published case, unverified MinHash with connected components removed a median of 76 %
of the documents of a source.

Memory: the records of a bucket and a block of pairs; for verification, the pairs of the batch and 64 MB of shingles.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import BANDS, TEXTS
from tasks.formats.dedup.document_ids import by_part, range_of, row_of
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.text import is_prose, mix, normalise, with_signs
from tasks.stages.dedup import preference
from tasks.stages.dedup.audit import write_samples
from tasks.stages.dedup.signatures import batches, shingle
from tasks.stages.dedup.verdicts import both_directions
from tasks.stages.dedup.workspace import LINK, PAIR, ROW_ID, Workspace, packed, pair_key

Preferences = Callable[[NDArray[np.uint64]], NDArray[np.void]]
"""Maps row ids to records of preference."""

WANTED = "wanted"

_BLOCK = 1 << 20
"""Approximate number of pairs per block: 24 MB, and three times as much to sort them."""

_SETS = "shingles"

SET = np.dtype([("row", "<u8"), ("end", "<u8")])
"""A row of the part, and the end of its shingles in the file, which begin at the end of the previous row's."""

_SIGNED = np.uint64(1 << 63)

EDGES = "edges"

_SHINGLES = 1 << 23
"""Maximum number of shingles in memory: 64 MB."""


def candidates_part(work: Workspace, buckets: Buckets, part: Part, number: int) -> None:
    """Finds the candidate pairs of one bucket; runs on a worker."""
    config = work.config
    bands = work.bucket_of_documents(BANDS, number, buckets.count)
    if not config.exact:
        bands["text"] = bands["row_id"]  # every document is a text of its own
    shared, starts, large = shared_texts(bands, config.minhash.max_bucket, partial(preference.read, work))
    del bands
    part.metric("large_buckets", large)
    blocks = (_pair_records(shared[left], shared[right]) for left, right in pairs(starts, config.minhash.max_bucket))
    # Two documents of the index were compared in an earlier version.
    blocks = (block[block["right"] >= work.first_row_id] for block in blocks)
    wanted: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    part.metric("found_pairs", sorted_runs.write(part, buckets.path(number), _collect_texts(blocks, wanted)))
    texts = packed(ROW_ID, key=np.unique(np.concatenate(wanted)))
    sorted_runs.write(part, buckets.sibling(WANTED).path(number), [texts])


def shared_texts(
    bands: NDArray[np.void], max_bucket: int, preferences: Preferences
) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
    """Returns the texts that share a key with another text, grouped by key.

    Args:
        bands: band keys (dtype BAND), in any order.
        max_bucket: larger groups are ordered by preference.
        preferences: returns the preference records of texts in such groups.

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
    """Returns for each document the rank of the most preferred document with the same text."""
    order = preference.order(preferences(row_ids), row_ids)
    ranks = np.empty(len(row_ids), np.int64)
    ranks[order] = np.arange(len(row_ids))
    starts = np.flatnonzero(new_text)
    return np.repeat(np.minimum.reduceat(ranks, starts), np.diff(np.append(starts, len(row_ids))))


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


def _collect_texts(blocks: Iterable[NDArray[np.void]], wanted: list[NDArray[np.uint64]]) -> Iterator[NDArray[np.void]]:
    """Yields blocks of pairs unchanged, and appends the texts of each to `wanted`."""
    for block in blocks:
        wanted.append(np.unique(np.concatenate([block["left"], block["right"]])))
        yield block


def _pair_records(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns the distinct pairs of two arrays of row ids (dtype PAIR), sorted by key."""
    left, right = np.minimum(first, second), np.maximum(first, second)
    return distinct(packed(PAIR, key=pair_key(left, right), left=left, right=right))


def distinct(records: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the distinct pairs (dtype PAIR), sorted by key."""
    records = records[np.lexsort((records["right"], records["left"], records["key"]))]
    repeats = (records["left"][1:] == records["left"][:-1]) & (records["right"][1:] == records["right"][:-1])
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


def equal_part(work: Workspace, buckets: Buckets, part: Part, number: int) -> None:
    """Links the equal texts of one bucket; runs on a worker."""
    links = equal_links(work.bucket_of_documents(TEXTS, number, buckets.count))
    part.metric("links", len(links))
    sorted_runs.write(part, buckets.path(number), [sorted_runs.by_key(links)])


def shingle_part(work: Workspace, wanted: Buckets, part: Part, item: tuple[int, str]) -> None:
    """Writes the shingle sets of one part, given by number and name; runs on a worker."""
    number, name = item
    row_ids = np.unique(sorted_runs.read_range(work.own, wanted.paths(), ROW_ID, *range_of(number))["key"])
    sets = np.empty(len(row_ids), SET)
    sets["row"] = row_of(row_ids)
    end = 0
    with part.file(f"{_SETS}/{name}.bin") as file:
        for index, shingles in enumerate(_sets(work, number, name, sets["row"].astype(np.int64))):
            file.write(shingles.tobytes())
            end += len(shingles)
            sets["end"][index] = end
    part.write(f"{_SETS}/{name}.rows.bin", sets.tobytes(), rows=len(sets))


def _sets(work: Workspace, number: int, name: str, rows: NDArray[np.int64]) -> Iterator[NDArray[np.uint64]]:
    if not len(rows):
        return
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


class ShingleSets:
    """Reads shingle sets of all parts.

    Args:
        folder: folder of this stage's artifact.
        names: names of all parts, by number.
        row_ids: the texts to read, sorted and distinct.
    """

    def __init__(self, folder: ArtifactFolder, names: Sequence[str], row_ids: NDArray[np.uint64]) -> None:
        self._folder = folder
        self._names = names
        self._row_ids = row_ids
        self._begin, self._end = (np.empty(len(row_ids), np.int64) for _ in range(2))
        for part, in_part in by_part(row_ids):
            sets = np.fromfile(folder.local(f"{_SETS}/{names[part]}.rows.bin"), SET)
            at = np.searchsorted(sets["row"], row_of(row_ids[in_part]).astype(np.uint64))
            ends = np.append(0, sets["end"].astype(np.int64))
            self._begin[in_part], self._end[in_part] = ends[at], ends[at + 1]

    def sizes(self, row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns the number of shingles of each text."""
        at = np.searchsorted(self._row_ids, row_ids)
        sizes: NDArray[np.int64] = self._end[at] - self._begin[at]
        return sizes

    def read(self, row_ids: NDArray[np.uint64]) -> dict[int, NDArray[np.uint64]]:
        """Returns the shingle sets of texts (sorted and distinct row ids), by row id."""
        sets = {}
        for part, in_part in by_part(row_ids):
            path = self._folder.local(f"{_SETS}/{self._names[part]}.bin")
            at = np.searchsorted(self._row_ids, row_ids[in_part])
            spans = zip(row_ids[in_part].tolist(), self._begin[at].tolist(), self._end[at].tolist(), strict=True)
            # A plain array view, because slicing a memmap costs more than the reads here.
            mapped = np.memmap(path, np.uint64, mode="r").view(np.ndarray)
            for row_id, begin, end in spans:
                sets[row_id] = np.array(mapped[begin:end])
        return sets


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


def verify_part(work: Workspace, candidates: Buckets, buckets: Buckets, part: Part, number: int) -> None:
    """Verifies the pairs of one bucket; runs on a worker."""
    records = distinct(work.bucket(candidates, PAIR, number, buckets.count))
    part.metric("candidate_pairs", len(records))
    records = records[np.lexsort((records["right"], records["left"]))]
    shares = similarities(records, ShingleSets(work.own, work.part_names(), _texts(records)))
    is_duplicate = shares >= work.config.jaccard
    part.metric("verified_pairs", int(is_duplicate.sum()))
    write_samples(part, buckets, number, records, shares, work.config.jaccard)
    left, right = records["left"][is_duplicate], records["right"][is_duplicate]
    links = packed(LINK, key=mix(left), left=left, right=right, jaccard=shares[is_duplicate].astype(np.float32))
    sorted_runs.write(part, buckets.path(number), [sorted_runs.by_key(links)])
    sorted_runs.write(part, buckets.sibling(EDGES).path(number), [both_directions(left, right)])


def similarities(records: NDArray[np.void], sets: ShingleSets) -> NDArray[np.float64]:
    """Returns the similarity of each pair (dtype PAIR), shape (pairs,)."""
    shares = np.empty(len(records), np.float64)
    for block in _blocks(sets.sizes(records["left"]) + sets.sizes(records["right"])):
        block_records = records[block]
        shingles = sets.read(_texts(block_records))
        couples = zip(block_records["left"].tolist(), block_records["right"].tolist(), strict=True)
        shares[block] = [similarity(shingles[left], shingles[right]) for left, right in couples]
    return shares


def _texts(records: NDArray[np.void]) -> NDArray[np.uint64]:
    return np.unique(np.concatenate([records["left"], records["right"]]))


def _blocks(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Divides pairs into blocks of at most `_SHINGLES` shingles, or of a single pair."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        last = int(np.searchsorted(ends, ends[first] - sizes[first] + _SHINGLES, side="right"))
        yield slice(first, max(first + 1, last))
        first = max(first + 1, last)
