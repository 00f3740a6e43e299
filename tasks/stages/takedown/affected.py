"""Effects of a takedown: the artifacts of a recipe with documents that it covers, and the steps that read them.

Reads the records of all artifacts of the recipe; of the documents their ids and URLs, of the shards the index, of the
plans the sequences of these documents, of the checkpoints the order of their runs, and of those before them. Of other
recipes, the checkpoints that began from one of this recipe. An artifact without any is left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger
from tasks.core.store import Store
from tasks.formats.tokens.exposure import Exposure, Row, before, in_plan, in_shards, of_checkpoint, row_of
from tasks.formats.tokens.origin import origin_of, origin_ref
from tasks.formats.tombstones import Tombstones

DOCUMENTS, SHARDS, PLAN, CHECKPOINT = KINDS = ("documents", "shards", "plan", "checkpoint")

FOUND = pa.schema(
    [
        pa.field("artifact", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # one of KINDS
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("sequences", pa.list_(pa.int64()), nullable=False),  # of a plan or a checkpoint
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
    others = [one for one in Ledger(store, kind=CHECKPOINT) if not _of(recipe, str(one.address))]
    found += [_elsewhere(one, recipe, tombstones, known) for one in others]
    return [one for one in found if one.rows or one.problem]


def unfinished(store: Store, recipe: str) -> list[str]:
    """Returns the ids of a recipe's trainings that have begun and not ended, sorted.

    Their milestones may have seen anything until they leave it out; what they have read is known when they have ended.
    """
    name = f"{recipe}/{CHECKPOINT}"
    files = [path.removeprefix(f"{name}/").split("/") for path in store.list(name)]
    ended = {version for version, *rest in files if rest == [RECORD]}
    return sorted(f"{name}@{version}" for version in {version for version, *_ in files} - ended)


def of_artifact(
    artifact: Artifact, tombstones: Tombstones, known: dict[ArtifactId, Exposure] | None = None
) -> Affected:
    """Returns what one artifact of KINDS has of documents that are taken down; `known` as in `of_checkpoint`."""
    kind = artifact.address.name.rpartition("/")[2]
    if kind == CHECKPOINT:
        exposure = of_checkpoint(artifact, tombstones, known)
        return Affected(artifact, kind, _sorted(exposure.rows), exposure.problem)
    read = {DOCUMENTS: _documents, SHARDS: _shards, PLAN: in_plan}[kind]
    try:
        return Affected(artifact, kind, _sorted(read(artifact, tombstones)))
    except (InputError, FileNotFoundError) as error:
        return Affected(artifact, kind, problem=str(error))


def _elsewhere(
    checkpoint: Artifact, recipe: str, tombstones: Tombstones, known: dict[ArtifactId, Exposure]
) -> Affected:
    """Returns what the checkpoint of another recipe has from weights of this one; its own run is not looked at."""
    at: Artifact | None = checkpoint
    while at and (ref := origin_ref(at)):
        ours = _of(recipe, ref.address)
        try:
            at = origin_of(at)
        except InputError as error:
            return Affected(checkpoint, CHECKPOINT, problem=str(error) if ours else "")
        if at and ours:
            exposure = of_checkpoint(at, tombstones, known)
            return Affected(checkpoint, CHECKPOINT, _sorted(before(checkpoint, at, exposure)), exposure.problem)
    return Affected(checkpoint, CHECKPOINT)


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
