"""The funnel: for every source how many documents each step and reason took, from the capture to what is kept.

`stage` makes one small table per part and adds them up; the plugin and MLflow show it. The documents of a source over
all rows of the table are its captures: nothing is left out and nothing counted twice.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

import pyarrow as pa

EXTRACT, LANGUAGE, QUALITY, DEDUP, KEPT = STEPS = ("extract", "language", "quality", "dedup", "kept")

FUNNEL = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("step", pa.string(), nullable=False),  # one of STEPS: where these documents ended
        pa.field("reason", pa.string(), nullable=False),  # why; "" for kept
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64()),  # UTF-8 bytes of extracted text; null where there is no text
    ]
)


def source_of(record_id: str, url: str) -> str:
    """Returns the source of a row that extract rejected: captures come from the web, files from their "host"."""
    return "web" if record_id else urlsplit(url).hostname or url


def count(rows: Iterable[tuple[str, str, str, int, int | None]]) -> pa.Table:
    """Adds up rows (source, step, reason, documents, bytes).

    Returns:
        table of schema FUNNEL, sorted by source, step (in the order of STEPS) and reason.
    """
    documents: dict[tuple[str, int, str], int] = {}
    size: dict[tuple[str, int, str], int | None] = {}
    for source, step, reason, number, weight in rows:
        key = (source, STEPS.index(step), reason)
        documents[key] = documents.get(key, 0) + number
        before = size.get(key, 0)
        size[key] = None if weight is None or before is None else before + weight
    made = [
        {
            "source": source,
            "step": STEPS[step],
            "reason": reason,
            "documents": number,
            "bytes": size[source, step, reason],
        }
        for (source, step, reason), number in sorted(documents.items())
    ]
    return pa.Table.from_pylist(made, schema=FUNNEL)


def add(tables: Iterable[pa.Table]) -> pa.Table:
    """Adds up several funnels."""
    return count(tuple(row[name] for name in FUNNEL.names) for table in tables for row in table.to_pylist())


def left_after(funnel: pa.Table) -> dict[str, list[int]]:
    """Returns for every source how many documents are left at the start and after each step but the last.

    The numbers are captures, after extract, after language, after quality, after dedup (which is what is kept).
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
