"""Resolution of duplicates among the documents that pass the filters.

Dedup chooses keepers among all documents; here the same rule (`tasks.formats.duplicate_resolution`) is applied to the
documents that pass, so that the copies of a keeper that is dropped for its quality or language are not lost. Reads
`duplicates` (clusters, order of preference in each, verified pairs) and small columns of `extracted` and `attributes`,
in two passes that resume part by part and are no part of the artifact:

    survivors/<part>.bin     per part     a run of MEMBER: the documents with a copy that pass the filters
    resolved/<bucket>.bin    per bucket   a run of DROPPED: those of them to drop

A bucket is one of dedup's: some clusters, and the file of `pairs/` with all pairs of these. Memory is bounded by the
largest part and the largest bucket, about 500 bytes for each document of the bucket.
"""

import json
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.engine import Engine
from tasks.core.part import Part, PartSpec
from tasks.core.stage import Output
from tasks.formats import packed_ids, sorted_runs
from tasks.formats.duplicate_resolution import choose
from tasks.formats.packed_ids import HALVES
from tasks.formats.row_ids import range_of, row_ids_of
from tasks.formats.sorted_runs import Buckets
from tasks.stages.consolidate.aligned_inputs import AlignedInputs, AlignedParts
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import reasons

COPIES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("duplicate_of", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),
    ]
)
MEMBER = np.dtype(
    [("key", "<u8"), ("row_id", "<u8"), ("id", HALVES), ("cluster", HALVES), ("text", HALVES), ("rank", "<u4")]
)
"""A document of a cluster, by the number of its bucket. `rank` is its position in the order of preference there."""
DROPPED = np.dtype([("key", "<u8"), ("id", HALVES), ("keeper", HALVES), ("kind", "u1"), ("jaccard", "<f4")])
"""A document to drop, by its row id."""
_PARTS = "survivors/parts.json"
_KINDS = ("exact", "near")
_COLUMNS = ["id", "cluster", "text", "rank", "bucket"]


def resolve_parts(
    config: ConsolidateConfig, aligned: AlignedParts, inputs: AlignedInputs, output: Output, engine: Engine
) -> Buckets:
    """Runs both passes on the engine; returns the runs of DROPPED."""
    names, pairs = inputs.names(), inputs.pairs()
    made = Buckets("resolved", len(pairs) if config.dedup else 0)
    if not made.count:
        return made
    if "survivors" not in output.committed:
        with output.part("survivors", conserved=False) as part, part.file(_PARTS) as file:
            file.write(json.dumps(names).encode())
    first = [PartSpec(f"survivors-{name}", (number, name)) for number, name in enumerate(names)]
    output.map_parts(engine, partial(survivors_part, config, aligned), first, conserved=False)
    then = [PartSpec(made.name(number), (number, path)) for number, path in enumerate(pairs)]
    output.map_parts(engine, partial(resolved_part, aligned, made), then, conserved=False)
    return made


def leave_out(output: Output) -> None:
    """Leaves what both passes have written out of the artifact."""
    output.leave_out([name for name in output.committed if name.startswith(("survivors", "resolved-"))])


def resolve(config: ConsolidateConfig, inputs: AlignedInputs) -> dict[str, pa.Table]:
    """Returns for every part the documents to drop (schema COPIES), in row order; writes nothing.

    In this process, with 100 bytes for each document that has a copy and passes.
    """
    names, pairs = inputs.names(), inputs.pairs()
    if not config.dedup:
        return dict.fromkeys(names, COPIES.empty_table())
    members = [survivors(config, inputs.parts, number, name) for number, name in enumerate(names)]
    held = sorted_runs.by_key(np.concatenate(members))
    found = [np.empty(0, DROPPED)]
    for number, path in enumerate(pairs):
        first, end = np.searchsorted(held["key"], [number, number + 1])
        found.append(dropped(held[first:end], inputs.parts.duplicates.table(path)))
    copies = sorted_runs.by_key(np.concatenate(found))
    bounds = np.searchsorted(copies["key"], [range_of(number)[0] for number in range(len(names) + 1)])
    return {name: copies_of(copies[bounds[n] : bounds[n + 1]]) for n, name in enumerate(names)}


def survivors_part(config: ConsolidateConfig, aligned: AlignedParts, part: Part, item: tuple[int, str]) -> None:
    """Writes the survivors of one part, given by number and name; runs on a worker."""
    number, name = item
    sorted_runs.write(part, f"survivors/{name}.bin", [survivors(config, aligned, number, name)])


def resolved_part(aligned: AlignedParts, made: Buckets, part: Part, item: tuple[int, str]) -> None:
    """Writes what is dropped of one bucket, given by its number and its file of pairs; runs on a worker."""
    number, pairs = item
    own = aligned.own_folder
    paths = [f"survivors/{name}.bin" for name in json.loads(own.read(_PARTS))]
    members = sorted_runs.read_range(own, paths, MEMBER, number, number + 1)
    found = dropped(members, aligned.duplicates.table(pairs))
    sorted_runs.write(part, made.path(number), [sorted_runs.by_key(found)])


def resolved(aligned: AlignedParts, made: Buckets, number: int) -> pa.Table:
    """Returns what is dropped of the part with a number (schema COPIES), in row order."""
    found = sorted_runs.read_range(aligned.own_folder, made.paths(), DROPPED, *range_of(number))
    return copies_of(sorted_runs.by_key(found))


def survivors(config: ConsolidateConfig, aligned: AlignedParts, number: int, name: str) -> NDArray[np.void]:
    """Returns the documents of one part that have a copy and pass the filters (dtype MEMBER), sorted by bucket."""
    documents, judged, copies = aligned.part(name, ["id", "source"], config.filters, _COLUMNS)
    clustered = copies.column("cluster").is_valid()
    gone = aligned.taken_down(name, documents.num_rows)[clustered.to_numpy()]
    found = reasons(config, documents.column("source").filter(clustered), judged.filter(clustered), gone)
    passes = pa.array([not row for row in found], pa.bool_())
    rows = np.flatnonzero(clustered.to_numpy())[passes.to_numpy(zero_copy_only=False)]
    mine = copies.filter(clustered).filter(passes)
    members = np.empty(len(rows), MEMBER)
    members["key"], members["rank"] = mine.column("bucket").to_numpy(), mine.column("rank").to_numpy()
    members["row_id"] = row_ids_of(number, rows)
    for column in ("id", "cluster", "text"):
        members[column] = packed_ids.pack(mine.column(column))
    return sorted_runs.by_key(members)


def dropped(members: NDArray[np.void], pairs: pa.Table) -> NDArray[np.void]:
    """Applies the rule to the survivors of some clusters; returns those to drop (dtype DROPPED).

    Args:
        members: dtype MEMBER, in any order.
        pairs: all verified pairs of these clusters: better, worse, jaccard.
    """
    cluster = members["cluster"]
    members = members[np.lexsort((members["rank"], cluster[:, 1], cluster[:, 0]))]
    texts, linked, jaccard = _numbered(packed_ids.unpack(members["text"]), pairs)
    choice = choose(texts, linked, jaccard)
    goes = np.flatnonzero(choice.keeper != np.arange(len(members)))
    keeper = choice.keeper[goes]
    found = np.empty(len(goes), DROPPED)
    found["key"], found["id"], found["keeper"] = members["row_id"][goes], members["id"][goes], members["id"][keeper]
    found["kind"] = np.where(texts[keeper] == texts[goes], _KINDS.index("exact"), _KINDS.index("near"))
    found["jaccard"] = choice.jaccard[goes]
    return found


def _numbered(texts: pa.Array, pairs: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Returns the texts as numbers, and the pairs of these texts, shape (pairs, 2), with their similarities."""
    known = pc.unique(texts)
    sides = [pc.index_in(pairs.column(side), value_set=known) for side in ("better", "worse")]
    both = pc.and_(sides[0].is_valid(), sides[1].is_valid())
    linked = np.stack([side.filter(both).to_numpy().astype(np.int64) for side in sides], axis=1)
    numbers = pc.index_in(texts, value_set=known).to_numpy().astype(np.int64)
    return numbers, linked, pairs.column("jaccard").filter(both).to_numpy()


def copies_of(found: NDArray[np.void]) -> pa.Table:
    """Returns dropped documents (dtype DROPPED) as a table (schema COPIES)."""
    kinds = pa.array(_KINDS).take(pa.array(found["kind"]))
    columns = [packed_ids.unpack(found["id"]), packed_ids.unpack(found["keeper"]), kinds, pa.array(found["jaccard"])]
    return pa.table(columns, schema=COPIES)
