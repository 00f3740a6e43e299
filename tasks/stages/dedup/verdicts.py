"""From verified pairs to verdicts: clusters of copies, the keeper of each, and a row for every document.

    large-<round>/ small-<round>/  per bucket of nodes     a run of EDGE: the search for connected components
    clusters/<bucket>.bin          per bucket of clusters  a run of LABELLED: every link with the label of its cluster
    forgotten/<part>.bin           per part of the index   a run of ROW_ID: documents that are taken down
    verdicts/<bucket>.bin          per bucket of clusters  a run of VERDICT, by row id: each document of a cluster
    pairs/<bucket>.parquet                                 every verified pair of texts with its similarity (PAIRS)
    sizes/ largest/                                        clusters by size, the largest ones (`audit.LARGEST`)
    duplicates/<part>.parquet      per part                one row per document, in their order (DUPLICATES)
    sources/ domains/                                      documents and duplicates of each source (SOURCES), domain
    earlier/<number>.parquet       per part of the index   its documents with a copy or a newer capture here (EARLIER)

Components are found by the alternating algorithm of Kiveris, Lattanzi, Mirrokni, Rastogi and Vassilvitskii 2014,
"Connected Components in MapReduce and Beyond" (SoCC): until nothing changes, every node connects

    large-star   each larger neighbour to the smallest of itself and all its neighbours
    small-star   itself and each smaller neighbour to the smallest of these

Both keep the components, and the edges that are left at the end are stars: each node of a component is connected to the
smallest one, its label. Rounds in practice: two or three for groups of copies, about log2(n) for a chain of n. A pass
needs the edges of one bucket of nodes; a component of n texts has n edges at one node at the end, 24 MB per million.

A cluster is a connected component of verified pairs and equal texts. It serves reports and the division of work; which
documents are dropped is decided by the rule in `tasks.formats.dedup.duplicates`, in about 600 bytes of memory per
document of the bucket. Documents of the index that are taken down are compared with nothing.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.dedup_index import NAMES
from tasks.formats.dedup.document_ids import range_of, row_ids_of, row_of, unpack
from tasks.formats.dedup.duplicates import choose
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.text import mix
from tasks.stages.dedup import audit, preference
from tasks.stages.dedup.workspace import (
    EDGE,
    KINDS,
    LABELLED,
    LINK,
    RECAPTURED,
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
VERDICTS = "verdicts"

OF_CYCLE = "of_cycle/"
"""Metrics: duplicates of documents of the version with that number in the index."""

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
        pa.field("page", pa.uint64()),  # hash of the page (`preference.page_key`); null without another capture of it
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


def both_ways(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns edges in both directions (dtype EDGE), sorted by key."""
    return _edges(np.concatenate([one, other]), np.concatenate([other, one]))


def _edges(nodes: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.void]:
    return sorted_runs.by_key(packed(EDGE, key=mix(nodes), node=nodes, other=others))


def large_star(edges: NDArray[np.void]) -> tuple[Edges, int]:
    """Applies large-star to some nodes.

    Args:
        edges: dtype EDGE, all edges of these nodes, from them; repeats do no harm.

    Returns:
        the new edges, from the larger node to the smaller one; and how many of them are new.
    """
    nodes, others, starts = _by_node(edges)
    if not len(starts):
        return (nodes, others), 0
    smallest = np.minimum(np.minimum.reduceat(others, starts), nodes[starts])
    target = np.repeat(smallest, np.diff(np.append(starts, len(nodes))))
    larger = others > nodes
    return (others[larger], target[larger]), int((larger & (target != nodes)).sum())


def small_star(edges: NDArray[np.void]) -> tuple[Edges, int]:
    """Applies small-star to some nodes; as `large_star`, with the edges to smaller nodes alone."""
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
    """Returns the distinct edges sorted by node, and where each node begins."""
    order = np.lexsort((edges["other"], edges["node"]))
    nodes, others = edges["node"][order], edges["other"][order]
    again = (nodes[1:] == nodes[:-1]) & (others[1:] == others[:-1])
    kept = ~np.append(False, again)[: len(nodes)]
    nodes, others = nodes[kept], others[kept]
    return nodes, others, np.flatnonzero(np.append(True, nodes[1:] != nodes[:-1])[: len(nodes)])


def large_part(work: Workspace, before: Buckets, made: Buckets, part: Part, number: int) -> None:
    """Applies large-star to the nodes of one bucket of `made`; runs on a worker."""
    (nodes, others), changed = large_star(work.bucket(before, EDGE, number, made.count))
    part.metric("moved_edges", changed)
    sorted_runs.write(part, made.path(number), [_edges(nodes, others)])


def small_part(work: Workspace, before: Buckets, made: Buckets, part: Part, number: int) -> None:
    """Applies small-star to the nodes of one bucket of `made`; runs on a worker."""
    (nodes, others), changed = small_star(work.bucket(before, EDGE, number, made.count))
    part.metric("moved_edges", changed)
    sorted_runs.write(part, made.path(number), [both_ways(nodes, others)])


def labels_of(nodes: NDArray[np.uint64], stars: NDArray[np.void]) -> NDArray[np.uint64]:
    """Returns the label of each node: the smallest of its component, itself where it has no edge.

    Args:
        nodes: shape (nodes,).
        stars: dtype EDGE, the edges of these nodes after the last round.
    """
    leaves = stars[stars["other"] < stars["node"]]
    if not len(leaves):
        return nodes
    leaves = leaves[np.argsort(leaves["node"])]
    at = np.minimum(np.searchsorted(leaves["node"], nodes), len(leaves) - 1)
    return np.where(leaves["node"][at] == nodes, leaves["other"][at], nodes)


def clusters_part(
    work: Workspace, links: tuple[Buckets, ...], stars: Buckets | None, made: Buckets, part: Part, number: int
) -> None:
    """Labels the links from the texts of one bucket of `made`; runs on a worker.

    Args:
        work: the stage's files.
        links: runs of LINK.
        stars: the last round of the search for components; None where no pair was verified.
        made: the runs that this pass writes.
        part: the part to write.
        number: of the bucket.
    """
    found = np.concatenate([work.bucket(run, LINK, number, made.count) for run in links])
    edges = work.bucket(stars, EDGE, number, made.count) if stars else np.empty(0, EDGE)
    label = labels_of(found["left"], edges)
    columns = {name: found[name] for name in ("left", "right", "jaccard", "equal")}
    labelled = packed(LABELLED, key=mix(label), label=label, **columns)
    order = np.lexsort((found["right"], found["left"], labelled["key"]))
    sorted_runs.write(part, made.path(number), [labelled[order]])


class Members(NamedTuple):
    """The documents of some clusters, most preferred first.

    `row_ids` uint64 (documents,); `ids` uint64 (documents, 2); `label` uint64 (documents,), of the cluster; `text`
    int64 (documents,), the index of the most preferred document with the same text; `again` bool (documents,), whether
    an earlier version has published this very document, too, which is there before it.
    """

    row_ids: NDArray[np.uint64]
    ids: NDArray[np.uint64]
    label: NDArray[np.uint64]
    text: NDArray[np.int64]
    again: NDArray[np.bool_]


def keepers_part(work: Workspace, clusters: Buckets, made: Buckets, part: Part, number: int) -> None:
    """Decides on the documents of one bucket of `made`; runs on a worker."""
    links = work.bucket(clusters, LABELLED, number, made.count)
    members = _members(work, links)
    near = links[links["equal"] == 0]
    pairs = _text_pairs(members, near)
    found, sizes, keepers = _verdicts(members, pairs, near["jaccard"], number)
    gone = (found["kind"] != KINDS.index("")) & (found["key"] >= work.first_row_id)
    earlier = keepers[gone & (keepers < work.first_row_id)]
    for cycle, count in zip(*np.unique(preference.cycles(work, earlier), return_counts=True), strict=True):
        part.metric(f"{OF_CYCLE}{cycle}", int(count))
    sorted_runs.write(part, made.beside(VERDICTS).path(number), [sorted_runs.by_key(found)])
    with part.file(made.path(number, "parquet"), rows=len(pairs)) as file:
        pq.write_table(_named(members, pairs, near["jaccard"]), file, compression="zstd", compression_level=3)
    largest = audit.largest_clusters(members.ids, members.label, members.text, members.again)
    audit.write_table(part, made.beside(audit.LARGEST_FOLDER).path(number, "parquet"), largest)
    size, count = np.unique(sizes, return_counts=True)
    with part.file(made.beside(audit.CLUSTER_SIZES).path(number, "parquet"), rows=len(size)) as file:
        pq.write_table(pa.table([size.astype(np.int64), count.astype(np.int64)], schema=SIZES), file)


def _members(work: Workspace, links: NDArray[np.void]) -> Members:
    row_ids, first = np.unique(np.concatenate([links["left"], links["right"]]), return_index=True)
    label = np.concatenate([links["label"], links["label"]])[first]
    text = row_ids.copy()
    equal = links[links["equal"] == 1]
    text[np.searchsorted(row_ids, equal["right"])] = equal["left"]
    records = preference.read(work, row_ids)
    order = preference.order(records, row_ids)
    _, best, inverse = np.unique(text[order], return_index=True, return_inverse=True)
    ids = records["id"][order]
    again = np.ones(len(ids), np.bool_)
    again[np.unique(ids, axis=0, return_index=True)[1]] = False
    return Members(row_ids[order], ids, label[order], best[inverse].astype(np.int64), again)


def _text_pairs(members: Members, near: NDArray[np.void]) -> NDArray[np.int64]:
    """Returns the indices of the two texts of each pair, the better one first, shape (pairs, 2)."""
    by_row_id = np.argsort(members.row_ids)
    sorted_row_ids = members.row_ids[by_row_id]
    sides = [members.text[by_row_id[np.searchsorted(sorted_row_ids, near[side])]] for side in ("left", "right")]
    return np.sort(np.stack(sides, axis=1), axis=1)


def _verdicts(
    members: Members, pairs: NDArray[np.int64], jaccard: NDArray[np.float32], bucket: int
) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.uint64]]:
    """Returns the verdicts (dtype VERDICT), the sizes of the clusters, and of each verdict the keeper's row id.

    A document counts once, so a cluster of nothing but one that an earlier version has published, too, is none.
    """
    choice = choose(members.text, pairs, jaccard)
    keeper = choice.keeper
    equal = members.text[keeper] == members.text
    # A document that an earlier version has published, too, is no duplicate of itself.
    goes = (members.ids[keeper] != members.ids).any(axis=1)
    _, first, inverse, sizes = np.unique(members.label, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")  # by cluster, in each by preference
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = np.zeros(len(keeper), VERDICT)
    found["key"], found["rank"], found["bucket"] = members.row_ids, rank, bucket
    found["kind"] = np.where(goes, np.where(equal, KINDS.index("exact"), KINDS.index("near")), KINDS.index(""))
    found["jaccard"] = choice.jaccard
    for name, index in (("keeper", keeper), ("cluster", first[inverse]), ("text", members.text)):
        found[name] = members.ids[index]
    documents = np.bincount(inverse[~members.again], minlength=len(sizes))
    return found, documents[documents > 1], members.row_ids[keeper]


def _named(members: Members, pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> pa.Table:
    columns = [unpack(members.ids[pairs[:, side]]) for side in (0, 1)]
    table = pa.table([*columns, pa.array(jaccard)], schema=PAIRS)
    return table.sort_by([("better", "ascending"), ("worse", "ascending")])


def forgotten_part(work: Workspace, part: Part, number: int) -> None:
    """Writes those of one part; runs on a worker."""
    rows = np.flatnonzero(work.takedowns.mask(work.index.names(number)))
    sorted_runs.write(part, forgotten_path(number), [packed(ROW_ID, key=row_ids_of(number, rows))])


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
