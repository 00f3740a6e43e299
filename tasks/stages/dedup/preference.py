"""The order of preference of documents: highest quality first, then earliest fetch (unknown last), then smallest id.

With `prefer = "first"`, documents of earlier versions are preferred to all others. `preference/<part>.bin` has one
record of 32 bytes per document (`tasks.formats.dedup.dedup_index.PREFERENCE`), in row order. So any set of documents,
also of several versions, can be ordered by its records alone, without sorting the whole corpus. A pass that needs the
order of documents sends their row ids to the parts, and these send back the records.

Captures of a page are documents with the same address, in this version and in the index. The pass over them reads the
runs `captures/` of all parts by ranges, one bucket of pages at a time, and writes `recaptured/<bucket>.bin`, a run of
RECAPTURED: the documents whose page has another capture. `consolidate` chooses among them, because it knows which pass
the filters.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.dedup_index import CAPTURE, PREFERENCE
from tasks.formats.dedup.document_ids import row_ids_of, row_of
from tasks.formats.dedup.exchange import Exchange
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.tombstones import page_term
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup.workspace import RECAPTURED, Workspace, packed

FOLDER = "preference"


def preferences(
    quality: pa.ChunkedArray, fetched_at: pa.ChunkedArray, ids: pa.ChunkedArray, cycle: int = 0
) -> NDArray[np.void]:
    """Returns the records (dtype PREFERENCE) of documents.

    Args:
        quality: float32, without nulls.
        fetched_at: timestamps in milliseconds, null where unknown.
        ids: document ids, 32 hex digits each.
        cycle: number of versions before theirs.

    Raises:
        InputError: an id has another format.
    """
    records = np.empty(len(ids), PREFERENCE)
    records["cycle"] = cycle
    records["quality"] = ~_ordered(quality.to_numpy().astype(np.float32))
    stamps = pc.fill_null(fetched_at.cast(pa.int64()), 0).to_numpy()
    fetched = stamps.astype(np.uint64) ^ np.uint64(1 << 63)  # negative ones first
    records["fetched"] = np.where(fetched_at.is_valid().to_numpy(), fetched, np.iinfo(np.uint64).max)
    records["id"] = document_ids.pack(ids)
    return records


def fetched_at(ordered: NDArray[np.uint64]) -> pa.Array:
    """Returns the timestamps of the field `fetched` of records; null where unknown."""
    stamps = (ordered ^ np.uint64(1 << 63)).astype(np.int64)
    return pa.array(stamps, mask=ordered == np.iinfo(np.uint64).max).cast(pa.timestamp("ms", tz="UTC"))


def _ordered(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Returns integers in the order of the numbers; NaN is the smallest."""
    bits = (np.where(np.isnan(values), np.float32(-np.inf), values) + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    negative = bits >> np.uint32(31) == 1
    return np.where(negative, ~bits, bits | np.uint32(1 << 31))


def order(records: NDArray[np.void], row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the indices of documents, most preferred first; of equal records the smaller row id is preferred."""
    ids = records["id"]
    return np.lexsort((row_ids, ids[:, 1], ids[:, 0], records["fetched"], records["quality"], records["cycle"]))


def ranked(
    work: Workspace, number: int, name: str, dtype: np.dtype[Any], row_ids: NDArray[np.uint64]
) -> NDArray[np.void]:
    """Returns records of some documents of one part, with their row ids and preference; the other fields are 0.

    Args:
        work: the stage's files.
        number: of the part; those of the index come first.
        name: of the part.
        dtype: has the fields of PREFERENCE and `row_id`.
        row_ids: the documents, in any order.
    """
    records = packed(dtype, row_id=row_ids)
    if len(row_ids):
        of_part = _of_part(work, number, name)[row_of(row_ids)]
        for field in PREFERENCE.names or ():
            records[field] = of_part[field]
    return records


def ordered(config: DedupConfig, records: NDArray[np.void]) -> NDArray[np.int64]:
    """Returns the indices of `ranked` documents, most preferred first."""
    if config.prefer == "quality":
        records = records.copy()
        records["cycle"] = 0
    return order(records, records["row_id"])


def _of_part(work: Workspace, number: int, name: str) -> NDArray[np.void]:
    if number < work.index.count:
        return work.index.rows(number)
    return np.frombuffer(work.own.read(f"{FOLDER}/{name}.bin"), PREFERENCE)


def capture_records(urls: pa.ChunkedArray, warc_files: pa.ChunkedArray, part: int) -> NDArray[np.void]:
    """Returns a record (dtype CAPTURE) for each crawled document of a part; documents from files have no page."""
    rows = np.flatnonzero(warc_files.to_numpy() != "")
    keys = np.fromiter((page_key(url) for url in urls.take(pa.array(rows)).to_pylist()), np.uint64, len(rows))
    return packed(CAPTURE, key=keys, row_id=row_ids_of(part, rows))


def page_key(url: str) -> int:
    """Returns the hash of the page at a URL: XXH3 of its `page_term`, 64 bits."""
    return int(xxhash.xxh3_64_intdigest(page_term(url).encode()))


def recaptured_part(work: Workspace, keys: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Finds the documents of one bucket of pages whose page has several captures; runs on a worker."""
    captures = work.documents(keys, number)
    captures = captures[np.lexsort((captures["row_id"], captures["key"]))]
    same = captures["key"][1:] == captures["key"][:-1]
    several = captures[np.append(False, same)[: len(captures)] | np.append(same, False)[: len(captures)]]
    part.metric("recaptured", len(several))
    records = packed(RECAPTURED, key=several["row_id"], page=several["key"])
    sorted_runs.write(part, buckets.path(number), [sorted_runs.by_key(records)])
