"""Second and third step: which chunks have the text of another one, and what becomes of each.

Reads the `runs/` of all parts by ranges of hashes and the part's `cut/`. Writes

    copies/<range>.bin       every chunk with the text of another one that is kept (COPY), sorted by row
    chunks/<part>.parquet    the chunks that are kept (`tasks.formats.chunks.CHUNK`)
    rejected/<part>.parquet  the others, with reasons (`tasks.formats.chunks.REJECTED`)
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats import packed_ids
from tasks.formats.chunks import CHUNK, KIND, REJECTED
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.packed_ids import HALVES
from tasks.formats.row_ids import range_of, row_of
from tasks.stages.chunks.units import RUN

COPY = np.dtype([("key", "<u8"), ("of", HALVES)])
"""A chunk that is not kept: its row in `cut/` as a row id, and the id of the chunk that is."""
DUPLICATE = "duplicate"


def compare_part(own: ArtifactFolder, runs: Buckets, copies: Buckets, part: Part, number: int) -> None:
    """Writes one range of hashes; runs on a worker.

    Args:
        own: the stage's artifact.
        runs: names of its runs.
        copies: names of the files that are written.
        part: receives them.
        number: of the range.
    """
    sorted_runs.write(
        part, copies.path(number), [copied(sorted_runs.read_bucket(own, runs.paths(), RUN, number, copies.count))]
    )


def copied(runs: NDArray[np.void]) -> NDArray[np.void]:
    """Returns COPY of all chunks but one of each text, sorted by row.

    The chunk of a gold document is kept before others, of equal ones that with the lowest id: so it depends neither on
    the parts nor on their order.

    Args:
        runs: records of RUN.
    """
    order = np.lexsort((runs["id"][:, 1], runs["id"][:, 0], runs["rank"], runs["rest"], runs["key"]))
    runs = runs[order]
    new = np.ones(len(runs), np.bool_)
    new[1:] = (runs["key"][1:] != runs["key"][:-1]) | (runs["rest"][1:] != runs["rest"][:-1])
    kept = np.maximum.accumulate(np.where(new, np.arange(len(runs)), 0))
    found = np.empty(int((~new).sum()), COPY)
    found["key"], found["of"] = runs["row"][~new], runs["id"][kept][~new]
    return sorted_runs.by_key(found)


def keep_part(own: ArtifactFolder, copies: Buckets, part: Part, given: tuple[int, str]) -> None:
    """Writes the part with a number and a name; runs on a worker."""
    number, name = given
    cut = own.table(f"cut/{name}.parquet")
    found = sorted_runs.read_range(own, copies.paths(), COPY, *range_of(number))
    keepers = np.full(cut.num_rows, None, object)
    keepers[row_of(found["key"])] = packed_ids.unpack(found["of"]).to_pylist()
    of = pa.array(keepers, pa.string())
    reasons = pc.if_else(pc.is_valid(of), DUPLICATE, cut.column("reason").combine_chunks())
    stays = pc.equal(reasons, "")
    part.count_in(cut.num_rows)
    kept = cut.filter(stays).select(CHUNK.names).combine_chunks()
    part.table(KIND, kept)
    gone = cut.append_column("duplicate_of", of)
    gone = gone.set_column(gone.schema.get_field_index("reason"), REJECTED.field("reason"), reasons)
    gone = gone.filter(pc.invert(stays)).select(REJECTED.names).combine_chunks()
    part.table("rejected", gone, out=False)
    for reason in gone.column("reason").to_pylist():
        part.reject(reason)
    part.metric("tokens", pc.sum(kept.column("tokens")).as_py() or 0)
    for tier in kept.column("tier").to_pylist():
        part.metric(tier, 1)
