"""The page of duplicates: dedup's audit with the texts of the listed documents, for manual review.

Reads `audit.json` of `duplicates` (`tasks.formats.dedup.duplicates`). Writes

    copies/<part>.parquet     the listed documents of the part (schema COPY)
    withheld/<part>.parquet   clusters with a document of the part that is taken down (schema WITHHELD)
    duplicates.json           the audit with texts
    duplicates.html           the same as a page

Texts are in this stage and not in `duplicates`, because takedowns and masking apply here. The page does not show a
document that is taken down, the texts of its cluster, which may be the same text at another URL, or pairs with any of
these; counts include them. Only the beginnings of texts are shown, so that the page is of bounded size.
"""

import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.pages import template
from tasks.core.part import Part
from tasks.formats.dedup.duplicates import AUDIT_FILE, DuplicateAudit, Side
from tasks.formats.documents.languages import language_tag
from tasks.formats.documents.text import normalise
from tasks.stages.consolidate.aligned_inputs import AlignedParts
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.funnel import KEPT
from tasks.stages.consolidate.mask import mask_texts

PAGE, DATA = "duplicates.html", "duplicates.json"
COPIES_FOLDER, WITHHELD_FOLDER = "copies", "withheld"
COPY = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),  # "kept", or the first reason
        pa.field("text", pa.string(), nullable=False),  # the beginning, masked
    ]
)
WITHHELD = pa.schema([pa.field("cluster", pa.string(), nullable=False)])
_CHARS = 4000
_URL_CHARS = 300
_WORD = re.compile(r"\S+\s*")
_RUN = 5

Copies = Mapping[str, Mapping[str, Any]]
"""Rows of COPY by id."""


def read_audit(aligned: AlignedParts) -> DuplicateAudit:
    """Reads dedup's audit."""
    return DuplicateAudit.model_validate_json(aligned.duplicates.read(AUDIT_FILE))


def write_copies(
    config: ConsolidateConfig,
    aligned: AlignedParts,
    part: Part,
    documents: pa.Table,
    judged: pa.Table,
    first: Sequence[str],
    taken_down: NDArray[np.bool_],
) -> None:
    """Writes the documents and withheld clusters of one part.

    Args:
        config: the stage's settings.
        aligned: the stage's inputs.
        part: the part to write.
        documents: all documents of the part.
        judged: the annotators' columns.
        first: the first reason of each document, "" if it is kept.
        taken_down: whether each document is taken down, shape (rows,).
    """
    audit = read_audit(aligned)
    is_shown = pc.is_in(documents.column("id"), value_set=pa.array(sorted(audit.ids()), pa.string()))
    rows = np.flatnonzero(is_shown.to_numpy() & ~taken_down)
    documents_shown = documents.take(pa.array(rows))
    texts = mask_texts(config, documents_shown, judged.take(pa.array(rows)), [False] * len(rows))
    columns = [
        documents_shown.column("id"),
        pa.array([url[:_URL_CHARS] for url in documents_shown.column("url").to_pylist()], pa.string()),
        documents_shown.column("source"),
        documents_shown.column("language"),
        pa.array([first[row] or KEPT for row in rows.tolist()], pa.string()),
        pa.array([text[:_CHARS] for text in texts], pa.string()),
    ]
    part.table(COPIES_FOLDER, pa.table(columns, schema=COPY), out=False)
    part.table(
        WITHHELD_FOLDER, pa.table([_withheld(aligned, part.name, audit, taken_down)], schema=WITHHELD), out=False
    )


def _withheld(aligned: AlignedParts, name: str, audit: DuplicateAudit, taken_down: NDArray[np.bool_]) -> pa.Array:
    """Returns the clusters to withhold because of taken-down documents of one part."""
    if not taken_down.any():
        return pa.array([], pa.string())
    clusters = aligned.duplicates.table(f"duplicates/{name}.parquet", columns=["cluster"]).column("cluster")
    affected = set(clusters.filter(pa.array(taken_down)).to_pylist())
    return pa.array(sorted(affected & audit.clusters()), pa.string())


def write_page(aligned: AlignedParts, part: Part, copies: pa.Table, withheld: pa.Table) -> None:
    """Writes the page and its data from the documents (COPY) and withheld clusters (WITHHELD) of all parts."""
    by_id = {row["id"]: row for row in copies.to_pylist()}
    content = describe(read_audit(aligned), by_id, set(withheld.column("cluster").to_pylist()))
    part.write(DATA, json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8", "replace"))
    part.write(PAGE, page(content))


def describe(audit: DuplicateAudit, copies: Copies, withheld: set[str]) -> dict[str, Any]:
    """Returns the audit with texts, as in `duplicates.json`.

    Args:
        audit: dedup's audit.
        copies: the documents that may be shown, by id.
        withheld: clusters whose texts are not shown.
    """
    largest = []
    for cluster in audit.largest:
        hidden = cluster.cluster in withheld
        rows = [] if hidden else [copies[doc_id] for doc_id in cluster.shown if doc_id in copies]
        largest.append({**cluster.model_dump(exclude={"cluster", "shown"}), "withheld": hidden, "shown": rows})
    numbers = audit.model_dump(include={"jaccard", "width", "sizes", "domain_count"})
    losses = {
        name: [{**loss.model_dump(), "share": round(loss.share, 6)} for loss in getattr(audit, name)]
        for name in ("sources", "domains")
    }
    sides = {name: _side(getattr(audit, name), copies, withheld) for name in ("below", "above")}
    return {**numbers, **losses, "largest": largest, **sides}


def _side(side: Side, copies: Copies, withheld: set[str]) -> dict[str, Any]:
    shown = [
        {"jaccard": pair.jaccard, "documents": [copies[doc_id] for doc_id in pair.ids]}
        for pair in side.shown
        if withheld.isdisjoint(pair.clusters) and all(doc_id in copies for doc_id in pair.ids)
    ]
    return {"pairs": side.pairs, "withheld": len(side.shown) - len(shown), "shown": shown}


def page(content: Mapping[str, Any]) -> bytes:
    """Returns the result of `describe` as HTML in UTF-8, without scripts and external resources."""
    sides = {name: [_compared(pair) for pair in content[name]["shown"]] for name in ("below", "above")}
    largest = [{**cluster, "shown": list(map(_tagged, cluster["shown"]))} for cluster in content["largest"]]
    context = {**content, "largest": largest, "sides": sides, "characters": _CHARS}
    return template(__package__, "duplicates.html").render(context).encode("utf-8", "replace")


def _tagged(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "tag": language_tag(row["language"])}


def _compared(pair: Mapping[str, Any]) -> dict[str, Any]:
    first, second = pair["documents"]
    tags = [language_tag(document["language"]) for document in (first, second)]
    return {**pair, "runs": list(zip(tags, differences(first["text"], second["text"]), strict=True))}


def differences(first: str, second: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Returns both texts as runs of words, each with whether it differs from the other text.

    Words are common if both texts have the same sequence of `_RUN` words (or of all words of a shorter text) with them,
    ignoring case and punctuation. Takes linear time; an alignment (difflib) takes cubic time for texts that repeat one
    word.
    """
    left, right = _WORD.findall(first), _WORD.findall(second)
    size = min(_RUN, *(max(1, sum(bool(normalise(word)) for word in side)) for side in (left, right)))
    of_left, of_right = _sequences(left, size), _sequences(right, size)
    return _runs(left, of_left, of_right.keys(), size), _runs(right, of_right, of_left.keys(), size)


def _sequences(words: Sequence[str], size: int) -> dict[tuple[str, ...], list[int]]:
    """Returns the start positions of each sequence of words; positions do not count punctuation."""
    normalized = [normal for word in words if (normal := normalise(word))]
    positions: dict[tuple[str, ...], list[int]] = {}
    for begin in range(len(normalized) - size + 1):
        positions.setdefault(tuple(normalized[begin : begin + size]), []).append(begin)
    return positions


def _runs(
    words: Sequence[str], own: Mapping[tuple[str, ...], list[int]], others: Set[tuple[str, ...]], size: int
) -> list[tuple[str, bool]]:
    shared = {begin + offset for sequence in own.keys() & others for begin in own[sequence] for offset in range(size)}
    runs: list[tuple[str, bool]] = []
    index = 0
    for word in words:
        is_word = bool(normalise(word))
        differs = index not in shared if is_word else bool(runs) and runs[-1][1]
        index += is_word
        if runs and runs[-1][1] == differs:
            runs[-1] = (runs[-1][0] + word, differs)
        else:
            runs.append((word, differs))
    return runs
