"""Verdicts from verified pairs: clusters of copies, the keeper of each, and a row for every document.

    large-<round>/ small-<round>/  per bucket of nodes     a run of EDGE: the search for connected components
    labeled/<bucket>.bin           per bucket of texts     a run of LABELED: every link with the label of its cluster
    members/<bucket>.bin                                   a run of MEMBER: the documents of these links
    ranks/<part>.bin               per part                a run of RANKED: its members with their preference
    forgotten/<part>.bin           per part of the index   a run of ROW_ID: documents that are taken down
    verdicts/<bucket>.bin          per bucket of clusters  a run of VERDICT, by row id: the documents of clusters
    pairs/<bucket>.parquet                                 every verified pair of texts with its similarity (PAIRS)
    sizes/ largest/                                        clusters by size, the largest ones (`audit.LARGEST`)
    duplicates/<part>.parquet      per part                one row per document, in order (DUPLICATES)
    sources/ domains/                                      counts of each source (SOURCES) and domain
    earlier/<number>.parquet       per part of the index   its documents with a copy or a newer capture here (EARLIER)

Components are found by the alternating algorithm of Kiveris, Lattanzi, Mirrokni, Rastogi and Vassilvitskii 2014,
"Connected Components in MapReduce and Beyond" (SoCC): until nothing changes, every node connects

    large-star   each larger neighbor to the smallest of itself and all its neighbors
    small-star   itself and each smaller neighbor to the smallest of these

Both preserve the components, and the final edges are stars: each node of a component is connected to the smallest one,
which is its label. In practice there are two or three rounds for groups of copies, and about log2(n) for a chain of n.
A pass holds the edges of one bucket of nodes; a component of n texts has n edges at one node, 24 MB per million.

A cluster is a connected component of verified pairs and equal texts. It is used in reports and to divide the work; the
rule in `tasks.formats.dedup.duplicates` decides which documents are dropped, with about 600 bytes of memory per
document of the bucket. Documents of the index that are taken down do not take part.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import NAMES
from tasks.formats.dedup.document_ids import row_ids_of, row_of, unpack
from tasks.formats.dedup.duplicates import choose
from tasks.formats.dedup.exchange import Exchange
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.text import mix
from tasks.stages.dedup import audit, preference
from tasks.stages.dedup.workspace import (
    EDGE,
    KINDS,
    LABELED,
    MEMBER,
    RANKED,
    ROW_ID,
    VERDICT,
    Workspace,
    forgotten_path,
    packed,
)

Edges = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Two arrays of nodes, shape (edges,)."""

PAIRS = pa.schema(
    [
        pa.field("better", pa.string(), nullable=False),  # values of `text` in duplicates
        pa.field("worse", pa.string(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),
    ]
)

SIZES = pa.schema([pa.field("size", pa.int64(), nullable=False), pa.field("clusters", pa.int64(), nullable=False)])
VERDICTS, MEMBERS, RANKS = "verdicts", "members", "ranks"

OF_CYCLE = "of_cycle/"
"""Prefix of metrics: duplicates of documents of the index, by the number of their version."""

DUPLICATES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("duplicate_of", pa.string()),  # the keeper; null for a kept document
        pa.field("kind", pa.string()),  # "exact" | "near"
        pa.field("jaccard", pa.float32()),  # similarity to duplicate_of
        pa.field("cluster", pa.string()),  # id of the cluster's most preferred document; null without copies
        pa.field("text", pa.string()),  # id of the most preferred document with the same text; null without copies
        pa.field("rank", pa.int32()),  # order of preference in the cluster, 0 first; null without copies
        pa.field("bucket", pa.int32()),  # number of the file in pairs/ with the cluster's pairs; null without copies
        pa.field("page", pa.uint64()),  # hash of the page (`preference.page_key`); null if it has only one capture
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


def both_directions(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns edges in both directions (dtype EDGE), sorted by key."""
    return _edges(np.concatenate([first, second]), np.concatenate([second, first]))


def _edges(nodes: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.void]:
    return sorted_runs.by_key(packed(EDGE, key=mix(nodes), node=nodes, other=others))


def large_star(edges: NDArray[np.void]) -> tuple[Edges, int]:
    """Applies large-star to some nodes.

    Args:
        edges: all edges from these nodes (dtype EDGE); may contain repeats.

    Returns:
        the edges after the step, from the larger node to the smaller one; and how many of them changed.
    """
    nodes, others, starts = _by_node(edges)
    if not len(starts):
        return (nodes, others), 0
    smallest = np.minimum(np.minimum.reduceat(others, starts), nodes[starts])
    target = np.repeat(smallest, np.diff(np.append(starts, len(nodes))))
    larger = others > nodes
    return (others[larger], target[larger]), int((larger & (target != nodes)).sum())


def small_star(edges: NDArray[np.void]) -> tuple[Edges, int]:
    """Applies small-star to some nodes; like `large_star`, with only the edges to smaller nodes."""
    nodes, others, starts = _by_node(edges)
    if not len(starts):
        return (nodes, others), 0
    smallest = np.minimum.reduceat(others, starts)
    target = np.repeat(smallest, np.diff(np.append(starts, len(nodes))))
    moved = others != target
    return (
        (np.concatenate([nodes[starts], others[moved]]), np.concatenate([smallest, target[moved]])),
        int(moved.sum()),
    )


def _by_node(edges: NDArray[np.void]) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Returns the distinct edges sorted by node, and the index of the first edge of each node."""
    order = np.lexsort((edges["other"], edges["node"]))
    nodes, others = edges["node"][order], edges["other"][order]
    repeats = (nodes[1:] == nodes[:-1]) & (others[1:] == others[:-1])
    distinct = ~np.append(False, repeats)[: len(nodes)]
    nodes, others = nodes[distinct], others[distinct]
    return nodes, others, np.flatnonzero(np.append(True, nodes[1:] != nodes[:-1])[: len(nodes)])


def large_part(work: Workspace, before: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Applies large-star to the nodes of one bucket; runs on a worker."""
    (nodes, others), changed = large_star(before.records(work.own, number))
    part.metric("moved_edges", changed)
    sorted_runs.write(part, buckets.path(number), [_edges(nodes, others)])


def small_part(work: Workspace, before: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Applies small-star to the nodes of one bucket; runs on a worker."""
    (nodes, others), changed = small_star(before.records(work.own, number))
    part.metric("moved_edges", changed)
    sorted_runs.write(part, buckets.path(number), [both_directions(nodes, others)])


def labels_of(nodes: NDArray[np.uint64], stars: NDArray[np.void]) -> NDArray[np.uint64]:
    """Returns the label of each node: the smallest node of its component, or itself without edges.

    Args:
        nodes: shape (nodes,).
        stars: edges of these nodes after the last round (dtype EDGE).
    """
    leaves = stars[stars["other"] < stars["node"]]
    if not len(leaves):
        return nodes
    leaves = leaves[np.argsort(leaves["node"])]
    at = np.minimum(np.searchsorted(leaves["node"], nodes), len(leaves) - 1)
    return np.where(leaves["node"][at] == nodes, leaves["other"][at], nodes)


def clusters_part(work: Workspace, links: Exchange, stars: Exchange, buckets: Buckets, part: Part, number: int) -> None:
    """Labels the links of one bucket of texts with their clusters; runs on a worker.

    Args:
        work: the stage's files.
        links: the links (dtype LINK) by their left text.
        stars: the edges after the last round of the search for components.
        buckets: the runs that this pass writes.
        part: the part to write.
        number: of the bucket.
    """
    records = links.records(work.own, number)
    label = labels_of(records["left"], stars.records(work.own, number))
    columns = {name: records[name] for name in ("left", "right", "jaccard", "equal")}
    labeled = packed(LABELED, key=mix(label), label=label, **columns)
    order = np.lexsort((records["right"], records["left"], labeled["key"]))
    sorted_runs.write(part, buckets.path(number), [labeled[order]])
    row_ids, first = np.unique(np.concatenate([records["left"], records["right"]]), return_index=True)
    members = packed(MEMBER, key=row_ids, label=np.concatenate([label, label])[first])
    sorted_runs.write(part, buckets.sibling(MEMBERS).path(number), [members])


def ranked_part(work: Workspace, members: Exchange, part: Part, item: tuple[int, str]) -> None:
    """Writes the preference of the documents of one part that are in clusters; runs on a worker."""
    number, name = item
    records = members.records(work.own, number)
    row_ids, first = np.unique(records["key"], return_index=True)
    ranked = preference.ranked(work, number, name, RANKED, row_ids)
    ranked["key"] = mix(records["label"][first])
    sorted_runs.write(part, f"{RANKS}/{name}.bin", [sorted_runs.by_key(ranked)])


class ClusterMembers(NamedTuple):
    """The documents of some clusters, most preferred first.

    `row_ids` uint64 (documents,); `ids` uint64 (documents, 2); `label` uint64 (documents,), of the cluster; `text`
    int64 (documents,), the index of the most preferred document with the same text; `repeated` bool (documents,),
    whether the same document, published by an earlier version, is in the cluster before it. `cycle` uint32
    (documents,), the number of versions before its own.
    """

    row_ids: NDArray[np.uint64]
    ids: NDArray[np.uint64]
    label: NDArray[np.uint64]
    text: NDArray[np.int64]
    repeated: NDArray[np.bool_]
    cycle: NDArray[np.uint32]


def keepers_part(
    work: Workspace, clusters: Exchange, ranks: Exchange, buckets: Buckets, part: Part, number: int
) -> None:
    """Writes the verdicts on the documents of one bucket of clusters; runs on a worker."""
    links = clusters.records(work.own, number)
    members = _members(work, links, ranks.records(work.own, number))
    near = links[links["equal"] == 0]
    pairs = _text_pairs(members, near)
    verdicts, sizes, keepers = _verdicts(members, pairs, near["jaccard"], number)
    is_new_duplicate = (verdicts["kind"] != KINDS.index("")) & (verdicts["key"] >= work.first_row_id)
    earlier = keepers[is_new_duplicate & (members.row_ids[keepers] < work.first_row_id)]
    for cycle, count in zip(*np.unique(members.cycle[earlier], return_counts=True), strict=True):
        part.metric(f"{OF_CYCLE}{cycle}", int(count))
    sorted_runs.write(part, buckets.sibling(VERDICTS).path(number), [sorted_runs.by_key(verdicts)])
    part.write_table(buckets.path(number, "parquet"), _pairs_table(members, pairs, near["jaccard"]))
    largest = audit.largest_clusters(members.ids, members.label, members.text, members.repeated)
    part.write_table(buckets.sibling(audit.LARGEST_FOLDER).path(number, "parquet"), largest)
    size, count = np.unique(sizes, return_counts=True)
    with part.file(buckets.sibling(audit.CLUSTER_SIZES).path(number, "parquet"), rows=len(size)) as file:
        pq.write_table(pa.table([size.astype(np.int64), count.astype(np.int64)], schema=SIZES), file)


def _members(work: Workspace, links: NDArray[np.void], ranked: NDArray[np.void]) -> ClusterMembers:
    ranked = ranked[np.argsort(ranked["row_id"])]
    row_ids, first = np.unique(np.concatenate([links["left"], links["right"]]), return_index=True)
    assert np.array_equal(row_ids, ranked["row_id"]), "each document of a cluster has its preference"
    label = np.concatenate([links["label"], links["label"]])[first]
    text = row_ids.copy()
    equal = links[links["equal"] == 1]
    text[np.searchsorted(row_ids, equal["right"])] = equal["left"]
    order = preference.ordered(work.config, ranked)
    _, best, inverse = np.unique(text[order], return_index=True, return_inverse=True)
    ids = ranked["id"][order]
    repeated = np.ones(len(ids), np.bool_)
    repeated[np.unique(ids, axis=0, return_index=True)[1]] = False
    texts = best[inverse].astype(np.int64)
    return ClusterMembers(row_ids[order], ids, label[order], texts, repeated, ranked["cycle"][order])


def _text_pairs(members: ClusterMembers, near: NDArray[np.void]) -> NDArray[np.int64]:
    """Returns the indices of the two texts of each pair, the better one first, shape (pairs, 2)."""
    by_row_id = np.argsort(members.row_ids)
    sorted_row_ids = members.row_ids[by_row_id]
    sides = [members.text[by_row_id[np.searchsorted(sorted_row_ids, near[side])]] for side in ("left", "right")]
    return np.sort(np.stack(sides, axis=1), axis=1)


def _verdicts(
    members: ClusterMembers, pairs: NDArray[np.int64], jaccard: NDArray[np.float32], bucket: int
) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.int64]]:
    """Returns the verdicts (dtype VERDICT), the sizes of the clusters, and the index of each verdict's keeper.

    A document counts once, so a document and its publication in an earlier version are not a cluster.
    """
    choice = choose(members.text, pairs, jaccard)
    keeper = choice.keeper
    equal = members.text[keeper] == members.text
    # A document that an earlier version has published is not a duplicate of itself.
    is_duplicate = (members.ids[keeper] != members.ids).any(axis=1)
    _, first, inverse, sizes = np.unique(members.label, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")  # by cluster, in each by preference
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    records = np.zeros(len(keeper), VERDICT)
    records["key"], records["rank"], records["bucket"] = members.row_ids, rank, bucket
    records["kind"] = np.where(
        is_duplicate, np.where(equal, KINDS.index("exact"), KINDS.index("near")), KINDS.index("")
    )
    records["jaccard"] = choice.jaccard
    for name, index in (("keeper", keeper), ("cluster", first[inverse]), ("text", members.text)):
        records[name] = members.ids[index]
    documents = np.bincount(inverse[~members.repeated], minlength=len(sizes))
    return records, documents[documents > 1], keeper


def _pairs_table(members: ClusterMembers, pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> pa.Table:
    columns = [unpack(members.ids[pairs[:, side]]) for side in (0, 1)]
    table = pa.table([*columns, pa.array(jaccard)], schema=PAIRS)
    return table.sort_by([("better", "ascending"), ("worse", "ascending")])


def forgotten_part(work: Workspace, part: Part, number: int) -> None:
    """Writes the documents of one part of the index that are taken down; runs on a worker."""
    rows = np.flatnonzero(work.takedowns.mask(work.index.names(number)))
    sorted_runs.write(part, forgotten_path(number), [packed(ROW_ID, key=row_ids_of(number, rows))])


def duplicates_part(work: Workspace, verdicts: Exchange, recaptured: Exchange, part: Part, number: int) -> None:
    """Writes the verdicts on the documents of one part, given by its number; runs on a worker."""
    documents = work.extracted.table(f"documents/{part.name}.parquet", columns=["id", "source", "host"])
    part.count_in(documents.num_rows)
    records, pages = (sorted_runs.by_key(one.records(work.own, number)) for one in (verdicts, recaptured))
    table = verdict_table(documents.column("id").combine_chunks(), records, pages)
    for kind in KINDS[1:]:
        part.metric(f"{kind}_duplicates", int((records["kind"] == KINDS.index(kind)).sum()))
    part.table("duplicates", table)
    duplicate = table.column("duplicate_of").is_valid()
    with part.file(f"{audit.SOURCES_FOLDER}/{part.name}.parquet") as file:
        pq.write_table(_sources(documents.column("source"), duplicate), file)
    domains = audit.count_domains(documents.column("host"), documents.column("source"), duplicate)
    part.write_table(f"{audit.DOMAINS_FOLDER}/{part.name}.parquet", domains)


def earlier_part(work: Workspace, verdicts: Exchange, recaptured: Exchange, part: Part, number: int) -> None:
    """Writes the documents of one part of the index with a copy or a newer capture here; runs on a worker."""
    records, pages = (sorted_runs.by_key(one.records(work.own, number)) for one in (verdicts, recaptured))
    affected = np.union1d(records["key"], pages["key"])
    rows = row_of(affected)
    names = work.index.names(number).take(pa.array(rows))
    ids = names.column("id").combine_chunks()
    table = verdict_table(ids, _renumber(records, affected), _renumber(pages, affected))
    columns = [
        *(names.column(name) for name in NAMES.names),
        *(table.column(name) for name in ("cluster", "text", "rank", "bucket", "page")),
        preference.fetched_at(work.index.rows(number)["fetched"][rows]),
        pa.array(rows),
    ]
    part.table("earlier", pa.table(columns, schema=EARLIER), out=False)


def _renumber(records: NDArray[np.void], row_ids: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns the records with positions in `row_ids` in place of row ids."""
    result = records.copy()
    result["key"] = np.searchsorted(row_ids, records["key"])
    return result


def verdict_table(ids: pa.Array, verdicts: NDArray[np.void], pages: NDArray[np.void]) -> pa.Table:
    """Returns the rows of documents (schema DUPLICATES).

    Args:
        ids: ids of the documents of the part.
        verdicts: verdicts on its documents in clusters (dtype VERDICT), sorted.
        pages: its documents whose page has another capture (dtype RECAPTURED).
    """
    row = np.zeros(len(ids), np.int64)
    row[row_of(verdicts["key"])] = np.arange(len(verdicts))
    without_cluster = np.ones(len(ids), np.bool_)
    without_cluster[row_of(verdicts["key"])] = False
    kept = without_cluster.copy()
    kept[row_of(verdicts["key"])] = verdicts["kind"] == KINDS.index("")
    page, single_capture = np.zeros(len(ids), np.uint64), np.ones(len(ids), np.bool_)
    page[row_of(pages["key"])], single_capture[row_of(pages["key"])] = pages["page"], False
    dropped, member = (pa.array(row, mask=mask) for mask in (kept, without_cluster))
    columns = [
        unpack(verdicts["keeper"]).take(dropped),
        pa.array(KINDS).take(pa.array(verdicts["kind"])).take(dropped),
        pa.array(verdicts["jaccard"]).take(dropped),
        unpack(verdicts["cluster"]).take(member),
        unpack(verdicts["text"]).take(member),
        pa.array(verdicts["rank"].astype(np.int32)).take(member),
        pa.array(verdicts["bucket"].astype(np.int32)).take(member),
        pa.array(page, mask=single_capture),
    ]
    return pa.table([ids, *columns], schema=DUPLICATES)


def _sources(sources: pa.ChunkedArray, duplicate: pa.ChunkedArray) -> pa.Table:
    table = pa.table({"source": sources, "lost": pc.cast(duplicate, pa.int64())})
    counts = table.group_by("source").aggregate([("lost", "count"), ("lost", "sum")]).sort_by("source")
    return pa.table([counts.column(name) for name in ("source", "lost_count", "lost_sum")], schema=SOURCES)
