"""What becomes of documents and copies by their ids: of this version's documents, and of what is in the index.

One id may be in the index, among the documents of this version, and the keeper of copies, each in another part. So the
three are joined in buckets of ids. Reads the runs `ids/` of the index, `seen/` (this version's documents, `parts`)
and `leaving/` (what leaves the index, `parts`). Writes

    of_version/<bucket>.bin   a run of FATE by row ids of this version's documents: KNOWN, ALONE
    of_index/<bucket>.bin     a run of FATE by row ids of the documents (HERE) and copies (ENDS, MOVES) of the index

A copy whose keeper is no longer known, neither as a document nor as a copy, is without one from now on, and comes back
with the next version. So does a copy whose keeper is replaced; but not one that had gone for a newer capture of its
page, which has a still newer one now.

`Work` is what the parts of the stage read: its inputs, the index before, and what it has written itself.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder, ArtifactId
from tasks.core.part import Part
from tasks.core.store import Store
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import COPY, DOCUMENT, ENTRY, IDS, KEEPER, KINDS, NEWER, DedupIndex
from tasks.formats.dedup.document_ids import HALVES
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.tombstones import Tombstones

SEEN = ENTRY

KEPT, WENT, DROPPED, FOR = range(4)
"""Roles in `seen/`: a document that is kept; one that is remembered as a copy; any other; the keeper of a copy."""

LEAVING = np.dtype([*ENTRY.descr, ("kind", "u1"), ("by", HALVES)])
"""An entry that leaves, by `row_id` of the index; of a replaced document why (index into KINDS) and for which id."""

TAKEN, REPLACED, FORGOTTEN = range(3)
"""Roles in `leaving/`: a document that is taken down; one that is replaced; a copy that is taken down."""

FATE = np.dtype([("key", "<u8"), ("what", "u1"), ("keeper", HALVES)])
"""What becomes of a row. `keeper` of a copy that MOVES: zeros for none."""

KNOWN, ALONE, HERE, ENDS, MOVES = range(5)
"""A document that the index has already; a copy whose keeper is not kept after all; a replaced document that this
version has again, so that it is no copy; a copy that this version has judged again, or that is taken down; a copy with
another keeper or none."""

_PAGE = KINDS.index("page")


@dataclass(frozen=True)
class Work:
    """Picklable; its size does not depend on this version's parts."""

    extracted: ArtifactFolder
    duplicates: ArtifactFolder
    documents: ArtifactFolder
    store: Store
    address: ArtifactId
    before: DedupIndex
    takedowns: Tombstones

    @property
    def own(self) -> ArtifactFolder:
        """This stage's artifact."""
        return ArtifactFolder(self.store, self.address, self.address.path)


class Fates(NamedTuple):
    """Records of FATE, each sorted by row id."""

    of_version: NDArray[np.void]
    of_index: NDArray[np.void]


def fates_part(work: Work, seen: list[str], leaving: list[str], made: Buckets, part: Part, number: int) -> None:
    """Writes one bucket of ids; runs on a worker.

    Args:
        work: the stage's files.
        seen: the runs of SEEN.
        leaving: the runs of LEAVING.
        made: the runs of this pass.
        part: the part to write.
        number: of the bucket.
    """
    held = work.before.bucket(IDS, number, made.count)
    new = sorted_runs.read_bucket(work.own, seen, SEEN, number, made.count)
    gone = sorted_runs.read_bucket(work.own, leaving, LEAVING, number, made.count)
    found = fates(held, new, gone)
    for folder, records in found._asdict().items():
        sorted_runs.write(part, made.beside(folder).path(number), [records])


def fates(held: NDArray[np.void], seen: NDArray[np.void], leaving: NDArray[np.void]) -> Fates:
    """Returns what becomes of all rows with some ids.

    Args:
        held: dtype ENTRY, what the index has of these ids.
        seen: dtype SEEN, what this version has of them.
        leaving: dtype LEAVING, what leaves the index of them.
    """
    of_held, of_seen, of_leaving, count = _numbered(held, seen, leaving)

    def among(numbers: NDArray[np.int64], records: NDArray[np.void], *roles: int) -> NDArray[np.bool_]:
        flags = np.zeros(count, np.bool_)
        flags[numbers[np.isin(records["role"], roles)]] = True
        return flags

    kept, went = among(of_seen, seen, KEPT), among(of_seen, seen, WENT)
    replaced = among(of_leaving, leaving, REPLACED) & ~kept
    stays = among(of_held, held, DOCUMENT) & ~among(of_leaving, leaving, TAKEN, REPLACED)
    ends = among(of_seen, seen, KEPT, WENT, DROPPED) | among(of_leaving, leaving, FORGOTTEN)
    exists = stays | kept | went | replaced | (among(of_held, held, COPY) & ~ends)
    by = np.zeros((count, 2), np.uint64)
    page = (leaving["role"] == REPLACED) & (leaving["kind"] == _PAGE)
    by[of_leaving[page]] = leaving["by"][page]
    by[~replaced] = 0

    parted = np.isin(held["role"], (KEEPER, NEWER)) & (~exists | replaced)[of_held]
    keeper = np.where((held["role"] == NEWER)[:, np.newaxis], by[of_held], 0)
    of_index = [
        _fate(leaving, (leaving["role"] == REPLACED) & (kept | went)[of_leaving], HERE),
        _fate(held, (held["role"] == COPY) & ends[of_held], ENDS),
        _fate(held, parted, MOVES, keeper),
    ]
    of_version = [
        _fate(seen, (seen["role"] == KEPT) & stays[of_seen], KNOWN),
        _fate(seen, (seen["role"] == FOR) & ~exists[of_seen], ALONE),
    ]
    # With the dtype named: without it NumPy gives ids the byte order of the machine.
    both = (np.concatenate(several, dtype=FATE) for several in (of_version, of_index))
    return Fates(*map(sorted_runs.by_key, both))


def _numbered(
    *several: NDArray[np.void],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """Returns the ids of three arrays as numbers, equal for equal ids, and how many ids there are."""
    key, low = (np.concatenate([records[half] for records in several]) for half in ("key", "low"))
    order = np.lexsort((low, key))
    new = np.ones(len(order), np.bool_)
    new[1:] = (key[order][1:] != key[order][:-1]) | (low[order][1:] != low[order][:-1])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new) - 1
    one, other, third = np.split(numbers, np.cumsum([len(records) for records in several])[:-1])
    return one, other, third, int(new.sum())


def _fate(
    records: NDArray[np.void], mine: NDArray[np.bool_], what: int, keeper: NDArray[np.uint64] | None = None
) -> NDArray[np.void]:
    found = np.zeros(int(mine.sum()), FATE)
    found["key"], found["what"] = records["row_id"][mine], what
    if keeper is not None:
        found["keeper"] = keeper[mine]
    return found
