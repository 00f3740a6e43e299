"""Pairs of copies: candidates that share a band of their signatures, verified by the Jaccard similarity of their texts.

    candidates/<bucket>.bin  per bucket of keys    a run of PAIR, by a hash of the pair: what several buckets find
                                                   meets in one batch
    wanted/<bucket>.bin                            a run of ROW_ID: the texts of these pairs
    equal/<bucket>.bin       per bucket of hashes  a run of LINK: each text that several documents have, and the others
    shingles/<part>.bin      per part              the distinct shingles (u64) of one wanted text after the other, each
                                                   set sorted; `<part>.rows.bin` (SET): whose they are
    verified/<batch>.bin     per batch of pairs    a run of LINK, the pairs that reach the threshold, by the left text
    edges/<batch>.bin                              a run of EDGE, the same pairs in both directions
    below/ above/                                  samples of the pairs on both sides of the threshold (`audit`)

Reads the runs `bands/` and `texts/` of all parts by ranges of keys, `preference/` of texts in large groups, and the
wanted texts of `extracted` and of the index, each once.

Exact duplicates are texts that are equal after normalisation of case, punctuation and layout. A text without words has
no hash, so that empty texts are not duplicates of one another. Of near texts only verified pairs are duplicates: bands
alone have many false positives. In one published case unverified MinHash with connected components removed a median of
76 % of the documents of a source.

Memory: the records of a bucket and a block of pairs; of verification the pairs of the batch and 64 MB of shingles.
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
from tasks.formats.dedup.document_ids import part_of, range_of, row_of
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.text import mix, normalise
from tasks.stages.dedup import preference
from tasks.stages.dedup.audit import write_around
from tasks.stages.dedup.signatures import batches, shingle
from tasks.stages.dedup.verdicts import both_ways
from tasks.stages.dedup.workspace import LINK, PAIR, ROW_ID, Workspace, packed, pair_key

Preferences = Callable[[NDArray[np.uint64]], NDArray[np.void]]
"""Maps row ids to records of preference."""

WANTED = "wanted"

_BLOCK = 1 << 20
"""Pairs per block, about: 24 MB, and as much again three times to sort them."""

_SETS = "shingles"

SET = np.dtype([("row", "<u8"), ("end", "<u8")])
"""A row of the part, and where its shingles end in the file; they begin where those of the row before end."""

EDGES = "edges"

_SHINGLES = 1 << 23
"""Shingles in memory at one time: 64 MB."""


def candidates_part(work: Workspace, made: Buckets, part: Part, number: int) -> None:
    """Finds the pairs of one bucket of `made`; runs on a worker."""
    config = work.config
    bands = work.bucket_of_documents(BANDS, number, made.count)
    if not config.exact:
        bands["text"] = bands["row_id"]  # every document stands for itself
    shared, starts, large = shared_texts(bands, config.minhash.max_bucket, partial(preference.read, work))
    del bands
    part.metric("large_buckets", large)
    blocks = (_pair_records(shared[left], shared[right]) for left, right in pairs(starts, config.minhash.max_bucket))
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


def _pair_records(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.void]:
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


def shingle_part(work: Workspace, wanted: Buckets, part: Part, item: tuple[int, str]) -> None:
    """Writes the sets of one part, given by number and name; runs on a worker."""
    number, name = item
    row_ids = np.unique(sorted_runs.read_range(work.own, wanted.paths(), ROW_ID, *range_of(number))["key"])
    sets = np.empty(len(row_ids), SET)
    sets["row"] = row_of(row_ids)
    end = 0
    with part.file(f"{_SETS}/{name}.bin") as file:
        for index, found in enumerate(_sets(work, number, name, sets["row"].astype(np.int64))):
            file.write(found.tobytes())
            end += len(found)
            sets["end"][index] = end
    with part.file(f"{_SETS}/{name}.rows.bin", rows=len(sets)) as file:
        file.write(sets.tobytes())


def _sets(work: Workspace, number: int, name: str, rows: NDArray[np.int64]) -> Iterator[NDArray[np.uint64]]:
    if not len(rows):
        return
    if number < work.index.count:
        texts = work.index.texts(number, rows)
    else:
        held = work.extracted.table(f"documents/{name}.parquet", columns=["text"]).column("text")
        texts = held.take(pa.array(rows)).to_pylist()
    yield from shingle_sets(texts, work.config.minhash.shingle)


def shingle_sets(texts: Sequence[str], size: int) -> Iterator[NDArray[np.uint64]]:
    """Yields the distinct shingles of each text, sorted."""
    for batch in batches(texts):
        hashes, counts = shingle([normalise(text) for text in batch], size)
        for of_text in np.split(hashes, np.cumsum(counts)[:-1]):
            yield np.unique(of_text)


class ShingleSets:
    """Access to the sets of all parts.

    Args:
        folder: this stage's artifact.
        names: all parts, by number.
        row_ids: the texts that are read, sorted and distinct.
    """

    def __init__(self, folder: ArtifactFolder, names: Sequence[str], row_ids: NDArray[np.uint64]) -> None:
        self._folder = folder
        self._names = names
        self._row_ids = row_ids
        self._begin, self._end = (np.empty(len(row_ids), np.int64) for _ in range(2))
        for part, mine in _by_part(row_ids):
            sets = np.fromfile(folder.local(f"{_SETS}/{names[part]}.rows.bin"), SET)
            at = np.searchsorted(sets["row"], row_of(row_ids[mine]).astype(np.uint64))
            ends = np.append(0, sets["end"].astype(np.int64))
            self._begin[mine], self._end[mine] = ends[at], ends[at + 1]

    def sizes(self, row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns the number of shingles of texts."""
        at = np.searchsorted(self._row_ids, row_ids)
        sizes: NDArray[np.int64] = self._end[at] - self._begin[at]
        return sizes

    def read(self, row_ids: NDArray[np.uint64]) -> dict[int, NDArray[np.uint64]]:
        """Returns the sets of texts (sorted and distinct row ids), by row id."""
        found = {}
        for part, mine in _by_part(row_ids):
            path = self._folder.local(f"{_SETS}/{self._names[part]}.bin")
            at = np.searchsorted(self._row_ids, row_ids[mine])
            spans = zip(row_ids[mine].tolist(), self._begin[at].tolist(), self._end[at].tolist(), strict=True)
            # A plain view: slicing a memmap costs more than what is read here.
            mapped = np.memmap(path, np.uint64, mode="r").view(np.ndarray)
            for row_id, begin, end in spans:
                found[row_id] = np.array(mapped[begin:end])
        return found


def _by_part(row_ids: NDArray[np.uint64]) -> Iterator[tuple[int, slice]]:
    """Yields each part among sorted row ids, and where its row ids are."""
    parts = part_of(row_ids)
    for part in np.unique(parts).tolist():
        yield part, slice(np.searchsorted(parts, part), np.searchsorted(parts, part, side="right"))


def jaccard(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Returns the size of the intersection over that of the union of two sorted sets; 0 for two empty ones."""
    if len(left) > len(right):
        left, right = right, left
    if len(left) == 0:
        return 0.0
    places = np.searchsorted(right, left)
    places[places == len(right)] = 0  # beyond the end: any index serves, the values differ
    common = int(np.count_nonzero(right[places] == left))
    return common / (len(left) + len(right) - common)


def verify_part(work: Workspace, candidates: Buckets, made: Buckets, part: Part, number: int) -> None:
    """Verifies the pairs of one bucket of `made`; runs on a worker."""
    found = distinct(work.bucket(candidates, PAIR, number, made.count))
    part.metric("candidate_pairs", len(found))
    found = found[np.lexsort((found["right"], found["left"]))]
    shares = similarities(found, ShingleSets(work.own, work.part_names(), _texts(found)))
    passed = shares >= work.config.jaccard
    part.metric("verified_pairs", int(passed.sum()))
    write_around(part, made, number, found, shares, work.config.jaccard)
    left, right = found["left"][passed], found["right"][passed]
    links = packed(LINK, key=mix(left), left=left, right=right, jaccard=shares[passed].astype(np.float32))
    sorted_runs.write(part, made.path(number), [sorted_runs.by_key(links)])
    sorted_runs.write(part, made.beside(EDGES).path(number), [both_ways(left, right)])


def similarities(found: NDArray[np.void], sets: ShingleSets) -> NDArray[np.float64]:
    """Returns the similarity of each pair (dtype PAIR), shape (pairs,)."""
    shares = np.empty(len(found), np.float64)
    for block in _blocks(sets.sizes(found["left"]) + sets.sizes(found["right"])):
        mine = found[block]
        held = sets.read(_texts(mine))
        couples = zip(mine["left"].tolist(), mine["right"].tolist(), strict=True)
        shares[block] = [jaccard(held[left], held[right]) for left, right in couples]
    return shares


def _texts(found: NDArray[np.void]) -> NDArray[np.uint64]:
    return np.unique(np.concatenate([found["left"], found["right"]]))


def _blocks(sizes: NDArray[np.int64]) -> Iterator[slice]:
    """Divides pairs so that the sets of each block have at most so many shingles, or are those of one pair."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        last = int(np.searchsorted(ends, ends[first] - sizes[first] + _SHINGLES, side="right"))
        yield slice(first, max(first + 1, last))
        first = max(first + 1, last)
