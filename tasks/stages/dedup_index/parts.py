"""Writing of one part of an index, from arrays and tables.

`added_part` makes the part with the documents that this version has published, of one part of its documents: it reads
`extracted`, `duplicates` and `documents` of that part, and the takedowns, and writes `seen/<part>.bin`, a run of
`fates.SEEN`, and, once it is known what the index has already, the part.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.dedup_index import (
    COPIES,
    COPY,
    DOCUMENT,
    ENTRY,
    IDS,
    KEEPER,
    KINDS,
    NAMES,
    NEWER,
    PREFERENCE,
    ROW,
    ROWS,
    RUNS,
)
from tasks.formats.dedup.document_ids import range_of, row_ids_of, row_of
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.stages.dedup_index.fates import ALONE, DROPPED, FATE, FOR, KEPT, KNOWN, SEEN, WENT, Work

COPIES_METRIC = "copies"


def write_part(
    part: Part, rows: NDArray[np.void], runs: Mapping[str, NDArray[np.void]], names: pa.Table, copies: pa.Table
) -> None:
    """Writes the files of a part.

    Args:
        part: the part.
        rows: dtype ROW, one for each document.
        runs: records by folder, in any order; their row ids are positions in `rows`.
        names: schema NAMES, in the order of `rows`.
        copies: schema COPIES.
    """
    with part.file(f"{ROWS}/{part.name}.bin", rows=len(rows)) as file:
        file.write(rows.tobytes())
    for folder, records in {**runs, IDS: entries_of(rows, copies)}.items():
        sorted_runs.write(part, f"{folder}/{part.name}.bin", [sorted_runs.by_key(records)])
    for folder, table, schema in (("names", names, NAMES), ("copies", copies, COPIES)):
        with part.file(f"{folder}/{part.name}.parquet", rows=table.num_rows) as file:
            pq.write_table(table.cast(schema), file, compression="zstd", compression_level=3)
    part.count_out(len(rows))
    part.metric(COPIES_METRIC, copies.num_rows)


def entries_of(rows: NDArray[np.void], copies: pa.Table) -> NDArray[np.void]:
    """Returns the entries (dtype ENTRY) of the documents and copies of a part, and of the keepers of the copies."""
    kept = copies.column("duplicate_of").is_valid().to_numpy()
    keepers = copies.filter(pa.array(kept))
    role = np.where(pc.equal(keepers.column("kind"), KINDS[-1]).to_numpy(), NEWER, KEEPER)
    return np.concatenate(
        [
            entries(rows["id"], np.arange(len(rows)), DOCUMENT),
            entries(document_ids.pack(copies.column("id")), np.arange(copies.num_rows), COPY),
            entries(document_ids.pack(keepers.column("duplicate_of")), np.flatnonzero(kept), role),
        ]
    )


def entries(
    ids: NDArray[np.uint64],
    row_ids: NDArray[np.integer],
    role: NDArray[np.integer] | int,
    dtype: np.dtype[np.void] = ENTRY,
) -> NDArray[np.void]:
    """Returns records of ENTRY, or of a dtype with its fields, whose other fields are 0.

    Args:
        ids: shape (entries, 2).
        row_ids: shape (entries,).
        role: of each, or of all.
        dtype: of the records.
    """
    found = np.zeros(len(row_ids), dtype)
    found["key"], found["low"] = ids[:, 0], ids[:, 1]
    found["row_id"], found["role"] = row_ids, role
    return found


def of_rows(records: NDArray[np.void], stays: NDArray[np.bool_], first: int = 0) -> NDArray[np.void]:
    """Returns the records of the documents that stay, with their new positions as row ids.

    Args:
        records: with a field `row_id`, a row of the part as it was; the part's number in the upper half is not read.
        stays: bool (rows,): whether each document stays.
        first: position of the first one.
    """
    position = np.cumsum(stays) - 1 + first
    rows = (records["row_id"] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    found = records[stays[rows]]
    found["row_id"] = position[rows[stays[rows]]].astype(np.uint64)
    return found


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
    ids = document_ids.pack(documents.column("id"))
    went = copies.column("row").to_numpy().astype(np.int64)
    role = np.where(kept, KEPT, DROPPED)
    role[went] = WENT
    keepers = document_ids.pack(copies.column("duplicate_of"))
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
