"""Trace: from a page to every training step and checkpoint that saw it, and from a step to its pages.

Reads committed artifacts only, those of them that exist: extracted, attributes, documents, shards, plan and checkpoint.
Which versions belong together is read from the records, from the checkpoint upwards, and not inferred from equal names.

    URL -> documents (WARC file and offset, kept or why not) -> shard rows -> sequences -> steps -> checkpoints
    step -> sequences -> slices -> documents -> URLs, with the text of each slice

Kept documents are found by binary search in the document index, sequences by binary search in the plan, steps by
inverting the order. Only a page that was rejected costs a pass over the URL column of the rejected documents.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.core.groups import named_in
from tasks.core.store import Store
from tasks.formats.canonical_url import canonical
from tasks.formats.tokens.index import DocumentIndex, Entry
from tasks.formats.tokens.marks import first_blank
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.readings import Readings
from tasks.formats.tokens.shard import ShardSet, parse_shard_name, part_number
from tasks.run import lineage
from tasks.run.trace_text import render

__all__ = ["Chain", "render", "trace", "trace_document", "trace_step", "trace_url"]

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Found = dict[str, Any]

_CAPTURE = ["id", "url", "source", "title", "fetched_at", "record_id", "payload_digest", "warc_file", "warc_offset"]
_ID = re.compile(r"[0-9a-f]{32}")
_STEP = re.compile(r"(?:step:)?(\d+)")
_EXCERPT_TOKENS = 48
_OF_RUN = ("steps", "batch_size", "seed", "weights", "anneal", "checkpoint_steps")


def trace(store: Store, recipe: str, version: str, what: str) -> Found:
    """Traces a URL, a document id (32 hex digits) or a step ("step:120").

    Raises:
        InputError: nothing of the recipe has been made, or there is no such step.
    """
    if match := _STEP.fullmatch(what):
        return trace_step(store, recipe, version, int(match[1]))
    if _ID.fullmatch(what):
        return trace_document(store, recipe, version, what)
    return trace_url(store, recipe, version, what)


def trace_url(store: Store, recipe: str, version: str, url: str) -> Found:
    """Traces every capture of a URL.

    Returns:
        {asked, kind: "url", artifacts, measured: {annotator: {group, fingerprint}}, run, documents: [see `_kept` and
        `_not_kept`], captures_without_document: [{record_id, url, reason}]}.
    """
    chain = Chain.follow(store, recipe, version)
    urls = sorted({url, canonical(url) or url})
    found = [_kept(chain, entry) for spelling in urls for entry in chain.entries_of(spelling)]
    seen = {document["id"] for document in found}
    found += [row for row in _not_kept(chain, pc.field("url").isin(urls)) if row["id"] not in seen]
    lost = chain.rows("extracted", "rejected/", pc.field("url").isin(urls), ["record_id", "url", "reason"])
    return {**_head(chain, url, "url"), "documents": found, "captures_without_document": [row for _, row in lost]}


def trace_document(store: Store, recipe: str, version: str, doc_id: str) -> Found:
    """Traces one document; the result has the same shape as that of `trace_url`."""
    chain = Chain.follow(store, recipe, version)
    entry = chain.index.by_uid(bytes.fromhex(doc_id)) if chain.index else None
    found = [_kept(chain, entry)] if entry else list(_not_kept(chain, pc.field("id") == doc_id))
    return {**_head(chain, doc_id, "document"), "documents": found, "captures_without_document": []}


def trace_step(store: Store, recipe: str, version: str, step: int) -> Found:
    """Returns the sequences of a step (from 0) with the pages they are made of.

    Returns:
        {asked, kind: "step", artifacts, measured, run, step, skipped, first_checkpoint, sequences: [{source, sequence,
        epoch, slices: [{id, url, start, length, pos, text}]}]}; `text` is the beginning of what the model read: nothing
        of a slice that is `withheld`, because it was taken down before.

    Raises:
        InputError: nothing was trained, or the run had fewer steps.
    """
    chain = Chain.follow(store, recipe, version)
    run, order = chain.readings.run, chain.readings.order
    if run is None or order is None:
        raise InputError(f"nothing was trained as {recipe}@{version}", "run the stage train first")
    if step >= run["steps"]:
        raise InputError(f"the run had the steps 0 .. {run['steps'] - 1}, not {step}", "name one of these")
    sequences = [
        {"source": source, "sequence": seq, "epoch": epoch, "slices": _pieces(chain, source, seq, step)}
        for source, seq, epoch in order.batch(step)
    ]
    return {
        **_head(chain, f"step:{step}", "step"),
        "step": step,
        "skipped": step in chain.readings.skipped_steps,
        "first_checkpoint": _first_checkpoint(run, step),
        "sequences": sequences,
    }


@dataclass(frozen=True)
class Chain:
    """The artifacts of one lineage, by kind; kinds that have not been made are missing."""

    recipe: str
    artifacts: dict[str, Artifact]

    @classmethod
    def follow(cls, store: Store, recipe: str, version: str) -> "Chain":
        """Finds the last artifact made at a version and everything it was made from; raises InputError."""
        return cls(recipe, lineage.chain(store, recipe, version))

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
        return Plan.open(self.artifacts["plan"]) if "plan" in self.artifacts else None

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the shards."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.artifacts["tokenizer"].read("tokenizer.json").decode())

    @cached_property
    def readings(self) -> Readings:
        """Which steps read which document."""
        shards = self.shards if "shards" in self.artifacts else None
        return Readings(shards, self.plan, self.artifacts.get("checkpoint"))

    @property
    def measured(self) -> dict[str, dict[str, str]]:
        """Where what each annotator has measured lies (`tasks.core.groups`), and its fingerprint."""
        attributes = self.artifacts.get("attributes")
        refs = named_in(attributes) if attributes else {}
        return {name: {"group": ref.address, "fingerprint": ref.fingerprint} for name, ref in refs.items()}

    def entries_of(self, url: str) -> list[Entry]:
        """Returns where the kept documents of a URL lie."""
        return self.index.by_url(url) if self.index else []

    def rows(self, kind: str, folder: str, where: pc.Expression, columns: list[str]) -> list[tuple[str, Found]]:
        """Returns (part, row) of the rows of a Parquet folder that pass; none where the kind has not been made."""
        artifact, found = self.artifacts.get(kind), []
        for path in artifact.files(folder) if artifact else []:
            assert artifact is not None
            part = path.removeprefix(folder).removesuffix(".parquet")
            found += [(part, row) for row in artifact.table(path, columns, where).to_pylist()]
        return found

    def row(self, kind: str, folder: str, part: str, doc_id: str) -> Found:
        """Returns the capture of one document from its part; empty when the part does not contain it."""
        artifact = self.artifacts.get(kind)
        path = f"{folder}{part}.parquet"
        if artifact is None or path not in artifact.files(folder):
            return {}
        rows = artifact.table(path, _CAPTURE, pc.field("id") == doc_id).to_pylist()
        return rows[0] if rows else {}


def _head(chain: Chain, asked: str, kind: str) -> Found:
    run = chain.readings.run
    return {
        "asked": asked,
        "kind": kind,
        "recipe": chain.recipe,
        "artifacts": {kind: str(artifact.address) for kind, artifact in chain.artifacts.items()},
        "measured": chain.measured,
        "run": run and {name: run[name] for name in _OF_RUN if name in run},
    }


def _kept(chain: Chain, entry: Entry) -> Found:
    """Returns a kept document: its capture, where its tokens lie, and every step and checkpoint that saw it."""
    capture = chain.row("documents", "kept/", entry.part, entry.uid.hex())
    source, split = parse_shard_name(entry.shard)
    return {
        "id": entry.uid.hex(),
        "url": entry.url,
        "source": source,
        **capture,
        "fate": "kept",
        "split": split,
        "shard": entry.shard,
        "row": entry.row,
        "n_tokens": int(chain.shards.shard(entry.shard).lengths[entry.row]),
        **_readings(chain, entry),
    }


def _readings(chain: Chain, entry: Entry) -> Found:
    """Returns the sequences of a document, the steps that read them and the checkpoints that came after."""
    reading = chain.readings.of(entry.shard, entry.row)
    found: Found = {"sequences": reading.sequences, "steps": reading.steps, "checkpoints": reading.checkpoints}
    if chain.readings.run is None:
        return found
    found["skipped_steps"] = reading.skipped_steps
    return found if reading.withheld_from is None else {**found, "withheld_from": reading.withheld_from}


def _not_kept(chain: Chain, where: pc.Expression) -> list[Found]:
    """Returns documents that were rejected, or that nothing has judged yet."""
    if "documents" not in chain.artifacts:
        return [{**row, "fate": "extracted"} for _, row in chain.rows("extracted", "documents/", where, _CAPTURE)]
    columns = ["id", "url", "source", "reason", "reasons", "duplicate_of"]
    return [
        {**chain.row("extracted", "documents/", part, row["id"]), **row, "fate": "rejected"}
        for part, row in chain.rows("documents", "rejected/", where, columns)
    ]


def _first_checkpoint(run: Found, step: int) -> int | None:
    return min((count for count in run["checkpoint_steps"] if count > step), default=None)


def _pieces(chain: Chain, source: str, sequence: int, step: int) -> list[Found]:
    """Returns the slices of a sequence of a step, with the page and the beginning of the text that it read of each."""
    assert chain.plan is not None
    found, pos = [], 0
    for number, row, offset, length in chain.plan.slices(source, sequence).tolist():
        name = chain.plan.shards[number]
        shard = chain.shards.shard(name)
        uid, start = shard.uid(row), offset - shard.token_offset(row)
        entry = chain.index.by_uid(uid, part_number(name)) if chain.index else None
        blank = first_blank(chain.readings.marks, name, row)
        withheld = blank is not None and step >= blank
        tokens = [] if withheld else shard.slice(row, start, min(length, _EXCERPT_TOKENS)).tolist()
        place = {"start": start, "length": length, "pos": pos, **({"withheld": True} if withheld else {})}
        url = entry.url if entry else ""
        found.append({"id": uid.hex(), "url": url, **place, "text": chain.tokenizer.decode(tokens)})
        pos += length
    return found
