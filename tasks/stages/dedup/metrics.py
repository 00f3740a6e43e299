"""Metrics of dedup: share of duplicates by source, with a warning for conspicuous sources.

Pure functions. A source that loses most of its documents rarely consists of copies; more often its documents share a
template, and the shingle size or the threshold does not suit it. It should be inspected before training.
"""

import logging

import pyarrow as pa
import pyarrow.compute as pc

log = logging.getLogger("sluice.dedup")


def loss_shares(sources: pa.ChunkedArray, duplicate: pa.ChunkedArray) -> dict[str, float]:
    """Returns for every source the share of its documents that are duplicates of another.

    Args:
        sources: source of each document.
        duplicate: bool, whether it is a duplicate.
    """
    table = pa.table({"source": sources, "lost": pc.cast(duplicate, pa.int64())})
    counted = table.group_by("source").aggregate([("lost", "sum"), ("lost", "count")]).sort_by("source")
    rows = zip(*(counted.column(name).to_pylist() for name in ("source", "lost_sum", "lost_count")), strict=True)
    return {source: lost / total for source, lost, total in rows}


def alarm(shares: dict[str, float], alarm_share: float) -> list[str]:
    """Logs a warning for every source whose share is above `alarm_share`; returns their names."""
    alarming = [source for source, share in shares.items() if share > alarm_share]
    for source in alarming:
        log.warning(
            "source %s loses %.0f %% of its documents as duplicates (alarm_share is %.0f %%): look at "
            "pairs.parquet before you train on what is left",
            source,
            100 * shares[source],
            100 * alarm_share,
        )
    return alarming
