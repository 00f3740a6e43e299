"""What a person reads to judge the duplicates: samples of pairs and clusters, and counts by domain.

The passes write, bucket by bucket or part by part,

    below/ above/<batch>.bin   a run of SAMPLED: some pairs on each side of the threshold, with the smallest hashes
    largest/<bucket>.parquet   the largest clusters of the bucket (LARGEST)
    domains/<part>.parquet     documents and duplicates of each registered domain (DOMAINS)

and the stage makes of them `audit.json` (`tasks.formats.duplicate_audit`) and `domains.parquet`. Samples are of bounded
size; of the domains all are in memory at one time, about 100 bytes each.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.domain import domain_of
from tasks.formats.duplicate_audit import Bin, Cluster, Loss, Pair, Side
from tasks.formats.packed_ids import unpack
from tasks.formats.row_ids import part_of, row_of
from tasks.formats.sorted_runs import Buckets
from tasks.stages.dedup.workspace import Workspace

SAMPLED = np.dtype([("key", "<u8"), ("left", "<u8"), ("right", "<u8"), ("jaccard", "<f8")])
"""A pair of texts with its similarity, by the hash of the pair."""
LARGEST = pa.schema(
    [
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("texts", pa.int64(), nullable=False),
        pa.field("shown", pa.list_(pa.string()), nullable=False),
    ]
)
DOMAINS = pa.schema(
    [
        pa.field("domain", pa.string(), nullable=False),  # the source, for documents without a host
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("duplicates", pa.int64(), nullable=False),
    ]
)
BELOW, ABOVE, LARGEST_FOLDER, DOMAINS_FOLDER, DOMAINS_FILE = "below", "above", "largest", "domains", "domains.parquet"
WIDTH = 0.05
"""How far from the threshold a pair of the samples is at most."""
PAIRS, CLUSTERS, TEXTS, SHOWN_DOMAINS = 20, 10, 5, 100
"""Most pairs on each side, clusters, texts of a cluster, and domains."""
_DOMAINS = 1 << 20
"""Rows of counts that are added up at once."""


def write_around(
    part: Part, made: Buckets, number: int, found: NDArray[np.void], shares: NDArray[np.float64], threshold: float
) -> None:
    """Writes the samples of one batch of pairs, and counts the pairs that they are drawn from.

    Args:
        part: the part to write.
        made: the runs of the pass.
        number: of the batch.
        found: the pairs (dtype PAIR).
        shares: their similarities, shape (pairs,).
        threshold: similarity from which a pair is a duplicate.
    """
    sides = {
        BELOW: (shares >= threshold - WIDTH) & (shares < threshold),
        ABOVE: (shares >= threshold) & (shares <= threshold + WIDTH),
    }
    for folder, inside in sides.items():
        part.metric(f"pairs_just_{folder}", int(inside.sum()))
        sampled = np.empty(int(inside.sum()), SAMPLED)
        for name in ("key", "left", "right"):
            sampled[name] = found[name][inside]
        sampled["jaccard"] = shares[inside]
        sorted_runs.write(part, made.beside(folder).path(number), [_smallest(sampled)])


def _smallest(sampled: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the pairs with the smallest hashes: a random sample, the same in whichever order they come."""
    order = np.lexsort((sampled["right"], sampled["left"], sampled["key"]))
    return sampled[order[:PAIRS]]


def largest_clusters(ids: NDArray[np.uint64], label: NDArray[np.uint64], text: NDArray[np.int64]) -> pa.Table:
    """Returns the largest clusters (schema LARGEST).

    Args:
        ids: of the documents, most preferred first, shape (documents, 2).
        label: of the cluster of each, shape (documents,).
        text: index of the most preferred document with the same text, shape (documents,).
    """
    _, first, sizes = np.unique(label, return_index=True, return_counts=True)
    names = ids[first]
    rows = []
    for index in np.lexsort((names[:, 1], names[:, 0], -sizes))[:CLUSTERS]:
        mine = np.flatnonzero(label == label[first[index]])
        distinct = mine[text[mine] == mine]
        shown = unpack(ids[distinct[:TEXTS]]).to_pylist()
        rows.append((shown[0], int(sizes[index]), len(distinct), shown))
    columns = zip(*rows, strict=True) if rows else ([] for _ in LARGEST)
    return pa.table([list(column) for column in columns], schema=LARGEST)


def count_domains(hosts: pa.ChunkedArray, sources: pa.ChunkedArray, duplicate: pa.ChunkedArray) -> pa.Table:
    """Returns documents and duplicates of each registered domain (schema DOMAINS)."""
    named = zip(hosts.to_pylist(), sources.to_pylist(), strict=True)
    domains = [domain_of(host) if host else source for host, source in named]
    ones = pa.array(np.ones(len(domains), np.int64))
    return add_domains([pa.table([domains, ones, pc.cast(duplicate, pa.int64())], names=DOMAINS.names)])


def add_domains(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the sum of several tables of DOMAINS: most duplicates first, then by name."""
    total, waiting, rows = DOMAINS.empty_table(), [], 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= _DOMAINS:
            total, waiting, rows = _summed([total, *waiting]), [], 0
    order = [("duplicates", "descending"), ("documents", "descending"), ("domain", "ascending")]
    return _summed([total, *waiting]).sort_by(order).combine_chunks()


def _summed(tables: Sequence[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables([table.cast(DOMAINS) for table in tables]).group_by("domain")
    return grouped.aggregate([(name, "sum") for name in DOMAINS.names[1:]]).rename_columns(DOMAINS.names).cast(DOMAINS)


def losses(domains: pa.Table) -> tuple[Loss, ...]:
    """Returns the first rows of a table of DOMAINS."""
    rows = domains.slice(0, SHOWN_DOMAINS).to_pylist()
    return tuple(Loss(name=row["domain"], documents=row["documents"], duplicates=row["duplicates"]) for row in rows)


def size_bins(counts: Iterable[pa.Table]) -> tuple[Bin, ...]:
    """Returns the clusters by size: of 2, 3 to 4, 5 to 8 documents and so on, as far as there are any.

    Args:
        counts: those of each bucket (schema `keepers.SIZES`).
    """
    clusters, documents = np.zeros(64, np.int64), np.zeros(64, np.int64)
    for table in counts:
        size, count = (table.column(name).to_numpy() for name in ("size", "clusters"))
        power = np.ceil(np.log2(size)).astype(np.int64)
        np.add.at(clusters, power, count)
        np.add.at(documents, power, size * count)
    last = int(np.flatnonzero(clusters).max(initial=0))
    return tuple(
        Bin(first=2 ** (power - 1) + 1, last=2**power, clusters=int(clusters[power]), documents=int(documents[power]))
        for power in range(1, last + 1)
    )


def largest_of(tables: Iterable[pa.Table]) -> tuple[Cluster, ...]:
    """Returns the largest clusters of all buckets (schema LARGEST)."""
    kept: list[Cluster] = []
    for table in tables:
        kept += [Cluster(**row) for row in table.to_pylist()]
        kept = sorted(kept, key=lambda one: (-one.documents, one.cluster))[:CLUSTERS]
    return tuple(kept)


def side(work: Workspace, runs: Buckets | None, pairs: int) -> Side:
    """Returns the sample of all batches on one side of the threshold.

    Args:
        work: the stage's files.
        runs: of SAMPLED; None where no pair was compared.
        pairs: how many there are in all.
    """
    sampled = np.empty(0, SAMPLED)
    for path in runs.paths() if runs else ():
        sampled = _smallest(np.concatenate([sampled, sorted_runs.read_range(work.own, [path], SAMPLED, 0, 1 << 64)]))
    row_ids = np.unique(np.concatenate([sampled["left"], sampled["right"]]))
    named = dict(zip(row_ids.tolist(), _named(work, row_ids), strict=True))
    shown = []
    for left, right, jaccard in zip(*(sampled[name].tolist() for name in ("left", "right", "jaccard")), strict=True):
        both = sorted((named[left], named[right]), key=lambda one: one[0])
        shown.append(Pair(ids=[one[0] for one in both], clusters=[one[1] for one in both], jaccard=round(jaccard, 6)))
    return Side(pairs=pairs, shown=sorted(shown, key=lambda pair: (-pair.jaccard, pair.ids)))


def _named(work: Workspace, row_ids: NDArray[np.uint64]) -> Iterator[tuple[str, str | None]]:
    """Yields for texts, by sorted row ids, the most preferred document with the text, and its cluster."""
    names, parts = work.names(), part_of(row_ids)
    for part in np.unique(parts).tolist():
        rows = pa.array(row_of(row_ids[parts == part]))
        path = work.own.local(f"duplicates/{names[part]}.parquet")
        for row in parquet.read(path, columns=["id", "text", "cluster"]).take(rows).to_pylist():
            yield row["text"] or row["id"], row["cluster"]


def write_table(part: Part, path: str, table: pa.Table) -> None:
    """Writes a table as a file of the part."""
    with part.file(path, rows=table.num_rows) as file:
        pq.write_table(table, file, compression="zstd", compression_level=3)
