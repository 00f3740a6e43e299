"""The corpus browser: kept and rejected documents of a version, filtered, with what rejected them.

Reads the Parquet files of `documents` from the first one on until a page is full, so a filter that few documents pass
reads more of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from sluice_ui.access import At, Name, User, VersionName, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, badge, link, page
from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactId
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store

SHOWN = 20
"""Documents on one page."""

EXCERPT = 2_000
"""Characters of a document that are shown."""

FILTERS = ("source", "host", "language", "tier", "reason")
"""Columns that a filter compares; those that a file lacks match nothing."""

COLUMNS = ("id", "url", "title", "source", "host", "language", "tier", "prose_score", "reason", "reasons", "text")


def corpus(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of kept or rejected documents that match the filters of the address.

    The query has `fate` ("kept" or "rejected"), values of FILTERS, `text` (a substring of text, title or URL,
    regardless of case) and `after`, the number of matching documents before the page.
    """
    documents = Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/documents", version))
    fate = "rejected" if at.query.get("fate") == "rejected" else "kept"
    filters = {name: value for name in FILTERS if (value := at.query.get(name, "").strip())}
    text = at.query.get("text", "").strip()
    after = at.query.get("after", "")
    first = int(after) if after.isdecimal() and len(after) < 12 else 0
    found: list[dict[str, Any]] = []
    for row in _matching(documents, fate, filters, text, first):
        found.append(row)
        if len(found) > SHOWN:
            break
    of = Version(recipe.name, version, "documents", "crawl" in recipe.parts)
    return page(
        "documents",
        f"{recipe.name} {version}: documents",
        at,
        of,
        fate=fate,
        filters=[(name, filters.get(name, "")) for name in FILTERS if name != "reason" or fate == "rejected"],
        text=text,
        query=of.query,
        rows=[_shown(row, of) for row in found[:SHOWN]],
        first=first,
        back=at.href(after=str(max(0, first - SHOWN))) if first else "",
        next=at.href(after=str(first + SHOWN)) if len(found) > SHOWN else "",
    )


def _matching(
    documents: Artifact, fate: str, filters: Mapping[str, str], text: str, first: int
) -> Iterator[dict[str, Any]]:
    """Yields the documents that match, without the first `first` of them, in the order of the files."""
    for path in documents.files(f"{fate}/"):
        with parquet.open_file(documents.local(path)) as file:
            columns = [name for name in COLUMNS if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=512, columns=columns):
                table = _filtered(pa.Table.from_batches([batch]), filters, text)
                if first >= table.num_rows:
                    first -= table.num_rows
                    continue
                yield from table.slice(first).to_pylist()
                first = 0


def _filtered(table: pa.Table, filters: Mapping[str, str], text: str) -> pa.Table:
    for name, value in filters.items():
        if name not in table.column_names:
            return table.slice(0, 0)
        table = table.filter(pc.equal(table[name], value))
    if text and table.num_rows:
        masks = [
            pc.fill_null(pc.match_substring(table[name], text, ignore_case=True), False)
            for name in ("text", "title", "url")
            if name in table.column_names
        ]
        mask = masks[0]
        for other in masks[1:]:
            mask = pc.or_(mask, other)
        table = table.filter(mask)
    return table


def _shown(row: Mapping[str, Any], of: Version) -> dict[str, object]:
    """Returns the fields of a document as the template shows them."""
    text = row.get("text") or ""
    return {
        "title": row.get("title") or row.get("url") or row["id"],
        "url": row.get("url") or "",
        "trace": link("trace", f"{ROOT}/trace", **of.query, what=row["id"]),
        "labels": [f"{name} {row[name]}" for name in ("source", "language", "tier") if row.get(name)],
        "score": row.get("prose_score"),
        "reasons": Markup(" ").join(badge(reason, "bad") for reason in row.get("reasons") or ()),
        "text": text[:EXCERPT],
        "more": max(0, len(text) - EXCERPT),
    }


routes = router()


@routes.get("/corpus")
def corpus_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """Documents of a corpus."""
    return respond(lambda: corpus(readable(recipe, user), version, at))
