"""Effects of a takedown, and their report: affected documents, artifacts and steps, and the remaining actions.

`affected_artifacts` reads the records of all artifacts of the recipe; the ids and URLs of documents, chunks and
examples; the index of shards; the sequences of plans; and the data order of checkpoints and fine-tuned models,
including the models from which they began. In other recipes it reads models that began from a model of this recipe, and
examples and fine-tuned models made from its chunks. Artifacts without affected documents are omitted.

All text of the request and of the web is escaped in the page (`tasks.core.pages`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import RECORD, Artifact
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger
from tasks.core.pages import template
from tasks.core.store import Store
from tasks.formats.documents import chunks as chunk_format
from tasks.formats.documents.tombstones import Lift, Tombstone, Tombstones, document_identity
from tasks.formats.tokens.exposure import (
    Exposure,
    Exposures,
    Row,
    checkpoint_exposure,
    document_row,
    example_rows,
    inherited_rows,
    origin_of,
    origin_ref,
    origin_step,
    plan_rows,
    run_exposure,
    shard_rows,
)
from tasks.formats.tokens.readings import EXAMPLES, TUNED
from tasks.stages.takedown import TakedownConfig
from tasks.stages.takedown.nearest import Unmatched

CHUNKS = chunk_format.KIND
DOCUMENTS, SHARDS, PLAN, CHECKPOINT = "documents", "shards", "plan", "checkpoint"
KINDS = (DOCUMENTS, SHARDS, CHUNKS, PLAN, CHECKPOINT, EXAMPLES, TUNED)
MODELS = (CHECKPOINT, TUNED)

AFFECTED_DOCUMENTS = pa.schema(
    [
        pa.field("artifact", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # one of KINDS
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("sequences", pa.list_(pa.int64()), nullable=False),  # of a plan, of examples, or of a run
        pa.field("steps", pa.list_(pa.int64()), nullable=False),  # steps of the model's own run that read it, ascending
        pa.field("checkpoints", pa.list_(pa.int64()), nullable=False),  # steps of the checkpoints after it was read
        pa.field("through", pa.string(), nullable=False),  # the checkpoint from which it was inherited, or ""
    ]
)
"""Schema of `found.parquet`: one row per artifact and document."""

MAX_ROWS = 1_000
"""Maximum numbers of documents, values and copies in the report; `found.parquet` has all documents."""

NEXT = {
    DOCUMENTS: "run crawl or corpus with a new version: they keep none of these",
    SHARDS: "stays as it is; plans that are made from now on leave these out",
    PLAN: "run tokens with a new version; a training that starts or runs from now on reads none of these",
    CHUNKS: "run tokens with a new version; examples that are made from now on leave these out",
    EXAMPLES: "run finetune with a new version; a fine-tuning that starts or runs from now on reads none of these",
    CHECKPOINT: "has read these; train with a new version for a model that has not",
    TUNED: "has read these; fine-tune with a new version, from a base that has not",
}
"""Remaining action for an artifact of each kind."""

INHERITED = "began from weights that have read these; train with a new version from weights that have not"
"""Remaining action for a model that began from an affected one."""


@dataclass(frozen=True)
class AffectedArtifact:
    """An artifact with documents that are taken down: rows of AFFECTED_DOCUMENTS without the artifact's columns.

    `problem` is the reason why the rows are unknown or incomplete, such as a missing input; "" if they are complete.
    """

    artifact: Artifact
    kind: str
    rows: list[Row] = field(default_factory=list)
    problem: str = ""

    def table(self) -> pa.Table:
        """Returns the rows with the artifact's columns (schema AFFECTED_DOCUMENTS)."""
        own = {"artifact": str(self.artifact.address), "kind": self.kind}
        return pa.Table.from_pylist([{**own, **row} for row in self.rows], schema=AFFECTED_DOCUMENTS)


def affected_artifacts(store: Store, recipe: str, tombstones: Tombstones) -> list[AffectedArtifact]:
    """Returns all artifacts of a recipe that contain or read documents that are taken down, by kind, oldest first.

    An artifact whose documents cannot be determined is returned with its problem; it does not prevent the takedown.
    """
    own = [artifact for kind in KINDS for artifact in _artifacts(store, recipe, kind)]
    exposures: Exposures = {}
    results = [of_artifact(artifact, tombstones, exposures) for artifact in own]
    candidates = Ledger(store, kinds=(*MODELS, EXAMPLES))
    others = (artifact for artifact in candidates if not _of(recipe, str(artifact.address)))
    results += [_of_other_recipe(artifact, recipe, tombstones, exposures) for artifact in others]
    return [result for result in results if result.rows or result.problem]


def _artifacts(store: Store, recipe: str, kind: str) -> list[Artifact]:
    name = f"{recipe}/{kind}"
    return [artifact for artifact in Ledger(store, name) if artifact.address.name == name]


def unfinished(store: Store, recipe: str) -> list[str]:
    """Returns the sorted ids of a recipe's trainings that have begun and not ended.

    They exclude the documents from their next checkpoint on; what they read before is known only when they have ended.
    """
    ids = []
    for name in (f"{recipe}/{kind}" for kind in MODELS):
        files = [path.removeprefix(f"{name}/").split("/") for path in store.list(name)]
        ended = {version for version, *rest in files if rest == [RECORD]}
        ids += [f"{name}@{version}" for version in {version for version, *_ in files} - ended]
    return sorted(ids)


def of_artifact(artifact: Artifact, tombstones: Tombstones, exposures: Exposures | None = None) -> AffectedArtifact:
    """Returns the documents of one artifact that are taken down; `exposures` is the cache of `checkpoint_exposure`."""
    kind = _kind(artifact)
    if kind in MODELS:
        exposure = checkpoint_exposure(artifact, tombstones, exposures)
        return AffectedArtifact(artifact, kind, _sorted(exposure.rows), exposure.problem)
    read = {DOCUMENTS: _documents, SHARDS: _shards, CHUNKS: _chunks, PLAN: plan_rows, EXAMPLES: example_rows}[kind]
    try:
        return AffectedArtifact(artifact, kind, _sorted(read(artifact, tombstones)))
    except (InputError, FileNotFoundError) as error:
        return AffectedArtifact(artifact, kind, problem=str(error))


def _of_other_recipe(artifact: Artifact, recipe: str, tombstones: Tombstones, exposures: Exposures) -> AffectedArtifact:
    """Returns the documents that examples or a model of another recipe have from chunks or weights of this one."""
    kind = _kind(artifact)
    if kind == EXAMPLES:
        reads_chunks = _reads(artifact, recipe, CHUNKS)
        return of_artifact(artifact, tombstones) if reads_chunks else AffectedArtifact(artifact, kind)
    by_id: dict[str, Row] = {}
    model, problem = artifact, ""
    while True:
        own = run_exposure(model, tombstones) if _tuned_with(model, recipe) else Exposure()
        _add(by_id, own.rows if model is artifact else inherited_rows(artifact, model, own))
        problem = problem or own.problem
        ref = origin_ref(model)
        if ref is None:
            break
        from_recipe = _of(recipe, ref.address)
        try:
            until, origin = origin_step(model), origin_of(model)
        except InputError as error:
            problem = problem or (str(error) if from_recipe else "")
            break
        assert origin is not None
        if from_recipe:
            exposure = checkpoint_exposure(origin, tombstones, exposures, until)
            _add(by_id, inherited_rows(artifact, origin, exposure))
            problem = problem or exposure.problem
            break
        model = origin
    return AffectedArtifact(artifact, kind, _sorted(by_id.values()), problem)


def _add(by_id: dict[str, Row], rows: Iterable[Row]) -> None:
    """Adds rows by id; a document read by several runs keeps the steps of the first row and the fields of the last."""
    for row in rows:
        own = by_id.get(row["id"], row)
        by_id[row["id"]] = {**row, "sequences": own["sequences"], "steps": own["steps"]}


def _tuned_with(model: Artifact, recipe: str) -> bool:
    """Returns whether a model was fine-tuned on chunks of a recipe; False if its examples are gone."""
    examples = (Artifact.find(model.store, address) for address in model.ids_of(EXAMPLES))
    return any(_reads(artifact, recipe, CHUNKS) for artifact in examples if artifact)


def _reads(artifact: Artifact, recipe: str, kind: str) -> bool:
    return any(ref.address.startswith(f"{recipe}/{kind}@") for ref in artifact.record.inputs)


def _kind(artifact: Artifact) -> str:
    return artifact.address.name.partition("/")[2]


def _of(recipe: str, address: str) -> bool:
    return address.startswith(f"{recipe}/")


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["url"], row["id"]))


def copies(documents: Iterable[AffectedArtifact], in_force: Tombstones) -> list[Row]:
    """Returns documents at other addresses that were dropped as copies of documents that are taken down.

    In the next version they are no longer copies: a takedown covers addresses, not texts.

    Returns:
        {artifact, id, url, duplicate_of}.
    """
    result = []
    for affected in (one for one in documents if one.rows):
        ids = pa.array([row["id"] for row in affected.rows], pa.string())
        for path in affected.artifact.files("rejected/"):
            where = pc.field("duplicate_of").isin(ids)
            rows = affected.artifact.table(path, ["id", "url", "duplicate_of"], where)
            elsewhere = rows.filter(pa.array(~in_force.mask(rows), pa.bool_()))
            result += [{"artifact": str(affected.artifact.address), **row} for row in elsewhere.to_pylist()]
    return result


def published_copies(store: Store, recipe: str, new: Tombstones, in_force: Tombstones) -> list[Row]:
    """Returns published documents at other addresses whose exact or near copies are taken down.

    The copies were dropped in favor of these documents, so the recipe still publishes the text.

    Args:
        store: the store.
        recipe: name of the recipe.
        new: takedowns whose documents are looked for among the copies.
        in_force: all takedowns; documents that they cover are left out.

    Returns:
        {artifact, id, url, copy: id of the document that is taken down}.
    """
    published = []
    # Versions whose files were removed publish nothing any more.
    for documents in (one for one in _artifacts(store, recipe, DOCUMENTS) if one.removal() is None):
        taken_down: dict[str, str] = {}
        for path in documents.files("rejected/"):
            rows = documents.table(path, ["id", "url", "duplicate_of"], pc.field("duplicate_of").is_valid())
            rows = rows.filter(pa.array(new.mask(rows), pa.bool_()))
            taken_down.update(zip(rows["duplicate_of"].to_pylist(), rows["id"].to_pylist(), strict=True))
        for path in documents.files("kept/") if taken_down else ():
            rows = documents.table(path, ["id", "url"], pc.field("id").isin(pa.array(list(taken_down), pa.string())))
            rows = rows.filter(pa.array(~in_force.mask(rows), pa.bool_()))
            published += [
                {"artifact": str(documents.address), **row, "copy": taken_down[row["id"]]} for row in rows.to_pylist()
            ]
    return published


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
        affected = rows.filter(pa.array(tombstones.mask(rows), pa.bool_())).to_pylist()
        yield from {row["id"]: document_row(row["id"], row["url"], row["source"]) for row in affected}.values()


def report_of(
    config: TakedownConfig,
    address: str,
    requested: Sequence[Tombstone],
    new: Sequence[Tombstone],
    in_force: Sequence[Tombstone],
    affected: Sequence[AffectedArtifact],
    lifted: Sequence[Lift] = (),
    unfinished: Sequence[str] = (),
    published: Sequence[Row] = (),
    unmatched: Sequence[Unmatched] = (),
) -> dict[str, Any]:
    """Returns the content of `report.json`.

    Args:
        config: the request.
        address: id of the takedown.
        requested: tombstones of the request.
        new: those of them that were not in force before.
        in_force: all tombstones after the request.
        affected: artifacts with documents that the new tombstones cover.
        lifted: tombstones that the request lifts.
        unfinished: ids of trainings that have not ended.
        published: see `published_copies`.
        unmatched: requested values that match no record.

    Returns:
        {takedown, date, reason, requested_by, summary, new: [{kind, value, reason, origin}], lifted: [{kind, value,
        takedown}], known: number of values that were in force before, in_force, documents: number of documents,
        artifacts: [`ArtifactReport`], unfinished, found: [{id, url, source, artifacts}], copies: [{artifact, id, url,
        duplicate_of}], published_copies: [{artifact, id, url, copy}], not_found: [values], unmatched: [{kind, value,
        nearest}]}. `not_found` are the new values without a document; those of `unmatched` have no record at all.
    """
    artifacts = [artifact_report(entry) for entry in affected]
    dropped = copies((entry for entry in affected if entry.kind == DOCUMENTS), Tombstones.of(in_force))
    documents, matched = _by_id(affected), matched_values(new, affected)
    return {
        "takedown": address,
        "date": config.date,
        "reason": config.reason,
        "requested_by": config.requested_by,
        "summary": _summary(new, len(in_force), len(documents), artifacts)
        + (f"; no record of the recipe matches {len(unmatched):,} of the values" if unmatched else "")
        + (f"; {len({row['id'] for row in published}):,} published at other addresses" if published else "")
        + (f"; {len(lifted):,} lifted" if lifted else ""),
        "new": [
            {name: getattr(stone, name) for name in ("kind", "value", "reason", "origin")} for stone in sorted(new)
        ],
        "lifted": [{name: getattr(lift, name) for name in ("kind", "value", "takedown")} for lift in lifted],
        "known": len(requested) - len(new),
        "in_force": len(in_force),
        "documents": len(documents),
        "artifacts": artifacts,
        "unfinished": list(unfinished) if new else [],
        "found": sorted(documents.values(), key=lambda entry: (entry["url"], entry["id"]))[:MAX_ROWS],
        "copies": dropped[:MAX_ROWS],
        "published_copies": list(published)[:MAX_ROWS],
        "not_found": [stone.value for stone in sorted(new) if stone.value not in matched][:MAX_ROWS],
        "unmatched": [entry._asdict() for entry in unmatched[:MAX_ROWS]],
    }


def _by_id(affected: Sequence[AffectedArtifact]) -> dict[str, dict[str, Any]]:
    """Returns {id, url, source, artifacts} of every affected document, by id."""
    documents: dict[str, dict[str, Any]] = {}
    for effect in affected:
        for row in effect.rows:
            entry = documents.setdefault(
                row["id"], {name: row[name] for name in ("id", "url", "source")} | {"artifacts": []}
            )
            entry["artifacts"].append(str(effect.artifact.address))
    return documents


def page(report: dict[str, Any]) -> bytes:
    """Returns the report as an HTML page."""
    html: str = template(__package__, "report.html").render(report=report, shown=MAX_ROWS)
    return html.encode()


class ArtifactReport(TypedDict):
    """An affected artifact in a report.

    Plans and examples have `sequences`. Models have `steps` (a number) and `checkpoints`; those whose own run read the
    documents have `first_step` and `last_step`, and those that began from the weights of models that read them have
    `through`, the ids of these models.
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


def artifact_report(affected: AffectedArtifact) -> ArtifactReport:
    """Returns an affected artifact as an entry of a report."""
    record = affected.artifact.record
    entry: ArtifactReport = {
        "artifact": str(affected.artifact.address),
        "kind": affected.kind,
        "finished": record.finished.isoformat(timespec="seconds"),
        "documents": len(affected.rows),
        "next": NEXT[affected.kind],
        "problem": affected.problem,
    }
    if not affected.rows:
        return entry
    if affected.kind in (PLAN, EXAMPLES):
        entry["sequences"] = len({(row["source"], seq) for row in affected.rows for seq in row["sequences"]})
    if affected.kind in MODELS:
        steps = sorted({step for row in affected.rows for step in row["steps"]})
        seen_by = sorted({count for row in affected.rows for count in row["checkpoints"]})
        entry["steps"], entry["checkpoints"] = len(steps), seen_by
        if steps:
            entry["first_step"], entry["last_step"] = steps[0], steps[-1]
        if through := sorted({row["through"] for row in affected.rows} - {""}):
            entry["through"], entry["next"] = through, INHERITED
    return entry


def _summary(new: Sequence[Tombstone], in_force: int, documents: int, artifacts: Sequence[ArtifactReport]) -> str:
    counts = {kind: sum(artifact["kind"] == kind for artifact in artifacts) for kind in KINDS}
    kinds = [f"{count} {kind}" for kind, count in counts.items() if count]
    effects = (
        f"{documents:,} documents met, in artifacts: {', '.join(kinds)}" if artifacts else "no artifact has any of it"
    )
    return f"{len(new):,} new of {in_force:,} tombstones in force; {effects}"


def matched_values(stones: Sequence[Tombstone], affected: Sequence[AffectedArtifact]) -> set[str]:
    """Returns the values of tombstones that match an affected document."""
    covered, documents = Tombstones.of(stones), _by_id(affected)
    matched = {*documents}
    for url in (document_identity(entry["url"]) for entry in documents.values()):
        matched.update(covered.causes(url) if url else ())
    return matched
