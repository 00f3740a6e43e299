"""Consecutive versions of synthetic documents, made by the stages. Not a test module."""

from pathlib import Path
from typing import Any

import numpy as np

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.stage import Output, Report, part_names
from tasks.core.store import Store
from tasks.formats.dedup.dedup_index import DedupIndex
from tasks.formats.dedup.document_ids import unpack
from tasks.formats.documents.document import DOCUMENT as SCHEMA
from tasks.formats.documents.tombstones import DOCUMENT, FILE, Tombstone, Tombstones
from tasks.formats.documents.tombstones import write as write_tombstones
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.dedup import DedupConfig
from tasks.stages.dedup_index import DedupIndexConfig
from tasks.stages.extract.returned import returned_parts
from tests.conftest import engine_of, run_stage_in
from tests.tasks.stages.dedup.made import REJECTED, Settings, rows_of, table, write_groups

DEDUP, CONSOLIDATE, INDEX = (f"tasks.stages.{name}.stage" for name in ("dedup", "consolidate", "dedup_index"))
FILTERS = ConsolidateConfig(filters=("gopher_quality",))
Rows = list[dict[str, Any]]


class Cycles:
    """Runs extract (for returning documents), dedup, consolidate and dedup_index for consecutive versions."""

    def __init__(self, folder: Path, config: DedupConfig | None = None, **index: Any) -> None:
        self.folder = folder
        self.config = config or DedupConfig(pairs_per_part=25, records_per_bucket=300)
        self.index_config = DedupIndexConfig(enabled=True, **index)
        self.indexes: list[Artifact] = []
        self.made: list[dict[str, Artifact]] = []
        self.held: dict[str, dict[str, Any]] = {}
        self.takedowns: list[Artifact] = []
        self.requests = 0

    def run(self, rows: Rows, parts: int = 2, workers: int = 0) -> dict[str, Artifact]:
        """Makes one version; `extracted` has the given documents and the returning ones."""
        version = f"c{len(self.indexes) + 1}"
        self.held |= {row["id"]: row for row in rows}
        before: dict[str, Any] = {"index": self.indexes[-1]} if self.indexes else {}
        taken: dict[str, Any] = {"takedowns": self.takedowns} if self.takedowns else {}
        extracted = self._extracted(rows, parts, version, workers)
        names = (path.partition("/")[2].removesuffix(".parquet") for path in extracted.files("documents/"))
        held = {name: [self.held[row["id"]] for row in rows_in(extracted, name)] for name in names}
        inputs = {"extracted": extracted, **write_groups(self.folder, held, version)}
        options: Any = {"version": version, "workers": workers}
        given = {**inputs, **before, **taken}
        duplicates = run_stage_in(self.folder, DEDUP, self.config, given, kind="duplicates", **options)
        judged = {**inputs, "duplicates": duplicates, **taken}
        documents = run_stage_in(self.folder, CONSOLIDATE, FILTERS, judged, kind="documents", **options)
        made = {"extracted": extracted, "duplicates": duplicates, "documents": documents}
        index = self.add_to_index(made, version, workers)
        self.indexes.append(index)
        self.made.append({**inputs, **made, "index": index})
        return self.made[-1]

    def add_to_index(self, made: dict[str, Artifact], version: str, workers: int = 0) -> Artifact:
        """Makes the index of a version after the newest one, with the active takedowns."""
        given: dict[str, Any] = {**made, **({"index": self.indexes[-1]} if self.indexes else {})}
        given |= {"takedowns": self.takedowns} if self.takedowns else {}
        options: Any = {"version": version, "workers": workers}
        return run_stage_in(self.folder, INDEX, self.index_config, given, kind="dedup_index", **options)

    def _extracted(self, rows: Rows, parts: int, version: str, workers: int) -> Artifact:
        store, address = Store(str(self.folder)), ArtifactId("test/extracted", version)
        if existing := Artifact.find(store, address):
            return existing
        output = Output(store, address, version)
        for index, name in enumerate(part_names(parts)):
            if name not in output.committed:
                with output.part(name, conserved=False) as part:
                    part.table("documents", table(sorted(rows[index::parts], key=lambda row: str(row["id"])), SCHEMA))
                    part.table("rejected", table([], REJECTED), out=False)
        index = DedupIndex.open(self.indexes[-1]) if self.indexes else DedupIndex()
        with engine_of(workers) as engine:
            back = returned_parts(index, self.tombstones(), part_names(parts), output, engine)
        extracted = commit(output, "extract", 1, Settings(tag=version), [], Report())
        for row in (row for record in back for row in rows_in(extracted, record.name)):
            assert row["text"] == self.held[row["id"]]["text"]
        return extracted

    def tombstones(self) -> Tombstones:
        return Tombstones.read([one.folder for one in self.takedowns])

    def take_down(self, *ids: str) -> None:
        """Adds takedowns, effective from the next version."""
        self.in_force([*((DOCUMENT, one) for one in self.tombstones().documents), *((DOCUMENT, one) for one in ids)])

    def in_force(self, stones: list[tuple[str, str]]) -> None:
        """Replaces the active takedowns by these (kind, value); others are lifted."""
        self.requests += 1
        made = [Tombstone(*one, "asked", "a@example.org", "2026-01-01", "form", "test@1") for one in stones]
        output = Output(Store(str(self.folder)), ArtifactId("test/takedown", f"t{self.requests}"), str(self.requests))
        with output.part("takedown", conserved=False) as part, part.file(FILE) as file:
            write_tombstones(file, made)
        self.takedowns = [commit(output, "takedown", 1, DedupConfig(), [], Report())] if stones else []

    def kept(self, number: int = -1) -> list[str]:
        """Returns the sorted ids of the kept documents of a version; one that is kept twice appears twice."""
        return sorted(row["id"] for row in rows_of(self.made[number]["documents"], "kept/"))

    def returned(self) -> list[str]:
        """Returns the sorted ids of the documents that came back in the newest version."""
        extracted = self.made[-1]["extracted"]
        paths = extracted.files("documents/returned-")
        return sorted(row["id"] for path in paths for row in extracted.table(path).to_pylist())

    def published(self) -> list[str]:
        """Returns the ids of the documents in the newest index, sorted."""
        index = DedupIndex.open(self.indexes[-1])
        found = [one for number in range(index.count) for one in index.names(number).column("id").to_pylist()]
        rows = [unpack(np.array(index.rows(number)["id"])).to_pylist() for number in range(index.count)]
        assert [one for several in rows for one in several] == found, "rows and names are of the same documents"
        return sorted(found)

    def copies(self) -> list[tuple[str, str | None]]:
        """Returns the copies in the newest index, (id, keeper), sorted."""
        index = DedupIndex.open(self.indexes[-1])
        rows = [row for number in range(index.count) for row in index.copies(number).to_pylist()]
        return sorted(((row["id"], row["duplicate_of"]) for row in rows), key=str)

    def rejected(self) -> dict[str, tuple[str, str | None]]:
        """Returns reason and keeper of the documents that the newest version does not keep, by id."""
        rows = rows_of(self.made[-1]["documents"], "rejected/")
        return {row["id"]: (row["reason"], row["duplicate_of"]) for row in rows}

    def replaced(self) -> dict[str, tuple[str, str]]:
        """Returns why the newest version replaces documents, and by which, by id."""
        rows = rows_of(self.made[-1]["documents"], "replaced/")
        return {row["id"]: (row["reason"], row["replaced_by"]) for row in rows}


def rows_in(extracted: Artifact, name: str) -> Rows:
    """Returns the documents of one part."""
    rows: Rows = extracted.table(f"documents/{name}.parquet").to_pylist()
    return rows
