"""The part of an index with the documents that this version has published, of one part of its documents.

Reads `extracted`, `duplicates` and `documents` of that part, and the takedowns. Writes `seen/<part>.bin`, a run of
`fates.SEEN`, and, once it is known what the index has already, the part.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats import packed_ids, sorted_runs
from tasks.formats.dedup_index import COPIES, NAMES, PREFERENCE, ROW, RUNS
from tasks.formats.row_ids import range_of, row_ids_of, row_of
from tasks.formats.sorted_runs import Buckets
from tasks.stages.dedup_index.fates import ALONE, DROPPED, FATE, FOR, KEPT, KNOWN, SEEN, WENT
from tasks.stages.dedup_index.work import Work
from tasks.stages.dedup_index.written import entries, of_rows, write_part

_COPY = "duplicate_"
"""Prefix of the first reason of a document that has passed every filter and went as a duplicate."""


class Own(NamedTuple):
    """One part of this version's documents: its name, its number, and that of its texts among the origins."""

    name: str
    number: int
    origin: int

    @property
    def seen(self) -> str:
        """The run of SEEN of the part."""
        return f"seen/{self.name}.bin"


def seen_part(work: Work, part: Part, own: Own) -> None:
    """Writes the ids of the documents of one part with what has become of them; runs on a worker."""
    documents, kept, copies = _judged(work, own)
    ids = packed_ids.pack(documents.column("id"))
    went = copies.column("row").to_numpy().astype(np.int64)
    role = np.where(kept, KEPT, DROPPED)
    role[went] = WENT
    keepers = packed_ids.pack(copies.column("duplicate_of"))
    of_documents = entries(ids, row_ids_of(own.number, np.arange(len(ids))), role, SEEN)
    of_keepers = entries(keepers, row_ids_of(own.number, went), FOR, SEEN)
    sorted_runs.write(part, own.seen, [sorted_runs.by_key(np.concatenate([of_documents, of_keepers]))])
    part.metric("seen", len(of_documents) + len(of_keepers))


def added_part(work: Work, fates: Buckets, part: Part, own: Own) -> None:
    """Writes the part; runs on a worker. A document that the index has already is not added again."""
    documents, stays, copies = _judged(work, own)
    found = sorted_runs.read_range(work.own, fates.paths(), FATE, *range_of(own.number))
    stays[row_of(found["key"][found["what"] == KNOWN])] = False
    preference = np.fromfile(work.duplicates.local(f"preference/{own.name}.bin"), PREFERENCE)
    rows = np.empty(int(stays.sum()), ROW)
    for field in PREFERENCE.names or ():
        rows[field] = preference[field][stays]
    rows["origin"], rows["row"] = own.origin, np.flatnonzero(stays)
    runs = {folder: of_rows(_run(work, folder, dtype, own.name), stays) for folder, dtype in RUNS.items()}
    alone = row_of(found["key"][found["what"] == ALONE])
    lost = pc.is_in(copies.column("row"), value_set=pa.array(alone, pa.uint32()))
    keepers = pc.if_else(lost, pa.scalar(None, pa.string()), copies.column("duplicate_of"))
    at = COPIES.get_field_index("duplicate_of")
    write_part(
        part,
        rows,
        runs,
        documents.select(NAMES.names).filter(pa.array(stays)),
        copies.set_column(at, COPIES.field(at), keepers),
    )


def _run(work: Work, folder: str, dtype: np.dtype[np.void], name: str) -> NDArray[np.void]:
    return sorted_runs.read_range(work.duplicates, [f"{folder}/{name}.bin"], dtype, 0, 1 << 64)


def _judged(work: Work, own: Own) -> tuple[pa.Table, NDArray[np.bool_], pa.Table]:
    """Returns the documents of one part, which of them are published, and those remembered as copies (COPIES)."""
    documents = work.extracted.table(f"documents/{own.name}.parquet", columns=["id", "url", "warc_file"])
    taken = work.takedowns.mask(documents) if work.takedowns else np.zeros(documents.num_rows, np.bool_)
    kept = work.documents.table(f"kept/{own.name}.parquet", columns=["id"]).column("id").combine_chunks()
    stays = pc.is_in(documents.column("id"), value_set=kept).to_numpy() & ~taken
    return documents, stays, _copies(work, documents, taken, own)


def _copies(work: Work, documents: pa.Table, taken: NDArray[np.bool_], own: Own) -> pa.Table:
    """Returns the documents from a crawl that went as duplicates; files are read again by every version."""
    rejected = work.documents.table(f"rejected/{own.name}.parquet", columns=["id", "reason", "duplicate_of"])
    went = rejected.filter(pc.starts_with(rejected.column("reason"), _COPY))
    rows = pc.index_in(went.column("id"), value_set=documents.column("id").combine_chunks())
    remembered = pc.not_equal(documents.column("warc_file").take(rows), "").to_numpy()
    remembered = pa.array(remembered & ~taken[rows.to_numpy()])
    went, rows = went.filter(remembered), rows.filter(remembered)
    columns = [
        went.column("id"),
        documents.column("url").take(rows),
        went.column("duplicate_of"),
        pc.utf8_slice_codeunits(went.column("reason"), len(_COPY)),
        pa.array(np.full(len(rows), own.origin, np.uint32)),
        rows.cast(pa.uint32()),
    ]
    return pa.table(columns, schema=COPIES)
