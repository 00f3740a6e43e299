"""What a person reads to judge the duplicates: samples of pairs and clusters, and counts by domain.

The passes write, bucket by bucket or part by part,

    below/ above/<batch>.bin   a run of SAMPLED: some pairs on each side of the threshold, with the smallest hashes
    largest/<bucket>.parquet   the largest clusters of the bucket (LARGEST)
    domains/<part>.parquet     documents and duplicates of each registered domain (DOMAINS)

Samples are of bounded size. `audit_part` reads these files.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.domain import domain_of
from tasks.formats.packed_ids import unpack
from tasks.formats.sorted_runs import Buckets

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
BELOW, ABOVE, LARGEST_FOLDER, DOMAINS_FOLDER = "below", "above", "largest", "domains"
WIDTH = 0.05
"""How far from the threshold a pair of the samples is at most."""
PAIRS, CLUSTERS, TEXTS = 20, 10, 5
"""Most pairs on each side, clusters, and texts of a cluster."""
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
        sorted_runs.write(part, made.beside(folder).path(number), [smallest(sampled)])


def smallest(sampled: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the pairs with the smallest hashes: a random sample, the same in whichever order they come."""
    order = np.lexsort((sampled["right"], sampled["left"], sampled["key"]))
    return sampled[order[:PAIRS]]


def largest_clusters(
    ids: NDArray[np.uint64], label: NDArray[np.uint64], text: NDArray[np.int64], again: NDArray[np.bool_]
) -> pa.Table:
    """Returns the largest clusters of several documents (schema LARGEST).

    Args:
        ids: of the documents, most preferred first, shape (documents, 2).
        label: of the cluster of each, shape (documents,).
        text: index of the most preferred document with the same text, shape (documents,).
        again: which are another document's second rows, and do not count, shape (documents,).
    """
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    sizes = np.bincount(inverse[~again], minlength=len(first))
    first, sizes = first[sizes > 1], sizes[sizes > 1]
    names = ids[first]
    rows = []
    for index in np.lexsort((names[:, 1], names[:, 0], -sizes))[:CLUSTERS]:
        mine = np.flatnonzero(label == label[first[index]])
        distinct = mine[(text[mine] == mine) & ~again[mine]]
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


def write_table(part: Part, path: str, table: pa.Table) -> None:
    """Writes a table as a file of the part."""
    with part.file(path, rows=table.num_rows) as file:
        pq.write_table(table, file, compression="zstd", compression_level=3)
