"""The join: documents, attributes and duplicates of one part, side by side.

Reads the three inputs of the stage, and the groups that the attributes are made of (`tasks.core.groups`). The join is
by position, and every read checks that the ids agree: a wrong row order would give documents one another's verdicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.errors import InputError
from tasks.core.groups import KIND, groups_of, path_of
from tasks.core.part import POISON
from tasks.core.store import Store
from tasks.formats.documents import mark_of, same_mark, same_rows


class Measured(NamedTuple):
    """What one annotator has measured, and whether it failed on any document."""

    files: ArtifactFolder
    failed: bool


@dataclass(frozen=True)
class AlignedParts:
    """The inputs part by part, and the files of this stage: what workers are sent. No larger for more parts."""

    extracted: ArtifactFolder
    duplicates: ArtifactFolder
    groups: Mapping[str, Measured]
    store: Store
    folder: str

    def part(
        self, name: str, documents: list[str] | None, judged: Sequence[str], copies: list[str] | None
    ) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Reads one part of the three inputs.

        Args:
            name: the part.
            documents: which columns of the documents, with "id" among them; None for all.
            judged: whose findings, of the annotators that have measured.
            copies: which columns of the duplicates, with "id" among them; None for all.

        Returns:
            documents, findings and duplicates. Findings have `id`, `error` (of the first annotator that failed on a
            document; null for none) and a column for each annotator asked for: null where any annotator failed.

        Raises:
            InputError: ids or their order differ.
        """
        rows = self.extracted.table(f"documents/{name}.parquet", columns=documents)
        found = self._found(name, rows, judged)
        beside = self.duplicates.table(f"duplicates/{name}.parquet", columns=copies)
        same_rows(rows, beside, f"{self.extracted.address} and {self.duplicates.address}, {name}")
        return rows, found, beside

    def _found(self, name: str, documents: pa.Table, judged: Sequence[str]) -> pa.Table:
        """Reads findings; see `part`. Of annotators that are not asked for only those that failed are read."""
        errors = pa.chunked_array([pa.nulls(documents.num_rows, pa.string())])
        columns: dict[str, pa.Array | pa.ChunkedArray] = {}
        mark = mark_of(documents.column("id"))
        for annotator, group in self.groups.items():
            files, failed = group
            wanted = [*(["error"] if failed else []), *([annotator] if annotator in judged else [])]
            if wanted:
                table = files.table(path_of(name), columns=wanted)
                same_mark(mark, table, f"{self.extracted.address} and {files.address}, {name}")
                columns |= {one: table.column(one) for one in wanted}
                errors = pc.coalesce(errors, columns.pop("error")) if failed else errors
        if errors.null_count < len(errors):
            failed_on = pc.is_valid(errors).combine_chunks()
            columns = {one: _without(column.combine_chunks(), failed_on) for one, column in columns.items()}
        return pa.table({"id": documents.column("id"), "error": errors, **{one: columns[one] for one in judged}})

    def refused(self, name: str) -> pa.Table:
        """Returns source and reason of what extract rejected in one part."""
        return self.extracted.table(f"rejected/{name}.parquet", columns=["source", "reason"])

    def own(self, path: str) -> pa.Table:
        """Reads a file of this stage's artifact."""
        return parquet.read(self.store.local(f"{self.folder}/{path}"))


@dataclass(frozen=True)
class AlignedInputs:
    """The inputs as a whole, and where this stage's own artifact lies, with the copies that go."""

    extracted: Artifact
    attributes: Artifact
    duplicates: Artifact
    store: Store
    folder: str

    @cached_property
    def groups(self) -> dict[str, Artifact]:
        """What the annotators have measured; raises InputError where some of it is gone."""
        return groups_of(self.attributes)

    def names(self) -> list[str]:
        """Returns the part names that all inputs share; raises InputError when they differ."""
        documents = _names(self.extracted, "documents/")
        measured = ((group, f"{KIND}/") for group in self.groups.values())
        for artifact, folder in (*measured, (self.duplicates, "duplicates/")):
            if _names(artifact, folder) != documents:
                raise InputError(
                    f"{artifact.address} has other parts than {self.extracted.address}",
                    "run the stage that makes it on these documents again",
                )
        return documents

    def measured(self, name: str) -> pa.Schema:
        """Returns the columns of the annotators that have measured, as one part has them."""
        schemas = [(one, parquet.schema(group.local(path_of(name)))) for one, group in self.groups.items()]
        return pa.schema([schema.field(one) for one, schema in schemas])

    @cached_property
    def parts(self) -> AlignedParts:
        """The inputs part by part."""
        groups = {
            annotator: Measured(group.folder, bool(group.record.metrics.get(POISON)))
            for annotator, group in self.groups.items()
        }
        return AlignedParts(self.extracted.folder, self.duplicates.folder, groups, self.store, self.folder)


def _without(found: pa.StructArray, failed_on: pa.BooleanArray) -> pa.StructArray:
    """Returns findings with nulls where any annotator failed; fields of a null keep what may not be null."""
    fields = [found.field(index) for index in range(found.type.num_fields)]
    return pa.StructArray.from_arrays(fields, fields=list(found.type), mask=pc.or_(failed_on, pc.is_null(found)))


def _names(artifact: Artifact, folder: str) -> list[str]:
    return [path.removeprefix(folder).removesuffix(".parquet") for path in artifact.files(folder)]
