"""Writing of one part of an index, from arrays and tables."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats import packed_ids, sorted_runs
from tasks.formats.dedup_index import COPIES, COPY, DOCUMENT, ENTRY, IDS, KEEPER, KINDS, NAMES, NEWER, ROWS

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
            entries(packed_ids.pack(copies.column("id")), np.arange(copies.num_rows), COPY),
            entries(packed_ids.pack(keepers.column("duplicate_of")), np.flatnonzero(kept), role),
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
