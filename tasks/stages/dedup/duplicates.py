"""The verdicts on the documents of one part of the corpus, in their order.

Reads one part of `extracted` (id, source, host) and its range of the runs `verdicts/` and `recaptured/`. Writes

    duplicates/<part>.parquet   one row per document (schema DUPLICATES)
    sources/<part>.parquet      documents and duplicates of each source (schema SOURCES)
    domains/<part>.parquet      documents and duplicates of each registered domain (schema `audit.DOMAINS`)

and of one part of the index `earlier/<number>.parquet`: those of its documents that have a copy, or another capture of
their page, in this version (schema EARLIER).
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import NAMES
from tasks.formats.dedup.document_ids import range_of, row_of, unpack
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.stages.dedup import audit, preference
from tasks.stages.dedup.workspace import KINDS, RECAPTURED, VERDICT, Workspace

DUPLICATES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("duplicate_of", pa.string()),  # the keeper; null for a document that is kept
        pa.field("kind", pa.string()),  # "exact" | "near"
        pa.field("jaccard", pa.float32()),  # similarity to duplicate_of
        pa.field("cluster", pa.string()),  # id of the cluster's most preferred document; null without copies
        pa.field("text", pa.string()),  # id of the most preferred document with the same text; null without copies
        pa.field("rank", pa.int32()),  # order of preference in the cluster, 0 first; null without copies
        pa.field("bucket", pa.int32()),  # number of the file in pairs/ with the cluster's pairs; null without copies
        pa.field("page", pa.uint64()),  # hash of the page (`captures.page_key`); null without another capture of it
    ]
)
EARLIER = pa.schema(
    [
        *NAMES,
        *(DUPLICATES.field(name) for name in ("cluster", "text", "rank", "bucket", "page")),
        pa.field("fetched_at", pa.timestamp("ms", tz="UTC")),
        pa.field("row", pa.int64(), nullable=False),  # its row in the part of the index
    ]
)
SOURCES = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("duplicates", pa.int64(), nullable=False),
    ]
)


def duplicates_part(work: Workspace, verdicts: Buckets, recaptured: Buckets, part: Part, number: int) -> None:
    """Writes one part, given by its number; runs on a worker."""
    documents = work.extracted.table(f"documents/{part.name}.parquet", columns=["id", "source", "host"])
    part.count_in(documents.num_rows)
    found, pages = _of_part(work, verdicts, VERDICT, number), _of_part(work, recaptured, RECAPTURED, number)
    table = verdict_table(documents.column("id").combine_chunks(), found, pages)
    for kind in KINDS[1:]:
        part.metric(f"{kind}_duplicates", int((found["kind"] == KINDS.index(kind)).sum()))
    part.table("duplicates", table)
    duplicate = table.column("duplicate_of").is_valid()
    with part.file(f"{audit.SOURCES_FOLDER}/{part.name}.parquet") as file:
        pq.write_table(_sources(documents.column("source"), duplicate), file)
    domains = audit.count_domains(documents.column("host"), documents.column("source"), duplicate)
    audit.write_table(part, f"{audit.DOMAINS_FOLDER}/{part.name}.parquet", domains)


def earlier_part(work: Workspace, verdicts: Buckets, recaptured: Buckets, part: Part, number: int) -> None:
    """Writes the documents of one part of the index that this version bears on; runs on a worker."""
    found = _of_part(work, verdicts, VERDICT, number)
    pages = _of_part(work, recaptured, RECAPTURED, number)
    concerned = np.union1d(found["key"], pages["key"])
    rows = row_of(concerned)
    names = work.index.names(number).take(pa.array(rows))
    ids = names.column("id").combine_chunks()
    judged = verdict_table(ids, _renumbered(found, concerned), _renumbered(pages, concerned))
    columns = [
        *(names.column(name) for name in NAMES.names),
        *(judged.column(name) for name in ("cluster", "text", "rank", "bucket", "page")),
        preference.fetched_at(work.index.rows(number)["fetched"][rows]),
        pa.array(rows),
    ]
    part.table("earlier", pa.table(columns, schema=EARLIER), out=False)


def _of_part(work: Workspace, runs: Buckets, dtype: np.dtype[Any], number: int) -> NDArray[np.void]:
    return sorted_runs.by_key(sorted_runs.read_range(work.own, runs.paths(), dtype, *range_of(number)))


def _renumbered(found: NDArray[np.void], concerned: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns records with positions in `concerned` as row ids."""
    again = found.copy()
    again["key"] = np.searchsorted(concerned, found["key"])
    return again


def verdict_table(ids: pa.Array, found: NDArray[np.void], pages: NDArray[np.void]) -> pa.Table:
    """Returns the rows of documents (schema DUPLICATES).

    Args:
        ids: of the documents of the part.
        found: dtype VERDICT, sorted, those of its documents in clusters.
        pages: dtype RECAPTURED, those of its documents whose page has another capture.
    """
    row = np.zeros(len(ids), np.int64)
    row[row_of(found["key"])] = np.arange(len(found))
    alone = np.ones(len(ids), np.bool_)
    alone[row_of(found["key"])] = False
    kept = alone.copy()
    kept[row_of(found["key"])] = found["kind"] == KINDS.index("")
    page, once = np.zeros(len(ids), np.uint64), np.ones(len(ids), np.bool_)
    page[row_of(pages["key"])], once[row_of(pages["key"])] = pages["page"], False
    dropped, member = (pa.array(row, mask=mask) for mask in (kept, alone))
    columns = [
        unpack(found["keeper"]).take(dropped),
        pa.array(KINDS).take(pa.array(found["kind"])).take(dropped),
        pa.array(found["jaccard"]).take(dropped),
        unpack(found["cluster"]).take(member),
        unpack(found["text"]).take(member),
        pa.array(found["rank"].astype(np.int32)).take(member),
        pa.array(found["bucket"].astype(np.int32)).take(member),
        pa.array(page, mask=once),
    ]
    return pa.table([ids, *columns], schema=DUPLICATES)


def _sources(sources: pa.ChunkedArray, duplicate: pa.ChunkedArray) -> pa.Table:
    table = pa.table({"source": sources, "lost": pc.cast(duplicate, pa.int64())})
    counted = table.group_by("source").aggregate([("lost", "count"), ("lost", "sum")]).sort_by("source")
    return pa.table([counted.column(name) for name in ("source", "lost_count", "lost_sum")], schema=SOURCES)
