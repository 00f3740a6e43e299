"""The page of duplicates: dedup's audit with the texts that it names, for manual review.

Reads `audit.json` of `duplicates` (`tasks.formats.dedup.duplicates`). Writes

    copies/<part>.parquet     the documents of the part that it names (schema COPY)
    withheld/<part>.parquet   clusters of which a document of the part is taken down (schema WITHHELD)
    duplicates.json           the audit, with texts
    duplicates.html           the same for people

Texts are shown here and not in `duplicates`, because takedowns and masks of personal data apply here. A document that
is taken down is not shown; nor is any text of its cluster, which may be its own text at another address; nor a pair
with one of these. Numbers stay. Texts are cut to their beginnings, so that the page is of bounded size.
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
from tasks.formats.documents.text import normalise
from tasks.stages.consolidate.aligned_inputs import AlignedParts
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.funnel import KEPT
from tasks.stages.consolidate.mask import masked

PAGE, DATA = "duplicates.html", "duplicates.json"
COPIES_FOLDER, WITHHELD_FOLDER = "copies", "withheld"
COPY = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
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
    gone: NDArray[np.bool_],
) -> None:
    """Writes what the page shows of one part.

    Args:
        config: the stage's settings.
        aligned: its inputs.
        part: the part to write.
        documents: all of its documents.
        judged: the annotators' columns.
        first: the first reason of each document, "" if it is kept.
        gone: whether each document is taken down, shape (rows,).
    """
    audit = read_audit(aligned)
    named = pc.is_in(documents.column("id"), value_set=pa.array(sorted(audit.ids()), pa.string()))
    rows = np.flatnonzero(named.to_numpy() & ~gone)
    shown = documents.take(pa.array(rows))
    texts = masked(config, shown, judged.take(pa.array(rows)), [False] * len(rows))
    columns = [
        shown.column("id"),
        pa.array([url[:_URL_CHARS] for url in shown.column("url").to_pylist()], pa.string()),
        shown.column("source"),
        pa.array([first[row] or KEPT for row in rows.tolist()], pa.string()),
        pa.array([text[:_CHARS] for text in texts], pa.string()),
    ]
    part.table(COPIES_FOLDER, pa.table(columns, schema=COPY), out=False)
    part.table(WITHHELD_FOLDER, pa.table([_withheld(aligned, part.name, audit, gone)], schema=WITHHELD), out=False)


def _withheld(aligned: AlignedParts, name: str, audit: DuplicateAudit, gone: NDArray[np.bool_]) -> pa.Array:
    """Returns the clusters to withhold because of documents of one part."""
    if not gone.any():
        return pa.array([], pa.string())
    clusters = aligned.duplicates.table(f"duplicates/{name}.parquet", columns=["cluster"]).column("cluster")
    met = set(clusters.filter(pa.array(gone)).to_pylist())
    return pa.array(sorted(met & audit.clusters()), pa.string())


def write_page(aligned: AlignedParts, part: Part, names: Sequence[str]) -> None:
    """Writes the page and its data from the tables of all parts."""
    copies: dict[str, Mapping[str, Any]] = {}
    withheld: set[str] = set()
    for name in names:
        copies |= {row["id"]: row for row in aligned.own(f"{COPIES_FOLDER}/{name}.parquet").to_pylist()}
        withheld |= set(aligned.own(f"{WITHHELD_FOLDER}/{name}.parquet").column("cluster").to_pylist())
    described = describe(read_audit(aligned), copies, withheld)
    with part.file(DATA) as file:
        file.write(json.dumps(described, indent=1, ensure_ascii=False).encode("utf-8", "replace"))
    with part.file(PAGE) as file:
        file.write(page(described))


def describe(audit: DuplicateAudit, copies: Copies, withheld: set[str]) -> dict[str, Any]:
    """Returns the audit with texts, as in `duplicates.json`.

    Args:
        audit: dedup's.
        copies: the documents that can be shown, by id.
        withheld: clusters of which no text is shown.
    """
    largest = []
    for cluster in audit.largest:
        hidden = cluster.cluster in withheld
        rows = [] if hidden else [copies[one] for one in cluster.shown if one in copies]
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
        {"jaccard": pair.jaccard, "documents": [copies[one] for one in pair.ids]}
        for pair in side.shown
        if withheld.isdisjoint(pair.clusters) and all(one in copies for one in pair.ids)
    ]
    return {"pairs": side.pairs, "withheld": len(side.shown) - len(shown), "shown": shown}


def page(described: Mapping[str, Any]) -> bytes:
    """Returns what `describe` has as HTML in UTF-8, without scripts and external resources."""
    sides = {name: [_compared(pair) for pair in described[name]["shown"]] for name in ("below", "above")}
    shown = {**described, "sides": sides, "characters": _CHARS}
    return template(__package__, "duplicates.html").render(shown).encode("utf-8", "replace")


def _compared(pair: Mapping[str, Any]) -> dict[str, Any]:
    one, other = pair["documents"]
    return {**pair, "runs": differences(one["text"], other["text"])}


def differences(one: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Returns both texts as runs of words, each with whether it is outside of all that both texts have.

    What both have are sequences of `_RUN` words, or of all words of a shorter text, whatever their case and
    punctuation. In linear time, where an alignment (difflib) takes cubic time for texts that repeat one word.
    """
    left, right = _WORD.findall(one), _WORD.findall(other)
    size = min(_RUN, *(max(1, sum(bool(normalise(word)) for word in side)) for side in (left, right)))
    of_left, of_right = _sequences(left, size), _sequences(right, size)
    return _runs(left, of_left, of_right.keys(), size), _runs(right, of_right, of_left.keys(), size)


def _sequences(words: Sequence[str], size: int) -> dict[tuple[str, ...], list[int]]:
    """Returns where each sequence of words begins, as indices of words that are more than punctuation."""
    plain = [found for word in words if (found := normalise(word))]
    places: dict[tuple[str, ...], list[int]] = {}
    for begin in range(len(plain) - size + 1):
        places.setdefault(tuple(plain[begin : begin + size]), []).append(begin)
    return places


def _runs(
    words: Sequence[str], own: Mapping[tuple[str, ...], list[int]], others: Set[tuple[str, ...]], size: int
) -> list[tuple[str, bool]]:
    shared = {begin + place for sequence in own.keys() & others for begin in own[sequence] for place in range(size)}
    runs: list[tuple[str, bool]] = []
    index = 0
    for word in words:
        counts = bool(normalise(word))
        alone = index not in shared if counts else bool(runs) and runs[-1][1]
        index += counts
        if runs and runs[-1][1] == alone:
            runs[-1] = (runs[-1][0] + word, alone)
        else:
            runs.append((word, alone))
    return runs
