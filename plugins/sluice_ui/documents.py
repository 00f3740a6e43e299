"""The corpus browser: kept and rejected documents of a version, filtered, with what rejected them; and one document.

A page of documents begins at a place in the files, which its address has, and reads on until it is full. Counts are
those of the funnel, where it has them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from sluice_ui.access import At, Name, User, VersionName, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, badge, link, page
from sluice_ui.histogram import figure
from sluice_ui.located import Located, Reader
from sluice_ui.scan import Condition, Place, between, contains, equals, rows_at, search
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.filters.recognisers.scan import KINDS
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.consolidate.funnel import EXTRACT, totals
from tasks.stages.consolidate.marked_text import LimitValue, MarkedDocument, TextPiece

SHOWN = 20
"""Documents on one page."""

EXCERPT = 2_000
"""Characters of a document that are shown in the list."""

FILTERS = ("source", "host", "language", "tier", "reason")
"""Columns that a filter compares; those that a file lacks match nothing."""

COLUMNS = ("id", "url", "title", "source", "host", "language", "tier", "prose_score", "reason", "reasons",
           "duplicate_of", "text")  # fmt: skip

SEARCHED_BYTES = 64 << 20
"""Bytes of files whose texts one page searches."""

FETCHED_BYTES = 256 << 20
"""Bytes of files of a remote store that one page fetches, if they are not in the cache of this machine."""

_PLACEHOLDERS = {f"<{kind}>" for kind in KINDS}


def corpus(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of kept or rejected documents that match the filters of the address.

    The query has `fate` ("kept" or "rejected"), values of FILTERS, `least` and `most` prose score, `text` (a part of
    title or URL, regardless of case), `within` ("text" to search texts too), `from`, the place where the page begins,
    as "<file>.<row>", and `after`, the number of matching documents before it.
    """
    documents = Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/documents", version))
    fate = "rejected" if at.query.get("fate") == "rejected" else "kept"
    filters = {name: value for name in FILTERS if (value := at.query.get(name, "").strip())}
    text, within = at.query.get("text", "").strip(), at.query.get("within", "")
    searches_text = bool(text) and within == "text" and fate == "kept"
    scores = [_number(at.query.get(name, "")) for name in ("least", "most")]
    begin, first = _place(at.query.get("from", "")), _count(at.query.get("after", ""))
    number = _counted(documents, fate, filters) if not text and scores == [None, None] else None
    budget = SEARCHED_BYTES if searches_text else None if documents.store.is_local else FETCHED_BYTES
    conditions = _conditions(documents, fate, filters, text, searches_text, scores)
    found = search(documents, f"{fate}/", conditions, begin, SHOWN, budget) if number != 0 else None
    rows = rows_at(documents, f"{fate}/", found.places, COLUMNS) if found else []
    files = len(documents.files(f"{fate}/"))
    reader = Reader(recipe, version, documents)
    values = reader.values_of(rows) if fate == "rejected" else {}
    hidden = reader.hidden(rows)
    of = Version(recipe.name, version, "documents", "crawl" in recipe.parts)
    more = found.next if found else None
    return page(
        "documents",
        f"{recipe.name} {version}: documents",
        at,
        of,
        fate=fate,
        filters=[
            (name, filters.get(name, "")) for name in FILTERS if name != ("tier" if fate == "rejected" else "reason")
        ],
        text=text,
        within=within,
        scores=[(name, at.query.get(name, "")) for name in ("least", "most")],
        query=of.query,
        clusters=link("duplicates of the version", f"{ROOT}/duplicates", **of.query),
        rows=[_shown(row, of, values.get(row["id"], {}), row["id"] in hidden) for row in rows],
        first=first,
        number=number,
        searched=_searched(begin, found.files, files)
        if found and budget is not None and more and len(rows) < SHOWN
        else "",
        back=at.href(**{"from": None, "after": None}) if first or begin != Place(0, 0) else "",
        next=at.href(**{"from": f"{more.file}.{more.row}", "after": str(first + len(rows))}) if more else "",
        is_full=len(rows) == SHOWN,
    )


def _conditions(
    documents: Artifact, fate: str, filters: Mapping[str, str], text: str, searches_text: bool,
    scores: Sequence[float | None],
) -> list[Condition]:  # fmt: skip
    conditions = [equals(name, value) for name, value in filters.items()]
    if scores != [None, None]:
        conditions.append(between("prose_score", *scores))
    if text:
        columns = ["url"] if fate == "rejected" else ["title", "url", *(["text"] if searches_text else [])]
        conditions.append(contains(columns, text))
    return conditions


def _counted(documents: Artifact, fate: str, filters: Mapping[str, str]) -> int | None:
    """Returns the number of matching documents by the funnel, or by hosts; None if neither says it."""
    if not filters.keys() - {"host"} and "host" in filters and fate == "kept" and documents.files("hosts.parquet"):
        hosts = documents.table("hosts.parquet", filters=[("host", "=", filters["host"])]).to_pylist()
        return int(sum(row["kept"] for row in hosts))
    columns = ("source", "language", "reason", "tier")
    if filters.keys() - set(columns) or not documents.files("funnel.parquet"):
        return None
    funnel = documents.table("funnel.parquet")
    if not {"step", "documents", *filters} <= set(funnel.column_names):
        return None
    rows = totals(funnel, ["step", *filters])
    steps = {"kept"} if fate == "kept" else {row["step"] for row in rows} - {"kept", EXTRACT}
    return sum(
        int(row["documents"])
        for row in rows
        if row["step"] in steps and all(row[name] == value for name, value in filters.items())
    )


def _searched(begin: Place, read: int, files: int) -> str:
    last = min(begin.file + max(read, 1), files)
    return f"Searched files {begin.file + 1:,} to {last:,} of {files:,}."


def _place(text: str) -> Place:
    file, _, row = text.partition(".")
    return Place(_count(file), _count(row))


def _count(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 12 else 0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shown(row: Mapping[str, Any], of: Version, values: Mapping[str, LimitValue], hidden: bool) -> dict[str, object]:
    """Returns the fields of a document as the template shows them."""
    text = "" if hidden else row.get("text") or ""
    about = {**of.query, "id": row["id"], "part": row["part"]}
    reasons = [
        badge(reason, "bad")
        + (Markup(' <span class="quiet">{}</span>').format(_beside(values[reason])) if reason in values else "")
        for reason in row.get("reasons") or ()
    ]
    links = [link("document", f"{ROOT}/document", **about), link("trace", f"{ROOT}/trace", **of.query, what=row["id"])]
    if row.get("duplicate_of"):
        links.append(link("beside its original", f"{ROOT}/duplicate", **about, of=row["duplicate_of"]))
    return {
        "title": row.get("title") or row.get("url") or row["id"],
        "url": row.get("url") or "",
        "links": links,
        "labels": [f"{name} {row[name]}" for name in ("source", "language", "tier") if row.get(name)],
        "score": row.get("prose_score"),
        "reasons": Markup(" ").join(reasons),
        "text": with_marks(_placeholders(text[:EXCERPT])),
        "withheld": hidden,
        "more": max(0, len(text) - EXCERPT),
    }


def _beside(value: LimitValue) -> str:
    bound = "" if value.bound is None else f", at {value.side} {figure(value.bound)}"
    return f"{figure(value.value)}{bound}"


def _placeholders(text: str) -> list[TextPiece]:
    """Returns a masked text with its placeholders of personal data as pieces."""
    pieces, begin = [], 0
    for start in (at for at, character in enumerate(text) if character == "<"):
        end = text.find(">", start) + 1
        if text[start:end] in _PLACEHOLDERS:
            pieces += [
                TextPiece(text[begin:start], ""),
                TextPiece(text[start:end], f"masked: {text[start + 1 : end - 1]}"),
            ]
            begin = end
    return [*pieces, TextPiece(text[begin:], "")]


def with_marks(pieces: Sequence[TextPiece]) -> Markup:
    """Returns pieces of a text as HTML; what a mark means is its title, and is read aloud."""
    marked = '<mark title="{0}"><span class="hidden">{0}: </span>{1}</mark>'
    return Markup("").join(
        Markup(marked).format(piece.mark, piece.text) if piece.mark else escape(piece.text) for piece in pieces
    )


def document(recipe: Recipe, version: str, doc_id: str, part: str, at: Address) -> str:
    """Returns the page of one document: its values beside the limits, and its text with marks.

    Raises:
        InputError: the version has no such document, or what it was made from is gone.
    """
    documents = Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/documents", version))
    found = Reader(recipe, version, documents).read(Located(part, doc_id))
    of = Version(recipe.name, version, "documents", "crawl" in recipe.parts)
    return page(
        "document",
        f"Document {doc_id}",
        at,
        of,
        found=found,
        values=[_limit_row(value) for value in found.values],
        marks=sorted({piece.mark for piece in found.pieces or () if piece.mark}),
        text=_text(found),
        trace=link("trace", f"{ROOT}/trace", **of.query, what=doc_id),
    )


def _limit_row(value: LimitValue) -> list[object]:
    limit = "no limit" if value.bound is None else f"at {value.side} {figure(value.bound)}"
    verdict = badge("drops it", "bad") if value.is_beyond else ""
    return [value.path.removeprefix("limits."), round(value.value, 4), limit, verdict]


def _text(found: MarkedDocument) -> Markup | None:
    return None if found.pieces is None else with_marks(found.pieces)


routes = router()


@routes.get("/corpus")
def corpus_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """Documents of a corpus."""
    return respond(lambda: corpus(readable(recipe, user), version, at))


@routes.get("/document")
def document_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """One document of a version."""

    def render() -> str:
        found, asked = readable(recipe, user), at.query.get("id", "")
        if not asked:
            raise InputError("the address has no document", "begin at the documents of the version")
        return document(found, version, asked, at.query.get("part", ""), at)

    return respond(render)
