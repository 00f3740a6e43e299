"""Shingle sets of the texts in candidate pairs: each text is read once, however many pairs it is in.

Reads the texts of one part of `extracted`, or of the index, whose row ids are in the runs `wanted/`. Writes
`shingles/<part>.bin`, the distinct shingles (u64) of one text after the other, each set sorted, and
`shingles/<part>.rows.bin` (dtype SET): whose they are. About 8 bytes per word.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.row_ids import part_of, range_of, row_of
from tasks.formats.sorted_runs import Buckets
from tasks.formats.text import normalise
from tasks.stages.dedup.records import ROW_ID
from tasks.stages.dedup.shingle import batches, shingle
from tasks.stages.dedup.workspace import Workspace

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
