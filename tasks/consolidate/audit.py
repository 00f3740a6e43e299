"""The audit page: documents of every verdict side by side, for a person to read and disagree with.

`samples` picks documents of one part on a worker; `page` makes the HTML of all of them, kept in the artifact as
`audit.html` and shown in MLflow. Ids are hashes, so the smallest ids of a reason are a fair sample of it, and the same
ones on any number of workers. Personal data in excerpts is masked as it is in what is kept.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import pyarrow as pa

from tasks.consolidate.funnel import KEPT, totals

SAMPLE = pa.schema(
    [
        pa.field("reason", pa.string(), nullable=False),  # "" for kept
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
        pa.field("measured", pa.string(), nullable=False),  # JSON by annotator
        pa.field("text", pa.string(), nullable=False),  # the beginning, masked
    ]
)
_CHARS = 1500
_HOSTS = 30
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .8rem }
table { border-collapse: collapse } td, th { padding: .15rem .8rem .15rem 0; text-align: left } .n { text-align: right }
details { margin: .8rem 0 } summary { cursor: pointer; overflow-wrap: anywhere } code { color: #555; font-size: 85% }
"""


def choose(reasons: Sequence[Sequence[str]], ids: Sequence[str], most: int) -> list[int]:
    """Returns the rows to show: for each first reason, and for what is kept, those of the smallest ids."""
    by_reason: dict[str, list[tuple[str, int]]] = {}
    for row, (why, identity) in enumerate(zip(reasons, ids, strict=True)):
        by_reason.setdefault(why[0] if why else "", []).append((identity, row))
    return [row for reason in sorted(by_reason) for _, row in sorted(by_reason[reason])[:most]]


def samples(documents: pa.Table, judged: pa.Table, reasons: Sequence[Sequence[str]], texts: Sequence[str]) -> pa.Table:
    """Returns rows of SAMPLE for documents that were chosen.

    Args:
        documents: id, url and source.
        judged: the annotators' columns to show.
        reasons: all reasons of each document.
        texts: their texts, masked.
    """
    measured = [_rounded(row) for row in judged.to_pylist()]
    return pa.table(
        {
            "reason": [why[0] if why else "" for why in reasons],
            "id": documents.column("id"),
            "url": documents.column("url"),
            "source": documents.column("source"),
            "reasons": pa.array([list(why) for why in reasons], pa.list_(pa.string())),
            "measured": [json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in measured],
            "text": [text[:_CHARS] + (" …" if len(text) > _CHARS else "") for text in texts],
        }
    ).cast(SAMPLE)


def merge(tables: Iterable[pa.Table], most: int) -> pa.Table:
    """Returns the samples of all parts, again at most `most` for each reason."""
    rows = pa.concat_tables([SAMPLE.empty_table(), *tables])
    first = [[reason] if reason else [] for reason in rows.column("reason").to_pylist()]
    return rows.take(pa.array(choose(first, rows.column("id").to_pylist(), most), pa.int64()))


def page(funnel: pa.Table, hosts: pa.Table, shown: pa.Table) -> bytes:
    """Returns the page as HTML in UTF-8, with nothing in it that runs or is loaded from elsewhere.

    It names neither recipe nor version: the same documents give the same bytes under any name.
    """
    counts = {row["reason"]: row["documents"] for row in totals(funnel, ["reason"])}
    total = max(1, sum(counts.values()))
    ended = totals(funnel, ["source", "step", "reason"])
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Documents</title><style>{_STYLE}</style>",
        f"<h1>Documents</h1><p>{total:,} captures and files. Which ones went, why, and what they look like.</p>",
        "<h2>By reason</h2>",
        _table(
            ("source", "step", "reason", "documents", "bytes", "share"),
            [(*row.values(), row["documents"] / total) for row in ended],
        ),
        "<h2>By language</h2>",
        _table(
            ("language", "documents", "kept"),
            _languages(funnel),
        ),
        f"<h2>The {_HOSTS} largest hosts</h2>",
        _table(
            ("host", "documents", "kept", "kept bytes"),
            [tuple(row.values()) for row in hosts.slice(0, _HOSTS).to_pylist()],
        ),
    ]
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for row in shown.to_pylist():
        by_reason.setdefault(row["reason"], []).append(row)
    for reason, rows in sorted(by_reason.items()):
        parts.append(f"<h2>{escape(reason or KEPT)}: {len(rows)} of {counts.get(reason, 0):,}</h2>")
        parts += [_document(row) for row in rows]
    return "\n".join(parts).encode("utf-8", "replace")


def _languages(funnel: pa.Table) -> list[tuple[str, int, int]]:
    kept = {row["language"]: row["documents"] for row in totals(funnel, ["step", "language"]) if row["step"] == KEPT}
    rows = sorted(totals(funnel, ["language"]), key=lambda row: -row["documents"])
    return [(row["language"] or "(no text)", row["documents"], kept.get(row["language"], 0)) for row in rows]


def _document(row: Mapping[str, Any]) -> str:
    why = ", ".join(row["reasons"][1:])
    more = f" (also {escape(why)})" if why else ""
    return (
        f"<details open><summary>{escape(row['url'])} · {escape(row['source'])}{more}</summary>"
        f"<code>{escape(row['measured'])}</code><pre>{escape(row['text'])}</pre></details>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"<td class=n>{value:.2%}"
        return f"<td class=n>{value:,}" if isinstance(value, int) else f"<td>{escape(value or '')}"

    body = "".join(f"<tr>{''.join(map(cell, row))}" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}' for name in head)}{body}</table>"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value
