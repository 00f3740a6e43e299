"""Verification of candidate pairs by the Jaccard similarity of their texts.

Reads the runs `candidates/` of all buckets, one batch of pairs at a time, and the shingle sets of their texts. Writes

    verified/<batch>.bin   a run of LINK, the pairs that reach the threshold, by a hash of the left text
    edges/<batch>.bin      a run of EDGE, the same pairs in both directions, for the search for components
    below/ above/          samples of the pairs on both sides of the threshold (`audit`)

Only verified pairs are duplicates. Bands alone have many false positives: in one published case unverified MinHash with
connected components removed a median of 76 % of the documents of a source. Memory: the pairs of the batch, and 64 MB of
shingles.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.mix import mix
from tasks.formats.sorted_runs import Buckets
from tasks.stages.dedup.audit import write_around
from tasks.stages.dedup.candidates import distinct
from tasks.stages.dedup.components import both_ways
from tasks.stages.dedup.records import LINK, PAIR, packed
from tasks.stages.dedup.shingle_sets import ShingleSets
from tasks.stages.dedup.workspace import Workspace

EDGES = "edges"
_SHINGLES = 1 << 23
"""Shingles in memory at one time: 64 MB."""


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
