"""Join of documents, attributes, duplicates, contamination and repeated paragraphs by position.

Reads these inputs of the stage and the groups of the attributes (`documents.groups`). Every read checks that the ids
match, because with another row order documents would get the verdicts of others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactFolder, ArtifactId
from tasks.core.errors import InputError
from tasks.core.part import POISON
from tasks.core.store import Store
from tasks.formats.documents.document import (
    CONTAMINATED,
    CONTAMINATION,
    PARAGRAPHS,
    REPEATED,
    check_ids_digest,
    check_same_ids,
    contamination_column,
    ids_digest,
    repeats_column,
)
from tasks.formats.documents.groups import KIND, groups_of, path_of
from tasks.formats.documents.tombstones import Tombstones

PAGED = "paged"
"""Column of `AlignedParts.part`: whether a document is from a paged file (PDF), in a folder or captured by a crawl."""


class AnnotatorGroup(NamedTuple):
    """The group of one annotator, and whether the annotator failed on any document."""

    files: ArtifactFolder
    failed: bool


class NumberedPart(NamedTuple):
    """A part with its number in row ids (`tasks.formats.dedup.document_ids`), and whether it is of the dedup index."""

    number: int
    name: str
    earlier: bool


@dataclass(frozen=True)
class AlignedParts:
    """Access to the inputs by part and to this stage's files. Picklable; the size does not depend on the parts."""

    extracted: ArtifactFolder
    duplicates: ArtifactFolder
    groups: Mapping[str, AnnotatorGroup]
    store: Store
    folder: str
    takedowns: tuple[ArtifactFolder, ...] = ()
    contamination: ArtifactFolder | None = None
    paragraphs: ArtifactFolder | None = None
    has_layouts: bool = False
    """Whether any part has paged files."""

    def part(
        self, name: str, documents: list[str] | None, judged: Sequence[str], copies: list[str] | None
    ) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Reads one part of the inputs.

        Args:
            name: the part.
            documents: columns of the documents to read, including "id"; None for all.
            judged: annotators whose columns to read.
            copies: columns of the duplicates to read, including "id"; None for all.

        Returns:
            documents, attributes and duplicates. Attributes have `id`, `error` (of the first annotator that failed on
            the document; null for none), `paged`, and a column for each annotator of `judged`, null if any annotator
            failed. If the stage has these inputs, they also have `contaminated` and `repeated_paragraphs`
            (`tasks.formats.documents.document`).

        Raises:
            InputError: ids or their order differ.
        """
        document_rows = self.extracted.table(f"documents/{name}.parquet", columns=documents)
        attributes = self._attributes(name, document_rows, judged)
        attributes = attributes.append_column(PAGED, self.is_paged(name, document_rows.column("id")))
        if self.contamination:
            attributes = attributes.append_column(
                CONTAMINATED, contamination_column(self.contamination, name, document_rows.column("id"))
            )
        if self.paragraphs:
            attributes = attributes.append_column(
                REPEATED, repeats_column(self.paragraphs, name, document_rows.column("id"))
            )
        duplicates = self.duplicates.table(f"duplicates/{name}.parquet", columns=copies)
        check_same_ids(document_rows, duplicates, f"{self.extracted.address} and {self.duplicates.address}, {name}")
        return document_rows, attributes, duplicates

    def _attributes(self, name: str, documents: pa.Table, judged: Sequence[str]) -> pa.Table:
        """Reads the attributes; see `part`. For annotators other than `judged`, only errors are read."""
        errors = pa.chunked_array([pa.nulls(documents.num_rows, pa.string())])
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        mark = ids_digest(documents.column("id"))
        for annotator, group in self.groups.items():
            files, failed = group
            names = [*(["error"] if failed else []), *([annotator] if annotator in judged else [])]
            if names:
                table = files.table(path_of(name), columns=names)
                check_ids_digest(mark, table, f"{self.extracted.address} and {files.address}, {name}")
                columns |= {column: table.column(column) for column in names}
                errors = pc.coalesce(errors, columns.pop("error")) if failed else errors
        if errors.null_count < len(errors):
            failed_on = pc.is_valid(errors).combine_chunks()
            columns = {other: _without(column.combine_chunks(), failed_on) for other, column in columns.items()}
        return pa.table({"id": documents.column("id"), "error": errors, **{other: columns[other] for other in judged}})

    def is_paged(self, name: str, ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns which of some documents of one part are from paged files."""
        path = f"layout/{name}.parquet"
        if not self.has_layouts or not self.extracted.store.exists(self.extracted.at(path)):
            return pa.chunked_array([pa.repeat(False, len(ids))])
        return pc.is_in(ids, value_set=self.extracted.table(path, columns=["id"]).column("id").combine_chunks())

    def earlier(self, name: str) -> pa.Table:
        """Returns the documents of one part of the dedup index that have a copy or a newer capture in this version."""
        return self.duplicates.table(f"earlier/{name}.parquet")

    def taken_down(self, documents: pa.Table) -> NDArray[np.bool_]:
        """Returns which of some documents (id, url) are taken down, shape (rows,)."""
        return Tombstones.read(self.takedowns).mask(documents)

    def extract_rejections(self, name: str) -> pa.Table:
        """Returns source and reason of the captures and files of one part that extract rejected."""
        return self.extracted.table(f"rejected/{name}.parquet", columns=["source", "reason"])

    @property
    def own_folder(self) -> ArtifactFolder:
        """This stage's artifact."""
        name, _, version = self.folder.rpartition("/")
        return ArtifactFolder(self.store, ArtifactId(name, version), self.folder)

    def own(self, path: str) -> pa.Table:
        """Reads a file of this stage's artifact."""
        return self.own_folder.table(path)


@dataclass(frozen=True)
class AlignedInputs:
    """The inputs of the stage, the folder of its own artifact in the store, and the takedowns in force."""

    extracted: Artifact
    attributes: Artifact
    duplicates: Artifact
    store: Store
    folder: str
    takedowns: tuple[Artifact, ...] = ()
    contamination: Artifact | None = None
    paragraphs: Artifact | None = None

    @cached_property
    def groups(self) -> dict[str, Artifact]:
        """The groups by annotator; raises InputError if one of them is missing."""
        return groups_of(self.attributes)

    def names(self) -> list[str]:
        """Returns the part names of all inputs; raises InputError if they differ."""
        documents = self.extracted.names("documents/")
        group_folders = ((group, f"{KIND}/") for group in self.groups.values())
        optional_inputs = ((self.contamination, f"{CONTAMINATION}/"), (self.paragraphs, f"{PARAGRAPHS}/"))
        present_inputs = [(artifact, folder) for artifact, folder in optional_inputs if artifact]
        for artifact, folder in (*group_folders, (self.duplicates, "duplicates/"), *present_inputs):
            if artifact.names(folder) != documents:
                raise InputError(
                    f"{artifact.address} has other parts than {self.extracted.address}",
                    "run the stage that makes it on these documents again",
                )
        return documents

    def recaptured(self) -> int:
        """Returns the number of documents of pages with several captures."""
        return int(self.duplicates.record.metrics["recaptured"])

    def numbered(self) -> list[NumberedPart]:
        """Returns all parts with documents in the order of dedup's numbers: first those of the dedup index."""
        # From 100,000 parts on the order of their names is another one.
        names = sorted(self.duplicates.names("earlier/"), key=lambda name: int(name.rpartition("-")[2]))
        earlier = [NumberedPart(number, name, True) for number, name in enumerate(names)]
        return [
            *earlier,
            *(NumberedPart(number, name, False) for number, name in enumerate(self.names(), len(earlier))),
        ]

    def attribute_schema(self, name: str) -> pa.Schema:
        """Returns the columns of all annotators, according to one part."""
        schemas = [(annotator, parquet.schema(group.local(path_of(name)))) for annotator, group in self.groups.items()]
        return pa.schema([schema.field(annotator) for annotator, schema in schemas])

    @cached_property
    def parts(self) -> AlignedParts:
        """Access to the inputs by part."""
        groups = {
            annotator: AnnotatorGroup(group.folder, bool(group.record.metrics.get(POISON)))
            for annotator, group in self.groups.items()
        }
        return AlignedParts(
            extracted=self.extracted.folder,
            duplicates=self.duplicates.folder,
            groups=groups,
            store=self.store,
            folder=self.folder,
            takedowns=tuple(takedown.folder for takedown in self.takedowns),
            contamination=self.contamination.folder if self.contamination else None,
            paragraphs=self.paragraphs.folder if self.paragraphs else None,
            has_layouts=bool(self.extracted.files("layout/")),
        )


def _without(attributes: pa.StructArray, failed_on: pa.BooleanArray) -> pa.StructArray:
    """Returns attributes with nulls where any annotator failed; the fields of a null struct keep their values."""
    fields = [attributes.field(index) for index in range(attributes.type.num_fields)]
    return pa.StructArray.from_arrays(
        fields, fields=list(attributes.type), mask=pc.or_(failed_on, pc.is_null(attributes))
    )
