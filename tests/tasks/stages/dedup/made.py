"""Small corpora written directly into a store in the format of extract and annotate."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.core.artifact import Artifact, ArtifactId, InputRef, fingerprint
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.part import POISON
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.filters.catalogue import annotator
from tasks.formats.documents.document import DOCUMENT, LAYOUT, document_id, with_ids_digest
from tasks.formats.documents.groups import KIND, groups_of, ref_to
from tasks.formats.documents.text import digest128

ANNOTATORS = ("language", "gopher_quality", "gopher_repetition", "prose_score", "pii")
FAILS = "gopher_repetition"
"""The annotator that fails on documents with an error."""
# Prose of 200 words, and a text of three.
_PROSE = {
    "words": 200,
    "letters": 200,
    "mean_word": 5.0,
    "stop_words": 8,
    "stop_share": 0.4,
    "recurring": 0.5,
    "lines": 1,
    "english": True,
}
_POOR = {**_PROSE, "words": 3, "letters": 3, "recurring": -1.0}
REJECTED = pa.schema(
    [("record_id", pa.string()), ("url", pa.string()), ("reason", pa.string()), ("source", pa.string())]
)


class Settings(Config):
    tag: str = ""


def document(text: str, name: str = "", **more: Any) -> dict[str, Any]:
    """One document with its measurements; `more` overrides any field.

    `poor` makes it fail as `gopher_quality_few_words`; `error` is the error of a failed annotator; `measured` has other
    measurements by annotator and field.
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
        "form": None,
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
        "measured": {},
        "metadata": None,
    }
    return {**row, **more}


def _measured(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the findings of each annotator."""
    found: dict[str, dict[str, Any]] = {
        "language": {"label": row["language"], "score": row["language_score"], "second": "und"},
        "gopher_quality": _POOR if row["poor"] else _PROSE,
        "gopher_repetition": {},
        "prose_score": {"score": row["prose_score"]},
        "pii": {"spans": row["pii_spans"]},
    }
    for name in ANNOTATORS:
        nothing = dict.fromkeys((field.name for field in annotator(name, {}).type()), 0)
        found[name] = {**nothing, **found[name], **row["measured"].get(name, {})}
    return found


def _group(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Returns an annotator's measurements of documents in the format of annotate."""
    schema = pa.schema([("error", pa.string()), (name, annotator(name, {}).type())])
    failed = [row["error"] if name == FAILS else None for row in rows]
    found = [
        {"error": error, name: None if error else _measured(row)[name]} for row, error in zip(rows, failed, strict=True)
    ]
    return with_ids_digest(pa.Table.from_pylist(found, schema=schema), pa.chunked_array([[row["id"] for row in rows]]))


def write(
    folder: Path, kind: str, tables: dict[str, dict[str, pa.Table]], *inputs: InputRef, version: str = "dev"
) -> Artifact:
    """Commits an artifact `test/<kind>@<version>` of parts; `tables` maps part -> folder -> table."""
    store, address = Store(str(folder)), ArtifactId(f"test/{kind}", version)
    mark = fingerprint(kind, 1, "", Settings(tag="" if version == "dev" else version), [])
    output = Output(store, address, mark)
    for name, folders in tables.items():
        with output.part(name, conserved=False) as part:
            for below, table in folders.items():
                part.table(below, table, out=below != "rejected")
                if below == "rejected":
                    part.reject("empty", table.num_rows)
                if below == KIND:
                    part.metric(POISON, table.num_rows - table.column("error").null_count)
    return commit(output, kind, 1, Settings(), inputs, Report())


def write_groups(folder: Path, parts: dict[str, list[dict[str, Any]]], version: str = "dev") -> dict[str, Artifact]:
    """Commits the annotators' measurements of documents by part; returns the inputs of dedup and consolidate."""
    groups = {
        name: write(
            *(folder, f"{KIND}/{name}", {part: {KIND: _group(name, rows)} for part, rows in parts.items()}),
            version=version,
        )
        for name in ANNOTATORS
    }
    refs = [ref_to(group, name) for name, group in groups.items()]
    named = {"groups.json": {"groups": pa.table({"group": list(groups)})}}
    return {
        "attributes": write(folder, "attributes", named, *refs, version=version),
        "prose_score": groups["prose_score"],
    }


def corpus(
    folder: Path,
    rows: list[dict[str, Any]],
    parts: int = 2,
    rejected: list[dict[str, Any]] | None = None,
    version: str = "dev",
    **more: list[dict[str, Any]],
) -> dict[str, Artifact]:
    """Writes `extracted` and the measurements, with rows distributed over parts, each part sorted by id.

    `more` are further parts by name, with a hyphen in place of an underscore.
    """
    dealt = [sorted(rows[index::parts], key=lambda row: row["id"]) for index in range(parts)]
    held = dict(zip(part_names(parts), dealt, strict=True)) | {
        name.replace("_", "-"): sorted(mine, key=lambda row: row["id"]) for name, mine in more.items()
    }
    extracted = {}
    for index, (name, mine) in enumerate(held.items()):
        refused = (rejected or [])[index::parts] if index < parts else []
        extracted[name] = {
            "documents": table(mine, DOCUMENT),
            "rejected": table(refused, REJECTED),
        }
        if paged := [{"id": row["id"], "layout": []} for row in mine if row.get("paged")]:
            extracted[name]["layout"] = table(paged, LAYOUT)
    return {
        "extracted": write(folder, "extracted", extracted, version=version),
        **write_groups(folder, held, version),
    }


def table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Returns the fields of a schema of some rows."""
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)


def rows_of(artifact: Artifact, folder: str) -> list[dict[str, Any]]:
    """Returns all rows below a folder of the artifact, part after part."""
    return [row for path in artifact.files(folder) for row in artifact.table(path).to_pylist()]


def found_in(attributes: Artifact) -> list[dict[str, Any]]:
    """Returns one row per document: `id`, `error` of the first failed annotator, and the findings of each."""
    (ref,) = (ref for ref in attributes.record.inputs if ref.role == "extracted")
    extracted = Artifact.open_at(attributes.store, ArtifactId.parse(ref.address))
    rows: list[dict[str, Any]] = [{"id": row["id"], "error": None} for row in rows_of(extracted, "documents/")]
    for name, group in groups_of(attributes).items():
        for held, row in zip(rows, rows_of(group, f"{KIND}/"), strict=True):
            held |= {name: row[name], "error": held["error"] or row["error"]}
    return rows
