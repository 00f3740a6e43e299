"""The dedup index: finds exact and near duplicates of documents of earlier versions without reading these documents.

An index is an artifact with `index.json` (`Manifest`): an ordered list of parts, each stored in the artifact that wrote
it, which is this one or an earlier index. Parts are immutable; to remove a document, its part is rewritten. Each part
has

    rows/<part>.bin         one record per document (dtype ROW): its order of preference, and the location of its text
    texts/<part>.bin        sorted runs (`sorted_runs`) of TEXT, BAND and CAPTURE, whose `row_id` is the row in `rows`:
    bands/<part>.bin        the hash of the text, the keys of its bands, the page of a capture
    captures/<part>.bin
    names/<part>.parquet    id and URL of the documents, in the order of the rows
    copies/<part>.parquet   documents that passed all filters but were dropped as duplicates (schema COPIES)
    ids/<part>.bin          a sorted run of ENTRY: the ids of documents, of copies and of the keepers of copies

Documents of an index have row ids (`document_ids`), in which the part number is the position in the list. An id is in
the index at most once, as a document or as a copy.

Copies of a document that was removed from the index return: each part with such copies adds one part,
`returned-<number>`, to the next version's `extracted`.
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
"""Role in which a stage reads the index of the previous version."""
FILE = "index.json"
PART_ROLE = "part_of_index"
"""Role of the earlier indexes whose parts an index has."""

TEXT = np.dtype([("key", "<u8"), ("low", "<u8"), ("row_id", "<u8")])
"""A non-empty document, keyed by the two halves of the hash of its text."""
BAND = np.dtype([("key", "<u8"), ("text", "<u8"), ("row_id", "<u8")])
"""A non-empty document, keyed by one band of its signature. `text` is the first half of the hash of its text."""
CAPTURE = np.dtype([("key", "<u8"), ("row_id", "<u8")])
"""A document from a crawl, keyed by a hash of its page."""
TEXTS, BANDS, CAPTURES = "texts", "bands", "captures"
"""Folders of the runs of TEXT, BAND and CAPTURE."""
RUNS = {TEXTS: TEXT, BANDS: BAND, CAPTURES: CAPTURE}

_PREFERENCE = [("cycle", "<u4"), ("quality", "<u4"), ("fetched", "<u8"), ("id", HALVES)]
PREFERENCE = np.dtype(_PREFERENCE)
"""The order of preference of a document: lexicographic by these fields, smaller is preferred."""
ROW = np.dtype([*_PREFERENCE, ("origin", "<u4"), ("row", "<u4")])
"""A document of the index: its preference, and the row of its text in a part of `extracted` (`Manifest.origins`)."""
ROWS = "rows"

NAMES = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("url", pa.string(), nullable=False)])
KINDS = ("exact", "near", "page")
"""Why a copy was dropped: its text equals that of the keeper or is near it, or the keeper is a newer capture."""
COPIES = pa.schema(
    [
        *NAMES,
        pa.field("duplicate_of", pa.string()),  # id of a document or a copy; null once it is no longer in the index
        pa.field("kind", pa.string(), nullable=False),  # one of KINDS
        pa.field("origin", pa.uint32(), nullable=False),  # location of its text, as in ROW
        pa.field("row", pa.uint32(), nullable=False),
    ]
)

ENTRY = np.dtype([("key", "<u8"), ("low", "<u8"), ("row_id", "<u8"), ("role", "u1")])
"""An id, keyed by its two halves, and its row in `rows` (role DOCUMENT) or in `copies` (other roles)."""
DOCUMENT, COPY, KEEPER, NEWER = range(4)
"""Roles: a document; a copy; the keeper of an exact or near copy; the newer capture that replaced a copy."""
IDS = "ids"
_DTYPES = {**RUNS, IDS: ENTRY}

_SIGNATURE = ("permutations", "bands", "rows", "shingle", "seed")

_RETURNED_PREFIX = "returned-"


class IndexPart(Config):
    """One part of an index.

    Attributes:
        artifact: id of the artifact with its files.
        name: name of the part in that artifact.
        documents: number of documents.
        copies: number of copies.
        content: hash of that artifact's content; "" for a part that the index wrote itself, whose files are those of
            the index even if it was adopted.
    """

    artifact: str
    name: str
    documents: int
    copies: int
    content: str = ""


class Origin(Config):
    """An artifact `extracted` with texts of the index: its id, the hash of its content, the names of its parts."""

    artifact: str
    content: str
    parts: tuple[str, ...]


class Manifest(Config):
    """Content of `index.json`.

    Attributes:
        cycles: versions whose documents are in the index, in order.
        origins: artifacts with the texts; their parts are numbered consecutively over all artifacts.
        parts: parts of the index.
        signatures: settings that determine its keys (`signatures_of`).
    """

    cycles: tuple[str, ...]
    origins: tuple[Origin, ...]
    parts: tuple[IndexPart, ...]
    signatures: dict[str, Any]


_EMPTY_MANIFEST = Manifest(cycles=(), origins=(), parts=(), signatures={})


@dataclass(frozen=True)
class DedupIndex:
    """Read access to an index. Picklable. Without arguments it is the empty index, before the first version.

    Args:
        manifest: content of `index.json`.
        folders: the folder of each part.
        store: store of the artifacts with the texts.
    """

    manifest: Manifest = _EMPTY_MANIFEST
    folders: tuple[ArtifactFolder, ...] = ()
    store: Store | None = None

    @classmethod
    def open(cls, artifact: Artifact) -> "DedupIndex":
        """Opens an index.

        Raises:
            InputError: an artifact with its parts is missing or has changed, or the format is that of an earlier
                version of Sluice.
        """
        try:
            manifest = Manifest.model_validate(json.loads(artifact.folder.read(FILE)))
        except ValidationError as error:
            raise InputError(
                f"{artifact.address} has the format of an earlier version of Sluice",
                "start a new index under another recipe name",
            ) from error
        parts = {part.artifact: part for part in manifest.parts if part.content}
        folders = {address: _part_folder(artifact, part) for address, part in parts.items()}
        part_folders = (folders[part.artifact] if part.content else artifact.folder for part in manifest.parts)
        return cls(manifest, tuple(part_folders), artifact.store)

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
        """Upper bound on the number of entries in the runs `ids/`."""
        return self.documents + 2 * sum(part.copies for part in self.manifest.parts)

    @property
    def cycle(self) -> int:
        """The number of versions in the index, which is the `cycle` of the next version's documents."""
        return len(self.manifest.cycles)

    def path(self, folder: str, number: int, kind: str = "bin") -> str:
        """Returns the path of one file of a part, relative to its folder."""
        return f"{folder}/{self.manifest.parts[number].name}.{kind}"

    def bucket(self, folder: str, number: int, count: int) -> NDArray[np.void]:
        """Returns the records of bucket `number` of `count` from the runs of all parts, with row ids in the index."""
        dtype = _DTYPES[folder]
        buckets = [np.empty(0, dtype)]
        for part, files in enumerate(self.folders):
            records = sorted_runs.read_bucket(files, [self.path(folder, part)], dtype, number, count)
            records["row_id"] += np.uint64(part << 32)
            buckets.append(records)
        return np.concatenate(buckets)

    def rows(self, number: int) -> NDArray[np.void]:
        """Returns the records of one part (dtype ROW), memory-mapped."""
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
        """Returns the texts of some rows of one part, in the given order."""
        locations = self.rows(number)[rows]
        texts: list[str] = [""] * len(rows)
        for origin in np.unique(locations["origin"]).tolist():
            positions = np.flatnonzero(locations["origin"] == origin)
            origin_texts = self.documents_at(origin, locations["row"][positions], ["text"]).column("text").to_pylist()
            for position, text in zip(positions.tolist(), origin_texts, strict=True):
                texts[position] = text
        return texts

    def documents_at(self, origin: int, rows: NDArray[np.integer], columns: list[str] | None = None) -> pa.Table:
        """Returns rows of one part of `extracted`, by its number among `Manifest.origins`.

        Raises:
            InputError: the artifact is missing or has changed.
        """
        extracted, name = self._origins[origin]
        assert self.store is not None
        folder = _extracted_folder(self.store.root, extracted.artifact, extracted.content)
        table = folder.table(f"documents/{name}.parquet", columns=columns)
        return table.take(pa.array(rows.astype(np.int64)))

    @cached_property
    def _origins(self) -> list[tuple[Origin, str]]:
        return [(origin, name) for origin in self.manifest.origins for name in origin.parts]


def index_of(inputs: Inputs) -> DedupIndex:
    """Returns the index of the previous version among a stage's inputs; the empty index if there is none."""
    return DedupIndex.open(inputs[ROLE]) if ROLE in inputs else DedupIndex()


def signatures_of(dedup: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings in dedup's record that determine the keys of texts."""
    return {"near": dedup["near"], **{name: dedup["minhash"][name] for name in _SIGNATURE}}


def index_refs(store: Store, parts: Sequence[IndexPart], own: ArtifactId) -> tuple[InputRef, ...]:
    """Returns references to the earlier indexes that hold parts of an index, for its record."""
    addresses = sorted({part.artifact for part in parts} - {str(own)})
    artifacts = [Artifact.open_at(store, ArtifactId.parse(address)) for address in addresses]
    return tuple(artifact.ref(PART_ROLE) for artifact in artifacts)


def _part_folder(artifact: Artifact, part: IndexPart) -> ArtifactFolder:
    owner = Artifact.find(artifact.store, ArtifactId.parse(part.artifact))
    if owner is None or owner.record.content != part.content:
        raise InputError(
            f"{artifact.address} has parts in {part.artifact}, which is gone or has changed since",
            "bring it back; or start a new index under another recipe name",
        )
    return owner.folder


@lru_cache(maxsize=64)
def _extracted_folder(root: str, address: str, content: str) -> ArtifactFolder:
    extracted = Artifact.find(Store(root), ArtifactId.parse(address))
    if extracted is None or extracted.record.content != content:
        raise InputError(
            f"{address} is gone or has changed since, and texts of documents in the dedup index are read from it",
            "bring it back; or start a new index under another recipe name",
        )
    return extracted.folder


def returned_part_name(number: int) -> str:
    """Returns the name of the part with the documents that return from one part of the index."""
    return f"{_RETURNED_PREFIX}{number:05d}"


def is_returned(name: str) -> bool:
    """Returns whether a part of documents has returned documents."""
    return name.startswith(_RETURNED_PREFIX)


def id_array(values: Sequence[str]) -> pa.Array:
    """Returns document ids as a string array, even if there are none."""
    return pa.array(values, pa.string())


def taken_down_ids(index: DedupIndex, takedowns: Tombstones, number: int) -> pa.Array:
    """Returns the ids of the documents and copies of one part of the index that are taken down."""
    if not takedowns:
        return id_array([])
    entries = pa.concat_tables([index.names(number), index.copies(number).select(NAMES.names)])
    return entries.filter(pa.array(takedowns.mask(entries))).column("id").combine_chunks()


def returned_copies(index: DedupIndex, taken_down: pa.Array, takedowns: Tombstones, number: int) -> pa.Table:
    """Returns the copies in one part of the index that return, sorted by origin and row (schema COPIES).

    Args:
        index: the index of the previous version.
        taken_down: ids of the index that are taken down (`taken_down_ids` of all parts).
        takedowns: tombstones; copies that they cover do not return.
        number: number of the part.
    """
    copies = index.copies(number)
    keepers = copies.column("duplicate_of")
    orphans = pc.or_(pc.is_null(keepers), pc.is_in(keepers, value_set=taken_down))
    selected: NDArray[np.bool_] = orphans.to_numpy()
    if takedowns:
        selected = selected & ~takedowns.mask(copies)
    return copies.filter(pa.array(selected)).sort_by([("origin", "ascending"), ("row", "ascending")])


def returned_documents(index: DedupIndex, copies: pa.Table) -> pa.Table:
    """Returns the extracted documents of some copies, sorted by id."""
    origins = copies.column("origin").to_numpy()
    tables = [
        index.documents_at(origin, copies.column("row").to_numpy()[origins == origin])
        for origin in np.unique(origins).tolist()
    ]
    return pa.concat_tables(tables).sort_by("id")
