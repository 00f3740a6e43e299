"""The artifacts of one lineage, opened for look-ups and read lazily.

Reads committed artifacts only, as far as they exist: extracted, attributes, contamination, paragraphs, documents,
chunks, shards, plan and checkpoint. Records determine which versions belong together, starting at the checkpoint
(`tasks.run.lineage`), not equal names.

Kept documents are found in the document index, sequences by binary search in the plan. From a remote store, only the
blocks that are needed are fetched, and of Parquet files only the columns that are needed.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import EXTERNAL, Artifact, ArtifactId
from tasks.core.clients.hub import is_hub
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.document import CONTAMINATION, MATCHES, PARAGRAPHS, REPEATS
from tasks.formats.documents.groups import group_refs
from tasks.formats.documents.key_index import PART_KEYS_FOLDER, URL, KeyIndex
from tasks.formats.documents.tombstones import Tombstones, document_identity, page_term
from tasks.formats.tokens.exposure import origin_of, origin_ref, origin_step, unrecorded
from tasks.formats.tokens.index import DocumentIndex, IndexEntry
from tasks.formats.tokens.origins import Origin, accumulates, read_origins
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.readings import TUNED, Readings, is_tuned
from tasks.formats.tokens.shard import ShardSet
from tasks.formats.warc.archive import Provenance, provenance_of
from tasks.formats.web.url import bare
from tasks.run import lineage
from tasks.stages.chunks.structure import PageLayout

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_IN_FLIGHT = 32
"""Concurrent look-ups; each waits for several blocks in sequence."""

DocumentMask = Callable[[pa.Table], NDArray[np.bool_]]
"""Maps a table with id and url of documents to a mask of some of them, shape (rows,)."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class DocumentCapture:
    """The capture of a document: columns of the extracted documents."""

    id: str
    url: str
    source: str
    title: str | None
    fetched_at: datetime | None
    record_id: str | None
    payload_digest: str | None
    warc_file: str | None
    warc_offset: int | None
    provenance: Provenance | None = None
    """Where Common Crawl has it, if it was fetched from there."""
    dataset: str | None = None
    """Files of the hub that it was read from, with their commit; None for a document from elsewhere."""


CAPTURE = [name for name in DocumentCapture.__dataclass_fields__ if name not in ("provenance", "dataset")]
"""The columns that describe a document's capture."""


@dataclass(frozen=True)
class ItemMatch:
    """An evaluation item in a document: set and number of the item, share and number of its words in the document."""

    set: str
    item: str
    share: float
    words: int


@dataclass(frozen=True)
class RepeatedParagraph:
    """A paragraph of a document, in code points, with the numbers of documents and domains that contain it."""

    begin: int
    end: int
    documents: int
    domains: int


@dataclass(frozen=True)
class DocumentChunk:
    """A chunk of a document, in code points. Rejected chunks have `reason` and `duplicate_of`, kept ones the others."""

    id: str
    start: int
    end: int
    headings: list[str] | None = None
    pages: list[int] | None = None
    tokens: int | None = None
    reason: str | None = None
    duplicate_of: str | None = None


@dataclass(frozen=True)
class Contents:
    """Evaluation items, repeated paragraphs and chunks of a document; [] if they were not searched."""

    items: list[ItemMatch]
    """Items with the largest share first."""
    repeats: list[RepeatedParagraph]
    chunks: list[DocumentChunk]


@dataclass(frozen=True)
class LineageReader:
    """Reads the artifacts of one lineage, by kind; kinds that have not been made are missing."""

    recipe: str
    artifacts: dict[str, Artifact]
    until: int | None = None
    """Number of steps of the training that count, if another run began from the checkpoint after them; None: all."""

    @classmethod
    def follow(cls, store: Store, recipe: str, version: str) -> "LineageReader":
        """Finds the last artifact made at a version and all artifacts that it was made from.

        If the version has a fine-tuned model but no trained one, the artifacts of its base model are included.

        Raises:
            InputError: the version has no artifact, or a base model is gone.
        """
        artifacts = lineage.chain(store, recipe, version)
        tuned = artifacts.get(TUNED)
        while tuned and "checkpoint" not in artifacts:
            base = origin_of(tuned)
            assert base is not None
            artifacts = {**lineage.chain_of(base), **artifacts}
            tuned = base if is_tuned(base) else None
        return cls(recipe, artifacts)

    @property
    def addresses(self) -> dict[str, str]:
        """The ids of the artifacts, by kind."""
        return {kind: str(artifact.address) for kind, artifact in self.artifacts.items()}

    @property
    def models(self) -> list[Artifact]:
        """The trained and the fine-tuned model, as far as they exist."""
        return [self.artifacts[kind] for kind in ("checkpoint", TUNED) if kind in self.artifacts]

    def origins(self) -> "list[OriginRun]":
        """Returns the runs that the model comes from, nearest first: each began from the weights of the next one."""
        runs: list[OriginRun] = []
        checkpoint = self.artifacts.get("checkpoint")
        while checkpoint and (ref := origin_ref(checkpoint)):
            try:
                until = origin_step(checkpoint)
                checkpoint = origin_of(checkpoint)
                assert checkpoint is not None
                runs.append(OriginRun(ref.address, LineageReader._of_run(checkpoint, until)))
            except InputError as error:
                runs.append(OriginRun(ref.address, None, error.cause))
                break
        return runs

    @classmethod
    def _of_run(cls, checkpoint: Artifact, until: int | None) -> "LineageReader":
        if problem := unrecorded(checkpoint):
            raise InputError(problem)
        artifacts = lineage.chain_of(checkpoint)
        for kind in ("shards", "plan"):
            if kind not in artifacts:
                raise InputError(f"the {kind} that {checkpoint.address} was trained on are gone", "restore them")
        return cls(checkpoint.address.name.partition("/")[0], artifacts, until)

    @cached_property
    def index(self) -> DocumentIndex | None:
        """The document index, which locates kept documents in the shards; None before encoding."""
        return DocumentIndex(self.artifacts["shards"]) if "shards" in self.artifacts else None

    @cached_property
    def shards(self) -> ShardSet:
        """The token shards."""
        return ShardSet.open(self.artifacts["shards"])

    @cached_property
    def plan(self) -> Plan | None:
        """The plan, which assigns documents to sequences; None before packing."""
        return Plan.open(self.artifacts["plan"]) if "plan" in self.artifacts else None

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the shards."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.artifacts["tokenizer"].read("tokenizer.json").decode())

    @cached_property
    def readings(self) -> Readings:
        """The index of which steps read which documents."""
        checkpoint = None if self.unrecorded else self.artifacts.get("checkpoint")
        return Readings(self.index, self.plan, checkpoint, self.until)

    @cached_property
    def unrecorded(self) -> str:
        """Says that the trained model was imported, so that its training is not on record; "" if it was not."""
        return unrecorded(self.artifacts["checkpoint"]) if "checkpoint" in self.artifacts else ""

    @property
    def measured(self) -> dict[str, dict[str, str]]:
        """Address and fingerprint of the group (`tasks.formats.documents.groups`) of each annotator."""
        attributes = self.artifacts.get("attributes")
        refs = group_refs(attributes) if attributes else {}
        return {name: {"group": ref.address, "fingerprint": ref.fingerprint} for name, ref in refs.items()}

    def entries_of(self, url: str) -> list[IndexEntry]:
        """Returns the index entries of the kept documents from the page at a URL."""
        return self.index.by_url(url) if self.index else []

    def url(self, shard: str, row: int) -> str:
        """Returns the URL of the document in a row of a shard."""
        return self.index.at([(shard, row)])[0].url if self.index else ""

    def rows(
        self, kind: str, folder: str, column: str, values: Sequence[str], columns: list[str]
    ) -> list[tuple[str, tuple[Any, ...]]]:
        """Returns (part, values of `columns`) for rows of a Parquet folder in which `column` has one of `values`.

        For a URL, these are the rows of its page in any spelling, as a takedown covers it. [] if there is no artifact
        of this kind. Every part is searched if the artifact has no index of its rows.

        Args:
            kind: kind of the artifact.
            folder: folder of the artifact, such as "kept/".
            column: "url" or "id".
            values: values to look up.
            columns: the columns to return.
        """
        artifact = self.artifacts.get(kind)
        if artifact is None:
            return []
        paths = artifact.files(folder)
        if artifact.files(f"{PART_KEYS_FOLDER}/"):
            index = KeyIndex(artifact)
            terms = {*map(page_term, values)} if column == URL else values
            parts = {index.parts[part] for term in terms for part, _ in index.find(column, term)[1]}
            paths = [path for path in paths if path.removeprefix(folder).removesuffix(".parquet") in parts]

        def matching(path: str) -> list[dict[str, Any]]:
            wanted = _spellings(artifact.column(path, URL), values) if column == URL else values
            return artifact.rows(path, column, wanted, columns).to_pylist() if wanted else []

        rows = many(matching, paths)
        names = (path.removeprefix(folder).removesuffix(".parquet") for path in paths)
        return [
            (name, tuple(row[key] for key in columns)) for name, found in zip(names, rows, strict=True) for row in found
        ]

    def captures(self, column: str, values: Sequence[str]) -> list[DocumentCapture]:
        """Returns the captures in which `column`, "url" or "id", has one of `values`."""
        rows = self.rows("extracted", "documents/", column, values, CAPTURE)
        return [self._with_provenance(DocumentCapture(*row)) for _, row in rows]

    def capture(self, kind: str, folder: str, part: str, doc_id: str) -> DocumentCapture | None:
        """Returns the capture of one document from its part; None if the part does not contain the document."""
        rows = self._rows_of(kind, folder, part, doc_id, CAPTURE)
        return self._with_provenance(DocumentCapture(**rows[0])) if rows else None

    def _with_provenance(self, capture: DocumentCapture) -> DocumentCapture:
        found, dataset = None, self._datasets.get(capture.source)
        if archived := self.artifacts.get("archived"):
            found = provenance_of(archived.store, capture.warc_file or "", capture.warc_offset)
        return replace(capture, provenance=found, dataset=dataset)

    @cached_property
    def _datasets(self) -> dict[str, str]:
        """Addresses of the datasets of the hub that were extracted, by source."""
        refs = self.artifacts["extracted"].record.inputs if "extracted" in self.artifacts else ()
        addresses = {ref.role.removeprefix("files:"): ref.address.removeprefix(EXTERNAL) for ref in refs}
        return {source: address for source, address in addresses.items() if is_hub(address)}

    def contents(self, part: str, doc_id: str) -> Contents:
        """Returns the contents of one document of a part; repeats and chunks are in document order."""
        items = self._rows_of(CONTAMINATION, MATCHES, part, doc_id, ["set", "item", "share", "words"])
        repeats = self._rows_of(PARAGRAPHS, REPEATS, part, doc_id, ["begin", "end", "documents", "domains"])
        range_ = ["id", "start", "end"]
        kept = self._rows_of(CHUNKS, CHUNKS, part, doc_id, [*range_, "headings", "pages", "tokens"], "document")
        rejected = self._rows_of(CHUNKS, "rejected", part, doc_id, [*range_, "reason", "duplicate_of"], "document")
        chunks = [DocumentChunk(**row) for row in (*kept, *rejected)]
        return Contents(
            [ItemMatch(**row) for row in items],
            [RepeatedParagraph(**row) for row in repeats],
            sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)),
        )

    @cached_property
    def _origins(self) -> dict[str, Origin]:
        shards = self.artifacts.get("shards")
        return read_origins(shards) if shards and accumulates(shards) else {}

    @cached_property
    def _earlier(self) -> dict[str, dict[str, Artifact]]:
        """The lineages of the documents of earlier versions in the shards, by the address of the documents."""
        store, own = self.artifacts["shards"].store, self.artifacts.get("documents")
        addresses = {origin.documents for origin in self._origins.values()} - {str(own.address) if own else ""}
        found = {address: Artifact.find(store, ArtifactId.parse(address)) for address in sorted(addresses)}
        return {address: lineage.chain_of(documents) if documents else {} for address, documents in found.items()}

    def _made_from(self, part: str) -> tuple[dict[str, Artifact], str]:
        """Returns the artifacts that a part of the shards or of the documents was made from, and its part of them."""
        origin = self._origins.get(part)
        if origin is None:
            return self.artifacts, part
        return self._earlier.get(origin.documents, self.artifacts), origin.part

    def _rows_of(
        self, kind: str, folder: str, part: str, doc_id: str, columns: list[str], key: str = "id"
    ) -> list[dict[str, Any]]:
        """Returns the rows of one document in its part; [] if the artifact or the part does not exist.

        The part is one of the shards, which may be of an earlier version, or one of the documents.
        """
        artifacts, part = self._made_from(part)
        artifact = artifacts.get(kind)
        path = f"{folder}/{part}.parquet"
        if artifact is None or path not in artifact.files(folder):
            return []
        rows: list[dict[str, Any]] = artifact.rows(path, key, [doc_id], columns).to_pylist()
        return rows

    def pages(self, entry: IndexEntry, start: int, length: int) -> list[int]:
        """Returns the numbers of the pages with the `length` tokens of a document from `start` on, ascending.

        [] for a document without pages. A token that is part of a character counts as the whole character.
        """
        pages = self._layout(entry)
        if pages is None:
            return []
        assert self.index is not None
        assert self.plan is not None
        (tokens,) = self.index.tokens([(entry.shard, entry.offset, start + length)], self.plan.format.dtype)
        begin, end = (len(self.tokenizer.decode(tokens[:count].tolist())) for count in (start, start + length))
        return sorted({box["page"] for box in pages.boxes(begin, end)})

    def _layout(self, entry: IndexEntry) -> PageLayout | None:
        """Returns the layout of the kept text of a document; None if it has none."""
        uid = entry.uid.hex()
        layouts = self._rows_of("extracted", "layout", entry.part, uid, ["layout"])
        if not layouts:
            return None
        extracted = self._rows_of("extracted", "documents", entry.part, uid, ["text"])
        kept = self._rows_of("documents", "kept", entry.part, uid, ["text"])
        if not extracted or not kept:
            return None
        return PageLayout(extracted[0]["text"], kept[0]["text"], layouts[0]["layout"])


@dataclass(frozen=True)
class OriginRun:
    """A run from whose weights a later one began.

    Attributes:
        checkpoint: id of its checkpoint.
        reader: its artifacts; None if they are gone.
        problem: why they are gone, or "".
    """

    checkpoint: str
    reader: LineageReader | None
    problem: str = ""


def mask_of_pages(urls: Sequence[str]) -> DocumentMask:
    """Returns the mask of the documents from the pages at some URLs in any spelling, as a takedown covers them."""
    pages = Tombstones(urls=frozenset(filter(None, map(document_identity, urls))))
    exact = pa.array(urls, pa.string())
    # Nearly all URLs contain the host literally: a filter of Arrow leaves few for a URL parser.
    hosts = "|".join(map(re.escape, sorted(map(bare, pages.hosts))))
    likely = rf"(?i){hosts}|^[^/]*//[^/]*[^!-$&-~]" if hosts else ""

    def mask(documents: pa.Table) -> NDArray[np.bool_]:
        column = documents.column(URL)
        result: NDArray[np.bool_] = pc.is_in(column, exact).to_numpy().copy()
        if likely:
            numbers = np.flatnonzero(pc.match_substring_regex(column, likely).to_numpy() & ~result)
            result[numbers] |= pages.mask(pa.table({URL: column.take(pa.array(numbers))}))
        return result

    return mask


def _spellings(column: pa.ChunkedArray, urls: Sequence[str]) -> list[str]:
    """Returns the URLs of a column that are spellings of some URLs, sorted."""
    distinct = pa.table({URL: column.unique()})
    return sorted(distinct.filter(pa.array(mask_of_pages(urls)(distinct))).column(URL).to_pylist())


def many(look_up: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Returns the results of look-ups in the order of the items; look-ups run concurrently, for remote stores."""
    items = list(items)
    if len(items) < 2:
        return list(map(look_up, items))
    with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="trace") as pool:
        return list(pool.map(look_up, items))
