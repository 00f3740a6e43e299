"""The documents of a cluster, or of a page with several captures, that pass the filters.

Reads `duplicates` and small columns of `extracted` and `attributes` of one part; or the part's documents of the dedup
index, which an earlier version has published and which only a takedown can keep from passing.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.formats import packed_ids
from tasks.formats.dedup import sorted_runs
from tasks.formats.packed_ids import HALVES
from tasks.formats.row_ids import row_ids_of
from tasks.stages.consolidate.aligned_inputs import AlignedParts, Numbered
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import reasons

MEMBER = np.dtype(
    [("key", "<u8"), ("row_id", "<u8"), ("id", HALVES), ("cluster", HALVES), ("text", HALVES), ("rank", "<u4")]
)
"""A document of a cluster, by the number of its bucket. `rank` is its position in the order of preference there."""
CAPTURE = np.dtype(
    [("key", "<u8"), ("row_id", "<u8"), ("id", HALVES), ("text", HALVES), ("fetched", "<i8"), ("earlier", "u1")]
)
"""A document by the hash of its page. `text` as in `duplicates`, its own id where no other has its text; `fetched` in
milliseconds, the least integer where it is unknown; `earlier`: of the dedup index."""
_COPY = ["id", "cluster", "text", "rank", "bucket", "page"]


def members(config: ConsolidateConfig, aligned: AlignedParts, part: Numbered) -> NDArray[np.void]:
    """Returns the documents of one part that have a copy and pass (dtype MEMBER), sorted by bucket."""
    rows, mine = _passing(config, aligned, part, "cluster")
    found = np.empty(len(rows), MEMBER)
    found["key"], found["rank"] = mine.column("bucket").to_numpy(), mine.column("rank").to_numpy()
    found["row_id"] = row_ids_of(part.number, rows)
    for column in ("id", "cluster", "text"):
        found[column] = packed_ids.pack(mine.column(column))
    return sorted_runs.by_key(found)


def captures(config: ConsolidateConfig, aligned: AlignedParts, part: Numbered) -> NDArray[np.void]:
    """Returns the documents of one part whose page has other captures, and that pass (dtype CAPTURE), by page."""
    rows, mine = _passing(config, aligned, part, "page")
    found = np.empty(len(rows), CAPTURE)
    found["key"], found["row_id"] = mine.column("page").to_numpy(), row_ids_of(part.number, rows)
    for column, values in (("id", mine["id"]), ("text", pc.coalesce(mine["text"], mine["id"]))):
        found[column] = packed_ids.pack(values)
    found["earlier"] = part.earlier
    found["fetched"] = pc.fill_null(mine.column("fetched_at").cast(pa.int64()), np.iinfo(np.int64).min).to_numpy()
    return sorted_runs.by_key(found)


def _passing(
    config: ConsolidateConfig, aligned: AlignedParts, part: Numbered, about: str
) -> tuple[NDArray[np.int64], pa.Table]:
    """Returns the rows of the documents that pass among those with a value of `about`, and what dedup says of them."""
    if part.earlier:
        held = aligned.earlier(part.name)
        stays = held.column(about).is_valid().to_numpy() & ~aligned.takedown_mask(held)
        mine = held.filter(pa.array(stays))
        return mine.column("row").to_numpy().astype(np.int64), mine
    documents, judged, copies = aligned.part(part.name, ["id", "source", "fetched_at"], config.filters, _COPY)
    concerned = copies.column(about).is_valid()
    gone = aligned.taken_down(part.name, documents.num_rows)[concerned.to_numpy()]
    why = reasons(config, documents.column("source").filter(concerned), judged.filter(concerned), gone)
    passes = pa.array([not row for row in why], pa.bool_())
    rows = np.flatnonzero(concerned.to_numpy())[passes.to_numpy(zero_copy_only=False)]
    mine = copies.append_column("fetched_at", documents.column("fetched_at"))
    return rows, mine.filter(concerned).filter(passes)
