"""Which copies go, given which documents pass the other rules.

Reads `duplicates` (clusters, order of preference, verified pairs) and small columns of `extracted` and `attributes`.
Dedup chose keepers among all documents; here the same rule (`tasks.formats.duplicate_resolution`) chooses among those
that pass, so that a keeper that is dropped for its quality or language does not take its copies down with it. Only
documents that have a copy are looked at; memory is about 300 bytes for each.
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
    """Returns for every part the documents that go as copies of one that stays (schema COPIES), in row order.

    None go where the settings leave copies alone.
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
        mine = np.flatnonzero((part_of == index) & copies.column("goes").to_numpy())
        mine = mine[np.argsort(row_of[mine])]
        found[name] = copies.take(pa.array(mine)).select(COPIES.names).cast(COPIES)
    return found


def _survivors(config: ConsolidateConfig, aligned: AlignedParts, name: str) -> pa.Table:
    """Returns the documents of one part that have a copy and pass the rules (columns _MEMBER)."""
    documents, judged, copies = aligned.part(name, ["id", "source"], config.filters, _MEMBER)
    several = copies.column("cluster").is_valid()
    found = reasons(config, documents.column("source").filter(several), judged.filter(several))
    return copies.filter(several).filter(pa.array([not why for why in found], pa.bool_()))


def _copies(ranked: pa.Table, pairs: pa.Table) -> pa.Table:
    """Applies the rule to the documents in order of preference; adds who goes, for whom, and why."""
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
            "goes": pa.array(choice.keeper != np.arange(len(texts))),
        }
    )
