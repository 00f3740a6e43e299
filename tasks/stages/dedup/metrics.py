"""Metrics of dedup: share of duplicates by source, with a warning for conspicuous sources.

Pure functions over the counts of the parts. A source that loses most of its documents rarely consists of copies; more
often its documents share a template, and the shingle size or the threshold does not suit it. It should be inspected
before training.
"""

import logging
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from tasks.formats.duplicate_audit import Loss

log = logging.getLogger("sluice.dedup")


def source_losses(counts: Iterable[pa.Table]) -> tuple[Loss, ...]:
    """Returns for every source its documents and how many of them are duplicates of another.

    Args:
        counts: those of each part (schema `duplicates.SOURCES`).
    """
    documents, lost = Counter[str](), Counter[str]()
    for table in counts:
        for row in table.to_pylist():
            documents[row["source"]] += row["documents"]
            lost[row["source"]] += row["duplicates"]
    return tuple(Loss(name=name, documents=documents[name], duplicates=lost[name]) for name in sorted(documents))


def alarm(sources: Iterable[Loss], alarm_share: float) -> list[str]:
    """Logs a warning for every source whose share is above `alarm_share`; returns their names."""
    alarming = [source for source in sources if source.share > alarm_share]
    for source in alarming:
        log.warning(
            "source %s loses %.0f %% of its documents as duplicates (alarm_share is %.0f %%): look at "
            "pairs/ before you train on what is left",
            source.name,
            100 * source.share,
            100 * alarm_share,
        )
    return [source.name for source in alarming]
