"""Data for the inspection of duplicates by a person: samples of pairs and clusters, and counts by domain.

The passes write, per bucket or per part,

    below/ above/<batch>.bin   a run of SAMPLED: some pairs on each side of the threshold, with the smallest hashes
    largest/<bucket>.parquet   the largest clusters of the bucket (LARGEST)
    domains/<part>.parquet     documents and duplicates of each registered domain (DOMAINS)

Samples have a bounded size. The part `audit` reads these files, `sizes/` and `sources/` of all buckets and parts, one
at a time. It writes

    audit.json        `tasks.formats.dedup.duplicates`
    domains.parquet   documents and duplicates of all domains (DOMAINS), most duplicates first

It holds all domains in memory, about 100 bytes each; the rest has a bounded size.

MLflow gets a figure (sizes of clusters, and duplicates by source and domain) and the share of duplicates by source. A
source that loses most of its documents rarely consists of copies; more often its documents share a template, and the
shingle size or the threshold is unsuitable. It should be inspected before training.
"""

import io
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.part import Part
from tasks.core.remote import concurrently
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.document_ids import by_part, row_of, unpack
from tasks.formats.dedup.duplicates import AUDIT_FILE, DuplicateAudit, DuplicateCluster, Loss, Pair, Side, SizeBin
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.web.domain import domain_of
from tasks.stages.dedup.workspace import Workspace, pair_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger("sluice.dedup")

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

SOURCES_FOLDER, CLUSTER_SIZES = "sources", "sizes"
BELOW, ABOVE, LARGEST_FOLDER, DOMAINS_FOLDER = "below", "above", "largest", "domains"

WIDTH = 0.05
"""Maximum distance of a sampled pair from the threshold."""

PAIRS, CLUSTERS, TEXTS = 20, 10, 5
"""Maximum numbers of pairs per side, of clusters, and of texts per cluster."""

_DOMAINS = 1 << 20
"""Rows of counts that are summed at once."""

DOMAINS_FILE = "domains.parquet"

_DOMAIN_COUNTS = 100
"""Maximum number of domains in the audit."""

_BARS = 12
"""Maximum number of bars of a panel; `domains.parquet` has all."""

# Inches. MLflow shows figures about 600 pixels wide: the panels are stacked, so that text is readable.
_WIDTH, _BAR = 7.5, 0.28

_MARGIN = 2.5  # space for a panel's title and axis, in bars


def write_samples(
    part: Part, buckets: Buckets, number: int, pairs: NDArray[np.void], shares: NDArray[np.float64], threshold: float
) -> None:
    """Writes samples of one batch of pairs from both sides of the threshold, and counts the pairs there.

    Args:
        part: the part to write.
        buckets: the runs of the pass.
        number: number of the batch.
        pairs: the pairs (fields `left` and `right`).
        shares: their similarities, shape (pairs,).
        threshold: minimum similarity of duplicates.
    """
    sides = {
        BELOW: (shares >= threshold - WIDTH) & (shares < threshold),
        ABOVE: (shares >= threshold) & (shares <= threshold + WIDTH),
    }
    for folder, inside in sides.items():
        part.metric(f"pairs_just_{folder}", int(inside.sum()))
        sampled = np.empty(int(inside.sum()), SAMPLED)
        sampled["left"], sampled["right"] = pairs["left"][inside], pairs["right"][inside]
        sampled["key"] = pair_key(sampled["left"], sampled["right"])
        sampled["jaccard"] = shares[inside]
        sorted_runs.write(part, buckets.sibling(folder).path(number), [smallest(sampled)])


def smallest(sampled: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the pairs with the smallest hashes: a random sample that does not depend on their order."""
    order = np.lexsort((sampled["right"], sampled["left"], sampled["key"]))
    return sampled[order[:PAIRS]]


def largest_clusters(
    ids: NDArray[np.uint64], label: NDArray[np.uint64], text: NDArray[np.int64], repeated: NDArray[np.bool_]
) -> pa.Table:
    """Returns the largest clusters with several documents (schema LARGEST).

    Args:
        ids: ids of the documents, most preferred first, shape (documents, 2).
        label: label of each document's cluster, shape (documents,).
        text: index of the most preferred document with the same text, shape (documents,).
        repeated: whether a row repeats an earlier document and does not count, shape (documents,).
    """
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    sizes = np.bincount(inverse[~repeated], minlength=len(first))
    first, sizes = first[sizes > 1], sizes[sizes > 1]
    names = ids[first]
    rows = []
    for index in np.lexsort((names[:, 1], names[:, 0], -sizes))[:CLUSTERS]:
        members = np.flatnonzero(label == label[first[index]])
        distinct = members[(text[members] == members) & ~repeated[members]]
        examples = unpack(ids[distinct[:TEXTS]]).to_pylist()
        rows.append((examples[0], int(sizes[index]), len(distinct), examples))
    columns = zip(*rows, strict=True) if rows else ([] for _ in LARGEST)
    return pa.table([list(column) for column in columns], schema=LARGEST)


def count_domains(hosts: pa.ChunkedArray, sources: pa.ChunkedArray, duplicate: pa.ChunkedArray) -> pa.Table:
    """Returns the numbers of documents and duplicates of each registered domain (schema DOMAINS)."""
    pairs = zip(hosts.to_pylist(), sources.to_pylist(), strict=True)
    domains = [domain_of(host) if host else source for host, source in pairs]
    ones = pa.array(np.ones(len(domains), np.int64))
    return add_domains([pa.table([domains, ones, pc.cast(duplicate, pa.int64())], names=DOMAINS.names)])


def add_domains(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the sum of several DOMAINS tables: most duplicates first, then by name."""
    total, pending, rows = DOMAINS.empty_table(), [], 0
    for table in tables:
        pending.append(table)
        rows += table.num_rows
        if rows >= _DOMAINS:
            total, pending, rows = _sum([total, *pending]), [], 0
    order = [("duplicates", "descending"), ("documents", "descending"), ("domain", "ascending")]
    return _sum([total, *pending]).sort_by(order).combine_chunks()


def _sum(tables: Sequence[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables([table.cast(DOMAINS) for table in tables]).group_by("domain")
    return grouped.aggregate([(name, "sum") for name in DOMAINS.names[1:]]).rename_columns(DOMAINS.names).cast(DOMAINS)


def audit_part(
    work: Workspace, pairs: Buckets, verified: Buckets | None, part: Part, counts: Mapping[str, int]
) -> None:
    """Writes the audit; runs on a worker.

    Args:
        work: the stage's files.
        pairs: runs of the choice of keepers.
        verified: runs of the verification; None if no pair was compared.
        part: the part to write.
        counts: `pairs_just_below` and `pairs_just_above`, of all batches.
    """

    def tables(paths: Iterable[str]) -> Iterator[pa.Table]:
        return (parquet.read(work.own.local(path)) for path in paths)

    names = work.names()
    domains = add_domains(tables(f"{DOMAINS_FOLDER}/{name}.parquet" for name in names))
    part.write_table(DOMAINS_FILE, domains)
    below, above = (
        _side(work, verified.sibling(name) if verified else None, counts[f"pairs_just_{name}"])
        for name in (BELOW, ABOVE)
    )
    audit = DuplicateAudit(
        jaccard=work.config.jaccard,
        width=WIDTH,
        sizes=_sizes(tables(pairs.sibling(CLUSTER_SIZES).paths("parquet"))),
        largest=_largest(tables(pairs.sibling(LARGEST_FOLDER).paths("parquet"))),
        below=below,
        above=above,
        sources=source_losses(tables(f"{SOURCES_FOLDER}/{name}.parquet" for name in names)),
        domains=_losses(domains),
        domain_count=domains.num_rows,
    )
    part.write(AUDIT_FILE, audit.model_dump_json(indent=1).encode())


def _losses(domains: pa.Table) -> tuple[Loss, ...]:
    """Returns the first rows of a DOMAINS table."""
    rows = domains.slice(0, _DOMAIN_COUNTS).to_pylist()
    return tuple(Loss(name=row["domain"], documents=row["documents"], duplicates=row["duplicates"]) for row in rows)


def _sizes(counts: Iterable[pa.Table]) -> tuple[SizeBin, ...]:
    """Returns the numbers of clusters of 2, 3 to 4, 5 to 8, ... documents, up to the largest cluster.

    Args:
        counts: counts of each bucket (schema `verdicts.SIZES`).
    """
    clusters, documents = np.zeros(64, np.int64), np.zeros(64, np.int64)
    for table in counts:
        size, count = (table.column(name).to_numpy() for name in ("size", "clusters"))
        power = np.ceil(np.log2(size)).astype(np.int64)
        np.add.at(clusters, power, count)
        np.add.at(documents, power, size * count)
    last = int(np.flatnonzero(clusters).max(initial=0))
    return tuple(
        SizeBin(
            first=2 ** (power - 1) + 1, last=2**power, clusters=int(clusters[power]), documents=int(documents[power])
        )
        for power in range(1, last + 1)
    )


def _largest(tables: Iterable[pa.Table]) -> tuple[DuplicateCluster, ...]:
    """Returns the largest clusters of all buckets (schema LARGEST)."""
    clusters: list[DuplicateCluster] = []
    for table in tables:
        clusters += [DuplicateCluster(**row) for row in table.to_pylist()]
        clusters = sorted(clusters, key=lambda cluster: (-cluster.documents, cluster.cluster))[:CLUSTERS]
    return tuple(clusters)


def _side(work: Workspace, runs: Buckets | None, pairs: int) -> Side:
    """Returns the sample of all batches on one side of the threshold.

    Args:
        work: the stage's files.
        runs: runs of SAMPLED; None if no pair was compared.
        pairs: total number of pairs on this side.
    """
    sampled = np.empty(0, SAMPLED)
    for data in concurrently(work.own.read, runs.paths() if runs else ()):
        sampled = smallest(np.concatenate([sampled, sorted_runs.decode(data, SAMPLED)]))
    row_ids = np.unique(np.concatenate([sampled["left"], sampled["right"]]))
    documents = dict(zip(row_ids.tolist(), _texts_and_clusters(work, row_ids), strict=True))
    examples = []
    for left, right, jaccard in zip(*(sampled[name].tolist() for name in ("left", "right", "jaccard")), strict=True):
        both = sorted((documents[left], documents[right]), key=lambda document: document[0])
        examples.append(
            Pair(ids=[id_ for id_, _ in both], clusters=[cluster for _, cluster in both], jaccard=round(jaccard, 6))
        )
    return Side(pairs=pairs, shown=sorted(examples, key=lambda pair: (-pair.jaccard, pair.ids)))


def _texts_and_clusters(work: Workspace, row_ids: NDArray[np.uint64]) -> Iterator[tuple[str, str | None]]:
    """Yields for sorted row ids of texts the id of the most preferred document with the text, and its cluster."""
    names = work.part_names()
    for part, in_part in by_part(row_ids):
        rows = pa.array(row_of(row_ids[in_part]))
        if part < work.index.count:  # a text of an earlier version has no cluster here
            yield from ((id_, None) for id_ in unpack(work.index.rows(part)["id"][rows.to_numpy()]).to_pylist())
            continue
        path = work.own.local(f"duplicates/{names[part]}.parquet")
        for row in parquet.read(path, columns=["id", "text", "cluster"]).take(rows).to_pylist():
            yield row["text"] or row["id"], row["cluster"]


def draw(audit: DuplicateAudit, title: str) -> bytes:
    """Draws clusters by size, and the share of duplicates of the sources and domains with the most duplicates.

    Returns:
        the figure as a PNG.
    """
    from matplotlib.figure import Figure

    sources = sorted(audit.sources, key=lambda loss: (-loss.duplicates, loss.name))[:_BARS]
    domains = audit.domains[:_BARS]
    rows = [len(panel) + _MARGIN for panel in (audit.sizes, sources, domains)]
    # Not pyplot, which needs a display and has global state.
    figure = Figure(figsize=(_WIDTH, _BAR * sum(rows) + _MARGIN * _BAR), layout="constrained")
    of_sizes, of_sources, of_domains = figure.subplots(3, 1, height_ratios=rows)
    labels = [f" {size.clusters:,}, with {size.documents:,} documents" for size in audit.sizes]
    counts = [size.clusters for size in audit.sizes]
    _bars(of_sizes, [size.name for size in audit.sizes], counts, labels, "clusters by number of documents")
    of_sizes.set_xscale("symlog")
    _draw_losses(of_sources, sources, "share of duplicates, by source")
    _draw_losses(of_domains, domains, "share of duplicates, of the domains with the most")
    # A "$" in a name would begin a formula.
    figure.suptitle(title, parse_math=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _draw_losses(axes: "Axes", losses: Sequence[Loss], title: str) -> None:
    labels = [f" {loss.duplicates:,} of {loss.documents:,}" for loss in losses]
    _bars(axes, [loss.name[:40] for loss in losses], [loss.share for loss in losses], labels, title)
    axes.set_xlim(0, 1.3)


def _bars(axes: "Axes", names: list[str], numbers: Sequence[float], labels: list[str], title: str) -> None:
    axes.barh(range(len(names)), numbers, height=0.7)
    for place, (number, label) in enumerate(zip(numbers, labels, strict=True)):
        axes.annotate(label, (number, place), va="center")
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, max([*numbers, 1]) * 10)
    axes.set_title(title)


def source_losses(counts: Iterable[pa.Table]) -> tuple[Loss, ...]:
    """Returns the numbers of documents and duplicates of every source.

    Args:
        counts: counts of each part (schema `verdicts.SOURCES`).
    """
    documents, duplicates = Counter[str](), Counter[str]()
    for table in counts:
        for row in table.to_pylist():
            documents[row["source"]] += row["documents"]
            duplicates[row["source"]] += row["duplicates"]
    return tuple(Loss(name=name, documents=documents[name], duplicates=duplicates[name]) for name in sorted(documents))


def alarm(sources: Iterable[Loss], alarm_share: float) -> list[str]:
    """Logs a warning for every source whose share is above `alarm_share`; returns their names."""
    over_limit = [source for source in sources if source.share > alarm_share]
    for source in over_limit:
        log.warning(
            "source %s loses %.0f %% of its documents as duplicates (alarm_share is %.0f %%): inspect "
            "pairs/ before training",
            source.name,
            100 * source.share,
            100 * alarm_share,
        )
    return [source.name for source in over_limit]
