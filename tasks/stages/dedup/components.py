"""Connected components of the graph of verified pairs, over buckets of nodes.

The alternating algorithm of Kiveris, Lattanzi, Mirrokni, Rastogi and Vassilvitskii 2014, "Connected Components in
MapReduce and Beyond" (SoCC): until nothing changes, every node connects

    large-star   each larger neighbour to the smallest of itself and all its neighbours
    small-star   itself and each smaller neighbour to the smallest of these

Both keep the components, and the edges that are left at the end are stars: each node of a component is connected to the
smallest one, its label. Rounds in practice: two or three for groups of copies, about log2(n) for a chain of n.

Reads a run of EDGE, in both directions, per bucket of the pass before; writes one per bucket: `large-<round>/` (from
the larger node alone) and `small-<round>/`. A pass needs the edges of one bucket of nodes; a component of n texts has n
edges at one node at the end, 24 MB per million.

Division of the links into clusters: every link with the label of its cluster, at the bucket of this label.

Reads the runs `verified/` and `equal/`, and those of the last round of `components`, one bucket of texts at a time.
Writes `clusters/<bucket>.bin`, a run of LABELLED. A cluster is a connected component of verified pairs and equal texts;
it serves reports and the division of work. Which documents are dropped is decided by the rule in
`tasks.formats.duplicate_resolution`.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.mix import mix
from tasks.stages.dedup.workspace import EDGE, LABELLED, LINK, Workspace, packed

Edges = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Two arrays of nodes, shape (edges,)."""


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
