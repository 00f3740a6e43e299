"""Fates of documents and copies by id: of this version's documents, and of the entries of the index.

An id may be in the index, among the documents of this version, and the keeper of copies, each in a different part. So
the three are joined in buckets of ids. Reads the runs `ids/` of the index, `seen/` (this version's documents, see
`parts`) and `leaving/` (entries that leave the index, see `parts`). Writes

    of_version/<bucket>.bin   a run of FATE by row ids of this version's documents: ALREADY_INDEXED, KEEPER_LOST
    of_index/<bucket>.bin     a run of FATE by row ids of the documents (PUBLISHED_AGAIN) and the copies (COPY_REMOVED,
                              KEEPER_CHANGED) of the index

A copy whose keeper is neither a document nor a copy any more has no keeper from now on, and returns in the next
version. So does a copy whose keeper is replaced, except a copy that was dropped for a newer capture of its page if that
one is now replaced by a still newer capture.

`IndexWorkspace` has the inputs of the stage's parts: the input artifacts, the previous index, and the stage's files.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import COPY, DOCUMENT, ENTRY, IDS, KEEPER, KINDS, NEWER, DedupIndex
from tasks.formats.dedup.document_ids import HALVES
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.tombstones import Tombstones

SEEN = ENTRY

KEPT, BECAME_COPY, DROPPED, KEEPER_OF_COPY = range(4)
"""Roles in `seen/`: a kept document; a document that is recorded as a copy; any other; the keeper of a copy."""

LEAVING = np.dtype([*ENTRY.descr, ("kind", "u1"), ("by", HALVES)])
"""An entry that leaves, by `row_id` of the index; for a replaced document the reason (index into KINDS) and new id."""

TAKEN_DOWN, REPLACED, FORGOTTEN = range(3)
"""Roles in `leaving/`: a document that is taken down; a replaced document; a copy that is taken down."""

FATE = np.dtype([("key", "<u8"), ("fate", "u1"), ("keeper", HALVES)])
"""Fate of a row. `keeper`: the new keeper for KEEPER_CHANGED; zeros for none."""

ALREADY_INDEXED, KEEPER_LOST, PUBLISHED_AGAIN, COPY_REMOVED, KEEPER_CHANGED = range(5)
"""Fates: a document that the index has already; a copy whose keeper is not kept; a replaced document that this version
publishes again, so that it is not a copy; a copy that this version has judged again, or that is taken down; a copy with
another keeper or none."""

_PAGE = KINDS.index("page")


@dataclass(frozen=True)
class IndexWorkspace:
    """Inputs and files of the stage's parts. Picklable; its size does not depend on the number of parts."""

    extracted: ArtifactFolder
    duplicates: ArtifactFolder
    documents: ArtifactFolder
    own: ArtifactFolder
    before: DedupIndex
    takedowns: Tombstones


class Fates(NamedTuple):
    """Records of FATE, each array sorted by row id."""

    of_version: NDArray[np.void]
    of_index: NDArray[np.void]


def fates_part(
    work: IndexWorkspace, seen: list[str], leaving: list[str], buckets: Buckets, part: Part, number: int
) -> None:
    """Writes one bucket of ids; runs on a worker.

    Args:
        work: see `IndexWorkspace`.
        seen: paths of the runs of SEEN.
        leaving: paths of the runs of LEAVING.
        buckets: the runs of this pass.
        part: the part to write.
        number: number of the bucket.
    """
    indexed = work.before.bucket(IDS, number, buckets.count)
    new = sorted_runs.read_bucket(work.own, seen, SEEN, number, buckets.count)
    removed = sorted_runs.read_bucket(work.own, leaving, LEAVING, number, buckets.count)
    result = fates(indexed, new, removed)
    for folder, records in result._asdict().items():
        sorted_runs.write(part, buckets.sibling(folder).path(number), [records])


def fates(indexed: NDArray[np.void], seen: NDArray[np.void], leaving: NDArray[np.void]) -> Fates:
    """Returns the fates of all rows with some ids.

    Args:
        indexed: entries of the index with these ids (dtype ENTRY).
        seen: entries of this version (dtype SEEN).
        leaving: entries that leave the index (dtype LEAVING).
    """
    of_indexed, of_seen, of_leaving, count = _number_ids(indexed, seen, leaving)

    def among(numbers: NDArray[np.int64], records: NDArray[np.void], *roles: int) -> NDArray[np.bool_]:
        flags = np.zeros(count, np.bool_)
        flags[numbers[np.isin(records["role"], roles)]] = True
        return flags

    kept, became_copy = among(of_seen, seen, KEPT), among(of_seen, seen, BECAME_COPY)
    replaced = among(of_leaving, leaving, REPLACED) & ~kept
    remains = among(of_indexed, indexed, DOCUMENT) & ~among(of_leaving, leaving, TAKEN_DOWN, REPLACED)
    removed = among(of_seen, seen, KEPT, BECAME_COPY, DROPPED) | among(of_leaving, leaving, FORGOTTEN)
    exists = remains | kept | became_copy | replaced | (among(of_indexed, indexed, COPY) & ~removed)
    by = np.zeros((count, 2), np.uint64)
    page = (leaving["role"] == REPLACED) & (leaving["kind"] == _PAGE)
    by[of_leaving[page]] = leaving["by"][page]
    by[~replaced] = 0

    loses_keeper = np.isin(indexed["role"], (KEEPER, NEWER)) & (~exists | replaced)[of_indexed]
    keeper = np.where((indexed["role"] == NEWER)[:, np.newaxis], by[of_indexed], 0)
    of_index = [
        _fate(leaving, (leaving["role"] == REPLACED) & (kept | became_copy)[of_leaving], PUBLISHED_AGAIN),
        _fate(indexed, (indexed["role"] == COPY) & removed[of_indexed], COPY_REMOVED),
        _fate(indexed, loses_keeper, KEEPER_CHANGED, keeper),
    ]
    of_version = [
        _fate(seen, (seen["role"] == KEPT) & remains[of_seen], ALREADY_INDEXED),
        _fate(seen, (seen["role"] == KEEPER_OF_COPY) & ~exists[of_seen], KEEPER_LOST),
    ]
    # The dtype is explicit, because NumPy would otherwise use the byte order of the machine for ids.
    of_version_sorted = sorted_runs.by_key(np.concatenate(of_version, dtype=FATE))
    return Fates(of_version_sorted, sorted_runs.by_key(np.concatenate(of_index, dtype=FATE)))


def _number_ids(
    *arrays: NDArray[np.void],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """Returns numbers for the ids of three arrays, equal for equal ids, and the number of distinct ids."""
    key, low = (np.concatenate([records[half] for records in arrays]) for half in ("key", "low"))
    order = np.lexsort((low, key))
    new = np.ones(len(order), np.bool_)
    new[1:] = (key[order][1:] != key[order][:-1]) | (low[order][1:] != low[order][:-1])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new) - 1
    first, second, third = np.split(numbers, np.cumsum([len(records) for records in arrays])[:-1])
    return first, second, third, int(new.sum())


def _fate(
    records: NDArray[np.void], selected: NDArray[np.bool_], fate: int, keeper: NDArray[np.uint64] | None = None
) -> NDArray[np.void]:
    result = np.zeros(int(selected.sum()), FATE)
    result["key"], result["fate"] = records["row_id"][selected], fate
    if keeper is not None:
        result["keeper"] = keeper[selected]
    return result
