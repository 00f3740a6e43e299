"""Audit page: sample documents of every verdict, for manual review.

`choose` and `samples` select documents of one part on a worker; `page` renders the samples of all parts as HTML, the
file `audit.html` of the artifact, also logged to MLflow. Ids are hashes, so the documents with the smallest ids of a
reason are a random sample, the same with any number of workers. Personal data in excerpts is masked as in kept
documents. Samples have a bounded size: the beginning of the text, and lists of measurements as their lengths.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.pages import template
from tasks.formats.documents.document import CONTAMINATED, REPEATED
from tasks.formats.documents.languages import language_name, language_tag
from tasks.stages.consolidate.config import GOLD
from tasks.stages.consolidate.funnel import KEPT, totals

SAMPLE = pa.schema(
    [
        pa.field("reason", pa.string(), nullable=False),  # "" for kept
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("reasons", pa.list_(pa.string()), nullable=False),
        pa.field("measured", pa.string(), nullable=False),  # JSON by annotator
        pa.field("text", pa.string(), nullable=False),  # the beginning, masked
    ]
)
_CHARS = 1500
_URL_CHARS = 300
MOST_HOSTS = 30
"""Most hosts on the page."""
_PAIRS = 20
_UNITS = ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"))


def choose(reasons: Sequence[Sequence[str]], ids: Sequence[str], most: int) -> list[int]:
    """Returns the rows to show: those with the smallest ids, for each first reason and for kept documents."""
    by_reason: dict[str, list[tuple[str, int]]] = {}
    for row, (row_reasons, doc_id) in enumerate(zip(reasons, ids, strict=True)):
        by_reason.setdefault(row_reasons[0] if row_reasons else "", []).append((doc_id, row))
    return [row for reason in sorted(by_reason) for _, row in sorted(by_reason[reason])[:most]]


def samples(documents: pa.Table, judged: pa.Table, reasons: Sequence[Sequence[str]], texts: Sequence[str]) -> pa.Table:
    """Returns rows of SAMPLE for the chosen documents.

    Args:
        documents: id, url, source and language.
        judged: the annotators' columns to show.
        reasons: all reasons of each document.
        texts: their masked texts; "" is not shown.
    """
    measured = [_rounded(row) for row in _lists_as_lengths(judged).to_pylist()]
    for row in measured:
        for name in (CONTAMINATED, REPEATED):
            if row.get(name, "") is None:
                del row[name]  # most documents have neither items nor repeated paragraphs
    return pa.table(
        {
            "reason": [row_reasons[0] if row_reasons else "" for row_reasons in reasons],
            "id": documents.column("id"),
            "url": [_beginning(url, _URL_CHARS) for url in documents.column("url").to_pylist()],
            "source": documents.column("source"),
            "language": documents.column("language"),
            "reasons": pa.array([list(row_reasons) for row_reasons in reasons], pa.list_(pa.string())),
            "measured": [json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in measured],
            "text": [_beginning(text, _CHARS) for text in texts],
        }
    ).cast(SAMPLE)


def merge(tables: Iterable[pa.Table], most: int) -> pa.Table:
    """Merges the samples of all parts to at most `most` per reason; memory is bounded by these and those of a part."""
    merged = SAMPLE.empty_table()
    for table in tables:
        rows = pa.concat_tables([merged, table])
        first = [[reason] if reason else [] for reason in rows.column("reason").to_pylist()]
        merged = rows.take(pa.array(choose(first, rows.column("id").to_pylist(), most), pa.int64()))
    return merged


def page(funnel: pa.Table, hosts: pa.Table, pairs: pa.Table, sampled: pa.Table) -> bytes:
    """Returns the page as HTML in UTF-8, without scripts and external resources.

    It has neither recipe name nor version, so that the same documents give the same bytes under any name.
    """
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for row in sampled.to_pylist():
        by_reason.setdefault(row["reason"], []).append(row)
    counts = {row["reason"]: row["documents"] for row in totals(funnel, ["reason"])}
    total, kept = sum(counts.values()), counts.get("", 0)
    gold = sum(row["documents"] for row in totals(funnel, ["tier"]) if row["tier"] == GOLD)
    context = {
        "kept": (kept, total, _share(kept, total)),
        "gold": gold,
        "sources": _sources(funnel),
        "languages": _languages(funnel),
        "hosts": [
            (_beginning(row["host"], _URL_CHARS), row["documents"], row["kept"],
             _share(row["kept"], row["documents"]), _size(row["kept_bytes"]))
            for row in hosts.slice(0, MOST_HOSTS).to_pylist()
        ],
        "most_hosts": MOST_HOSTS,
        "pairs": [
            (" or ".join(language_name(row[name]) for name in ("language", "second")), row["documents"], row["kept"],
             _share(row["kept"], row["documents"]))
            for row in pairs.slice(0, _PAIRS).to_pylist()
        ],
        "samples": [
            (reason or KEPT, [_document(row) for row in rows], counts.get(reason, 0))
            for reason, rows in sorted(by_reason.items())
        ],
    }  # fmt: skip
    return template(__package__, "audit.html").render(context).encode("utf-8", "replace")


def _sources(funnel: pa.Table) -> list[dict[str, Any]]:
    """Returns the counts of each source by reason: kept first, then reasons by descending count."""
    by_reason = totals(funnel, ["source", "step", "reason"])
    sources = []
    for source, documents in {row["source"]: row["documents"] for row in totals(funnel, ["source"])}.items():
        rows = []
        of_source = [row for row in by_reason if row["source"] == source]
        for row in sorted(of_source, key=lambda row: (row["step"] != KEPT, -row["documents"], row["reason"])):
            rows.append(_reason(row["reason"] or KEPT, row["step"], row, documents))
            if row["step"] == KEPT:
                tiers = _tiers(funnel, source)
                rows += [_reason(f"of these {tier['tier']}", KEPT, tier, documents) for tier in tiers]
        sources.append({"name": source, "documents": documents, "reasons": rows})
    return sources


def _reason(name: str, step: str, row: Mapping[str, Any], documents: int) -> dict[str, Any]:
    numbers = (row["documents"], _share(row["documents"], documents), _size(row["bytes"]))
    return {"name": name, "kept": step == KEPT, "step": "" if step == KEPT else step, "numbers": numbers}


def _tiers(funnel: pa.Table, source: str) -> list[dict[str, Any]]:
    """Returns the kept documents of a source by tier; empty if none of them is gold."""
    rows = [row for row in totals(funnel, ["source", "tier"]) if row["source"] == source and row["tier"]]
    return rows if any(row["tier"] == GOLD for row in rows) else []


def _languages(funnel: pa.Table) -> list[tuple[str, int, int, str]]:
    kept = {row["language"]: row["documents"] for row in totals(funnel, ["step", "language"]) if row["step"] == KEPT}
    rows = [(row["language"], row["documents"], kept.get(row["language"], 0)) for row in totals(funnel, ["language"])]
    rows.sort(key=lambda row: -row[1])
    return [
        (language_name(language), total, kept_documents, _share(kept_documents, total))
        for language, total, kept_documents in rows
    ]


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    measured = json.loads(row["measured"])
    # A reason begins with the name of its filter; the attributes of this filter are shown first.
    decided = {name: values for name, values in measured.items() if row["reason"].startswith(name)}
    others = {name: values for name, values in measured.items() if name not in decided}
    return {
        "url": row["url"],
        "source": row["source"],
        "language": language_name(row["language"]),
        "tag": language_tag(row["language"]),
        "decided": _numbers(decided),
        "further": ", ".join(row["reasons"][1:]),
        "others": _numbers(others),
        "text": row["text"],
    }


def _numbers(measured: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, values in sorted(measured.items()):
        fields = values.items() if isinstance(values, dict) else [("", values)]
        lines.append(f"{name}: " + " · ".join(f"{field} {_plain(value)}".strip() for field, value in fields))
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _share(part: int, whole: int) -> str:
    return f"{part / max(1, whole):.1%}"


def _size(size: int | None) -> str:
    if size is None:
        return ""
    unit = next((unit for unit in _UNITS if size < 1000 * unit[0]), _UNITS[-1])
    return f"{size / unit[0]:,.1f} {unit[1]}" if unit[0] > 1 else f"{size} B"


def _beginning(text: str, most: int) -> str:
    return text[:most] + (" …" if len(text) > most else "")


def _lists_as_lengths(judged: pa.Table) -> pa.Table:
    """Replaces lists with their lengths, because a list may have an entry for each line of a text."""
    for index, name in enumerate(judged.column_names):
        column = judged.column(index).combine_chunks()
        names = [field.name for field in column.type]
        fields = [pc.struct_field(column, field) for field in names]
        short = [pc.list_value_length(field) if pa.types.is_list(field.type) else field for field in fields]
        shortened = pa.StructArray.from_arrays(short, names=names, mask=pc.is_null(column))
        judged = judged.set_column(index, name, shortened)
    return judged


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value
