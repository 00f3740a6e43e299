"""Trace: from a page to every training step and checkpoint that saw it, and from a step to its pages.

    URL -> documents (WARC file and offset, kept or why not) -> shard rows -> sequences -> steps -> checkpoints
    domain -> its kept documents -> steps
    step -> sequences -> slices -> documents -> URLs, with the text of each slice
    step of a fine-tuning -> rows -> chunks and pages

Reads committed artifacts through a `LineageReader` (`tasks.run.trace.graph`). If a model began from the weights of
another one, the run of that model is searched too, and so on (`before`). Fine-tuned models of all recipes in the store
are searched if they come from the traced model or have read traced documents (`tuned`), with their artifacts
`finetuned` (`run.json`, `loss.parquet`, `withheld.json`) and the examples in their records.

Only captures without a document require a scan of the URL column of all parts.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.exposure import origin_refs
from tasks.formats.tokens.index import IndexEntry
from tasks.formats.tokens.marks import first_blank
from tasks.formats.tokens.readings import TUNED, ExampleReadings, by_document, checkpoints_of
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.web.domain import host_name, is_public_suffix
from tasks.run.trace.answer import (
    Document,
    ExampleRow,
    FailedCapture,
    LearnedExample,
    Lineage,
    PageTrace,
    Rejection,
    RelatedRun,
    SequenceSlice,
    ShardRow,
    StepSequence,
    StepTrace,
    Trace,
    TrainingRun,
    TunedStepTrace,
)
from tasks.run.trace.graph import DocumentMask, LineageReader, many, mask_of_pages

_ID = re.compile(r"[0-9a-f]{32}")
_STEP = re.compile(r"(?:step:)?(\d+)")
_TUNED_STEP = "tuned:"
_DOMAIN = "domain:"
_EXCERPT_TOKENS = 48

MOST_SEQUENCES = 32
"""Default number of sequences of a step whose pages are shown."""

MOST_DOCUMENTS = 100
"""Default number of documents of a domain that are shown."""


def trace(store: Store, recipe: str, version: str, query: str, everything: bool = False) -> Trace:
    """Traces a URL, a document id (32 hex digits), a domain ("domain:example.org") or a step ("step:120", "tuned:42").

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model, or of the last artifact that exists.
        query: a URL, document id, domain or step, see above.
        everything: whether to show all documents of a domain, or the pages of all sequences of a step.

    Raises:
        InputError: the version has no artifact, or there is no such step or domain.
    """
    requests = store.requests
    result: Trace
    if match := _STEP.fullmatch(query):
        result = trace_step(store, recipe, version, int(match[1]), None if everything else MOST_SEQUENCES)
    elif query.startswith(_TUNED_STEP):
        result = trace_tuned(store, recipe, version, _tuned_step(query))
    elif _ID.fullmatch(query):
        result = _trace_document(store, recipe, version, query)
    elif query.startswith(_DOMAIN):
        name = query.removeprefix(_DOMAIN)
        result = trace_domain(store, recipe, version, name, None if everything else MOST_DOCUMENTS)
    else:
        result = _trace_url(store, recipe, version, query)
    return replace(result, requests=store.requests - requests)


def _trace_url(store: Store, recipe: str, version: str, url: str) -> PageTrace:
    """Traces every capture of the page at a URL."""
    reader = LineageReader.follow(store, recipe, version)
    failed = reader.rows("extracted", "rejected/", "url", [url], ["record_id", "url", "reason"])

    def kept_documents(lineage: LineageReader) -> list[Document]:
        return [_kept_document(lineage, entry) for entry in lineage.entries_of(url)]

    documents = kept_documents(reader)
    kept_ids = {document.id for document in documents}
    documents += [document for document in _not_kept(reader, "url", [url]) if document.id not in kept_ids]
    return PageTrace(
        asked=url,
        kind="url",
        lineage=Lineage.of(reader, lambda lineage: (kept_documents(lineage), None)),
        documents=tuple(documents),
        tuned=tuple(_tuned_runs(reader, mask_of_pages([url]))),
        captures_without_document=tuple(FailedCapture(record_id, own, why) for _, (record_id, own, why) in failed),
    )


def _trace_document(store: Store, recipe: str, version: str, doc_id: str) -> PageTrace:
    """Traces one document."""
    reader = LineageReader.follow(store, recipe, version)

    def kept_documents(lineage: LineageReader) -> list[Document]:
        entry = lineage.index.by_uid(bytes.fromhex(doc_id)) if lineage.index else None
        return [_kept_document(lineage, entry)] if entry else []

    return PageTrace(
        asked=doc_id,
        kind="document",
        lineage=Lineage.of(reader, lambda lineage: (kept_documents(lineage), None)),
        documents=tuple(kept_documents(reader) or _not_kept(reader, "id", [doc_id])),
        tuned=tuple(_tuned_runs(reader, Tombstones(documents=frozenset([doc_id])).mask)),
    )


def trace_domain(store: Store, recipe: str, version: str, name: str, most: int | None = MOST_DOCUMENTS) -> PageTrace:
    """Traces the kept documents of a host and of all hosts below it, without their captures.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model, or of the last artifact that exists.
        name: a host name.
        most: number of documents to trace, in the order of the shards; None for all.

    Raises:
        InputError: the name is not a host name or is a public suffix, or nothing was encoded.
    """
    domain = _host(name)
    reader = LineageReader.follow(store, recipe, version)
    if reader.index is None and not reader.unrecorded:
        raise InputError(f"nothing of {recipe}@{version} was encoded", "run the stage encode first")

    def kept_documents(lineage: LineageReader) -> tuple[list[Document], int]:
        count, entries = lineage.index.by_domain(domain, most) if lineage.index else (0, [])
        return many(lambda entry: _in_shards(lineage, entry), entries), count

    documents, count = kept_documents(reader)
    return PageTrace(
        asked=f"{_DOMAIN}{domain}",
        kind="domain",
        lineage=Lineage.of(reader, kept_documents),
        documents=tuple(documents),
        tuned=tuple(_tuned_runs(reader, Tombstones(domains=frozenset([domain])).mask)),
        count=count,
    )


def trace_step(store: Store, recipe: str, version: str, step: int, most: int | None = MOST_SEQUENCES) -> StepTrace:
    """Traces a training step to its sequences and pages.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model.
        step: 0-based.
        most: number of sequences whose pages are read; None for all.

    Raises:
        InputError: nothing was trained, or the run has fewer steps.
    """
    reader = LineageReader.follow(store, recipe, version)
    run, order = reader.readings.run, reader.readings.order
    if reader.unrecorded:
        raise InputError(reader.unrecorded, "trace a step of a fine-tuning of it as tuned:42")
    if run is None or order is None:
        raise InputError(f"nothing was trained as {recipe}@{version}", "run the stage train first")
    if step >= run["steps"]:
        raise InputError(f"the run has no step {step}", f"its steps are 0 to {run['steps'] - 1}")
    sequences = [StepSequence(source, number, epoch) for source, number, epoch in order.batch(step)]
    detailed = sequences[:most]
    sequences[:most] = [
        replace(sequence, slices=tuple(slices))
        for sequence, slices in zip(detailed, _slices(reader, detailed, step), strict=True)
    ]
    return StepTrace(
        asked=f"step:{step}",
        kind="step",
        lineage=Lineage.of(reader, lambda lineage: (None, None)),
        step=step,
        skipped=reader.readings.why_skipped(step),
        first_checkpoint=min((count for count in checkpoints_of(run) if count > step), default=None),
        sequences=tuple(sequences),
    )


def trace_tuned(store: Store, recipe: str, version: str, step: int) -> TunedStepTrace:
    """Traces a step of a fine-tuning to its examples.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the fine-tuned model.
        step: 0-based.

    Raises:
        InputError: there is no such model or step, or its examples are gone.
    """
    model = Artifact.open_at(store, ArtifactId(f"{recipe}/{TUNED}", version))
    readings = ExampleReadings(model)
    if not 0 <= step < readings.run["steps"]:
        raise InputError(f"{model.address} has no step {step}", f"its steps are 0 to {readings.run['steps'] - 1}")
    rows = []
    for _, sequence, _ in readings.order.batch(step):
        for number in readings.examples.numbers(sequence):
            blank = readings.blank_from(number)
            source = readings.examples.source(readings.examples[number])
            rows.append(ExampleRow(sequence, source, blank is not None and blank <= step))
    skipped = step in readings.skipped_steps
    return TunedStepTrace(f"tuned:{step}", "tuned", str(model.address), _bases(model), step, skipped, tuple(rows))


def _tuned_step(query: str) -> int:
    number = query.removeprefix(_TUNED_STEP)
    if not number.isdecimal():
        raise InputError(f'"{query}" is not a step', "write it as tuned:42")
    return int(number)


def _kept_document(reader: LineageReader, entry: IndexEntry) -> Document:
    """Returns a kept document with its capture, the position of its tokens, and the steps that read it."""
    doc_id = entry.uid.hex()
    capture = reader.capture("documents", "kept", entry.part, doc_id)
    return replace(_in_shards(reader, entry), capture=capture, contents=reader.contents(entry.part, doc_id))


def _in_shards(reader: LineageReader, entry: IndexEntry) -> Document:
    """Returns a kept document without its capture."""
    source, split = parse_shard_name(entry.shard)
    position = ShardRow(split, entry.shard, entry.row, entry.n_tokens)
    reading = reader.readings.of(entry.shard, entry.row)
    return Document(entry.uid.hex(), entry.url, source, "kept", position, reading=reading)


def _not_kept(reader: LineageReader, column: str, values: Sequence[str]) -> list[Document]:
    """Returns documents that were rejected or, before `consolidate`, only extracted."""
    if "documents" not in reader.artifacts:
        captures = reader.captures(column, values)
        return [Document(capture.id, capture.url, capture.source, "extracted", capture=capture) for capture in captures]
    columns = ["id", "url", "source", "reason", "reasons", "duplicate_of"]
    rows = reader.rows("documents", "rejected/", column, values, columns)
    return [
        Document(
            doc_id,
            url,
            source,
            "rejected",
            rejection=Rejection(reason, reasons, duplicate_of),
            capture=reader.capture("extracted", "documents", part, doc_id),
            contents=reader.contents(part, doc_id),
        )
        for part, (doc_id, url, source, reason, reasons, duplicate_of) in rows
    ]


def _slices(reader: LineageReader, sequences: Sequence[StepSequence], step: int) -> list[list[SequenceSlice]]:
    """Returns the slices of each sequence of a step, with their pages and the beginning of the text that was read."""
    plan, index = reader.plan, reader.index
    assert plan is not None
    assert index is not None
    plan_slices = [
        slices.tolist() for slices in many(lambda sequence: plan.slices(sequence.source, sequence.sequence), sequences)
    ]
    flat = [(plan.shards[number], *rest) for slices in plan_slices for number, *rest in slices]
    entries = index.at([(shard, row) for shard, row, *_ in flat])
    blanks = [first_blank(reader.readings.marks, shard, row) for shard, row, *_ in flat]
    withheld = [blank is not None and step >= blank for blank in blanks]
    ranges = [
        (shard, offset, 0 if is_withheld else min(length, _EXCERPT_TOKENS))
        for (shard, _, offset, length), is_withheld in zip(flat, withheld, strict=True)
    ]
    tokens = index.tokens(ranges, plan.format.dtype)
    texts = [reader.tokenizer.decode(excerpt.tolist()) for excerpt in tokens]
    in_documents = [
        (entry, offset - entry.offset, length) for entry, (_, _, offset, length) in zip(entries, flat, strict=True)
    ]
    pages = many(lambda part: reader.pages(*part), in_documents)
    details = zip(in_documents, withheld, texts, pages, strict=True)
    result = []
    for slices in plan_slices:
        pos, parts = 0, list[SequenceSlice]()
        for (entry, start, length), is_withheld, text, numbers in islice(details, len(slices)):
            parts.append(SequenceSlice(entry.uid.hex(), entry.url, start, length, pos, is_withheld, numbers, text))
            pos += length
        result.append(parts)
    return result


def _host(name: str) -> str:
    """Returns a host name in canonical form; raises InputError."""
    host = host_name(f"http://{name.strip()}/") if not set("/?#@") & set(name) else None
    if not host:
        raise InputError(f'"{name}" is not a host name', "write it as domain:example.org")
    if is_public_suffix(host):
        raise InputError(f"{host} is a public suffix, under which anyone can register", "name a domain below it")
    return host


def _tuned_runs(reader: LineageReader, mask: DocumentMask) -> list[RelatedRun]:
    """Returns the fine-tuned models that come from the model of a lineage, or have read traced documents."""
    store = next(iter(reader.artifacts.values())).store
    runs = many(lambda model: _tuned_run(model, reader, mask), _tuned_models(store))
    return [run for run in runs if run]


def _tuned_models(store: Store) -> list[Artifact]:
    """Returns all fine-tuned models of a store, by recipe and version; lists folders, not all files in them."""
    recipes = [name for name in store.folders() if not name.startswith(".")]
    kinds = many(store.folders, recipes)
    names = [f"{recipe}/{TUNED}" for recipe, folders in zip(recipes, kinds, strict=True) if TUNED in folders]
    versions = zip(names, many(store.folders, names), strict=True)
    addresses = [ArtifactId(name, version) for name, folders in versions for version in folders]
    return [model for model in many(lambda address: Artifact.find(store, address), addresses) if model]


def _tuned_run(model: Artifact, reader: LineageReader, mask: DocumentMask) -> RelatedRun | None:
    run = RelatedRun(str(model.address), _bases(model))
    is_related = _comes_from(model, reader)
    try:
        readings = ExampleReadings(model)
        examples_of = by_document(readings.examples, readings.examples.where(mask))
    except (InputError, FileNotFoundError) as error:
        return replace(run, problem=str(error)) if is_related else None
    if not examples_of and not is_related:
        return None
    documents = []
    for page, numbers in examples_of.items():
        sources = (readings.examples.source(readings.examples[number]) for number in numbers)
        examples = tuple(LearnedExample(source["chunk"], source.get("pages")) for source in sources)
        reading = readings.of(numbers)
        documents.append(Document(page.id, page.url, page.source, "learned", reading=reading, examples=examples))
    return replace(run, run=TrainingRun(readings.run["steps"], readings.run), documents=tuple(documents))


def _bases(model: Artifact) -> tuple[str, ...]:
    return tuple(ref.address for ref in origin_refs(model))


def _comes_from(model: Artifact, reader: LineageReader) -> bool:
    """Returns whether a model is one of the lineage's models, or began from the weights of one."""
    own = {(artifact.record.fingerprint, artifact.record.content) for artifact in reader.models}
    origins = {(ref.fingerprint, ref.content) for ref in origin_refs(model)}
    return bool(own & {(model.record.fingerprint, model.record.content), *origins})
