"""Documents of a version by id: where they are, their texts with marks, and their values beside the limits."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from sluice_ui.scan import Place, equals, rows_at, search
from tasks.core.artifact import Artifact
from tasks.core.errors import InputError, SluiceError
from tasks.formats.documents.key_index import ID, KeyIndex
from tasks.formats.documents.tombstones import Tombstones, in_force
from tasks.run.forecast import inputs_at, settings_of
from tasks.run.recipe import Recipe
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.marked_text import MarkedDocument, read_documents

READ_BYTES = 64 << 20
"""Bytes of files of extracted documents that a page reads for the texts and values of rejected documents."""


class Located(NamedTuple):
    """A document by the name of its part and its id; the part is "" if it is not known."""

    part: str
    id: str


class Reader:
    """Reads documents of a version from what they were made from.

    Args:
        recipe: the recipe.
        version: the version.
        documents: its documents.
    """

    def __init__(self, recipe: Recipe, version: str, documents: Artifact) -> None:
        self._recipe, self._version, self._documents = recipe, version, documents

    @cached_property
    def _inputs(self) -> AlignedInputs:
        return inputs_at(self._documents.store, self._recipe.name, self._version)

    @cached_property
    def _config(self) -> ConsolidateConfig:
        return settings_of(self._documents)

    def locate(self, doc_id: str) -> Located | None:
        """Returns the part of a kept or rejected document; None if the version has neither."""
        index = KeyIndex(self._documents)
        _, places = index.find(ID, doc_id)
        for part, row in places:
            path = f"rejected/{index.parts[part]}.parquet"
            at = Place(self._documents.files("rejected/").index(path), row)
            if rows_at(self._documents, "rejected/", [at], ["id"])[0]["id"] == doc_id:
                return Located(index.parts[part], doc_id)
        found = search(self._documents, "kept/", [equals("id", doc_id)], Place(0, 0), 1)
        if not found.places:
            return None
        return Located(rows_at(self._documents, "kept/", found.places, ["id"])[0]["part"], doc_id)

    def read(self, located: Located) -> MarkedDocument:
        """Returns a document.

        Raises:
            InputError: the version has no such document, or what it was made from is gone.
        """
        if located.part not in self._inputs.extracted.names("documents/"):
            found = self.locate(located.id)
            if found is None:
                raise _missing(self._documents, located.id)
            located = found
        documents = read_documents(self._config, self._inputs.parts, located.part, [located.id])
        if located.id not in documents:
            raise _missing(self._documents, located.id)
        return documents[located.id]

    def read_rows(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, MarkedDocument]:
        """Returns the documents of rows of a page, by id.

        Those in the parts after the first READ_BYTES are left out, so that a page reads few files. Empty if what the
        version was made from is gone, or its settings are of another version of Sluice.
        """
        found: dict[str, MarkedDocument] = {}
        read = 0
        try:
            extracted = self._inputs.extracted
            for part in dict.fromkeys(row["part"] for row in rows):
                entry = extracted.parts.entry(f"documents/{part}.parquet")
                read += entry.bytes if entry else 0
                if found and read > READ_BYTES:
                    break
                ids = [row["id"] for row in rows if row["part"] == part]
                found |= read_documents(self._config, self._inputs.parts, part, ids)
        except SluiceError:
            return {}
        return found

    def hidden(self, rows: Sequence[Mapping[str, Any]]) -> set[str]:
        """Returns the ids of documents whose texts are withheld because of takedowns after the version was made."""
        if not rows:
            return set()
        stones = Tombstones.read([takedown.folder for takedown in in_force(self._documents.store, self._recipe.name)])
        if not stones:
            return set()
        table = pa.table({name: pa.array([row.get(name) or "" for row in rows], pa.string()) for name in ("id", "url")})
        return {row["id"] for row, is_hidden in zip(rows, stones.mask(table).tolist(), strict=True) if is_hidden}


def _missing(documents: Artifact, doc_id: str) -> InputError:
    return InputError(f"{documents.address} has no document {doc_id[:40]}", "it may be of another version")
