"""The audit page: documents of every verdict side by side, for a person to read and disagree with.

`samples` picks documents of one part on a worker; `page` makes the HTML of all of them, kept in the artifact as
`audit.html` and shown in MLflow. Ids are hashes, so the smallest ids of a reason are a fair sample of it, and the same
ones on any number of workers. Personal data in excerpts is masked as it is in what is kept. However long documents are,
samples are short: of a text the beginning, of a list that was measured its length.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.stages.consolidate.funnel import KEPT, totals
from tasks.stages.consolidate.rules import GOLD

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
_URL_CHARS = 300
_NOT_SHOWN = "no text is shown: its personal data could not be masked"
_REASON_HEAD = "<th>reason<th>step<th class=n>documents<th class=n>of source<th class=n>text"
_HOSTS = 30
_UNITS = ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"))
# MLflow shows the page in a frame of some 600 pixels: tables wrap, and excerpts scroll in themselves. Links within the
# page do nothing in that frame ("Not allowed to load local resource"), so samples are folded, not linked to.
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 1rem auto; padding: 0 .6rem; color: #222 }
h1 { font-size: 1.5rem; margin: .5rem 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; width: 100% } td, th { padding: .1rem .5rem; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #ccc } .n { text-align: right } .n, .s { white-space: nowrap }
tr.source th { padding-top: .8rem } td, b, pre, .small { overflow-wrap: anywhere } tr.kept { background: #e6f4ea }
pre { white-space: pre-wrap; background: #f6f6f6; padding: .6rem; margin: .3rem 0; max-height: 16rem; overflow: auto }
article { margin: .6rem 0 1.4rem } .small { color: #555; font-size: 90% }
summary { cursor: pointer } .verdict > summary { font-weight: bold; padding: .2rem 0 }
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
        texts: their texts, masked; "" is not shown.
    """
    measured = [_rounded(row) for row in _lists_as_lengths(judged).to_pylist()]
    return pa.table(
        {
            "reason": [why[0] if why else "" for why in reasons],
            "id": documents.column("id"),
            "url": [_beginning(url, _URL_CHARS) for url in documents.column("url").to_pylist()],
            "source": documents.column("source"),
            "reasons": pa.array([list(why) for why in reasons], pa.list_(pa.string())),
            "measured": [json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in measured],
            "text": [_beginning(text, _CHARS) for text in texts],
        }
    ).cast(SAMPLE)


def merge(tables: Iterable[pa.Table], most: int) -> pa.Table:
    """Returns the samples of all parts, again at most `most` for each reason; holds no more than those and a part's."""
    held = SAMPLE.empty_table()
    for table in tables:
        rows = pa.concat_tables([held, table])
        first = [[reason] if reason else [] for reason in rows.column("reason").to_pylist()]
        held = rows.take(pa.array(choose(first, rows.column("id").to_pylist(), most), pa.int64()))
    return held


def page(funnel: pa.Table, hosts: pa.Table, shown: pa.Table) -> bytes:
    """Returns the page as HTML in UTF-8, with nothing in it that runs or is loaded from elsewhere.

    It names neither recipe nor version: the same documents give the same bytes under any name.
    """
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for row in shown.to_pylist():
        by_reason.setdefault(row["reason"], []).append(row)
    counts = {row["reason"]: row["documents"] for row in totals(funnel, ["reason"])}
    total, kept = sum(counts.values()), counts.get("", 0)
    gold = sum(row["documents"] for row in totals(funnel, ["tier"]) if row["tier"] == GOLD)
    marked = f", {gold:,} of them gold" if gold else ""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Documents</title><style>{_STYLE}</style>",
        f"<h1>Documents</h1><p>{kept:,} of {total:,} captures and files are kept ({_share(kept, total)}){marked}. "
        "Which ones went, why, and what they look like.</p>",
        "<h2>By reason</h2>",
        _reasons(funnel),
        "<h2>By language</h2>",
        _table(("language", "documents", "kept", "share kept"), _languages(funnel)),
        f"<h2>The {_HOSTS} largest hosts</h2>",
        _table(
            ("host", "documents", "kept", "share kept", "kept text"),
            [
                (_beginning(row["host"], _URL_CHARS), row["documents"], row["kept"],
                 _share(row["kept"], row["documents"]), _size(row["kept_bytes"]))
                for row in hosts.slice(0, _HOSTS).to_pylist()
            ],
        ),
    ]  # fmt: skip
    parts.append("<h2>Samples</h2>")
    for reason, rows in sorted(by_reason.items()):
        title = f"{escape(reason or KEPT)}: {len(rows)} of {counts.get(reason, 0):,}"
        parts.append(f"<details class=verdict><summary>{title}</summary>{''.join(map(_document, rows))}</details>")
    return "\n".join(parts).encode("utf-8", "replace")


def _reasons(funnel: pa.Table) -> str:
    """Returns the table of what became of each source's captures; what is kept first, then the commonest reason."""
    several = totals(funnel, ["source", "step", "reason"])
    body = []
    for source, documents in {row["source"]: row["documents"] for row in totals(funnel, ["source"])}.items():
        body.append(f"<tr class=source><th colspan=5>{escape(source)}: {documents:,}</th></tr>")
        mine = [row for row in several if row["source"] == source]
        for row in sorted(mine, key=lambda one: (one["step"] != KEPT, -one["documents"], one["reason"])):
            body.append(_reason(row["reason"] or KEPT, row["step"], row, documents))
            if row["step"] == KEPT:
                tiers = _tiers(funnel, source)
                body += [_reason(f"of these {tier['tier']}", KEPT, tier, documents) for tier in tiers]
    return f"<table><tr>{_REASON_HEAD}</tr>{''.join(body)}</table>"


def _reason(name: str, step: str, row: Mapping[str, Any], documents: int) -> str:
    cells = (f"{row['documents']:,}", _share(row["documents"], documents), _size(row["bytes"]))
    numbers = "".join(f"<td class=n>{cell}" for cell in cells)
    kind, shown = (" class=kept", "") if step == KEPT else ("", step)
    return f"<tr{kind}><td>{escape(name).replace('_', '_<wbr>')}<td class=s>{shown}{numbers}</tr>"


def _tiers(funnel: pa.Table, source: str) -> list[dict[str, Any]]:
    """Returns what is kept of a source by tier; nothing where none of it is gold."""
    rows = [row for row in totals(funnel, ["source", "tier"]) if row["source"] == source and row["tier"]]
    return rows if any(row["tier"] == GOLD for row in rows) else []


def _languages(funnel: pa.Table) -> list[tuple[str, int, int, str]]:
    kept = {row["language"]: row["documents"] for row in totals(funnel, ["step", "language"]) if row["step"] == KEPT}
    rows = [(row["language"], row["documents"], kept.get(row["language"], 0)) for row in totals(funnel, ["language"])]
    rows.sort(key=lambda row: -row[1])
    return [(language or "(no text)", all_, stay, _share(stay, all_)) for language, all_, stay in rows]


def _document(row: Mapping[str, Any]) -> str:
    measured = json.loads(row["measured"])
    # A reason begins with the name of its filter, whose numbers tell by how much.
    decided = {name: found for name, found in measured.items() if row["reason"].startswith(name)}
    others = {name: found for name, found in measured.items() if name not in decided}
    why = f"<div class=small>{_numbers(decided)}</div>" if decided else ""
    if further := row["reasons"][1:]:
        why += f"<div class=small>also {escape(', '.join(further))}</div>"
    shut = "other numbers" if decided else "numbers"
    rest = f"<details class=small><summary>{shut}</summary>{_numbers(others)}</details>" if others else ""
    text = f"<pre>{escape(row['text'])}</pre>" if row["text"] else f"<div class=small>{_NOT_SHOWN}</div>"
    return f"<article><b>{escape(row['url'])}</b> ({escape(row['source'])}){why}{text}{rest}</article>"


def _numbers(measured: Mapping[str, Any]) -> str:
    lines = []
    for name, found in sorted(measured.items()):
        several = found.items() if isinstance(found, dict) else [("", found)]
        lines.append(f"{name}: " + " · ".join(f"{field} {_plain(value)}".strip() for field, value in several))
    return "<br>".join(map(escape, lines))


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


def _table(head: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """Returns a table whose first column holds names, and the others numbers."""

    def cell(value: str | int, place: int) -> str:
        shown = f"{value:,}" if isinstance(value, int) else escape(value)
        return f"<td class=n>{shown}" if place else f"<td>{shown}"

    names = "".join(f"<th class=n>{name}" if place else f"<th>{name}" for place, name in enumerate(head))
    body = "".join(f"<tr>{''.join(cell(value, place) for place, value in enumerate(row))}</tr>" for row in rows)
    return f"<table><tr>{names}</tr>{body}</table>"


def _beginning(text: str, most: int) -> str:
    return text[:most] + (" …" if len(text) > most else "")


def _lists_as_lengths(judged: pa.Table) -> pa.Table:
    """Puts the length of each list in its place: there may be an entry for each line of a text."""
    for place, name in enumerate(judged.column_names):
        whole = judged.column(place).combine_chunks()
        names = [field.name for field in whole.type]
        fields = [pc.struct_field(whole, field) for field in names]
        short = [pc.list_value_length(one) if pa.types.is_list(one.type) else one for one in fields]
        made = pa.StructArray.from_arrays(short, names=names, mask=pc.is_null(whole))
        judged = judged.set_column(place, name, made)
    return judged


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value
