"""The part of an index with the documents that this version has published, of one part of its documents.

Reads `extracted`, `duplicates` and `documents` of that part. A document that the index has already, with the same id,
is not added again.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.dedup_index import COPIES, NAMES, PREFERENCE, ROW, RUNS
from tasks.stages.dedup_index.work import Work
from tasks.stages.dedup_index.written import of_rows, write_part

_COPY = "duplicate_"
"""Prefix of the first reason of a document that has passed every filter and went as a duplicate."""


def added_part(work: Work, part: Part, item: tuple[str, int]) -> None:
    """Writes the documents of one part, given by name and number of origin; runs on a worker."""
    name, origin = item
    documents = work.extracted.table(f"documents/{name}.parquet", columns=["id", "url", "warc_file"])
    known = work.duplicates.table(f"duplicates/{name}.parquet", columns=["known"]).column("known").to_numpy()
    kept = work.documents.table(f"kept/{name}.parquet", columns=["id"]).column("id").combine_chunks()
    stays = pc.is_in(documents.column("id"), value_set=kept).to_numpy() & ~known
    preference = np.fromfile(work.duplicates.local(f"preference/{name}.bin"), PREFERENCE)
    rows = np.empty(int(stays.sum()), ROW)
    for field in PREFERENCE.names or ():
        rows[field] = preference[field][stays]
    rows["origin"], rows["row"] = origin, np.flatnonzero(stays)
    runs = {folder: of_rows(_run(work, folder, dtype, name), stays) for folder, dtype in RUNS.items()}
    names = documents.select(NAMES.names).filter(pa.array(stays))
    write_part(part, rows, runs, names, _copies(work, documents, name, origin))


def _run(work: Work, folder: str, dtype: np.dtype[np.void], name: str) -> NDArray[np.void]:
    return sorted_runs.read_range(work.duplicates, [f"{folder}/{name}.bin"], dtype, 0, 1 << 64)


def _copies(work: Work, documents: pa.Table, name: str, origin: int) -> pa.Table:
    """Returns the documents from a crawl that went as duplicates; files are read again by every version."""
    rejected = work.documents.table(f"rejected/{name}.parquet", columns=["id", "reason", "duplicate_of"])
    went = rejected.filter(pc.starts_with(rejected.column("reason"), _COPY))
    rows = pc.index_in(went.column("id"), value_set=documents.column("id").combine_chunks())
    crawled = pc.not_equal(documents.column("warc_file").take(rows), "")
    went, rows = went.filter(crawled), rows.filter(crawled)
    columns = [
        went.column("id"),
        documents.column("url").take(rows),
        went.column("duplicate_of"),
        pa.array(np.full(len(rows), origin, np.uint32)),
        rows.cast(pa.uint32()),
    ]
    return pa.table(columns, schema=COPIES)
