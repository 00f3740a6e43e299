"""The artifacts of one lineage, opened for look-ups: what is needed of them is read when it is first needed."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.groups import named_in
from tasks.core.store import Store
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.document import CONTAMINATION, MATCHES, PARAGRAPHS, REPEATS
from tasks.formats.documents.key_index import OWN_FOLDER, KeyIndex
from tasks.formats.tokens.index import DocumentIndex, Entry
from tasks.formats.tokens.origin import origin_of, origin_ref
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.readings import TUNED, Readings, is_tuned
from tasks.formats.tokens.shard import ShardSet
from tasks.run import lineage

if TYPE_CHECKING:
    from tokenizers import Tokenizer
from tasks.stages.chunks.structure import Pages

Found = dict[str, Any]

CAPTURE = ["id", "url", "source", "title", "fetched_at", "record_id", "payload_digest", "warc_file", "warc_offset"]
"""The columns that describe a document's capture."""
_IN_FLIGHT = 32
"""Look-ups at once: each waits for some blocks one after the other."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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
        refs = named_in(attributes) if attributes else {}
        return {name: {"group": ref.address, "fingerprint": ref.fingerprint} for name, ref in refs.items()}

    def entries_of(self, url: str) -> list[Entry]:
        """Returns where the kept documents of a URL lie."""
        return self.index.by_url(url) if self.index else []

    def url(self, shard: str, row: int) -> str:
        """Returns the URL of the document in a row of a shard."""
        return self.index.at([(shard, row)])[0].url if self.index else ""

    def rows(
        self, kind: str, folder: str, column: str, values: Sequence[str], columns: list[str]
    ) -> list[tuple[str, Found]]:
        """Returns (part, row) of the rows of a Parquet folder with one of some values in a column, "url" or "id".

        None where the kind has not been made. Without an index of its rows, every part is looked into.
        """
        artifact = self.artifacts.get(kind)
        if artifact is None:
            return []
        paths = artifact.files(folder)
        if artifact.files(f"{OWN_FOLDER}/"):
            index = KeyIndex(artifact)
            parts = {index.parts[part] for value in values for part, _ in index.find(column, value)[1]}
            paths = [path for path in paths if path.removeprefix(folder).removesuffix(".parquet") in parts]
        tables = many(lambda path: artifact.rows(path, column, values, columns), paths)
        names = (path.removeprefix(folder).removesuffix(".parquet") for path in paths)
        return [(name, row) for name, table in zip(names, tables, strict=True) for row in table.to_pylist()]

    def row(self, kind: str, folder: str, part: str, doc_id: str) -> Found:
        """Returns the capture of one document from its part; empty when the part does not contain it."""
        artifact = self.artifacts.get(kind)
        path = f"{folder}{part}.parquet"
        if artifact is None or path not in artifact.files(folder):
            return {}
        rows = artifact.rows(path, "id", [doc_id], CAPTURE).to_pylist()
        return rows[0] if rows else {}

    def items_in(self, part: str, doc_id: str) -> list[Found]:
        """Returns the evaluation items in one document of a part, [{set, item, share, words}], the largest share first.

        Empty where none were looked for.
        """
        return self._rows_of(CONTAMINATION, MATCHES, part, doc_id, ["set", "item", "share", "words"])

    def repeats_in(self, part: str, doc_id: str) -> list[Found]:
        """Returns the repeated paragraphs in one document of a part, [{begin, end, documents, domains}], as they stand.

        Empty where none were looked for.
        """
        return self._rows_of(PARAGRAPHS, REPEATS, part, doc_id, ["begin", "end", "documents", "domains"])

    def chunks_of(self, part: str, doc_id: str) -> list[Found]:
        """Returns the chunks of one document of a part, [{id, start, end, headings, pages, tokens}], as they stand.

        Those that were rejected have `reason` and `duplicate_of` instead of the last three. Empty where none were cut.
        """
        place = ["id", "start", "end"]
        kept = self._rows_of(CHUNKS, CHUNKS, part, doc_id, [*place, "headings", "pages", "tokens"], "document")
        gone = self._rows_of(CHUNKS, "rejected", part, doc_id, [*place, "reason", "duplicate_of"], "document")
        return sorted([*kept, *gone], key=lambda row: (row["start"], row["end"]))

    def _rows_of(
        self, kind: str, folder: str, part: str, doc_id: str, columns: list[str], key: str = "id"
    ) -> list[Found]:
        artifact = self.artifacts.get(kind)
        path = f"{folder}/{part}.parquet"
        if artifact is None or path not in artifact.files(folder):
            return []
        rows: list[Found] = artifact.rows(path, key, [doc_id], columns).to_pylist()
        return rows


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


def pages_read(chain: Chain, entry: Entry, start: int, length: int) -> list[int]:
    """Returns the numbers of the pages that `length` tokens of a document from `start` on stand on, in order.

    Empty for a document without pages. A token that is a part of a letter counts as all of it.
    """
    pages = _pages(chain, entry)
    if pages is None:
        return []
    index, plan = chain.index, chain.plan
    assert index is not None
    assert plan is not None
    (tokens,) = index.tokens([(entry.shard, entry.offset, start + length)], plan.format.dtype)
    begin, end = (len(chain.tokenizer.decode(tokens[:count].tolist())) for count in (start, start + length))
    return sorted({box["page"] for box in pages.boxes(begin, end)})


def _pages(chain: Chain, entry: Entry) -> Pages | None:
    """Returns where the kept text of a document stands; None where it has no layout."""
    extracted, documents = chain.artifacts.get("extracted"), chain.artifacts.get("documents")
    path = f"layout/{entry.part}.parquet"
    if extracted is None or documents is None or path not in extracted.files("layout/"):
        return None
    ids = [entry.uid.hex()]
    found = extracted.rows(path, "id", ids, ["layout"]).to_pylist()
    before = extracted.rows(f"documents/{entry.part}.parquet", "id", ids, ["text"]).to_pylist()
    kept = documents.rows(f"kept/{entry.part}.parquet", "id", ids, ["text"]).to_pylist()
    if not (found and before and kept):
        return None
    return Pages(before[0]["text"], kept[0]["text"], found[0]["layout"])
