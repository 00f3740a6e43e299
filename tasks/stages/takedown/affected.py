"""Effects of a takedown: the artifacts of a recipe with documents that it covers, and the steps that read them.

Reads the records of all artifacts of the recipe; of the documents their ids and URLs, of the shards the index, of the
plans the sequences of these documents, of the checkpoints the order of their runs. An artifact without any is left out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import RECORD, Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import Ledger
from tasks.core.store import Store
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.readings import Reading, Readings
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.tokens.withheld import covered_entries
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
        pa.field("steps", pa.list_(pa.int64()), nullable=False),  # of a run that read it, ascending
        pa.field("checkpoints", pa.list_(pa.int64()), nullable=False),  # steps of the saved states that saw it
    ]
)
"""One row per artifact and document."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Affected:
    """An artifact with documents that are taken down: rows of FOUND without the artifact's own columns.

    `problem` is why it cannot be known, such as that what it was made from is gone; "" where it is.
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
    found = (of_artifact(one, tombstones) for one in made)
    return [one for one in found if one.rows or one.problem]


def unfinished(store: Store, recipe: str) -> list[str]:
    """Returns the ids of a recipe's trainings that have begun and not ended, sorted.

    Their milestones may have seen anything until they leave it out; what they have read is known when they have ended.
    """
    name = f"{recipe}/{CHECKPOINT}"
    files = [path.removeprefix(f"{name}/").split("/") for path in store.list(name)]
    ended = {version for version, *rest in files if rest == [RECORD]}
    return sorted(f"{name}@{version}" for version in {version for version, *_ in files} - ended)


def of_artifact(artifact: Artifact, tombstones: Tombstones) -> Affected:
    """Returns what one artifact of KINDS has of documents that are taken down."""
    kind = artifact.address.name.rpartition("/")[2]
    read = {DOCUMENTS: _documents, SHARDS: _shards, PLAN: _plan, CHECKPOINT: _checkpoint}[kind]
    try:
        return Affected(artifact, kind, sorted(read(artifact, tombstones), key=lambda row: (row["url"], row["id"])))
    except (InputError, FileNotFoundError) as error:
        return Affected(artifact, kind, problem=str(error))


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


def _row(uid: str, url: str, source: str, **more: list[int]) -> Row:
    return {"id": uid, "url": url, "source": source, "sequences": [], "steps": [], "checkpoints": [], **more}


def _documents(documents: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    for path in documents.files("kept/"):
        rows = documents.table(path, columns=["id", "url", "source"])
        for row in rows.filter(pa.array(tombstones.mask(rows))).to_pylist():
            yield _row(row["id"], row["url"], row["source"])


def _entries(shards: Artifact, tombstones: Tombstones) -> Iterator[tuple[Row, str, int, str]]:
    """Yields (row, shard, row in the shard, split) of the documents of an encoding."""
    entries = covered_entries(shards, tombstones)
    for entry in entries.to_pylist():
        source, split = parse_shard_name(entry["shard"])
        yield _row(entry["doc_uid"].hex(), entry["url"], source), entry["shard"], entry["row"], split


def _shards(shards: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    return (row for row, *_ in _entries(shards, tombstones))


def _plan(plan: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    return (row for row, _ in _packed(plan, None, tombstones))


def _packed(plan: Artifact, checkpoint: Artifact | None, tombstones: Tombstones) -> Iterator[tuple[Row, Reading]]:
    """Yields the documents of a plan with their sequences, and who read them."""
    shards = _input(plan, SHARDS)
    readings = Readings(DocumentIndex(shards), Plan.open(plan), checkpoint)
    for row, shard, place, _ in _entries(shards, tombstones):
        reading = readings.of(shard, place)
        if reading.sequences:
            yield {**row, "sequences": reading.sequences}, reading


def _checkpoint(checkpoint: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    for row, reading in _packed(_input(checkpoint, PLAN), checkpoint, tombstones):
        if reading.learned:
            yield {**row, "steps": reading.learned, "checkpoints": reading.checkpoints}


def _input(artifact: Artifact, role: str) -> Artifact:
    """Opens the artifact that another was made from; raises InputError where it is gone."""
    (address,) = (ref.address for ref in artifact.record.inputs if ref.role == role)
    return Artifact.open_at(artifact.store, ArtifactId.parse(address))
