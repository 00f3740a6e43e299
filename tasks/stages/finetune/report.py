"""Report of a fine-tuned model beside its base: a table for people, metrics, and a sentence.

Of the content of COMPARISON. Imports no torch: the model is registered where there is none.
"""

from collections.abc import Sequence
from typing import Any

COMPARISON, TABLE = "comparison.json", "comparison.md"


def markdown(found: dict[str, Any]) -> str:
    """Returns the table for people, of the content of COMPARISON."""
    sure = f"{found['confidence']:.0%}"
    lines = [
        f"# {found['tuned']} and its base",
        "",
        f"Base: `{found['base']}`. Both have scored the same documents, items and examples, in a context of "
        f"{found['context']:,} tokens; a positive difference is an improvement. bpb: bits per byte, of documents, of "
        "right answers, or of responses.",
        "",
        f"| | metric | items | base | tuned | better by | {sure} interval |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(_cells(row))} |" for row in found["rows"]]
    if count := found["learned_documents"]:
        lines += ["", f"{count:,} held-out documents were learned as examples and do not count."]
    return "\n".join([*lines, ""])


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["interval"]
    interval = "none" if low is None else f"{low:+.4f} .. {high:+.4f}"
    values = [f"{row[name]:.4f}" for name in ("first", "second")]
    named = f"{row['kind']} {row['name']}"
    return [named, row["metric"], f"{row['items']:,}", *values, f"{row['difference']:+.4f}", interval]


def metrics_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns what the tracker is given of the rows of COMPARISON."""
    metrics: dict[str, float] = {}
    for row in rows:
        name = f"{row['kind']}/{row['name']}"
        edges = dict(zip(("low", "high"), row["interval"], strict=True))
        values = {"base": row["first"], "tuned": row["second"], "difference": row["difference"], **edges}
        metrics |= {f"{name}/{key}": value for key, value in values.items() if value is not None}
    return metrics


def note_of(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows of COMPARISON in a sentence."""
    told = []
    for row in rows:
        low, high = row["interval"]
        sure = "" if low is None else f", {low:+.3f} .. {high:+.3f}"
        told.append(f"{row['kind']} {row['name']} {row['first']:.3f} -> {row['second']:.3f} {row['metric']}{sure}")
    return "; ".join(told)
