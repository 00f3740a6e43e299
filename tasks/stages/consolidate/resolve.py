"""Resolution of duplicates among the documents that pass the filters.

Reads `duplicates` (clusters, order of preference, verified pairs) and small columns of `extracted` and `attributes`.
Dedup chooses keepers among all documents; here the same rule (`tasks.formats.duplicate_resolution`) is applied to the
documents that pass, so that the copies of a keeper that is dropped for its quality or language are not lost. Only
documents with a copy are read; memory is about 300 bytes for each.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.formats.duplicate_resolution import choose
from tasks.stages.consolidate.aligned_inputs import AlignedParts
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
_MEMBER = ["id", "cluster", "text", "rank"]


def resolve(config: ConsolidateConfig, aligned: AlignedParts, names: Sequence[str]) -> dict[str, pa.Table]:
    """Returns for every part the documents to drop as copies of a kept one (schema COPIES), in row order.

    Returns empty tables unless `config.dedup`.
    """
    if not config.dedup:
        return dict.fromkeys(names, COPIES.empty_table())
    parts = [_survivors(config, aligned, name) for name in names]
    members = pa.concat_tables(parts)
    order = pc.sort_indices(members, sort_keys=[("rank", "ascending")])
    ranked = members.take(order)
    copies = _copies(ranked, aligned.duplicates.table("pairs.parquet"))
    part_of = np.repeat(np.arange(len(names)), [part.num_rows for part in parts])[order.to_numpy()]
    row_of = order.to_numpy()
    found = {}
    for index, name in enumerate(names):
        dropped = np.flatnonzero((part_of == index) & copies.column("dropped").to_numpy())
        dropped = dropped[np.argsort(row_of[dropped])]
        found[name] = copies.take(pa.array(dropped)).select(COPIES.names).cast(COPIES)
    return found


def _survivors(config: ConsolidateConfig, aligned: AlignedParts, name: str) -> pa.Table:
    """Returns the documents of one part that have a copy and pass the filters (columns _MEMBER)."""
    documents, judged, copies = aligned.part(name, ["id", "source"], config.filters, _MEMBER)
    clustered = copies.column("cluster").is_valid()
    gone = aligned.taken_down(name, documents.num_rows)[clustered.to_numpy()]
    found = reasons(config, documents.column("source").filter(clustered), judged.filter(clustered), gone)
    return copies.filter(clustered).filter(pa.array([not row for row in found], pa.bool_()))


def _copies(ranked: pa.Table, pairs: pa.Table) -> pa.Table:
    """Applies the rule to documents in order of preference; adds whether each is dropped, its keeper and the kind."""
    known = pc.unique(ranked.column("text"))
    texts = pc.index_in(ranked.column("text"), value_set=known).to_numpy().astype(np.int64)
    sides = [pc.index_in(pairs.column(side), value_set=known) for side in ("better", "worse")]
    both = pc.and_(sides[0].is_valid(), sides[1].is_valid())
    linked = np.stack([side.filter(both).to_numpy().astype(np.int64) for side in sides], axis=1)
    choice = choose(texts, linked, pairs.column("jaccard").filter(both).to_numpy())
    equal = texts[choice.keeper] == texts
    return pa.table(
        {
            "id": ranked.column("id"),
            "duplicate_of": ranked.column("id").take(pa.array(choice.keeper)),
            "kind": pa.array(np.where(equal, "exact", "near").tolist(), pa.string()),
            "jaccard": pa.array(choice.jaccard),
            "dropped": pa.array(choice.keeper != np.arange(len(texts))),
        }
    )
