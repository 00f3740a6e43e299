"""Small corpora written straight into a store, as extract and annotate would have written them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.artifact import Address, Artifact, fingerprint
from tasks.commit import commit
from tasks.config import Config
from tasks.documents import DOCUMENT, document_id
from tasks.filters.catalogue import annotator
from tasks.stage import Output, Report, part_names
from tasks.store import Store
from tasks.text import digest128

ANNOTATORS = ("language", "gopher_quality", "gopher_repetition", "prose_score", "pii")
ATTRIBUTES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        *(pa.field(name, annotator(name, {}).type()) for name in ANNOTATORS),
    ]
)
# Prose of 200 words, and a text of three.
_PROSE = {"words": 200, "letters": 200, "mean_word": 5.0, "stop_words": 8, "lines": 1, "english": True}
_POOR = {"words": 3, "letters": 3, "mean_word": 5.0, "stop_words": 8, "lines": 1, "english": True}
REJECTED = pa.schema(
    [("record_id", pa.string()), ("url", pa.string()), ("reason", pa.string()), ("source", pa.string())]
)


class Settings(Config):
    tag: str = ""


def document(text: str, name: str = "", **more: Any) -> dict[str, Any]:
    """One document with what was measured of it; `more` overrides any of it.

    `poor` makes it fail as `gopher_quality_few_words`; `error` is what made an annotator fail.
    """
    url = f"https://example.org/{name or digest128(text)}"
    row = {
        "id": document_id(url, "sha1:A"),
        "record_id": "",
        "url": url,
        "host": "example.org",
        "fetched_at": datetime(2026, 1, 1, tzinfo=UTC),
        "title": "",
        "language_hint": "",
        "text": text,
        "source": "web",
        "payload_digest": "sha1:A",
        "warc_file": "",
        "warc_offset": None,
        "published": None,
        "canonical": "",
        "licence": "",
        "language": "en",
        "language_score": 0.9,
        "prose_score": 0.5,
        "pii_spans": [],
        "poor": False,
        "error": None,
        "metadata": None,
    }
    return {**row, **more}


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of ATTRIBUTES."""
    if row["error"]:
        return {"id": row["id"], "error": row["error"]}
    found: dict[str, dict[str, Any]] = {
        "language": {"label": row["language"], "score": row["language_score"]},
        "gopher_quality": _POOR if row["poor"] else _PROSE,
        "gopher_repetition": {},
        "prose_score": {"score": row["prose_score"]},
        "pii": {"spans": row["pii_spans"]},
    }
    for name in ANNOTATORS:
        nothing = dict.fromkeys((field.name for field in annotator(name, {}).type()), 0)
        found[name] = {**nothing, **found[name]}
    return {"id": row["id"], "error": None, **found}


def write(folder: Path, kind: str, tables: dict[str, dict[str, pa.Table]]) -> Artifact:
    """Commits an artifact `test/<kind>@dev` of parts; `tables` maps part -> folder -> table."""
    store, address = Store(str(folder)), Address(f"test/{kind}", "dev")
    mark = fingerprint(kind, 1, "", Settings(), [])
    output = Output(store, address, mark)
    for name, folders in tables.items():
        with output.part(name, conserved=False) as part:
            for below, table in folders.items():
                part.table(below, table, out=below != "rejected")
                if below == "rejected":
                    part.reject("empty", table.num_rows)
    return commit(output, kind, 1, Settings(), [], Report())


def corpus(
    folder: Path, rows: list[dict[str, Any]], parts: int = 2, rejected: list[dict[str, Any]] | None = None
) -> dict[str, Artifact]:
    """Writes `extracted` and `attributes` with the rows dealt out over parts, each part sorted by id."""
    dealt = [sorted(rows[index::parts], key=lambda row: row["id"]) for index in range(parts)]
    extracted, attributes = {}, {}
    for index, (name, held) in enumerate(zip(part_names(parts), dealt, strict=True)):
        refused = (rejected or [])[index::parts]
        extracted[name] = {
            "documents": _table(held, DOCUMENT),
            "rejected": _table(refused, REJECTED),
        }
        attributes[name] = {"attributes": pa.Table.from_pylist(list(map(_measured, held)), schema=ATTRIBUTES)}
    return {"extracted": write(folder, "extracted", extracted), "attributes": write(folder, "attributes", attributes)}


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)


def rows_of(artifact: Artifact, folder: str) -> list[dict[str, Any]]:
    """Returns all rows below a folder of the artifact, part after part."""
    return [row for path in artifact.files(folder) for row in artifact.table(path).to_pylist()]
