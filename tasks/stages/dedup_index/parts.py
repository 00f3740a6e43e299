"""The parts of an index: those with this version's documents, and those of the index before that are written again.

    seen/<part>.bin     per part of the documents  a run of `fates.SEEN`: what has become of each document
    leaving/<part>.bin  per part of the index      a run of `fates.LEAVING`: what is taken down or replaced
    <part>              per part of either         the part (`tasks.formats.dedup.dedup_index`)

Reads of a part of the documents `extracted`, `duplicates` and `documents`; of a part of the index its files, and what
the version replaces of it (`replaced/` of `documents`); and the takedowns. The parts are written once it is known what
becomes of each id (`fates`). Neighbouring small parts of the index are merged.
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
from tasks.stages.dedup_index.fates import (
    ALONE,
    DROPPED,
    ENDS,
    FATE,
    FOR,
    FORGOTTEN,
    HERE,
    KEPT,
    KNOWN,
    LEAVING,
    MOVES,
    REPLACED,
    SEEN,
    TAKEN,
    WENT,
    Work,
)

COPIES_METRIC = "copies"

_COPY = "duplicate_"
"""Prefix of the first reason of a document that has passed every filter and went as a duplicate."""


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


def leaving_path(number: int) -> str:
    """Returns the run of LEAVING of one part of the index before."""
    return f"leaving/leaving-{number:05d}.bin"


def leaving_part(work: Work, part: Part, number: int) -> None:
    """Writes what leaves one part: what is taken down, and what this version replaces; runs on a worker."""
    replaced = work.documents.table(f"replaced/earlier-{number:05d}.parquet")
    rows = replaced.column("row").to_numpy()
    found = entries(document_ids.pack(replaced.column("id")), row_ids_of(number, rows), REPLACED, LEAVING)
    kinds = pc.utf8_slice_codeunits(replaced.column("reason"), len("duplicate_"))
    found["kind"] = pc.index_in(kinds, value_set=pa.array(KINDS)).to_numpy()
    found["by"] = document_ids.pack(replaced.column("replaced_by"))
    leaving = [found]
    if work.takedowns:  # names and copies of a whole part are read for takedowns alone
        names, copies = work.before.names(number), work.before.copies(number)
        taken, forgotten = (np.flatnonzero(work.takedowns.mask(table)) for table in (names, copies))
        leaving = [found[~np.isin(rows, taken)]]
        for table, gone, role in ((names, taken, TAKEN), (copies, forgotten, FORGOTTEN)):
            ids = document_ids.pack(table.column("id").take(pa.array(gone)))
            leaving.append(entries(ids, row_ids_of(number, gone), role, LEAVING))
    every = np.concatenate(leaving, dtype=LEAVING)  # named, or NumPy gives ids the byte order of the machine
    sorted_runs.write(part, leaving_path(number), [sorted_runs.by_key(every)])
    part.metric("left", int(np.isin(every["role"], (TAKEN, REPLACED)).sum()))


def rewritten_part(work: Work, fates: Buckets, part: Part, numbers: tuple[int, ...]) -> None:
    """Writes some parts as one; nothing, where it is one and nothing of it changes. Runs on a worker."""
    of_parts = [sorted_runs.read_range(work.own, fates.paths(), FATE, *range_of(number)) for number in numbers]
    leaving = [_leaving(work, number) for number in numbers]
    if len(numbers) == 1 and not len(of_parts[0]) and not len(leaving[0]):
        part.metric("written", 0)
        return
    part.metric("written", 1)
    copies = [_rewritten_copies(work, *of_part) for of_part in zip(numbers, of_parts, leaving, strict=True)]
    stays = [_stays(work, number, gone) for number, gone in zip(numbers, leaving, strict=True)]
    firsts = np.cumsum([0, *(int(mask.sum()) for mask in stays)]).tolist()
    held = list(zip(numbers, stays, strict=True))
    # With the dtype named: without it NumPy gives the ids the byte order of the machine.
    rows = np.concatenate([work.before.rows(number)[mask] for number, mask in held], dtype=ROW)
    runs = {
        folder: np.concatenate(
            [
                of_rows(_leaving_run(work, folder, number), mask, first)
                for (number, mask), first in zip(held, firsts, strict=False)
            ]
        )
        for folder in RUNS
    }
    names = [work.before.names(number).filter(pa.array(mask)) for number, mask in held]
    write_part(part, rows, runs, pa.concat_tables([NAMES.empty_table(), *names]), pa.concat_tables(copies))


def _leaving(work: Work, number: int) -> NDArray[np.void]:
    return sorted_runs.read_range(work.own, [leaving_path(number)], LEAVING, 0, 1 << 64)


def _stays(work: Work, number: int, leaving: NDArray[np.void]) -> NDArray[np.bool_]:
    stays = np.ones(work.before.manifest.parts[number].documents, np.bool_)
    stays[row_of(leaving["row_id"][np.isin(leaving["role"], (TAKEN, REPLACED))])] = False
    return stays


def _rewritten_copies(work: Work, number: int, fates: NDArray[np.void], leaving: NDArray[np.void]) -> pa.Table:
    """Returns the copies of one part as they are from now on, with what is replaced of it (schema COPIES)."""
    copies = work.before.copies(number)
    keepers = copies.column("duplicate_of").to_pylist()
    moves = fates[fates["what"] == MOVES]
    others = document_ids.unpack(moves["keeper"]).to_pylist()
    for row, keeper, some in zip(row_of(moves["key"]).tolist(), others, moves["keeper"].any(axis=1), strict=True):
        keepers[row] = keeper if some else None
    at = COPIES.get_field_index("duplicate_of")
    stays = np.ones(copies.num_rows, np.bool_)
    stays[row_of(fates["key"][fates["what"] == ENDS])] = False
    moved = copies.set_column(at, COPIES.field(at), pa.array(keepers, pa.string())).filter(pa.array(stays))
    here = fates["key"][fates["what"] == HERE]
    replaced = leaving[(leaving["role"] == REPLACED) & ~np.isin(leaving["row_id"], here)]
    return pa.concat_tables([moved, _as_copies(work, number, replaced)]).combine_chunks()


def _as_copies(work: Work, number: int, replaced: NDArray[np.void]) -> pa.Table:
    """Returns the replaced documents of one part (dtype LEAVING) as copies of those that replace them."""
    at = row_of(replaced["row_id"])
    rows = work.before.rows(number)[at]
    columns = [
        *work.before.names(number).take(pa.array(at)).columns,
        document_ids.unpack(replaced["by"]),
        pa.array(KINDS).take(pa.array(replaced["kind"])),
        pa.array(rows["origin"]),
        pa.array(rows["row"]),
    ]
    return pa.table(columns, schema=COPIES)


def _leaving_run(work: Work, folder: str, number: int) -> NDArray[np.void]:
    files, path = work.before.folders[number], work.before.path(folder, number)
    return sorted_runs.read_range(files, [path], RUNS[folder], 0, 1 << 64)
