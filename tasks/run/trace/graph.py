"""The artifacts of one lineage, opened for look-ups: what is needed of them is read when it is first needed.

Reads committed artifacts only, those of them that exist: extracted, attributes, contamination, paragraphs, documents,
chunks, shards, plan and checkpoint. Which versions belong together is read from the records, from the checkpoint
upwards (`tasks.run.lineage`), and not inferred from equal names.

Kept documents are found in the document index, sequences by binary search in the plan. Of a remote store, only the
blocks with these are fetched, and of Parquet files the columns that are shown.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.groups import group_refs
from tasks.core.store import Store
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.document import CONTAMINATION, MATCHES, PARAGRAPHS, REPEATS
from tasks.formats.documents.key_index import PART_KEYS_FOLDER, KeyIndex
from tasks.formats.tokens.exposure import origin_of, origin_ref
from tasks.formats.tokens.index import DocumentIndex, IndexEntry
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.readings import TUNED, Readings, is_tuned
from tasks.formats.tokens.shard import ShardSet
from tasks.run import lineage
from tasks.stages.chunks.structure import PageLayout

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_IN_FLIGHT = 32
"""Look-ups at once: each waits for some blocks one after the other."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Capture:
    """The capture of a document, as the extracted documents have it."""

    id: str
    url: str
    source: str
    title: str | None
    fetched_at: datetime | None
    record_id: str | None
    payload_digest: str | None
    warc_file: str | None
    warc_offset: int | None


CAPTURE = list(Capture.__dataclass_fields__)
"""The columns that describe a document's capture."""


@dataclass(frozen=True)
class Item:
    """An evaluation item in a document: its set and number, the share of its words that are there, and how many."""

    set: str
    item: str
    share: float
    words: int


@dataclass(frozen=True)
class Repeat:
    """A paragraph in a document, in code points, and how many documents and domains have it."""

    begin: int
    end: int
    documents: int
    domains: int


@dataclass(frozen=True)
class Chunk:
    """A chunk of a document, in code points; `reason` and `duplicate_of` of one that was rejected, else the others."""

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
    """What is known of a document's contents; [] where nothing was looked for."""

    items: list[Item]
    """The largest share first."""
    repeats: list[Repeat]
    chunks: list[Chunk]


@dataclass(frozen=True)
class Chain:
    """The artifacts of one lineage, by kind; kinds that have not been made are missing."""

    recipe: str
    artifacts: dict[str, Artifact]

    @classmethod
    def follow(cls, store: Store, recipe: str, version: str) -> "Chain":
        """Finds the last artifact made at a version and everything it was made from; raises InputError.

        A version that has a fine-tuned model and trained none itself goes on with the base: what that was made from.
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
        """The trained and the fine-tuned model, as far as they have been made."""
        return [self.artifacts[kind] for kind in ("checkpoint", TUNED) if kind in self.artifacts]

    def before(self) -> "list[Earlier]":
        """Returns the runs that the model comes from, nearest first: each began from the weights of the next one."""
        found: list[Earlier] = []
        checkpoint = self.artifacts.get("checkpoint")
        while checkpoint and (ref := origin_ref(checkpoint)):
            try:
                checkpoint = origin_of(checkpoint)
                assert checkpoint is not None
                found.append(Earlier(ref.address, Chain._of_run(checkpoint)))
            except InputError as error:
                found.append(Earlier(ref.address, None, error.cause))
                break
        return found

    @classmethod
    def _of_run(cls, checkpoint: Artifact) -> "Chain":
        artifacts = lineage.chain_of(checkpoint)
        for kind in ("shards", "plan"):
            if kind not in artifacts:
                raise InputError(f"the {kind} that {checkpoint.address} was trained on are gone", "restore them")
        return cls(checkpoint.address.name.partition("/")[0], artifacts)

    @cached_property
    def index(self) -> DocumentIndex | None:
        """Where each kept document lies; None before encoding."""
        return DocumentIndex(self.artifacts["shards"]) if "shards" in self.artifacts else None

    @cached_property
    def shards(self) -> ShardSet:
        """The token shards."""
        return ShardSet.open(self.artifacts["shards"])

    @cached_property
    def plan(self) -> Plan | None:
        """Which sequences contain which documents; None before packing."""
        return Plan.by_ranges(self.artifacts["plan"]) if "plan" in self.artifacts else None

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the shards."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.artifacts["tokenizer"].read("tokenizer.json").decode())

    @cached_property
    def readings(self) -> Readings:
        """Which steps read which document."""
        return Readings(self.index, self.plan, self.artifacts.get("checkpoint"))

    @property
    def measured(self) -> dict[str, dict[str, str]]:
        """Where what each annotator has measured lies (`tasks.core.groups`), and its fingerprint."""
        attributes = self.artifacts.get("attributes")
        refs = group_refs(attributes) if attributes else {}
        return {name: {"group": ref.address, "fingerprint": ref.fingerprint} for name, ref in refs.items()}

    def entries_of(self, url: str) -> list[IndexEntry]:
        """Returns where the kept documents of a URL lie."""
        return self.index.by_url(url) if self.index else []

    def url(self, shard: str, row: int) -> str:
        """Returns the URL of the document in a row of a shard."""
        return self.index.at([(shard, row)])[0].url if self.index else ""

    def rows(
        self, kind: str, folder: str, column: str, values: Sequence[str], columns: list[str]
    ) -> list[tuple[str, tuple[Any, ...]]]:
        """Returns (part, values of `columns`) of rows of a Parquet folder with one of some values in a column.

        None where the kind has not been made. Without an index of its rows, every part is looked into.

        Args:
            kind: of the artifact.
            folder: of the artifact, such as "kept/".
            column: "url" or "id".
            values: what it has in the rows that are wanted.
            columns: the columns to return.
        """
        artifact = self.artifacts.get(kind)
        if artifact is None:
            return []
        paths = artifact.files(folder)
        if artifact.files(f"{PART_KEYS_FOLDER}/"):
            index = KeyIndex(artifact)
            parts = {index.parts[part] for value in values for part, _ in index.find(column, value)[1]}
            paths = [path for path in paths if path.removeprefix(folder).removesuffix(".parquet") in parts]
        tables = many(lambda path: artifact.rows(path, column, values, columns), paths)
        names = (path.removeprefix(folder).removesuffix(".parquet") for path in paths)
        found = ((name, table.to_pylist()) for name, table in zip(names, tables, strict=True))
        return [(name, tuple(row[of] for of in columns)) for name, rows in found for row in rows]

    def captures(self, column: str, values: Sequence[str]) -> list[Capture]:
        """Returns the captures with one of some values in a column, "url" or "id"."""
        return [Capture(*row) for _, row in self.rows("extracted", "documents/", column, values, CAPTURE)]

    def capture(self, kind: str, folder: str, part: str, doc_id: str) -> Capture | None:
        """Returns the capture of one document from its part; None when the part does not contain it."""
        rows = self._rows_of(kind, folder, part, doc_id, CAPTURE)
        return Capture(**rows[0]) if rows else None

    def contents(self, part: str, doc_id: str) -> Contents:
        """Returns what is known of the contents of one document of a part; repeats and chunks as they stand in it."""
        items = self._rows_of(CONTAMINATION, MATCHES, part, doc_id, ["set", "item", "share", "words"])
        repeats = self._rows_of(PARAGRAPHS, REPEATS, part, doc_id, ["begin", "end", "documents", "domains"])
        place = ["id", "start", "end"]
        kept = self._rows_of(CHUNKS, CHUNKS, part, doc_id, [*place, "headings", "pages", "tokens"], "document")
        gone = self._rows_of(CHUNKS, "rejected", part, doc_id, [*place, "reason", "duplicate_of"], "document")
        chunks = [Chunk(**row) for row in (*kept, *gone)]
        return Contents(
            [Item(**row) for row in items],
            [Repeat(**row) for row in repeats],
            sorted(chunks, key=lambda chunk: (chunk.start, chunk.end)),
        )

    def _rows_of(
        self, kind: str, folder: str, part: str, doc_id: str, columns: list[str], key: str = "id"
    ) -> list[dict[str, Any]]:
        """Returns the rows of one document in its part; [] where the kind or the part has not been made."""
        artifact = self.artifacts.get(kind)
        path = f"{folder}/{part}.parquet"
        if artifact is None or path not in artifact.files(folder):
            return []
        rows: list[dict[str, Any]] = artifact.rows(path, key, [doc_id], columns).to_pylist()
        return rows

    def pages(self, entry: IndexEntry, start: int, length: int) -> list[int]:
        """Returns the numbers of the pages that `length` tokens of a document from `start` on stand on, in order.

        [] for a document without pages. A token that is a part of a letter counts as all of it.
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
        """Returns where the kept text of a document stands; None where it has no layout."""
        uid = entry.uid.hex()
        found = self._rows_of("extracted", "layout", entry.part, uid, ["layout"])
        if not found or "documents" not in self.artifacts:
            return None
        before = self._rows_of("extracted", "documents", entry.part, uid, ["text"])
        kept = self._rows_of("documents", "kept", entry.part, uid, ["text"])
        return PageLayout(before[0]["text"], kept[0]["text"], found[0]["layout"]) if before and kept else None


@dataclass(frozen=True)
class Earlier:
    """A run from whose weights a later one began: its checkpoint, and its artifacts, or why they are not known."""

    checkpoint: str
    chain: Chain | None
    problem: str = ""


def many(look_up: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Returns the results of look-ups in the order of the items; many wait for a remote store at once."""
    items = list(items)
    if len(items) < 2:
        return list(map(look_up, items))
    with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="trace") as pool:
        return list(pool.map(look_up, items))
