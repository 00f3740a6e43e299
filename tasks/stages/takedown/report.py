"""Effects of a takedown, and the report of them: what it met in which artifacts and steps, and what is left to do.

`affected` reads the records of all artifacts of the recipe; of documents, chunks and examples their ids and URLs, of
the shards the index, of the plans the sequences of these documents, of checkpoints and fine-tuned models the order of
their runs, and of those before them. Of other recipes, the models that began from one of this recipe, and the examples
and fine-tuned models that were made from its chunks. An artifact without any is left out.

All text of the request and of the web is escaped in the page (`tasks.core.pages`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger
from tasks.core.pages import template
from tasks.core.store import Store
from tasks.formats.documents import chunks as chunk_format
from tasks.formats.documents.tombstones import Lift, Tombstone, Tombstones
from tasks.formats.tokens.exposure import (
    Exposure,
    Row,
    checkpoint_exposure,
    document_row,
    example_rows,
    inherited_rows,
    origin_of,
    origin_ref,
    plan_rows,
    run_exposure,
    shard_rows,
)
from tasks.formats.tokens.readings import EXAMPLES, TUNED
from tasks.formats.web.canonical_url import canonical
from tasks.stages.takedown import TakedownConfig

CHUNKS = chunk_format.KIND
DOCUMENTS, SHARDS, PLAN, CHECKPOINT = "documents", "shards", "plan", "checkpoint"
KINDS = (DOCUMENTS, SHARDS, CHUNKS, PLAN, CHECKPOINT, EXAMPLES, TUNED)
MODELS = (CHECKPOINT, TUNED)

FOUND = pa.schema(
    [
        pa.field("artifact", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # one of KINDS
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("sequences", pa.list_(pa.int64()), nullable=False),  # of a plan or examples, or of a run
        pa.field("steps", pa.list_(pa.int64()), nullable=False),  # of its own run that read it, ascending
        pa.field("checkpoints", pa.list_(pa.int64()), nullable=False),  # steps of the saved states that saw it
        pa.field("through", pa.string(), nullable=False),  # the checkpoint whose weights brought it along, or ""
    ]
)
"""One row per artifact and document."""

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


@dataclass(frozen=True)
class Affected:
    """An artifact with documents that are taken down: rows of FOUND without the artifact's own columns.

    `problem` is why it, or all of it, cannot be known, such as that what it was made from is gone; "" where it is.
    """

    artifact: Artifact
    kind: str
    rows: list[Row] = field(default_factory=list)
    problem: str = ""

    def table(self) -> pa.Table:
        """Returns the rows of FOUND."""
        own = {"artifact": str(self.artifact.address), "kind": self.kind}
        return pa.Table.from_pylist([{**own, **row} for row in self.rows], schema=FOUND)


def affected(store: Store, recipe: str, tombstones: Tombstones) -> list[Affected]:
    """Returns all artifacts of a recipe that contain or read documents that are taken down, by kind, oldest first.

    One of which that cannot be known is returned with its problem: it must not keep a takedown from its effect.
    """
    made = [
        one for kind in KINDS for one in Ledger(store, f"{recipe}/{kind}") if one.address.name == f"{recipe}/{kind}"
    ]
    known: dict[ArtifactId, Exposure] = {}
    found = [of_artifact(one, tombstones, known) for one in made]
    elsewhere = (one for one in Ledger(store, kinds=(*MODELS, EXAMPLES)) if not _of(recipe, str(one.address)))
    found += [_elsewhere(one, recipe, tombstones, known) for one in elsewhere]
    return [one for one in found if one.rows or one.problem]


def unfinished(store: Store, recipe: str) -> list[str]:
    """Returns the ids of a recipe's trainings that have begun and not ended, sorted.

    Their milestones may have seen anything until they leave it out; what they have read is known when they have ended.
    """
    found = []
    for name in (f"{recipe}/{kind}" for kind in MODELS):
        files = [path.removeprefix(f"{name}/").split("/") for path in store.list(name)]
        ended = {version for version, *rest in files if rest == [RECORD]}
        found += [f"{name}@{version}" for version in {version for version, *_ in files} - ended]
    return sorted(found)


def of_artifact(
    artifact: Artifact, tombstones: Tombstones, known: dict[ArtifactId, Exposure] | None = None
) -> Affected:
    """Returns what one artifact of KINDS has of documents that are taken down; `known` is the `cache` of `checkpoint_exposure`."""
    kind = _kind(artifact)
    if kind in MODELS:
        exposure = checkpoint_exposure(artifact, tombstones, known)
        return Affected(artifact, kind, _sorted(exposure.rows), exposure.problem)
    read = {DOCUMENTS: _documents, SHARDS: _shards, CHUNKS: _chunks, PLAN: plan_rows, EXAMPLES: example_rows}[kind]
    try:
        return Affected(artifact, kind, _sorted(read(artifact, tombstones)))
    except (InputError, FileNotFoundError) as error:
        return Affected(artifact, kind, problem=str(error))


def _elsewhere(one: Artifact, recipe: str, tombstones: Tombstones, known: dict[ArtifactId, Exposure]) -> Affected:
    """Returns what examples or a model of another recipe have from chunks or weights of this one."""
    kind = _kind(one)
    if kind == EXAMPLES:
        return of_artifact(one, tombstones) if _read_by(one, recipe, CHUNKS) else Affected(one, kind)
    found: dict[str, Row] = {}
    at, problem = one, ""
    while True:
        own = run_exposure(at, tombstones) if _tuned_with(at, recipe) else Exposure()
        _add(found, own.rows if at is one else inherited_rows(one, at, own))
        problem = problem or own.problem
        ref = origin_ref(at)
        if ref is None:
            break
        ours = _of(recipe, ref.address)
        try:
            origin = origin_of(at)
        except InputError as error:
            problem = problem or (str(error) if ours else "")
            break
        assert origin is not None
        if ours:
            exposure = checkpoint_exposure(origin, tombstones, known)
            _add(found, inherited_rows(one, origin, exposure))
            problem = problem or exposure.problem
            break
        at = origin
    return Affected(one, kind, _sorted(found.values()), problem)


def _add(found: dict[str, Row], rows: Iterable[Row]) -> None:
    """Adds rows by id; of a document that a model has read twice, its own steps, and the earlier model."""
    for row in rows:
        own = found.get(row["id"], row)
        found[row["id"]] = {**row, "sequences": own["sequences"], "steps": own["steps"]}


def _tuned_with(model: Artifact, recipe: str) -> bool:
    """Returns whether a model was fine-tuned with chunks of a recipe; not where its examples are gone."""
    refs = (ref for ref in model.record.inputs if ref.role == EXAMPLES)
    examples = (Artifact.find(model.store, ArtifactId.parse(ref.address)) for ref in refs)
    return any(_read_by(one, recipe, CHUNKS) for one in examples if one)


def _read_by(artifact: Artifact, recipe: str, kind: str) -> bool:
    return any(ref.address.startswith(f"{recipe}/{kind}@") for ref in artifact.record.inputs)


def _kind(artifact: Artifact) -> str:
    return artifact.address.name.partition("/")[2]


def _of(recipe: str, address: str) -> bool:
    return address.startswith(f"{recipe}/")


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["url"], row["id"]))


def copies(documents: Iterable[Affected], tombstones: Tombstones) -> list[Row]:
    """Returns the documents at other addresses that were dropped as copies of one that is taken down.

    The next version of the documents judges them on their own: a takedown covers addresses, not texts.

    Returns:
        {artifact, id, url, duplicate_of}.
    """
    found = []
    for one in documents:
        ids = pa.array([row["id"] for row in one.rows], pa.string())
        for path in one.artifact.files("rejected/"):
            where = pc.field("duplicate_of").isin(ids)
            rows = one.artifact.table(path, ["id", "url", "duplicate_of"], where)
            elsewhere = rows.filter(pa.array(~tombstones.mask(rows), pa.bool_()))
            found += [{"artifact": str(one.artifact.address), **row} for row in elsewhere.to_pylist()]
    return found


def _documents(documents: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    for path in documents.files("kept/"):
        rows = documents.table(path, columns=["id", "url", "source"])
        for row in rows.filter(pa.array(tombstones.mask(rows))).to_pylist():
            yield document_row(row["id"], row["url"], row["source"])


def _shards(shards: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    return (row for row, *_ in shard_rows(shards, tombstones))


def _chunks(chunks: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    for path in chunks.files(f"{CHUNKS}/"):
        rows = chunks.table(path, columns=["document", "url", "source"]).rename_columns(["id", "url", "source"])
        found = rows.filter(pa.array(tombstones.mask(rows), pa.bool_())).to_pylist()
        yield from {row["id"]: document_row(row["id"], row["url"], row["source"]) for row in found}.values()


def report_of(
    config: TakedownConfig,
    address: str,
    asked: Sequence[Tombstone],
    new: Sequence[Tombstone],
    in_force: int,
    met: Sequence[Affected],
    lifted: Sequence[Lift] = (),
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
        artifacts: [`ArtifactReport`], unfinished, found: [{id, url, source, artifacts}], copies: [{artifact, id, url,
        duplicate_of}], not_found: [values]}.
    """
    covered = Tombstones.of(new)
    artifacts = [artifact_report(one) for one in met]
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


class ArtifactReport(TypedDict):
    """An affected artifact in a report.

    Plans and examples have `sequences`. Models have `steps` (a number) and `checkpoints`; those that read the documents
    in their own run have `first_step` and `last_step`, and those that began from the weights of a model that read them
    have `through`, the ids of these models.
    """

    artifact: str
    kind: str
    finished: str
    documents: int
    next: str
    problem: str
    sequences: NotRequired[int]
    steps: NotRequired[int]
    checkpoints: NotRequired[list[int]]
    first_step: NotRequired[int]
    last_step: NotRequired[int]
    through: NotRequired[list[str]]


def artifact_report(one: Affected) -> ArtifactReport:
    """Returns an affected artifact as an entry of a report."""
    record = one.artifact.record
    entry: ArtifactReport = {
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
        entry["steps"], entry["checkpoints"] = len(steps), seen_by
        if steps:
            entry["first_step"], entry["last_step"] = steps[0], steps[-1]
        if through := sorted({row["through"] for row in one.rows} - {""}):
            entry["through"], entry["next"] = through, BEGAN
    return entry


def _summary(new: Sequence[Tombstone], in_force: int, documents: int, artifacts: Sequence[ArtifactReport]) -> str:
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
