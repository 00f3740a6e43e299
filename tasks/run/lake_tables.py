"""The tables of a lake: which rows of a version each of them has, and the files that they are read from.

    documents   the kept documents, masked, with language, score and tier: one row per document
    chunks      the chunks for fine-tuning, where the recipe makes them: one row per chunk
    scores      what the annotators measured, of every document that was extracted: one row per document, and a struct
                per annotator
    funnel      documents by source, language, step and reason: some rows per version, of all versions

Each has a column `version` in front, the version that wrote the row. A row is identified by `id`; a takedown finds it
by the id of its document and by `url`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tasks.core.artifact import Artifact, ArtifactFolder, ArtifactId
from tasks.core.config import sha256_of_json
from tasks.core.store import Store
from tasks.formats.dedup import dedup_index
from tasks.formats.dedup.dedup_index import DedupIndex
from tasks.formats.documents.groups import groups_of, path_of
from tasks.formats.lakes.table import Head

_SCORES, _FUNNEL = "scores", "funnel"

VERSION = "version"
"""Column with the version that wrote the row."""
HISTORY = frozenset({_FUNNEL})
"""Tables that keep the rows of every version, and have no URLs."""

_NAMES = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("url", pa.string(), nullable=False)])
_FOLDERS = {"documents": "kept/", "chunks": "chunks/", _SCORES: "documents/", _FUNNEL: ""}
"""Folder with the rows of a table in the first artifact that has them."""


@dataclass(frozen=True)
class RowReader:
    """Reads rows of a table from the files of a version. Picklable.

    Attributes:
        table: one of `tasks.run.place.TABLES`.
        version: label of the rows.
        folders: the artifacts with the files; of `scores` those of the groups follow `extracted`.
        groups: names of the groups.
    """

    table: str
    version: str
    folders: tuple[ArtifactFolder, ...]
    groups: tuple[str, ...] = ()

    def read(self, part: str) -> pa.Table:
        """Returns the rows of one part, with the column `version`."""
        first, *groups = self.folders
        columns = ["id", "url", "source"] if self.table == _SCORES else None
        rows = first.table(f"{_FOLDERS[self.table]}{part}.parquet", columns).replace_schema_metadata(None)
        for name, folder in zip(self.groups, groups, strict=True):
            rows = rows.append_column(name, folder.table(path_of(part), [name]).column(name))
        return rows.add_column(0, VERSION, pa.array([self.version] * rows.num_rows, pa.string()))

    def ids(self, part: str) -> pa.ChunkedArray:
        """Returns the ids of the rows of one part."""
        return self.folders[0].table(f"{_FOLDERS[self.table]}{part}.parquet", ["id"]).column("id")


@dataclass(frozen=True)
class VersionRows:
    """The rows of a table in one version.

    Attributes:
        reader: reads them.
        parts: names of the parts, with a hash of the files that each is read from.
        head: what the table states once it has the version.
        about: properties of the commit.
    """

    reader: RowReader
    parts: dict[str, str]
    head: Head
    about: dict[str, str]


def document_column(table: str) -> str:
    """Returns the column with the id of the document of a row."""
    return "document" if table == "chunks" else "id"


def version_rows(store: Store, recipe: str, table: str, version: str) -> VersionRows | None:
    """Returns the rows of a table in a version; None if the artifact that has them was not made (yet).

    Raises:
        InputError: the version has no documents, or a group of its attributes is gone.
    """
    documents = Artifact.open_at(store, ArtifactId(f"{recipe}/documents", version))
    artifacts, groups = [documents], tuple[str, ...]()
    if table == "chunks":
        chunks = Artifact.find(store, ArtifactId(f"{recipe}/chunks", version))
        if chunks is None:
            return None
        artifacts = [chunks]
    elif table == _SCORES:
        made_from = {ref.role: ArtifactId.parse(ref.address) for ref in documents.record.inputs if "@" in ref.address}
        by_name = groups_of(Artifact.open_at(store, made_from["attributes"]))
        artifacts, groups = [Artifact.open_at(store, made_from["extracted"]), *by_name.values()], tuple(by_name)
    parts = _parts(table, artifacts)
    record = artifacts[0].record
    number = int(documents.record.finished.timestamp() * 1e6)
    content = int(sha256_of_json([table, sorted(parts.items())])[:15], 16)
    about = {
        "sluice.recipe": recipe,
        "sluice.version": version,
        "sluice.fingerprint": record.fingerprint,
        "sluice.content": record.content,
    }
    reader = RowReader(table, version, tuple(one.folder for one in artifacts), groups)
    return VersionRows(reader, parts, Head(number, content), about)


def _parts(table: str, artifacts: Sequence[Artifact]) -> dict[str, str]:
    """Returns the names of the parts with a hash of the files that they are read from."""
    if table == _FUNNEL:
        return {_FUNNEL: artifacts[0].total(f"{_FUNNEL}.parquet").digest}
    folder = _FOLDERS[table]
    hashes = [{entry.path: entry.sha256 for entry in one.entries()} for one in artifacts]
    names = artifacts[0].names(folder)
    own, *groups = hashes
    return {
        name: sha256_of_json([own[f"{folder}{name}.parquet"], *(group[path_of(name)] for group in groups)])
        for name in names
    }


def versions_in(store: Store, recipe: str, version: str) -> list[str]:
    """Returns the versions whose documents are the corpus as of a version, oldest first; the last one is itself.

    With a dedup index a version has only what is new; without one it is the whole corpus.

    Raises:
        InputError: the version has no documents, or what they were made from is gone.
    """
    documents = Artifact.open_at(store, ArtifactId(f"{recipe}/documents", version))
    made_from = {ref.role: ref.address for ref in documents.record.inputs}
    extracted = Artifact.open_at(store, ArtifactId.parse(made_from["extracted"]))
    for ref in extracted.record.inputs:
        if ref.role == dedup_index.ROLE:
            index = DedupIndex.open(Artifact.open_at(store, ArtifactId.parse(ref.address)))
            return [*index.manifest.cycles, version]
    return [version]


def documents_of(store: Store, recipe: str, version: str) -> pa.Table:
    """Returns `id` and `url` of the kept documents of a version."""
    documents = Artifact.open_at(store, ArtifactId(f"{recipe}/documents", version))
    tables = (documents.table(path, _NAMES.names) for path in documents.files(_FOLDERS["documents"]))
    return pa.concat_tables([_NAMES.empty_table(), *tables])


def replaced_ids(store: Store, recipe: str, version: str) -> pa.ChunkedArray:
    """Returns the ids of documents of earlier versions that a version replaces."""
    documents = Artifact.open_at(store, ArtifactId(f"{recipe}/documents", version))
    tables = [documents.table(path, ["id"]).column("id") for path in documents.files("replaced/")]
    return pa.chunked_array([chunk for column in tables for chunk in column.chunks], pa.string())
