"""Verification of candidate pairs by the Jaccard similarity of their texts.

Reads the runs `candidates/` of all buckets, one batch of pairs at a time, and the shingle sets of their texts. Writes

    verified/<batch>.bin   a run of LINK, the pairs that reach the threshold, by a hash of the left text
    edges/<batch>.bin      a run of EDGE, the same pairs in both directions, for the search for components
    below/ above/          samples of the pairs on both sides of the threshold (`audit`)

Only verified pairs are duplicates. Bands alone have many false positives: in one published case unverified MinHash with
connected components removed a median of 76 % of the documents of a source. Memory: the pairs of the batch, and 64 MB of
shingles.

The shingle sets of the texts in candidate pairs are made first, so that each text is read once, however many pairs it
is in: `shingle_part` reads the texts of one part of `extracted`, or of the index, whose row ids are in the runs
`wanted/`, and writes `shingles/<part>.bin`, the distinct shingles (u64) of one text after the other, each set sorted,
and `shingles/<part>.rows.bin` (dtype SET): whose they are. About 8 bytes per word.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.document_ids import part_of, range_of, row_of
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.text import normalise
from tasks.formats.mix import mix
from tasks.stages.dedup.audit import write_around
from tasks.stages.dedup.components import both_ways
from tasks.stages.dedup.pairs import distinct
from tasks.stages.dedup.signatures import batches, shingle
from tasks.stages.dedup.workspace import LINK, PAIR, ROW_ID, Workspace, packed

FOLDER = "shingles"
SET = np.dtype([("row", "<u8"), ("end", "<u8")])
"""A row of the part, and where its shingles end in the file; they begin where those of the row before end."""


def shingle_part(work: Workspace, wanted: Buckets, part: Part, item: tuple[int, str]) -> None:
    """Writes the sets of one part, given by number and name; runs on a worker."""
    number, name = item
    row_ids = np.unique(sorted_runs.read_range(work.own, wanted.paths(), ROW_ID, *range_of(number))["key"])
    sets = np.empty(len(row_ids), SET)
    sets["row"] = row_of(row_ids)
    end = 0
    with part.file(f"{FOLDER}/{name}.bin") as file:
        for index, found in enumerate(_sets(work, number, name, sets["row"].astype(np.int64))):
            file.write(found.tobytes())
            end += len(found)
            sets["end"][index] = end
    with part.file(f"{FOLDER}/{name}.rows.bin", rows=len(sets)) as file:
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
            sets = np.fromfile(folder.local(f"{FOLDER}/{names[part]}.rows.bin"), SET)
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
            path = self._folder.local(f"{FOLDER}/{self._names[part]}.bin")
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
