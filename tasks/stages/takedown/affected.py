"""Effects of a takedown: the artifacts of a recipe with documents that it covers, and the steps that read them.

Reads the records of all artifacts of the recipe; of documents, chunks and examples their ids and URLs, of the shards
the index, of the plans the sequences of these documents, of checkpoints and fine-tuned models the order of their runs,
and of those before them. Of other recipes, the models that began from one of this recipe, and the examples and
fine-tuned models that were made from its chunks. An artifact without any is left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger
from tasks.core.store import Store
from tasks.formats.documents import chunks as chunk_format
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.exposure import (
    Exposure,
    Row,
    before,
    in_examples,
    in_plan,
    in_shards,
    of_checkpoint,
    of_own_run,
    row_of,
)
from tasks.formats.tokens.origin import origin_of, origin_ref
from tasks.formats.tokens.readings import EXAMPLES, TUNED

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
    """Returns what one artifact of KINDS has of documents that are taken down; `known` as in `of_checkpoint`."""
    kind = _kind(artifact)
    if kind in MODELS:
        exposure = of_checkpoint(artifact, tombstones, known)
        return Affected(artifact, kind, _sorted(exposure.rows), exposure.problem)
    read = {DOCUMENTS: _documents, SHARDS: _shards, CHUNKS: _chunks, PLAN: in_plan, EXAMPLES: in_examples}[kind]
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
        own = of_own_run(at, tombstones) if _tuned_with(at, recipe) else Exposure()
        _add(found, own.rows if at is one else before(one, at, own))
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
            exposure = of_checkpoint(origin, tombstones, known)
            _add(found, before(one, origin, exposure))
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
            yield row_of(row["id"], row["url"], row["source"])


def _shards(shards: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    return (row for row, *_ in in_shards(shards, tombstones))


def _chunks(chunks: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    for path in chunks.files(f"{CHUNKS}/"):
        rows = chunks.table(path, columns=["document", "url", "source"]).rename_columns(["id", "url", "source"])
        found = rows.filter(pa.array(tombstones.mask(rows), pa.bool_())).to_pylist()
        yield from {row["id"]: row_of(row["id"], row["url"], row["source"]) for row in found}.values()
