"""Metrics of dedup: share of duplicates by source, with a warning for conspicuous sources.

Pure functions over the counts of the parts. A source that loses most of its documents rarely consists of copies; more
often its documents share a template, and the shingle size or the threshold does not suit it. It should be inspected
before training.
"""

import logging
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

log = logging.getLogger("sluice.dedup")


def loss_shares(counts: Iterable[pa.Table]) -> dict[str, float]:
    """Returns for every source the share of its documents that are duplicates of another.

    Args:
        counts: those of each part (schema `duplicates.SOURCES`).
    """
    documents, lost = Counter[str](), Counter[str]()
    for table in counts:
        for row in table.to_pylist():
            documents[row["source"]] += row["documents"]
            lost[row["source"]] += row["duplicates"]
    return {source: lost[source] / documents[source] for source in sorted(documents)}


def alarm(shares: dict[str, float], alarm_share: float) -> list[str]:
    """Logs a warning for every source whose share is above `alarm_share`; returns their names."""
    alarming = [source for source, share in shares.items() if share > alarm_share]
    for source in alarming:
        log.warning(
            "source %s loses %.0f %% of its documents as duplicates (alarm_share is %.0f %%): look at "
            "pairs/ before you train on what is left",
            source,
            100 * shares[source],
            100 * alarm_share,
        )
    return alarming


def cluster_sizes(counts: Iterable[pa.Table]) -> tuple[int, int]:
    """Returns the number of clusters, and the size of the largest one.

    Args:
        counts: those of each bucket (schema `keepers.SIZES`).
    """
    clusters, largest = 0, 0
    for table in counts:
        clusters += sum(table.column("clusters").to_pylist())
        largest = max([largest, *table.column("size").to_pylist()])
    return clusters, largest
