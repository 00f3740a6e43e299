"""Duplicates: a dropped document beside the one that it duplicates, line by line, and the clusters of a version.

Clusters and losses are those of `duplicates.json` of the documents, which dedup's audit and consolidate wrote.
"""

import json
from collections.abc import Sequence, Set
from difflib import SequenceMatcher
from typing import Any

from fastapi.responses import HTMLResponse
from markupsafe import Markup

from sluice_ui.access import At, Name, User, VersionName, readable, respond, router
from sluice_ui.frame import ROOT, Address, Version, lang, link, page
from sluice_ui.located import Located, Reader
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.formats.documents.text import normalise
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store

MOST_LINES = 400
"""Lines of each text that are compared: the time of a comparison grows with the square."""

MOST_CHARACTERS = 40_000
"""Characters of each text that are compared."""

_DATA = "duplicates.json"


def duplicate(recipe: Recipe, version: str, dropped: Located, kept: str, at: Address) -> str:
    """Returns the page of a pair: the dropped document on the left, the kept one on the right.

    Raises:
        InputError: the version has no such documents, or what they were made from is gone.
    """
    documents = Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/documents", version))
    reader = Reader(recipe, version, documents)
    left = reader.read(dropped)
    located = reader.locate(kept)
    right = reader.read(located) if located else None
    texts = [
        one.text[:MOST_CHARACTERS].split("\n") if one and one.pieces is not None else None for one in (left, right)
    ]
    compared = (
        lines(texts[0][:MOST_LINES], texts[1][:MOST_LINES]) if texts[0] is not None and texts[1] is not None else None
    )
    of = Version(recipe.name, version, "documents", "crawl" in recipe.parts)
    return page(
        "duplicate",
        "A duplicate and its original",
        at,
        of,
        left=left,
        right=right,
        kept=kept,
        lang=lang(left.language) if left else "",
        links=[link("trace", f"{ROOT}/trace", **of.query, what=doc_id) for doc_id in (dropped.id, kept)],
        lines=compared,
        equal=sum(same for _, _, same in compared) if compared else 0,
        cut=any(
            one and len(one.text) > len("\n".join(text[:MOST_LINES]))
            for one, text in zip((left, right), texts, strict=True)
            if text
        ),
    )


def lines(left: Sequence[str], right: Sequence[str]) -> list[tuple[str | None, str | None, bool]]:
    """Returns the lines of two texts side by side, and whether they are equal; None where a side has none.

    Equal lines may differ in case and punctuation, which dedup ignores.

    >>> lines(["a", "b", "c"], ["a", "c", "d"])
    [('a', 'a', True), ('b', None, False), ('c', 'c', True), (None, 'd', False)]
    """
    rows: list[tuple[str | None, str | None, bool]] = []
    keys = [[normalise(line) or line.strip() for line in side] for side in (left, right)]
    matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for kind, begin, end, other_begin, other_end in matcher.get_opcodes():
        mine, other = left[begin:end], right[other_begin:other_end]
        for number in range(max(len(mine), len(other))):
            sides = [side[number] if number < len(side) else None for side in (mine, other)]
            rows.append((sides[0], sides[1], kind == "equal"))
    return rows


def clusters(recipe: Recipe, version: str, at: Address) -> str:
    """Returns the page of the clusters of a version: sizes, losses by source and domain, the largest clusters.

    Raises:
        InputError: the version has no documents.
    """
    documents = Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/documents", version))
    if not documents.files(_DATA):
        raise InputError(f"{documents.address} has no {_DATA}", "it is of an earlier Sluice: make it again")
    audit = json.loads(documents.read(_DATA))
    hidden = Reader(recipe, version, documents).hidden([one for row in audit["largest"] for one in row["shown"]])
    of = Version(recipe.name, version, "documents", "crawl" in recipe.parts)
    return page(
        "duplicates",
        f"{recipe.name} {version}: duplicates",
        at,
        of,
        sizes=[[_range(row), row["clusters"], row["documents"]] for row in audit["sizes"]],
        sources=[_loss(row) for row in audit["sources"]],
        domains=[_loss(row) for row in audit["domains"]],
        largest=[_cluster(row, of, hidden) for row in audit["largest"]],
        jaccard=audit["jaccard"],
    )


def _range(row: dict[str, Any]) -> str:
    return f"{row['first']:,}" if row["first"] == row["last"] else f"{row['first']:,} to {row['last']:,}"


def _loss(row: dict[str, Any]) -> list[object]:
    return [row["name"], row["documents"], row["duplicates"], f"{row['share']:.1%}"]


def _cluster(row: dict[str, Any], of: Version, hidden: Set[str]) -> dict[str, Any]:
    """Returns a cluster as the template shows it: each shown document with its verdict, unless one is taken down."""
    withheld = row["withheld"] or any(one["id"] in hidden for one in row["shown"])
    members = [
        [link(one["url"] or one["id"], f"{ROOT}/document", **of.query, id=one["id"]), one["source"], one["verdict"],
         Markup("<span{}>{}</span>").format(lang(one.get("language", "")), " ".join(one["text"].split())[:200])]
        for one in row["shown"]
    ]  # fmt: skip
    return {"documents": row["documents"], "withheld": withheld, "members": members}


routes = router()


@routes.get("/duplicates")
def clusters_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """Clusters of duplicates of a version."""
    return respond(lambda: clusters(readable(recipe, user), version, at))


@routes.get("/duplicate")
def duplicate_page(recipe: Name, version: VersionName, user: User, at: At) -> HTMLResponse:
    """A dropped duplicate beside the kept document."""
    dropped = Located(at.query.get("part", ""), at.query.get("id", ""))
    return respond(lambda: duplicate(readable(recipe, user), version, dropped, at.query.get("of", ""), at))
