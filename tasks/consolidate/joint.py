"""The join: documents, attributes and duplicates of one part, side by side.

Reads the three inputs of the stage. Used by `resolve`, `stage`, `what_if` and `ask`. The join is by position, and every
read checks that the ids agree: a wrong row order would give documents one another's verdicts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tasks import parquet
from tasks.artifact import Address, Artifact
from tasks.documents import same_rows
from tasks.errors import InputError
from tasks.lineage import one_held
from tasks.store import Store


@dataclass(frozen=True)
class Joint:
    """What a part is made from: the inputs, and this stage's own artifact with the copies that go."""

    extracted: Artifact
    attributes: Artifact
    duplicates: Artifact
    store: Store
    folder: str

    @classmethod
    def at(cls, store: Store, recipe: str, version: str, source_version: str = "") -> "Joint":
        """Opens the inputs that `documents` of a recipe at a version was made from or, before it is, would be.

        Args:
            store: where artifacts lie.
            recipe: name of the recipe.
            version: whose inputs to open.
            source_version: the version that holds what is missing at `version`; "": what was made at `version` tells.

        Raises:
            InputError: one of them does not exist.
        """
        made = Artifact.find(store, Address(f"{recipe}/documents", version))
        named = {ref.role: Address.parse(ref.address) for ref in made.record.inputs} if made else {}

        def opened(role: str) -> Artifact:
            own = named.get(role, Address(f"{recipe}/{role}", version))
            found = Artifact.find(store, own)
            if found is None and role not in named:
                found = one_held(store, recipe, role, source_version or version)
            if found is None:
                nor = f", nor does {source_version} hold one" if source_version and role not in named else ""
                raise InputError(
                    f"no artifact {own} in {store.root}{nor}",
                    "run the stage that makes it, or name the version that holds it (--source-version)",
                )
            return found

        return cls(opened("extracted"), opened("attributes"), opened("duplicates"), store, "")

    def names(self) -> list[str]:
        """Returns the part names that all three inputs share; raises InputError when they differ."""
        documents = _names(self.extracted, "documents/")
        for artifact, folder in ((self.attributes, "attributes/"), (self.duplicates, "duplicates/")):
            if _names(artifact, folder) != documents:
                raise InputError(
                    f"{artifact.address} has other parts than {self.extracted.address}",
                    "run the stage that makes it on these documents again",
                )
        return documents

    def part(self, name: str, *columns: Sequence[str] | None) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Reads one part of the three inputs.

        Args:
            name: the part.
            columns: which columns of documents, attributes and duplicates, with "id" among them; None for all.

        Raises:
            InputError: ids or their order differ.
        """
        inputs = ((self.extracted, "documents"), (self.attributes, "attributes"), (self.duplicates, "duplicates"))
        documents, judged, copies = (
            artifact.table(f"{folder}/{name}.parquet", columns=None if chosen is None else list(chosen))
            for (artifact, folder), chosen in zip(inputs, columns, strict=True)
        )
        same_rows(documents, judged, f"{self.extracted.address} and {self.attributes.address}, {name}")
        same_rows(documents, copies, f"{self.extracted.address} and {self.duplicates.address}, {name}")
        return documents, judged, copies

    def refused(self, name: str) -> pa.Table:
        """Returns source and reason of what extract rejected in one part."""
        return self.extracted.table(f"rejected/{name}.parquet", columns=["source", "reason"])

    def measured(self, name: str) -> pa.Schema:
        """Returns the columns of the attributes of one part."""
        return parquet.schema(self.attributes.local(f"attributes/{name}.parquet"))

    def own(self, path: str) -> pa.Table:
        """Reads a file of this stage's artifact."""
        return parquet.read(self.store.local(f"{self.folder}/{path}"))


def _names(artifact: Artifact, folder: str) -> list[str]:
    return [path.removeprefix(folder).removesuffix(".parquet") for path in artifact.files(folder)]
