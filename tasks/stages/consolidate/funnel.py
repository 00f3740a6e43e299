"""Funnel: number of documents by source, language, step and reason, from capture to kept.

Pure functions: tables of parts, and their sums. The documents of a source over all rows are its captures: each is
counted exactly once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

EXTRACT, LANGUAGE, QUALITY, DECONTAMINATE, DEDUP, KEPT = STEPS = (
    *("extract", "language", "quality", "decontaminate", "dedup", "kept"),
)
FUNNEL = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),  # "" where there is no text
        pa.field("step", pa.string(), nullable=False),  # one of STEPS: the last step of these documents
        pa.field("reason", pa.string(), nullable=False),  # why; "" for kept
        pa.field("tier", pa.string(), nullable=False),  # of what is kept "silver" or "gold", else ""
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64()),  # UTF-8 bytes of extracted text; null where there is no text
    ]
)
HOSTS = pa.schema(
    [
        pa.field("host", pa.string(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("kept", pa.int64(), nullable=False),
        pa.field("kept_bytes", pa.int64(), nullable=False),
    ]
)
_KEYS = FUNNEL.names[:-2]
ENDED = pa.schema([FUNNEL.field(name) for name in (*_KEYS, "bytes")])
"""One row per capture: its outcome."""


def count(ended: pa.Table) -> pa.Table:
    """Counts rows of ENDED; returns a table of FUNNEL, sorted by source, language, step, reason and tier."""
    return add([ended.append_column("documents", pa.array([1] * ended.num_rows, pa.int64()))])


def add(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the sum of several funnels."""
    rows = pa.concat_tables([FUNNEL.empty_table(), *(table.select(FUNNEL.names).cast(FUNNEL) for table in tables)])
    summed = rows.group_by(_KEYS).aggregate([("documents", "sum"), ("bytes", "sum")])
    summed = summed.rename_columns(FUNNEL.names)
    order = pc.index_in(summed.column("step"), pa.array(STEPS))
    ordered = summed.append_column("order", order).sort_by(
        [(name, "ascending") for name in ("source", "language", "order", "reason", "tier")]
    )
    return ordered.select(FUNNEL.names).cast(FUNNEL).combine_chunks()


def count_hosts(hosts: pa.ChunkedArray, kept: pa.Array, sizes: pa.Array) -> pa.Table:
    """Counts documents, kept documents and their bytes per host; returns a table of HOSTS."""
    ones = pa.array([1] * len(hosts), pa.int64())
    stays = kept.cast(pa.int64())
    return add_hosts([pa.table([hosts, ones, stays, pc.multiply(stays, sizes.cast(pa.int64()))], HOSTS.names)])


def add_hosts(tables: Iterable[pa.Table]) -> pa.Table:
    """Returns the sum of several tables of HOSTS, sorted by descending documents, then by host."""
    rows = pa.concat_tables([HOSTS.empty_table(), *(table.cast(HOSTS) for table in tables)])
    summed = rows.group_by("host").aggregate([(name, "sum") for name in HOSTS.names[1:]])
    named = summed.rename_columns(HOSTS.names).cast(HOSTS)
    return named.sort_by([("documents", "descending"), ("host", "ascending")]).combine_chunks()


def totals(funnel: pa.Table, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Returns documents and bytes summed over all columns but `keys`, sorted by `keys`; steps in the order of STEPS."""
    summed = funnel.group_by(list(keys)).aggregate([("documents", "sum"), ("bytes", "sum")])
    rows: list[dict[str, Any]] = summed.rename_columns([*keys, "documents", "bytes"]).to_pylist()
    return sorted(rows, key=lambda row: [STEPS.index(row[key]) if key == "step" else row[key] for key in keys])


def filtered(funnel: pa.Table) -> dict[str, tuple[int, Counter[str]]]:
    """Returns for every source with documents their number, and how many go for which reason before duplication."""
    found: dict[str, tuple[int, Counter[str]]] = {}
    for row in totals(funnel, ["source", "step", "reason"]):
        if row["step"] == EXTRACT:
            continue
        documents, reasons = found.get(row["source"], (0, Counter()))
        if row["step"] in (LANGUAGE, QUALITY, DECONTAMINATE):
            reasons[row["reason"]] += row["documents"]
        found[row["source"]] = (documents + row["documents"], reasons)
    return found


def left_after(funnel: pa.Table) -> dict[str, list[int]]:
    """Returns for every source the number of documents at the start and after each step except the last.

    The numbers are captures, after extract, after language, after quality, after decontaminate, after dedup (the kept
    documents).
    """
    lost: dict[str, dict[str, int]] = {}
    for row in funnel.to_pylist():
        steps = lost.setdefault(row["source"], dict.fromkeys(STEPS, 0))
        steps[row["step"]] += row["documents"]
    left = {}
    for source, steps in lost.items():
        remaining = [sum(steps.values())]
        for step in STEPS[:-1]:
            remaining.append(remaining[-1] - steps[step])
        left[source] = remaining
    return left
