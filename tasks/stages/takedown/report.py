"""Report of a takedown: who asked for what, what it met, and what is left to do. Pure functions, but for the copies.

All text of the request and of the web is escaped in the page (`tasks.core.pages`).
"""

from collections.abc import Sequence
from typing import Any

from tasks.core.pages import template
from tasks.formats.documents.tombstones import Lifted, Tombstone, Tombstones
from tasks.formats.web.canonical_url import canonical
from tasks.stages.takedown import TakedownConfig
from tasks.stages.takedown.affected import (
    CHECKPOINT,
    CHUNKS,
    DOCUMENTS,
    EXAMPLES,
    KINDS,
    MODELS,
    PLAN,
    SHARDS,
    TUNED,
    Affected,
    copies,
)

SHOWN = 1_000
"""Documents, values and copies that the report lists; `found.parquet` has all."""

NEXT = {
    DOCUMENTS: "run crawl or corpus with a new version: they keep none of these",
    SHARDS: "stays as it is; plans that are made from now on leave these out",
    PLAN: "run tokens with a new version; a training that starts or runs from now on reads none of these",
    CHUNKS: "run tokens with a new version; examples that are made from now on leave these out",
    EXAMPLES: "run finetune with a new version; a fine-tuning that starts or runs from now on reads none of these",
    CHECKPOINT: "has read these; train with a new version for a model that has not",
    TUNED: "has read these; fine-tune with a new version, from a base that has not",
}
"""What is to be done about an artifact of a kind."""

BEGAN = "began from weights that have read these; train with a new version from weights that have not"
"""What is to be done about a checkpoint that comes from another."""


def report_of(
    config: TakedownConfig,
    address: str,
    asked: Sequence[Tombstone],
    new: Sequence[Tombstone],
    in_force: int,
    met: Sequence[Affected],
    lifted: Sequence[Lifted] = (),
    unfinished: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the content of `report.json`.

    Args:
        config: the request.
        address: id of the takedown.
        asked: tombstones of the request.
        new: those that were not in force before.
        in_force: number of all from now on.
        met: artifacts with documents that the new ones cover.
        lifted: what the request lifts.
        unfinished: ids of trainings that have not ended.

    Returns:
        {takedown, date, reason, requested_by, summary, new: [{kind, value, reason, origin}], lifted: [{kind, value,
        takedown}], known: number of values that were in force before, in_force, documents: number of different ones,
        artifacts: [see `described`], unfinished, found: [{id, url, source, artifacts}], copies: [{artifact, id, url,
        duplicate_of}], not_found: [values]}.
    """
    covered = Tombstones.of(new)
    artifacts = [described(one) for one in met]
    found: dict[str, dict[str, Any]] = {}
    for one in met:
        for row in one.rows:
            entry = found.setdefault(
                row["id"], {name: row[name] for name in ("id", "url", "source")} | {"artifacts": []}
            )
            entry["artifacts"].append(str(one.artifact.address))
    return {
        "takedown": address,
        "date": config.date,
        "reason": config.reason,
        "requested_by": config.requested_by,
        "summary": _summary(new, in_force, len(found), artifacts) + (f"; {len(lifted):,} lifted" if lifted else ""),
        "new": [
            {name: getattr(stone, name) for name in ("kind", "value", "reason", "origin")} for stone in sorted(new)
        ],
        "lifted": [{name: getattr(one, name) for name in ("kind", "value", "takedown")} for one in lifted],
        "known": len(asked) - len(new),
        "in_force": in_force,
        "documents": len(found),
        "artifacts": artifacts,
        "unfinished": list(unfinished) if new else [],
        "found": sorted(found.values(), key=lambda entry: (entry["url"], entry["id"]))[:SHOWN],
        "copies": copies((one for one in met if one.kind == DOCUMENTS), covered)[:SHOWN],
        "not_found": _not_found(new, found.values())[:SHOWN],
    }


def page(report: dict[str, Any]) -> bytes:
    """Returns the report as an HTML page."""
    html: str = template(__package__, "report.html").render(report=report, shown=SHOWN)
    return html.encode()


def described(one: Affected) -> dict[str, Any]:
    """Returns what a takedown met in one artifact, as a line of a report.

    Returns:
        {artifact, kind, finished, documents, next, problem, and of a plan or examples `sequences`, of a model `steps`,
        `checkpoints`, with `first_step` and `last_step` where it has steps of its own, and `through`: [the one from
        whose weights it began, where that one has read some of them]}.
    """
    record = one.artifact.record
    entry: dict[str, Any] = {
        "artifact": str(one.artifact.address),
        "kind": one.kind,
        "finished": record.finished.isoformat(timespec="seconds"),
        "documents": len(one.rows),
        "next": NEXT[one.kind],
        "problem": one.problem,
    }
    if not one.rows:
        return entry
    if one.kind in (PLAN, EXAMPLES):
        entry["sequences"] = len({(row["source"], seq) for row in one.rows for seq in row["sequences"]})
    if one.kind in MODELS:
        steps = sorted({step for row in one.rows for step in row["steps"]})
        seen_by = sorted({count for row in one.rows for count in row["checkpoints"]})
        entry |= {"steps": len(steps), "checkpoints": seen_by}
        entry |= {"first_step": steps[0], "last_step": steps[-1]} if steps else {}
        if through := sorted({row["through"] for row in one.rows} - {""}):
            entry |= {"through": through, "next": BEGAN}
    return entry


def _summary(new: Sequence[Tombstone], in_force: int, documents: int, artifacts: Sequence[dict[str, Any]]) -> str:
    counts = {kind: sum(one["kind"] == kind for one in artifacts) for kind in KINDS}
    kinds = [f"{count} {kind}" for kind, count in counts.items() if count]
    met = f"{documents:,} documents met, in artifacts: {', '.join(kinds)}" if artifacts else "no artifact has any of it"
    return f"{len(new):,} new of {in_force:,} tombstones in force; {met}"


def _not_found(new: Sequence[Tombstone], found: Any) -> list[str]:
    """Returns the values that no document of the recipe belongs to."""
    covered = Tombstones.of(new)
    met = {entry["id"] for entry in found}
    for url in (canonical(entry["url"]) for entry in found):
        met.update(covered.causes(url) if url else ())
    return [stone.value for stone in sorted(new) if stone.value not in met]
