"""Annotate: every document gets its attributes, in one pass.

Reads `extracted`. Writes `attributes/<part>.parquet` (ATTRIBUTES), with the part names and the row order of the
documents, so that dedup and consolidate join by position. Used by dedup and consolidate.

Documents are never changed or dropped here: a changed threshold costs this pass or the join, never an extraction. A
document that makes an annotator fail is kept too, with the reason `poison` and the error in `quarantine/<part>.jsonl`.
"""

import json
from collections import Counter
from typing import Any

import pyarrow as pa

from tasks.annotate.base import Annotator, Filter
from tasks.annotate.catalogue import load
from tasks.annotate.config import AnnotateConfig
from tasks.annotate.view import View
from tasks.artifact import Artifact
from tasks.engine import Engine
from tasks.errors import InputError
from tasks.part import POISON
from tasks.stage import Inputs, Output, Part, PartSpec, Report

VERSION = 1


PII_SPAN = pa.struct(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
    ]
)

ATTRIBUTES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("language_score", pa.float32(), nullable=False),
        pa.field("quality_reason", pa.string()),
        pa.field("quality_score", pa.float32(), nullable=False),
        pa.field("pii_spans", pa.list_(PII_SPAN), nullable=False),
        pa.field("n_words", pa.int32(), nullable=False),
    ]
)


def run(config: AnnotateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Annotates every part of `extracted`.

    Raises:
        InputError: a model is not there, or too many documents made an annotator fail.
    """
    extracted = inputs["extracted"]
    specs = [PartSpec(part.name, (extracted, config)) for part in extracted.parts]
    records = output.map_parts(engine, annotate_part, specs)
    rows = sum(record.rows_in for record in records)
    poison = sum(record.metrics.get(POISON, 0.0) for record in records)
    if poison > output.max_bad_share * rows:
        raise InputError(
            f"{output.address}: annotators failed on {poison:.0f} of {rows} documents",
            f"read the causes in {output.store.url(output.address.path)}/quarantine/",
        )
    return Report(note=f"{rows:,} documents annotated")


def annotate_part(part: Part, payload: tuple[Artifact, AnnotateConfig]) -> None:
    """Annotates the documents of one part; see the module's docstring for what it writes."""
    extracted, config = payload
    annotators = [load(name, config.settings[name]) for name in config.use]
    for annotator in annotators:
        annotator.prepare()
    documents = extracted.table(f"documents/{part.name}.parquet", columns=["id", "text", "source"])
    part.count_in(documents.num_rows)
    rows, failures = [], []
    for document in documents.to_pylist():
        chosen = [one for one in annotators if not isinstance(one, Filter) or _applies(config, document["source"])]
        try:
            rows.append({"id": document["id"], **attributes(View(document["text"], document["source"]), chosen)})
        except Exception as error:  # one document must not stop a part
            rows.append({"id": document["id"], **_EMPTY, "quality_reason": POISON})
            failures.append({"id": document["id"], "error": f"{type(error).__name__}: {error}"[:500]})
    part.table("attributes", pa.Table.from_pylist(rows, ATTRIBUTES))
    _report(part, rows, failures)


_EMPTY: dict[str, Any] = {
    "language": "und",
    "language_score": 0.0,
    "quality_reason": None,
    "quality_score": 0.0,
    "pii_spans": [],
    "n_words": 0,
}


def attributes(view: View, annotators: list[Annotator]) -> dict[str, Any]:
    """Returns the columns of ATTRIBUTES other than `id`: the first reason counts, spans of all finders are kept."""
    view.found = {**_EMPTY, "pii_spans": [], "n_words": len(view.words)}
    for annotator in annotators:
        for column, value in annotator.annotate(view).items():
            if column == "pii_spans":
                view.found[column] = sorted(view.found[column] + value, key=lambda span: (span["start"], span["end"]))
            elif column != "quality_reason" or view.found[column] is None:
                view.found[column] = value
    return view.found


def _applies(config: AnnotateConfig, source: str) -> bool:
    return config.quality_sources is None or source in config.quality_sources


def _report(part: Part, rows: list[dict[str, Any]], failures: list[dict[str, str]]) -> None:
    part.metric(POISON, len(failures))
    part.metric("pii_spans", sum(len(row["pii_spans"]) for row in rows))
    for reason, count in sorted(Counter(row["quality_reason"] for row in rows if row["quality_reason"]).items()):
        part.metric(f"reason_{reason}", count)
    if failures:
        with part.file(f"quarantine/{part.name}.jsonl", rows=len(failures)) as file:
            file.write("".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in failures).encode())
