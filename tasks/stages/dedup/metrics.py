"""What dedup did, in numbers: copies found, and which source paid for it.

Pure functions. A source that loses most of its documents is rarely full of copies; more often it is made from a
template, and the shingle or the threshold does not suit it. That deserves a look before training.
"""

import logging

import pyarrow as pa
import pyarrow.compute as pc

log = logging.getLogger("sluice.dedup")


def loss_shares(sources: pa.ChunkedArray, goes: pa.ChunkedArray) -> dict[str, float]:
    """Returns for every source the share of its documents that are copies of another.

    Args:
        sources: source of each document.
        goes: bool, whether it is a duplicate.
    """
    table = pa.table({"source": sources, "goes": pc.cast(goes, pa.int64())})
    counted = table.group_by("source").aggregate([("goes", "sum"), ("goes", "count")]).sort_by("source")
    rows = zip(*(counted.column(name).to_pylist() for name in ("source", "goes_sum", "goes_count")), strict=True)
    return {source: lost / total for source, lost, total in rows}


def alarm(shares: dict[str, float], alarm_share: float) -> list[str]:
    """Warns of every source whose share lies above `alarm_share`; returns their names."""
    loud = [source for source, share in shares.items() if share > alarm_share]
    for source in loud:
        log.warning(
            "source %s loses %.0f %% of its documents as duplicates (alarm_share is %.0f %%): look at "
            "pairs.parquet before you train on what is left",
            source,
            100 * shares[source],
            100 * alarm_share,
        )
    return loud
