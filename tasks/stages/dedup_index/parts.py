"""The parts of an index: those with this version's documents, and rewritten parts of the previous index.

    seen/<part>.bin     per part of the documents  a run of `fates.SEEN`: the outcome of each document
    leaving/<part>.bin  per part of the index      a run of `fates.LEAVING`: entries that are taken down or replaced
    <part>              per part of either         the part (`tasks.formats.dedup.dedup_index`)

Reads `extracted`, `duplicates` and `documents` for a part of the documents; for a part of the index its files and its
replaced documents (`replaced/` of `documents`); and the takedowns. The parts are written after the fate of each id has
been determined (`fates`). Adjacent small parts of the index are merged.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
    ALREADY_INDEXED,
    BECAME_COPY,
    COPY_REMOVED,
    DROPPED,
    FATE,
    FORGOTTEN,
    KEEPER_CHANGED,
    KEEPER_LOST,
    KEEPER_OF_COPY,
    KEPT,
    LEAVING,
    PUBLISHED_AGAIN,
    REPLACED,
    SEEN,
    TAKEN_DOWN,
    IndexWorkspace,
)

COPIES_METRIC = "copies"

_COPY = "duplicate_"
"""Prefix of the first reason of a document that passed every filter and was rejected as a duplicate."""


def write_part(
    part: Part, rows: NDArray[np.void], runs: Mapping[str, NDArray[np.void]], names: pa.Table, copies: pa.Table
) -> None:
    """Writes the files of a part.

    Args:
        part: the part.
        rows: one record per document (dtype ROW).
        runs: records by folder, in any order; their row ids are positions in `rows`.
        names: names of the documents (schema NAMES), in the order of `rows`.
        copies: the copies (schema COPIES).
    """
    part.write(f"{ROWS}/{part.name}.bin", rows.tobytes(), rows=len(rows))
    for folder, records in {**runs, IDS: entries_of(rows, copies)}.items():
        sorted_runs.write(part, f"{folder}/{part.name}.bin", [sorted_runs.by_key(records)])
    for folder, table, schema in (("names", names, NAMES), ("copies", copies, COPIES)):
        part.write_table(f"{folder}/{part.name}.parquet", table.cast(schema))
    part.count_out(len(rows))
    part.metric(COPIES_METRIC, copies.num_rows)


def entries_of(rows: NDArray[np.void], copies: pa.Table) -> NDArray[np.void]:
    """Returns the entries (dtype ENTRY) of the documents and copies of a part, and of the keepers of the copies."""
    has_keeper = copies.column("duplicate_of").is_valid().to_numpy()
    keepers = copies.filter(pa.array(has_keeper))
    role = np.where(pc.equal(keepers.column("kind"), KINDS[-1]).to_numpy(), NEWER, KEEPER)
    return np.concatenate(
        [
            entries(rows["id"], np.arange(len(rows)), DOCUMENT),
            entries(document_ids.pack(copies.column("id")), np.arange(copies.num_rows), COPY),
            entries(document_ids.pack(keepers.column("duplicate_of")), np.flatnonzero(has_keeper), role),
        ]
    )


def entries(
    ids: NDArray[np.uint64],
    row_ids: NDArray[np.integer],
    role: NDArray[np.integer] | int,
    dtype: np.dtype[np.void] = ENTRY,
) -> NDArray[np.void]:
    """Returns ENTRY records, or records of a dtype that has its fields; other fields are 0.

    Args:
        ids: shape (entries, 2).
        row_ids: shape (entries,).
        role: role of each entry, or of all.
        dtype: dtype of the records.
    """
    records = np.zeros(len(row_ids), dtype)
    records["key"], records["low"] = ids[:, 0], ids[:, 1]
    records["row_id"], records["role"] = row_ids, role
    return records


def renumber_rows(records: NDArray[np.void], kept: NDArray[np.bool_], first: int = 0) -> NDArray[np.void]:
    """Returns the records of the kept documents, with their new positions as row ids.

    Args:
        records: records with a field `row_id`, the row in the old part; the part number in the upper half is ignored.
        kept: bool (rows,): whether each document is kept.
        first: position of the first kept document.
    """
    position = np.cumsum(kept) - 1 + first
    rows = (records["row_id"] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    result = records[kept[rows]]
    result["row_id"] = position[rows[kept[rows]]].astype(np.uint64)
    return result


class VersionPart(NamedTuple):
    """A part of this version's documents: its name, its number, and the number of its texts among the origins."""

    name: str
    number: int
    origin: int

    @property
    def seen(self) -> str:
        """Path of the part's run of SEEN."""
        return f"seen/{self.name}.bin"


def seen_part(work: IndexWorkspace, part: Part, own: VersionPart) -> None:
    """Writes the ids of the documents of one part with their outcomes; runs on a worker."""
    documents, kept, copies = _outcomes(work, own)
    ids = document_ids.pack(documents.column("id"))
    copied_rows = copies.column("row").to_numpy().astype(np.int64)
    role = np.where(kept, KEPT, DROPPED)
    role[copied_rows] = BECAME_COPY
    keepers = document_ids.pack(copies.column("duplicate_of"))
    of_documents = entries(ids, row_ids_of(own.number, np.arange(len(ids))), role, SEEN)
    of_keepers = entries(keepers, row_ids_of(own.number, copied_rows), KEEPER_OF_COPY, SEEN)
    sorted_runs.write(part, own.seen, [sorted_runs.by_key(np.concatenate([of_documents, of_keepers]))])
    part.metric("seen", len(of_documents) + len(of_keepers))


def added_part(work: IndexWorkspace, fates: Buckets, part: Part, own: VersionPart) -> None:
    """Writes one part of new documents; runs on a worker. Documents that the index has already are not added again."""
    documents, added, copies = _outcomes(work, own)
    part_fates = sorted_runs.read_range(work.own, fates.paths(), FATE, *range_of(own.number))
    added[row_of(part_fates["key"][part_fates["fate"] == ALREADY_INDEXED])] = False
    preference = np.fromfile(work.duplicates.local(f"preference/{own.name}.bin"), PREFERENCE)
    rows = np.empty(int(added.sum()), ROW)
    for field in PREFERENCE.names or ():
        rows[field] = preference[field][added]
    rows["origin"], rows["row"] = own.origin, np.flatnonzero(added)
    runs = {
        folder: renumber_rows(sorted_runs.read(work.duplicates, [f"{folder}/{own.name}.bin"], dtype), added)
        for folder, dtype in RUNS.items()
    }
    without_keeper = row_of(part_fates["key"][part_fates["fate"] == KEEPER_LOST])
    keeper_lost = pc.is_in(copies.column("row"), value_set=pa.array(without_keeper, pa.uint32()))
    keepers = pc.if_else(keeper_lost, pa.scalar(None, pa.string()), copies.column("duplicate_of"))
    at = COPIES.get_field_index("duplicate_of")
    write_part(
        part,
        rows,
        runs,
        documents.select(NAMES.names).filter(pa.array(added)),
        copies.set_column(at, COPIES.field(at), keepers),
    )


def _outcomes(work: IndexWorkspace, own: VersionPart) -> tuple[pa.Table, NDArray[np.bool_], pa.Table]:
    """Returns the documents of one part, a mask of the published ones, and those recorded as copies (COPIES)."""
    documents = work.extracted.table(f"documents/{own.name}.parquet", columns=["id", "url", "warc_file"])
    taken_down = work.takedowns.mask(documents) if work.takedowns else np.zeros(documents.num_rows, np.bool_)
    kept_ids = work.documents.table(f"kept/{own.name}.parquet", columns=["id"]).column("id").combine_chunks()
    published = pc.is_in(documents.column("id"), value_set=kept_ids).to_numpy() & ~taken_down
    return documents, published, _copies(work, documents, taken_down, own)


def _copies(work: IndexWorkspace, documents: pa.Table, taken_down: NDArray[np.bool_], own: VersionPart) -> pa.Table:
    """Returns the crawled documents rejected as duplicates; documents from files are read again by every version."""
    rejected = work.documents.table(f"rejected/{own.name}.parquet", columns=["id", "reason", "duplicate_of"])
    duplicates = rejected.filter(pc.starts_with(rejected.column("reason"), _COPY))
    rows = pc.index_in(duplicates.column("id"), value_set=documents.column("id").combine_chunks())
    recorded = pc.not_equal(documents.column("warc_file").take(rows), "").to_numpy()
    recorded = pa.array(recorded & ~taken_down[rows.to_numpy()])
    duplicates, rows = duplicates.filter(recorded), rows.filter(recorded)
    columns = [
        duplicates.column("id"),
        documents.column("url").take(rows),
        duplicates.column("duplicate_of"),
        pc.utf8_slice_codeunits(duplicates.column("reason"), len(_COPY)),
        pa.array(np.full(len(rows), own.origin, np.uint32)),
        rows.cast(pa.uint32()),
    ]
    return pa.table(columns, schema=COPIES)


def leaving_path(number: int) -> str:
    """Returns the path of the run of LEAVING of one part of the previous index."""
    return f"leaving/leaving-{number:05d}.bin"


def leaving_part(work: IndexWorkspace, part: Part, number: int) -> None:
    """Writes the entries that leave one part: taken down or replaced by this version; runs on a worker."""
    replaced = work.documents.table(f"replaced/earlier-{number:05d}.parquet")
    rows = replaced.column("row").to_numpy()
    records = entries(document_ids.pack(replaced.column("id")), row_ids_of(number, rows), REPLACED, LEAVING)
    kinds = pc.utf8_slice_codeunits(replaced.column("reason"), len("duplicate_"))
    records["kind"] = pc.index_in(kinds, value_set=pa.array(KINDS)).to_numpy()
    records["by"] = document_ids.pack(replaced.column("replaced_by"))
    leaving = [records]
    if work.takedowns:  # names and copies of the whole part are needed for takedowns only
        names, copies = work.before.names(number), work.before.copies(number)
        taken_down, forgotten = (np.flatnonzero(work.takedowns.mask(table)) for table in (names, copies))
        leaving = [records[~np.isin(rows, taken_down)]]
        for table, removed, role in ((names, taken_down, TAKEN_DOWN), (copies, forgotten, FORGOTTEN)):
            ids = document_ids.pack(table.column("id").take(pa.array(removed)))
            leaving.append(entries(ids, row_ids_of(number, removed), role, LEAVING))
    all_records = np.concatenate(leaving, dtype=LEAVING)  # NumPy would otherwise use the byte order of the machine
    sorted_runs.write(part, leaving_path(number), [sorted_runs.by_key(all_records)])
    part.metric("left", int(np.isin(all_records["role"], (TAKEN_DOWN, REPLACED)).sum()))


def rewritten_part(work: IndexWorkspace, fates: Buckets, part: Part, numbers: tuple[int, ...]) -> None:
    """Writes one or several parts as one, unless it is a single unchanged part; runs on a worker."""
    of_parts = [sorted_runs.read_range(work.own, fates.paths(), FATE, *range_of(number)) for number in numbers]
    leaving = [sorted_runs.read(work.own, [leaving_path(number)], LEAVING) for number in numbers]
    if len(numbers) == 1 and not len(of_parts[0]) and not len(leaving[0]):
        part.metric("written", 0)
        return
    part.metric("written", 1)
    copies = [_rewritten_copies(work, *of_part) for of_part in zip(numbers, of_parts, leaving, strict=True)]
    masks = [_kept_mask(work, number, records) for number, records in zip(numbers, leaving, strict=True)]
    firsts = np.cumsum([0, *(int(mask.sum()) for mask in masks)]).tolist()
    kept_rows = list(zip(numbers, masks, strict=True))
    # The dtype is explicit, because NumPy would otherwise use the byte order of the machine for ids.
    rows = np.concatenate([work.before.rows(number)[mask] for number, mask in kept_rows], dtype=ROW)
    runs = {}
    for folder, dtype in RUNS.items():
        before = [
            sorted_runs.read(work.before.folders[number], [work.before.path(folder, number)], dtype)
            for number in numbers
        ]
        renumbered = map(renumber_rows, before, masks, firsts)
        runs[folder] = np.concatenate(list(renumbered))
    names = [work.before.names(number).filter(pa.array(mask)) for number, mask in kept_rows]
    write_part(part, rows, runs, pa.concat_tables([NAMES.empty_table(), *names]), pa.concat_tables(copies))


def _kept_mask(work: IndexWorkspace, number: int, leaving: NDArray[np.void]) -> NDArray[np.bool_]:
    kept = np.ones(work.before.manifest.parts[number].documents, np.bool_)
    kept[row_of(leaving["row_id"][np.isin(leaving["role"], (TAKEN_DOWN, REPLACED))])] = False
    return kept


def _rewritten_copies(
    work: IndexWorkspace, number: int, fates: NDArray[np.void], leaving: NDArray[np.void]
) -> pa.Table:
    """Returns the new copies of one part, including its replaced documents (schema COPIES)."""
    copies = work.before.copies(number)
    keepers = copies.column("duplicate_of").to_pylist()
    changes = fates[fates["fate"] == KEEPER_CHANGED]
    new_keepers = document_ids.unpack(changes["keeper"]).to_pylist()
    for row, keeper, exists in zip(
        row_of(changes["key"]).tolist(), new_keepers, changes["keeper"].any(axis=1), strict=True
    ):
        keepers[row] = keeper if exists else None
    at = COPIES.get_field_index("duplicate_of")
    kept = np.ones(copies.num_rows, np.bool_)
    kept[row_of(fates["key"][fates["fate"] == COPY_REMOVED])] = False
    remaining = copies.set_column(at, COPIES.field(at), pa.array(keepers, pa.string())).filter(pa.array(kept))
    published_again = fates["key"][fates["fate"] == PUBLISHED_AGAIN]
    replaced = leaving[(leaving["role"] == REPLACED) & ~np.isin(leaving["row_id"], published_again)]
    return pa.concat_tables([remaining, _replaced_as_copies(work, number, replaced)]).combine_chunks()


def _replaced_as_copies(work: IndexWorkspace, number: int, replaced: NDArray[np.void]) -> pa.Table:
    """Returns the replaced documents of one part (dtype LEAVING) as copies of their replacements."""
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
