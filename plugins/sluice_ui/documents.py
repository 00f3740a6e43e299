"""The corpus browser: kept and rejected documents of a version, filtered, with what rejected them; and one document.

Columns are read from the files, from the place on that the address has, until a page is full; counts are those of the
funnel, where it has them. Texts are searched by the index of words, where the version has one, else file by file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from sluice_ui.access import At, Name, User, VersionName, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, badge, lang, link, page
from sluice_ui.histogram import SIDES, figure
from sluice_ui.located import Located, Reader
from sluice_ui.scan import Condition, Place, between, contains, equals, host_of_url, ordered, rows_at, search
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.filters.recognisers.scan import KINDS
from tasks.formats.documents.languages import language_name
from tasks.formats.documents.text_index import COLUMNS as INDEXED
from tasks.formats.documents.text_index import KEPT, TextIndex
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store
from tasks.stages.consolidate.funnel import EXTRACT, totals
from tasks.stages.consolidate.funnel import KEPT as STEP_OF_KEPT
from tasks.stages.consolidate.marked_text import LimitValue, MarkedDocument, TextPiece

SHOWN = 20
"""Documents on one page."""

EXCERPT = 2_000
"""Characters of a document that are shown in the list."""

FILTERS = ("source", "host", "language", "tier", "reason")
"""Columns that a filter compares; those that a file lacks match nothing."""

SCORE = "prose_score"

LANGUAGE = "language"

COLUMNS = ("id", "url", "title", "source", "host", "language", "tier", SCORE, "reason", "reasons",
           "duplicate_of", "text")  # fmt: skip

ORDERS = {
    "": "in order of ids",
    "-prose_score": "highest prose score first",
    "prose_score": "lowest prose score first",
    "host": "by host",
    "url": "by URL",
}
"""Orders of the list, with the words of the page; "-" for descending."""

CHOICES = 200
"""Values of a column up to which the form lists them."""

SEARCHED_BYTES = 64 << 20
"""Bytes of files whose texts one page searches."""

COUNTED = 100_000
"""Number of documents with some words at which counting ends."""

RARE = 2_000
"""Number of documents that may have a part of a title or URL up to which only their files are read."""

FETCHED_BYTES = 256 << 20
"""Bytes of files of a remote store that one page fetches, if they are not in the cache of this machine."""

_PLACEHOLDERS = {f"<{kind}>" for kind in KINDS}


def corpus(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of kept or rejected documents that match the filters of the address.

    The query has `fate` ("kept" or "rejected"), values of FILTERS, `least` and `most` prose score, `text` (a part of
    title or URL, regardless of case), `within` ("text" to search texts too), `order`, one of ORDERS, `from`, the place
    where the page begins, as "<file>.<row>", and `after`, the number of matching documents before it.
    """
    documents = Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/documents", version))
    asked = _Asked.of(at.query)
    index = _index_of(documents, recipe.name, version)
    by_words = index if asked.searches_text else None
    listing = _by_words(documents, by_words, asked) if by_words else _by_columns(documents, index, asked)
    rows = rows_at(documents, asked.folder, listing.places, COLUMNS)
    reader = Reader(recipe, version, documents)
    read = reader.read_rows(rows) if asked.fate == "rejected" else {}
    hidden = reader.hidden(rows)
    of = Version(recipe.name, version, "documents", "crawl" in recipe.parts)
    omitted = "tier" if asked.fate == "rejected" else "reason"
    choices = _choices(_funnel(documents, asked.fate))
    return page(
        "documents",
        f"{recipe.name} {version}: documents",
        at,
        of,
        asked=asked,
        filters=[
            (name, asked.filters.get(name, ""), _titled(name, choices.get(name, ())))
            for name in FILTERS
            if name != omitted
        ],
        orders=_orders(asked.fate),
        scores=[(name, at.query.get(name, "")) for name in ("least", "most")],
        query=of.query,
        clusters=link("duplicates of the version", f"{ROOT}/duplicates", **of.query),
        rows=[_shown(row, of, read.get(row["id"]), row["id"] in hidden) for row in rows],
        first=asked.first,
        listing=listing,
        has_index=index is not None,
        back=at.href(**{"from": None, "after": None}) if asked.first or asked.begin != Place(0, 0) else "",
        next=at.href(**{"from": listing.next, "after": str(asked.first + len(rows))}) if listing.next else "",
        is_full=len(rows) == SHOWN,
    )


@dataclass(frozen=True)
class _Asked:
    """What the address asks for.

    Attributes:
        fate: "kept" or "rejected".
        filters: values of FILTERS.
        scores: least and most prose score; None for no limit.
        text: what title, URL or text contain.
        searches_text: whether texts are searched, too.
        order: one of ORDERS.
        begin: place where the page begins.
        first: number of matching documents before the page.
    """

    fate: str
    filters: Mapping[str, str]
    scores: tuple[float | None, float | None]
    text: str
    searches_text: bool
    order: str
    begin: Place
    first: int

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "_Asked":
        fate = "rejected" if query.get("fate") == "rejected" else "kept"
        text = query.get("text", "").strip()
        return cls(
            fate,
            {name: value for name in FILTERS if (value := query.get(name, "").strip())},
            (_number(query.get("least", "")), _number(query.get("most", ""))),
            text,
            bool(text) and query.get("within", "") == "text" and fate == "kept",
            order if (order := query.get("order", "")) in _orders(fate) else "",
            _place(query.get("from", "")),
            _count(query.get("after", "")),
        )

    @property
    def folder(self) -> str:
        """Folder of the files."""
        return f"{self.fate}/"

    @property
    def column(self) -> str:
        """Column of the order; "" for none."""
        return self.order.removeprefix("-")

    @property
    def descending(self) -> bool:
        """Whether the largest value is first."""
        return self.order.startswith("-")


@dataclass(frozen=True)
class _Listing:
    """The documents of a page.

    Attributes:
        places: their places.
        number: what is known about the number of all that match, as a sentence; "" for nothing.
        searched: which files were searched, as a sentence, if the page is not full because others were not; else "".
        next: where the next page begins; "" if there is none.
    """

    places: Sequence[Place]
    number: str = ""
    searched: str = ""
    next: str = ""


def _index_of(documents: Artifact, recipe: str, version: str) -> TextIndex | None:
    """Returns the index of the words of these documents, if the version has one."""
    index = Artifact.find(documents.store, ArtifactId(f"{recipe}/text_index", version))
    if index is None or {ref.content for ref in index.record.inputs} != {documents.record.content}:
        return None
    found = TextIndex(index)
    return found if found.is_readable else None


def _by_words(documents: Artifact, index: TextIndex, asked: _Asked) -> _Listing:
    """Returns the documents with all words of the search, by the index."""
    if asked.filters.keys() - set(INDEXED):
        return _Listing(())
    unsorted = ""
    try:
        number, rows = index.find(asked.text, asked.filters, asked.scores, asked.first, SHOWN, COUNTED)
    except InputError as error:
        return _Listing((), str(error))
    files = {path: number for number, path in enumerate(documents.files(KEPT))}
    if asked.order and (asked.column != SCORE or number > COUNTED):
        why = "are too many to sort" if number > COUNTED else f"can be sorted by prose score, not by {asked.column}"
        unsorted = f" They {why}, so they are in the order of ids."
    elif asked.order:
        rows = index.best(
            asked.text, asked.filters, asked.scores, descending=asked.descending, first=asked.first, most=SHOWN
        )
    sentence = f"More than {COUNTED:,} documents have" if number > COUNTED else f"Documents with all words: {number:,}"
    sentence += (" all words." if number > COUNTED else ".") + unsorted
    end = asked.first + len(rows)
    return _Listing([Place(files[row.path], row.row) for row in rows], sentence, next="0.0" if end < number else "")


def _by_columns(documents: Artifact, index: TextIndex | None, asked: _Asked) -> _Listing:
    """Returns the documents that meet the conditions, by reading columns of the files that may have any."""
    count = _counted(documents, asked) if not asked.text and asked.scores == (None, None) else None
    number = "" if count is None else f"Documents that match: {count:,}."
    if count == 0:
        return _Listing((), number)
    budget = SEARCHED_BYTES if asked.searches_text else None if documents.store.is_local else FETCHED_BYTES
    only = index.files_with(asked.text, RARE) if index and asked.text and asked.fate == "kept" else None
    if asked.order and not asked.searches_text:
        if budget is None or documents.record.bytes <= budget:
            return _in_order(documents, asked, number, only)
        number += " They are not sorted: the store is remote, and its files are too large."
    elif asked.order:
        number += " They are not sorted: without an index, texts are searched file by file."
    found = search(documents, asked.folder, _conditions(asked), asked.begin, SHOWN, budget, only)
    searched = ""
    if found.next and len(found.places) < SHOWN:
        files = len(documents.files(asked.folder))
        searched = f"Searched files {asked.begin.file + 1:,} to {asked.begin.file + found.files:,} of {files:,}."
    return _Listing(found.places, number, searched, f"{found.next.file}.{found.next.row}" if found.next else "")


def _in_order(documents: Artifact, asked: _Asked, number: str, only: Sequence[str] | None) -> _Listing:
    places = ordered(
        documents, asked.folder, _conditions(asked), asked.column,
        descending=asked.descending, first=asked.first, most=SHOWN + 1, only=only,
    )  # fmt: skip
    return _Listing(places[:SHOWN], number, next="0.0" if len(places) > SHOWN else "")


def _conditions(asked: _Asked) -> list[Condition]:
    conditions = [
        host_of_url(value) if (name, asked.fate) == ("host", "rejected") else equals(name, value)
        for name, value in asked.filters.items()
    ]
    if asked.scores != (None, None):
        conditions.append(between(SCORE, *asked.scores))
    if asked.text:
        columns = ["url"] if asked.fate == "rejected" else ["title", "url", *(["text"] if asked.searches_text else [])]
        conditions.append(contains(columns, asked.text))
    return conditions


def _counted(documents: Artifact, asked: _Asked) -> int | None:
    """Returns the number of matching documents by the funnel, or by hosts; None if neither says it."""
    filters = asked.filters
    if filters.keys() == {"host"} and asked.fate == "kept" and documents.files("hosts.parquet"):
        hosts = documents.table("hosts.parquet", filters=[("host", "=", filters["host"])]).to_pylist()
        return int(sum(row["kept"] for row in hosts))
    rows = _funnel(documents, asked.fate)
    if rows is None or filters.keys() - set(rows.column_names):
        return None
    for name, value in filters.items():
        rows = rows.filter(pc.equal(rows[name], value))
    return int(pc.sum(rows["documents"]).as_py() or 0)


def _funnel(documents: Artifact, fate: str) -> pa.Table | None:
    """Returns the rows of the funnel that count kept or rejected documents; None without a funnel."""
    if not documents.files("funnel.parquet"):
        return None
    funnel = documents.table("funnel.parquet")
    if not {"step", "documents"} <= set(funnel.column_names):
        return None
    kept = pc.equal(funnel["step"], STEP_OF_KEPT)
    other = pc.invert(pc.or_(kept, pc.equal(funnel["step"], EXTRACT)))
    return funnel.filter(kept if fate == "kept" else other)


def _choices(funnel: pa.Table | None) -> dict[str, list[tuple[str, int]]]:
    """Returns the values of each column of FILTERS that the funnel counts, with their documents, the most first."""
    if funnel is None:
        return {}
    found = {}
    for name in FILTERS:
        if name in funnel.column_names:
            counts = totals(funnel, [name])
            rows = sorted(counts, key=lambda row: (-row["documents"], row[name]))
            found[name] = [(row[name], row["documents"]) for row in rows if row[name]]
    return {name: values for name, values in found.items() if len(values) <= CHOICES}


def _titled(name: str, choices: Sequence[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """Returns value, title and number of each choice of a filter; languages have their names."""
    return [(value, language_name(value) if name == LANGUAGE else value, count) for value, count in choices]


def _orders(fate: str) -> dict[str, str]:
    """Returns the orders of kept or rejected documents; the files of rejected ones have no column of hosts."""
    return {name: words for name, words in ORDERS.items() if fate == "kept" or name != "host"}


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


def _shown(row: Mapping[str, Any], of: Version, read: MarkedDocument | None, hidden: bool) -> dict[str, object]:
    """Returns the fields of a document as the template shows them; the text of a rejected one is in `read`."""
    text = read.text if read else row.get("text") or ""
    pieces = _beginning(read.pieces or ()) if read else _placeholders(text[:EXCERPT])
    values = {value.reason: value for value in read.values} if read else {}
    withheld = hidden or (read is not None and read.pieces is None)
    about = {**of.query, "id": row["id"], "part": row["part"]}
    reasons = [
        badge(reason, "bad")
        + (Markup(' <span class="quiet">{}</span>').format(_beside(values[reason])) if reason in values else "")
        for reason in row.get("reasons") or ()
    ]
    links = [link("document", f"{ROOT}/document", **about), link("trace", f"{ROOT}/trace", **of.query, what=row["id"])]
    if row.get("duplicate_of"):
        links.append(link("beside its original", f"{ROOT}/duplicate", **about, of=row["duplicate_of"]))
    language = row.get(LANGUAGE) or ""
    return {
        "title": row.get("title") or row.get("url") or row["id"],
        "url": row.get("url") or "",
        "links": links,
        "labels": [f"{name} {row[name]}" for name in ("source", "tier") if row.get(name)],
        "language": language_name(language) if language else "",
        "lang": lang(language),
        "score": row.get(SCORE),
        "reasons": Markup(" ").join(reasons),
        "text": "" if withheld else with_marks(pieces),
        "withheld": withheld,
        "more": max(0, len(text) - EXCERPT),
    }


def _beside(value: LimitValue) -> str:
    bound = "" if value.bound is None else f", {SIDES[value.side]} {figure(value.bound)}"
    return f"{figure(value.value)}{bound}"


def _beginning(pieces: Sequence[TextPiece]) -> list[TextPiece]:
    """Returns the pieces of the first EXCERPT characters."""
    ends = accumulate(len(piece.text) for piece in pieces)
    lefts = ((EXCERPT - end + len(piece.text), piece) for end, piece in zip(ends, pieces, strict=True))
    return [TextPiece(piece.text[:left], piece.mark) for left, piece in lefts if left > 0]


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
    # The direction of a text (dir="auto") is that of its letters, not of the names of marks.
    marked = '<mark title="{0}"><span class="hidden" dir="ltr">{0}: </span>{1}</mark>'
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
        language=language_name(found.language) if found.language else "",
        lang=lang(found.language),
        trace=link("trace", f"{ROOT}/trace", **of.query, what=doc_id),
    )


def _limit_row(value: LimitValue) -> list[object]:
    limit = "no limit" if value.bound is None else f"{SIDES[value.side]} {figure(value.bound)}"
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
