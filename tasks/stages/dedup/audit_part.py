"""The part `audit`: what the passes have kept for a person, in one file.

Reads what `audit` lists, `sizes/` and `sources/`, of all buckets and parts, one file at a time. Writes

    audit.json        `tasks.formats.duplicate_audit`
    domains.parquet   documents and duplicates of all domains (`audit.DOMAINS`), most duplicates first

All domains are in memory at one time, about 100 bytes each; the rest is of bounded size.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.duplicate_audit import AUDIT_FILE, Bin, Cluster, DuplicateAudit, Loss, Pair, Side
from tasks.formats.packed_ids import unpack
from tasks.formats.row_ids import part_of, row_of
from tasks.formats.sorted_runs import Buckets
from tasks.stages.dedup import audit
from tasks.stages.dedup.duplicates import SOURCES_FOLDER
from tasks.stages.dedup.keepers import CLUSTER_SIZES
from tasks.stages.dedup.metrics import source_losses
from tasks.stages.dedup.workspace import Workspace

DOMAINS_FILE = "domains.parquet"
_DOMAINS = 100
"""Most domains in the audit."""


def audit_part(
    work: Workspace, pairs: Buckets, compared: Buckets | None, part: Part, counts: Mapping[str, int]
) -> None:
    """Writes the audit; runs on a worker.

    Args:
        work: the stage's files.
        pairs: runs of the choice of keepers.
        compared: runs of the verification; None where no pair was compared.
        part: the part to write.
        counts: `pairs_just_below` and `pairs_just_above`, of all batches.
    """

    def tables(paths: Iterable[str]) -> Iterator[pa.Table]:
        return (parquet.read(work.own.local(path)) for path in paths)

    names = work.names()
    domains = audit.add_domains(tables(f"{audit.DOMAINS_FOLDER}/{name}.parquet" for name in names))
    audit.write_table(part, DOMAINS_FILE, domains)
    below, above = (
        _side(work, compared.beside(name) if compared else None, counts[f"pairs_just_{name}"])
        for name in (audit.BELOW, audit.ABOVE)
    )
    found = DuplicateAudit(
        jaccard=work.config.jaccard,
        width=audit.WIDTH,
        sizes=_sizes(tables(pairs.beside(CLUSTER_SIZES).paths("parquet"))),
        largest=_largest(tables(pairs.beside(audit.LARGEST_FOLDER).paths("parquet"))),
        below=below,
        above=above,
        sources=source_losses(tables(f"{SOURCES_FOLDER}/{name}.parquet" for name in names)),
        domains=_losses(domains),
        domain_count=domains.num_rows,
    )
    with part.file(AUDIT_FILE) as file:
        file.write(found.model_dump_json(indent=1).encode())


def _losses(domains: pa.Table) -> tuple[Loss, ...]:
    """Returns the first rows of a table of DOMAINS."""
    rows = domains.slice(0, _DOMAINS).to_pylist()
    return tuple(Loss(name=row["domain"], documents=row["documents"], duplicates=row["duplicates"]) for row in rows)


def _sizes(counts: Iterable[pa.Table]) -> tuple[Bin, ...]:
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


def _largest(tables: Iterable[pa.Table]) -> tuple[Cluster, ...]:
    """Returns the largest clusters of all buckets (schema LARGEST)."""
    kept: list[Cluster] = []
    for table in tables:
        kept += [Cluster(**row) for row in table.to_pylist()]
        kept = sorted(kept, key=lambda one: (-one.documents, one.cluster))[: audit.CLUSTERS]
    return tuple(kept)


def _side(work: Workspace, runs: Buckets | None, pairs: int) -> Side:
    """Returns the sample of all batches on one side of the threshold.

    Args:
        work: the stage's files.
        runs: of SAMPLED; None where no pair was compared.
        pairs: how many there are in all.
    """
    sampled = np.empty(0, audit.SAMPLED)
    for path in runs.paths() if runs else ():
        sampled = audit.smallest(
            np.concatenate([sampled, sorted_runs.read_range(work.own, [path], audit.SAMPLED, 0, 1 << 64)])
        )
    row_ids = np.unique(np.concatenate([sampled["left"], sampled["right"]]))
    named = dict(zip(row_ids.tolist(), _named(work, row_ids), strict=True))
    shown = []
    for left, right, jaccard in zip(*(sampled[name].tolist() for name in ("left", "right", "jaccard")), strict=True):
        both = sorted((named[left], named[right]), key=lambda one: one[0])
        shown.append(Pair(ids=[one[0] for one in both], clusters=[one[1] for one in both], jaccard=round(jaccard, 6)))
    return Side(pairs=pairs, shown=sorted(shown, key=lambda pair: (-pair.jaccard, pair.ids)))


def _named(work: Workspace, row_ids: NDArray[np.uint64]) -> Iterator[tuple[str, str | None]]:
    """Yields for texts, by sorted row ids, the most preferred document with the text, and its cluster."""
    names, parts = work.part_names(), part_of(row_ids)
    for part in np.unique(parts).tolist():
        rows = pa.array(row_of(row_ids[parts == part]))
        if part < work.index.count:  # its text is with an earlier version, and is not shown
            yield from ((one, None) for one in unpack(work.index.rows(part)["id"][rows.to_numpy()]).to_pylist())
            continue
        path = work.own.local(f"duplicates/{names[part]}.parquet")
        for row in parquet.read(path, columns=["id", "text", "cluster"]).take(rows).to_pylist():
            yield row["text"] or row["id"], row["cluster"]
