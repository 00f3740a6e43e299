"""The dedup index: what near and exact duplicates of earlier versions' documents are found by, without reading them.

An index is an artifact with `index.json` (`Manifest`): an ordered list of parts, each in the artifact that wrote it,
this one or an earlier index. Parts are immutable; what leaves the index leaves it by a part that is written again. Each
has

    rows/<part>.bin         one record per document (dtype ROW): the order of preference, and where its text is
    texts/<part>.bin        sorted runs (`sorted_runs`) of TEXT, BAND and CAPTURE, whose `row_id` is the row in `rows`:
    bands/<part>.bin        the hash of the text, the keys of its bands, the page of a capture
    captures/<part>.bin
    names/<part>.parquet    id and URL of the documents, in the order of the rows
    copies/<part>.parquet   documents that passed all filters and went as duplicates of one in the index (schema COPIES)
    ids/<part>.bin          a sorted run of ENTRY: the ids of documents, copies and the keepers of these

Documents of an index have row ids, too (`document_ids`): the number of the part is its position in the list. An id is
in the index once, as a document or as a copy.

Copies of a document that has left the index come back: each part of the index with such copies gives one part of the
next version's `extracted`, `returned-<number>`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import ValidationError

from tasks.core.artifact import Artifact, ArtifactFolder, ArtifactId, InputRef
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Inputs
from tasks.core.store import Store
from tasks.formats.dedup import sorted_runs
from tasks.formats.dedup.document_ids import HALVES
from tasks.formats.documents.tombstones import Tombstones

KIND = "dedup_index"
ROLE = "index"
"""Role in which a stage reads the index of the version before."""
FILE = "index.json"
_PART_ROLE = "part_of_index"

TEXT = np.dtype([("key", "<u8"), ("low", "<u8"), ("row_id", "<u8")])
"""A document with words, by the two halves of its text's hash."""
BAND = np.dtype([("key", "<u8"), ("text", "<u8"), ("row_id", "<u8")])
"""A document with words, by one band of its signature. `text` is the first half of the hash of its text."""
CAPTURE = np.dtype([("key", "<u8"), ("row_id", "<u8")])
"""A document from a crawl, by a hash of its page."""
TEXTS, BANDS, CAPTURES = "texts", "bands", "captures"
"""Folders of the runs of TEXT, BAND and CAPTURE."""
RUNS = {TEXTS: TEXT, BANDS: BAND, CAPTURES: CAPTURE}

_PREFERENCE = [("cycle", "<u4"), ("quality", "<u4"), ("fetched", "<u8"), ("id", HALVES)]
PREFERENCE = np.dtype(_PREFERENCE)
"""The order of preference of a document: smaller is preferred in each field, the first one counts most."""
ROW = np.dtype([*_PREFERENCE, ("origin", "<u4"), ("row", "<u4")])
"""A document of the index: its preference, and the row with its text in a part of `extracted` (`Manifest.origins`)."""
ROWS = "rows"

NAMES = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("url", pa.string(), nullable=False)])
KINDS = ("exact", "near", "page")
"""Why a copy went: its text is that of the keeper, or near it; or the keeper is a newer capture of its page."""
COPIES = pa.schema(
    [
        *NAMES,
        pa.field("duplicate_of", pa.string()),  # id of a document or a copy; null once that is no longer in the index
        pa.field("kind", pa.string(), nullable=False),  # one of KINDS
        pa.field("origin", pa.uint32(), nullable=False),  # the row with its text, as in ROW
        pa.field("row", pa.uint32(), nullable=False),
    ]
)

ENTRY = np.dtype([("key", "<u8"), ("low", "<u8"), ("row_id", "<u8"), ("role", "u1")])
"""An id by its two halves, and who has it: a row of `rows` (DOCUMENT) or of `copies` (the others)."""
DOCUMENT, COPY, KEEPER, NEWER = range(4)
"""Roles: a document; a copy; the keeper of an exact or near copy; the newer capture that a copy went for."""
IDS = "ids"
_DTYPES = {**RUNS, IDS: ENTRY}

_SIGNATURE = ("permutations", "bands", "rows", "shingle", "seed")

_RETURNED = "returned-"


class IndexPart(Config):
    """One part: the artifact with its files, its name there, the numbers of its documents and copies.

    `content` is the hash of that artifact's content; "" of the part of an index that it has written itself, whose files
    are those of the index wherever it was adopted.
    """

    artifact: str
    name: str
    documents: int
    copies: int
    content: str = ""


class Origin(Config):
    """An artifact `extracted` with texts: its id, the hash of its content, the names of its parts."""

    artifact: str
    content: str
    parts: tuple[str, ...]


class Manifest(Config):
    """Content of `index.json`.

    `cycles` are the versions whose documents are in it, in order; `origins` has the texts, its parts are numbered one
    artifact after the other; `parts` are those of the index; `signatures` the settings that its keys were made with
    (`signatures_of`).
    """

    cycles: tuple[str, ...]
    origins: tuple[Origin, ...]
    parts: tuple[IndexPart, ...]
    signatures: dict[str, Any]


_NOTHING = Manifest(cycles=(), origins=(), parts=(), signatures={})


@dataclass(frozen=True)
class DedupIndex:
    """Read access to an index. Picklable. Without arguments: the empty index, before the first version.

    Args:
        manifest: see above.
        folders: the folder of each part.
        store: store of the artifacts with the texts.
    """

    manifest: Manifest = _NOTHING
    folders: tuple[ArtifactFolder, ...] = ()
    store: Store | None = None

    @classmethod
    def open(cls, artifact: Artifact) -> "DedupIndex":
        """Opens an index.

        Raises:
            InputError: an artifact with parts of it is gone or has changed since, or it is of an earlier Sluice.
        """
        try:
            manifest = Manifest.model_validate(json.loads(artifact.folder.read(FILE)))
        except ValidationError as error:
            raise InputError(
                f"{artifact.address} has another form, as an earlier Sluice wrote it",
                "start a new index under another recipe name",
            ) from error
        found = {part.artifact: part for part in manifest.parts if part.content}
        folders = {address: _opened(artifact, part) for address, part in found.items()}
        of_parts = (folders[part.artifact] if part.content else artifact.folder for part in manifest.parts)
        return cls(manifest, tuple(of_parts), artifact.store)

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.manifest.parts)

    @property
    def documents(self) -> int:
        """The number of documents."""
        return sum(part.documents for part in self.manifest.parts)

    @property
    def entries(self) -> int:
        """The number of entries in the runs `ids/`, at most."""
        return self.documents + 2 * sum(part.copies for part in self.manifest.parts)

    @property
    def cycle(self) -> int:
        """The number of versions in it, which is the `cycle` of the documents of the next one."""
        return len(self.manifest.cycles)

    def path(self, folder: str, number: int, kind: str = "bin") -> str:
        """Returns the path of one file of a part, relative to its folder."""
        return f"{folder}/{self.manifest.parts[number].name}.{kind}"

    def bucket(self, folder: str, number: int, count: int) -> NDArray[np.void]:
        """Returns the records of bucket `number` of `count` from the runs of all parts, with row ids of the index."""
        dtype = _DTYPES[folder]
        found = [np.empty(0, dtype)]
        for part, files in enumerate(self.folders):
            records = sorted_runs.read_bucket(files, [self.path(folder, part)], dtype, number, count)
            records["row_id"] += np.uint64(part << 32)
            found.append(records)
        return np.concatenate(found)

    def rows(self, number: int) -> NDArray[np.void]:
        """Returns the records of one part (dtype ROW), mapped."""
        if not self.manifest.parts[number].documents:
            return np.empty(0, ROW)
        return np.memmap(self.folders[number].local(self.path(ROWS, number)), ROW, mode="r")

    def names(self, number: int) -> pa.Table:
        """Returns ids and URLs of one part (schema NAMES)."""
        return self.folders[number].table(self.path("names", number, "parquet"))

    def copies(self, number: int) -> pa.Table:
        """Returns the copies of one part (schema COPIES)."""
        return self.folders[number].table(self.path("copies", number, "parquet"))

    def texts(self, number: int, rows: NDArray[np.int64]) -> list[str]:
        """Returns the texts of some rows of one part, in their order."""
        places = self.rows(number)[rows]
        found: list[str] = [""] * len(rows)
        for origin in np.unique(places["origin"]).tolist():
            mine = np.flatnonzero(places["origin"] == origin)
            taken = self.documents_at(origin, places["row"][mine], ["text"]).column("text").to_pylist()
            for place, text in zip(mine.tolist(), taken, strict=True):
                found[place] = text
        return found

    def documents_at(self, origin: int, rows: NDArray[np.integer], columns: list[str] | None = None) -> pa.Table:
        """Returns rows of one part of `extracted`, of the version that it was made in.

        Raises:
            InputError: that artifact is gone or has changed since.
        """
        made_in, name = self._origins[origin]
        assert self.store is not None
        folder = _extracted(self.store.root, made_in.artifact, made_in.content)
        table = folder.table(f"documents/{name}.parquet", columns=columns)
        return table.take(pa.array(rows.astype(np.int64)))

    @cached_property
    def _origins(self) -> list[tuple[Origin, str]]:
        return [(origin, name) for origin in self.manifest.origins for name in origin.parts]


def index_of(inputs: Inputs) -> DedupIndex:
    """Returns the index of the version before among a stage's inputs; the empty one where there is none."""
    return DedupIndex.open(inputs[ROLE]) if ROLE in inputs else DedupIndex()


def signatures_of(dedup: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of dedup's settings, as in its record, that decide which keys near texts share."""
    return {"near": dedup["near"], **{name: dedup["minhash"][name] for name in _SIGNATURE}}


def refs_to(store: Store, parts: Sequence[IndexPart], own: ArtifactId) -> tuple[InputRef, ...]:
    """Returns the references to the earlier indexes that have parts of an index, for its record."""
    addresses = sorted({part.artifact for part in parts} - {str(own)})
    found = [Artifact.open_at(store, ArtifactId.parse(address)) for address in addresses]
    return tuple(artifact.ref(_PART_ROLE) for artifact in found)


def _opened(artifact: Artifact, part: IndexPart) -> ArtifactFolder:
    found = Artifact.find(artifact.store, ArtifactId.parse(part.artifact))
    if found is None or found.record.content != part.content:
        raise InputError(
            f"{artifact.address} has parts in {part.artifact}, which is gone or has changed since",
            "bring it back; or start a new index under another recipe name",
        )
    return found.folder


@lru_cache(maxsize=64)
def _extracted(root: str, address: str, content: str) -> ArtifactFolder:
    found = Artifact.find(Store(root), ArtifactId.parse(address))
    if found is None or found.record.content != content:
        raise InputError(
            f"{address} is gone or has changed since, and texts of documents in the dedup index are read from it",
            "bring it back; or start a new index under another recipe name",
        )
    return found.folder


def returned_part_name(number: int) -> str:
    """Returns the name of the part with the documents that come back from one part of the index."""
    return f"{_RETURNED}{number:05d}"


def is_returned(name: str) -> bool:
    """Returns whether a part of documents is one of documents that have come back."""
    return name.startswith(_RETURNED)


def id_array(values: Sequence[str]) -> pa.Array:
    """Returns document ids as an array, also where there is none."""
    return pa.array(values, pa.string())


def forgotten(index: DedupIndex, takedowns: Tombstones, number: int) -> pa.Array:
    """Returns the ids of the documents and copies of one part of the index that are taken down."""
    if not takedowns:
        return id_array([])
    held = pa.concat_tables([index.names(number), index.copies(number).select(NAMES.names)])
    return held.filter(pa.array(takedowns.mask(held))).column("id").combine_chunks()


def returning(index: DedupIndex, gone: pa.Array, takedowns: Tombstones, number: int) -> pa.Table:
    """Returns the copies in one part of the index that come back, by origin and row (schema COPIES).

    Args:
        index: the index of the version before.
        gone: ids of the index that are taken down (`forgotten`, of all parts).
        takedowns: what is taken down does not come back itself.
        number: of the part.
    """
    copies = index.copies(number)
    alone = pc.or_(pc.is_null(copies.column("duplicate_of")), pc.is_in(copies.column("duplicate_of"), value_set=gone))
    back: NDArray[np.bool_] = alone.to_numpy()
    if takedowns:
        back = back & ~takedowns.mask(copies)
    return copies.filter(pa.array(back)).sort_by([("origin", "ascending"), ("row", "ascending")])


def returned_documents(index: DedupIndex, copies: pa.Table) -> pa.Table:
    """Returns the documents of some copies, as they were extracted, sorted by id."""
    origins = copies.column("origin").to_numpy()
    found = [
        index.documents_at(origin, copies.column("row").to_numpy()[origins == origin])
        for origin in np.unique(origins).tolist()
    ]
    return pa.concat_tables(found).sort_by("id")
