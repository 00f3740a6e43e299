"""Trace: from a page to every training step and checkpoint that saw it, and from a step to its pages.

    URL -> documents (WARC file and offset, kept or why not) -> shard rows -> sequences -> steps -> checkpoints
    domain -> its kept documents -> steps
    step -> sequences -> slices -> documents -> URLs, with the text of each slice
    step of a fine-tuning -> rows -> chunks and pages

Reads committed artifacts through a `Chain` (`tasks.run.trace.graph`). Of a model that began from the weights of
another, the same is looked up in the run of that one, and so on (`before`). The fine-tuned models that come from the
traced one, or have read some of the traced documents, are looked through in all recipes of the store (`tuned`): their
artifacts `finetuned` (`run.json`, `loss.jsonl`, `withheld.json`) and the examples that their records name.

Only captures that gave no document are looked for in the URL column of all parts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.exposure import origin_refs
from tasks.formats.tokens.index import IndexEntry
from tasks.formats.tokens.marks import first_blank
from tasks.formats.tokens.readings import TUNED, ExampleReadings, Reading, by_document
from tasks.formats.tokens.shard import parse_shard_name
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import host_name, is_public_suffix
from tasks.run.trace.graph import Capture, Chain, Contents, many

_ID = re.compile(r"[0-9a-f]{32}")
_STEP = re.compile(r"(?:step:)?(\d+)")
_TUNED_STEP = "tuned:"
_DOMAIN = "domain:"
_EXCERPT_TOKENS = 48

MOST_SEQUENCES = 32
"""Sequences of a step whose pages are shown, unless all are wanted."""

MOST_DOCUMENTS = 100
"""Documents of a domain that are shown, unless all are wanted."""

Covers = Callable[[pa.Table], NDArray[np.bool_]]
"""Returns which rows of a table with id and url of documents are meant."""

LookUp = Callable[[Chain], "tuple[Sequence[Document] | None, int | None]"]
"""Returns what a run has of it: documents, None where none are looked for; and their count, of a domain."""

Json = dict[str, Any]
"""What `to_json` returns: the answer as `--json` prints it."""


@dataclass(frozen=True)
class Run:
    """Settings of a training run."""

    steps: int
    settings: Mapping[str, object]
    """As `run.json` has them: `Readings.settings`."""

    @classmethod
    def of(cls, chain: Chain) -> "Run | None":
        """Returns the run of a chain; None where nothing was trained."""
        settings = chain.readings.settings
        return cls(settings["steps"], settings) if settings else None


@dataclass(frozen=True)
class Place:
    """Where the tokens of a kept document lie: its row of a shard of a split."""

    split: str
    shard: str
    row: int
    n_tokens: int


@dataclass(frozen=True)
class Rejection:
    """Why a document was not kept; `reason` is the first of the reasons."""

    reason: str
    reasons: list[str]
    duplicate_of: str | None


@dataclass(frozen=True)
class Learned:
    """An example made of a document: its chunk, and the pages on which that stands; None without pages."""

    chunk: str
    pages: list[int] | None


@dataclass(frozen=True)
class Document:
    """A document, what became of it, and who read it: steps of a training, or of a fine-tuning (`examples`).

    Attributes:
        fate: "kept", "rejected", "extracted": judged by nothing yet; "learned": some of it became examples.
        place: of a kept document.
        rejection: of a rejected document.
        reading: of a kept or learned document.
        capture: where its record has one.
        contents: where they were looked for.
        examples: of a learned document.
    """

    id: str
    url: str
    source: str
    fate: Literal["kept", "rejected", "extracted", "learned"]
    place: Place | None = None
    rejection: Rejection | None = None
    reading: Reading | None = None
    capture: Capture | None = None
    contents: Contents | None = None
    examples: tuple[Learned, ...] = ()

    def to_json(self, trained: bool) -> Json:
        """Returns it as JSON has it; `trained`: whether there is a run, whose skipped steps are named."""
        head = {"id": self.id, "url": self.url, "source": self.source}
        reading = _reading_json(self.reading, trained) if self.reading else {}
        if self.fate == "learned":
            return {**head, "examples": [asdict(one) for one in self.examples], **reading}
        found = {**(asdict(self.capture) if self.capture else {}), **head, "fate": self.fate}
        for part in (self.place, self.rejection):
            found |= asdict(part) if part else {}
        return {**found, **reading, **(_contents_json(self.contents) if self.contents else {})}


@dataclass(frozen=True)
class OtherRun:
    """What the run of another model has read of what is traced.

    Of a run that the traced model began from, or of a fine-tuned model that came later.

    Attributes:
        model: its id.
        bases: the models that it comes from, nearest first; of a fine-tuned one.
        problem: why it is not known what it has read, or "".
        run: None where it is not known.
        documents: None where nothing is looked for, as for a step.
        count: of a domain: how many documents there are, of which `documents` are some.
    """

    model: str
    bases: tuple[str, ...] = ()
    problem: str = ""
    run: Run | None = None
    documents: tuple[Document, ...] | None = None
    count: int | None = None


@dataclass(frozen=True)
class Trace:
    """An answer: what was asked, and how many requests it has made of a remote store."""

    asked: str
    kind: str
    requests: int = field(default=0, kw_only=True)

    def to_json(self) -> Json:
        """Returns the answer as JSON has it."""
        return {"asked": self.asked, "kind": self.kind, **self._body(), "requests": self.requests}

    def _body(self) -> Json:
        raise NotImplementedError


@dataclass(frozen=True)
class Lineage:
    """The artifacts that an answer was read from.

    Attributes:
        recipe: its name.
        artifacts: their ids, by kind.
        measured: by annotator, group and fingerprint of what it has measured.
        run: None where nothing was trained.
        before: what the runs that the model comes from have read, nearest first.
    """

    recipe: str
    artifacts: dict[str, str]
    measured: dict[str, dict[str, str]]
    run: Run | None
    before: tuple[OtherRun, ...]

    @classmethod
    def of(cls, chain: Chain, look_up: LookUp) -> "Lineage":
        """Returns the artifacts of a chain, and what `look_up` finds in the runs that its model comes from."""
        before = []
        for one in chain.before():
            documents, count = look_up(one.chain) if one.chain else (None, None)
            run = Run.of(one.chain) if one.chain else None
            found = None if documents is None else tuple(documents)
            before.append(OtherRun(one.checkpoint, problem=one.problem, run=run, documents=found, count=count))
        return cls(chain.recipe, chain.addresses, chain.measured, Run.of(chain), tuple(before))


@dataclass(frozen=True)
class LineageTrace(Trace):
    """An answer from the artifacts of one lineage."""

    lineage: Lineage

    def _body(self) -> Json:
        found = self.lineage
        head = {"recipe": found.recipe, "artifacts": found.artifacts, "measured": found.measured}
        before = [_before_json(one) for one in found.before]
        return {**head, "run": found.run and found.run.settings, **self._found(), "before": before}

    def _found(self) -> Json:
        raise NotImplementedError


@dataclass(frozen=True)
class Lost:
    """A capture that gave no document, and why."""

    record_id: str | None
    url: str
    reason: str


@dataclass(frozen=True)
class PageTrace(LineageTrace):
    """Documents of a URL, of an id, or of a domain (`count` is that of all of its documents), and who read them.

    Attributes:
        captures_without_document: of a URL or id.
        tuned: the fine-tuned models that come from the model, or have read some of the documents.
    """

    documents: tuple[Document, ...]
    tuned: tuple[OtherRun, ...]
    captures_without_document: tuple[Lost, ...] = ()
    count: int | None = None

    def _found(self) -> Json:
        found = {"documents": [one.to_json(self.lineage.run is not None) for one in self.documents]}
        if self.count is not None:
            return {"count": self.count, **found}
        return {**found, "captures_without_document": [asdict(one) for one in self.captures_without_document]}

    def _body(self) -> Json:
        return {**super()._body(), "tuned": [_tuned_json(one) for one in self.tuned]}


@dataclass(frozen=True)
class Slice:
    """What a sequence has of a document.

    Attributes:
        id: of the document.
        url: of the document.
        start: first token, counted in the document.
        length: number of tokens.
        pos: where it begins in the sequence.
        withheld: nothing of it was read: it was taken down before, or it or its shard had spoilt steps.
        pages: of the file that it stands on; [] for a document without pages.
        text: the beginning of what the model read.
    """

    id: str
    url: str
    start: int
    length: int
    pos: int
    withheld: bool
    pages: list[int]
    text: str

    def to_json(self) -> Json:
        """Returns the fields as JSON has them."""
        left_out = {name for name in ("withheld", "pages") if not getattr(self, name)}
        return {name: value for name, value in asdict(self).items() if name not in left_out}


@dataclass(frozen=True)
class StepSequence:
    """A sequence of a step; `slices` of those that are shown."""

    source: str
    sequence: int
    epoch: int
    slices: tuple[Slice, ...] | None = None

    def to_json(self) -> Json:
        """Returns the fields as JSON has them."""
        found = {"source": self.source, "sequence": self.sequence, "epoch": self.epoch}
        return found if self.slices is None else {**found, "slices": [one.to_json() for one in self.slices]}


@dataclass(frozen=True)
class StepTrace(LineageTrace):
    """A step with the pages that its sequences are made of; `skipped` is why it did not change the model, or ""."""

    step: int
    skipped: str
    first_checkpoint: int | None
    sequences: tuple[StepSequence, ...]

    def _found(self) -> Json:
        found = {"step": self.step, "skipped": self.skipped, "first_checkpoint": self.first_checkpoint}
        return {**found, "sequences": [one.to_json() for one in self.sequences]}


@dataclass(frozen=True)
class Row:
    """A row of a step of a fine-tuning: its sequence, and where it is from (`Examples.source`)."""

    sequence: int
    origin: Mapping[str, Any]
    withheld: bool


@dataclass(frozen=True)
class TunedStepTrace(Trace):
    """A step of a fine-tuning with its rows, in the order of the batch; `bases` are where the model comes from."""

    model: str
    bases: tuple[str, ...]
    step: int
    skipped: bool
    rows: tuple[Row, ...]

    def _body(self) -> Json:
        rows = [
            {"sequence": row.sequence, **row.origin, **({"withheld": True} if row.withheld else {})}
            for row in self.rows
        ]
        found = {"model": self.model, "bases": list(self.bases), "step": self.step, "skipped": self.skipped}
        return {**found, "rows": rows}


def trace(store: Store, recipe: str, version: str, what: str, everything: bool = False) -> Trace:
    """Traces a URL, a document id (32 hex digits), a domain ("domain:example.org") or a step ("step:120", "tuned:42").

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the model, or of what has been made.
        what: see above.
        everything: whether all documents of a domain and the pages of all sequences of a step are shown.

    Raises:
        InputError: nothing of the recipe has been made, or there is no such step or domain.
    """
    before = store.requests
    found: Trace
    if match := _STEP.fullmatch(what):
        found = trace_step(store, recipe, version, int(match[1]), None if everything else MOST_SEQUENCES)
    elif what.startswith(_TUNED_STEP):
        found = trace_tuned(store, recipe, version, _tuned_step(what))
    elif _ID.fullmatch(what):
        found = _trace_document(store, recipe, version, what)
    elif what.startswith(_DOMAIN):
        name = what.removeprefix(_DOMAIN)
        found = trace_domain(store, recipe, version, name, None if everything else MOST_DOCUMENTS)
    else:
        found = _trace_url(store, recipe, version, what)
    return replace(found, requests=store.requests - before)


def _trace_url(store: Store, recipe: str, version: str, url: str) -> PageTrace:
    """Traces every capture of a URL."""
    chain = Chain.follow(store, recipe, version)
    urls = sorted({url, canonical(url) or url})
    lost = chain.rows("extracted", "rejected/", "url", urls, ["record_id", "url", "reason"])

    def kept(of: Chain) -> list[Document]:
        return [_kept(of, entry) for spelling in urls for entry in of.entries_of(spelling)]

    found = kept(chain)
    seen = {document.id for document in found}
    found += [document for document in _not_kept(chain, "url", urls) if document.id not in seen]
    return PageTrace(
        *(url, "url", Lineage.of(chain, lambda of: (kept(of), None))),
        documents=tuple(found),
        tuned=tuple(_tunings_of(chain, _is_in("url", urls))),
        captures_without_document=tuple(Lost(*row) for _, row in lost),
    )


def _trace_document(store: Store, recipe: str, version: str, doc_id: str) -> PageTrace:
    """Traces one document."""
    chain = Chain.follow(store, recipe, version)

    def kept(of: Chain) -> list[Document]:
        entry = of.index.by_uid(bytes.fromhex(doc_id)) if of.index else None
        return [_kept(of, entry)] if entry else []

    return PageTrace(
        *(doc_id, "document", Lineage.of(chain, lambda of: (kept(of), None))),
        documents=tuple(kept(chain) or _not_kept(chain, "id", [doc_id])),
        tuned=tuple(_tunings_of(chain, _is_in("id", [doc_id]))),
    )


def trace_domain(store: Store, recipe: str, version: str, name: str, most: int | None = MOST_DOCUMENTS) -> PageTrace:
    """Traces the kept documents of a host and of all hosts below it, without their captures.

    The first `most` documents in the order of the shards, or all.

    Raises:
        InputError: it is no name of a host or is a public suffix, or nothing was encoded.
    """
    domain = _host(name)
    chain = Chain.follow(store, recipe, version)
    if chain.index is None:
        raise InputError(f"nothing of {recipe}@{version} was encoded", "run the stage encode first")

    def kept(of: Chain) -> tuple[list[Document], int]:
        count, entries = of.index.by_domain(domain, most) if of.index else (0, [])
        return many(lambda entry: _in_shards(of, entry), entries), count

    documents, count = kept(chain)
    return PageTrace(
        *(f"{_DOMAIN}{domain}", "domain", Lineage.of(chain, kept)),
        documents=tuple(documents),
        tuned=tuple(_tunings_of(chain, Tombstones(domains=frozenset([domain])).mask)),
        count=count,
    )


def trace_step(store: Store, recipe: str, version: str, step: int, most: int | None = MOST_SEQUENCES) -> StepTrace:
    """Returns the sequences of a step (from 0); the first `most`, or all, with the pages they are made of.

    Raises:
        InputError: nothing was trained, or the run had fewer steps.
    """
    chain = Chain.follow(store, recipe, version)
    run, order = chain.readings.run, chain.readings.order
    if run is None or order is None:
        raise InputError(f"nothing was trained as {recipe}@{version}", "run the stage train first")
    if step >= run["steps"]:
        raise InputError(f"the run had the steps 0 .. {run['steps'] - 1}, not {step}", "name one of these")
    sequences = [StepSequence(source, number, epoch) for source, number, epoch in order.batch(step)]
    shown = sequences[:most]
    sequences[:most] = [
        replace(one, slices=tuple(slices)) for one, slices in zip(shown, _slices(chain, shown, step), strict=True)
    ]
    return StepTrace(
        *(f"step:{step}", "step", Lineage.of(chain, lambda of: (None, None))),
        step=step,
        skipped=chain.readings.why_skipped(step),
        first_checkpoint=min((count for count in run["checkpoint_steps"] if count > step), default=None),
        sequences=tuple(sequences),
    )


def trace_tuned(store: Store, recipe: str, version: str, step: int) -> TunedStepTrace:
    """Returns what a step of a fine-tuning has read.

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
            origin = readings.examples.source(readings.examples[number])
            rows.append(Row(sequence, origin, blank is not None and blank <= step))
    skipped = step in readings.skipped_steps
    return TunedStepTrace(f"tuned:{step}", "tuned", str(model.address), _bases(model), step, skipped, tuple(rows))


def _tuned_step(asked: str) -> int:
    number = asked.removeprefix(_TUNED_STEP)
    if not number.isdecimal():
        raise InputError(f'"{asked}" names no step', "write it as tuned:42")
    return int(number)


def _kept(chain: Chain, entry: IndexEntry) -> Document:
    """Returns a kept document: its capture, where its tokens lie, and every step and checkpoint that saw it."""
    doc_id = entry.uid.hex()
    capture = chain.capture("documents", "kept", entry.part, doc_id)
    return replace(_in_shards(chain, entry), capture=capture, contents=chain.contents(entry.part, doc_id))


def _in_shards(chain: Chain, entry: IndexEntry) -> Document:
    """Returns a kept document without its capture."""
    source, split = parse_shard_name(entry.shard)
    place = Place(split, entry.shard, entry.row, entry.n_tokens)
    reading = chain.readings.of(entry.shard, entry.row)
    return Document(entry.uid.hex(), entry.url, source, "kept", place, reading=reading)


def _not_kept(chain: Chain, column: str, values: Sequence[str]) -> list[Document]:
    """Returns documents that were rejected, or that nothing has judged yet."""
    if "documents" not in chain.artifacts:
        found = chain.captures(column, values)
        return [Document(one.id, one.url, one.source, "extracted", capture=one) for one in found]
    columns = ["id", "url", "source", "reason", "reasons", "duplicate_of"]
    return [
        Document(
            *(doc_id, url, source, "rejected"),
            rejection=Rejection(*why),
            capture=chain.capture("extracted", "documents", part, doc_id),
            contents=chain.contents(part, doc_id),
        )
        for part, (doc_id, url, source, *why) in chain.rows("documents", "rejected/", column, values, columns)
    ]


def _slices(chain: Chain, sequences: Sequence[StepSequence], step: int) -> list[list[Slice]]:
    """Returns the slices of sequences of a step, with the page and the beginning of the text that it read of each."""
    plan, index = chain.plan, chain.index
    assert plan is not None
    assert index is not None
    slices = [one.tolist() for one in many(lambda one: plan.slices(one.source, one.sequence), sequences)]
    flat = [(plan.shards[number], *rest) for one in slices for number, *rest in one]
    entries = index.at([(shard, row) for shard, row, *_ in flat])
    blanks = [first_blank(chain.readings.marks, shard, row) for shard, row, *_ in flat]
    withheld = [blank is not None and step >= blank for blank in blanks]
    ranges = [
        (shard, offset, 0 if gone else min(length, _EXCERPT_TOKENS))
        for (shard, _, offset, length), gone in zip(flat, withheld, strict=True)
    ]
    texts = map(chain.tokenizer.decode, (one.tolist() for one in index.tokens(ranges, plan.format.dtype)))
    stretches = zip(entries, flat, strict=True)
    pages = many(lambda one: chain.pages(one[0], one[1][2] - one[0].offset, one[1][3]), stretches)
    found = zip(entries, withheld, texts, pages, strict=True)
    shown = []
    for one in slices:
        pos, inside = 0, list[Slice]()
        for _, _, offset, length in one:
            entry, gone, text, numbers = next(found)
            start = offset - entry.offset
            inside.append(Slice(entry.uid.hex(), entry.url, start, length, pos, gone, numbers, text))
            pos += length
        shown.append(inside)
    return shown


def _host(name: str) -> str:
    """Returns a host's name in canonical form; raises InputError."""
    host = host_name(f"http://{name.strip()}/") if not set("/?#@") & set(name) else None
    if not host:
        raise InputError(f'"{name}" is no name of a host', "write it as domain:example.org")
    if is_public_suffix(host):
        raise InputError(f"{host} is a public suffix, under which anyone can register", "name a domain below it")
    return host


def _is_in(column: str, values: Sequence[str]) -> Covers:
    """Returns what covers the documents with one of some values in a column, "id" or "url"."""

    def covers(rows: pa.Table) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = pc.is_in(rows.column(column), pa.array(values, pa.string())).to_numpy()
        return found

    return covers


def _tunings_of(chain: Chain, covers: Covers) -> list[OtherRun]:
    """Returns the fine-tuned models that come from the model of a chain, or have read some of its documents."""
    store = next(iter(chain.artifacts.values())).store
    found = many(lambda model: _tuning(model, chain, covers), _tuned_models(store))
    return [one for one in found if one]


def _tuned_models(store: Store) -> list[Artifact]:
    """Returns all fine-tuned models of a store, by recipe and version; lists folders, and not all files in them."""
    recipes = store.folders()
    kinds = many(store.folders, recipes)
    having = [f"{recipe}/{TUNED}" for recipe, found in zip(recipes, kinds, strict=True) if TUNED in found]
    versions = zip(having, many(store.folders, having), strict=True)
    made = many(
        lambda address: Artifact.find(store, address), [ArtifactId(a, b) for a, found in versions for b in found]
    )
    return [model for model in made if model]


def _tuning(model: Artifact, chain: Chain, covers: Covers) -> OtherRun | None:
    found = OtherRun(str(model.address), _bases(model))
    related = _comes_from(model, chain)
    try:
        readings = ExampleReadings(model)
        read = by_document(readings.examples, readings.examples.where(covers))
    except (InputError, FileNotFoundError) as error:
        return replace(found, problem=str(error)) if related else None
    if not read and not related:
        return None
    documents = []
    for page, numbers in read.items():
        origins = (readings.examples.source(readings.examples[number]) for number in numbers)
        examples = tuple(Learned(one["chunk"], one.get("pages")) for one in origins)
        reading = readings.of(numbers)
        documents.append(Document(page.id, page.url, page.source, "learned", reading=reading, examples=examples))
    return replace(found, run=Run(readings.run["steps"], readings.run), documents=tuple(documents))


def _bases(model: Artifact) -> tuple[str, ...]:
    return tuple(ref.address for ref in origin_refs(model))


def _comes_from(model: Artifact, chain: Chain) -> bool:
    """Returns whether a model is that of a chain, or began from its weights."""
    ours = {(one.record.fingerprint, one.record.content) for one in chain.models}
    before = {(ref.fingerprint, ref.content) for ref in origin_refs(model)}
    return bool(ours & {(model.record.fingerprint, model.record.content), *before})


def _reading_json(reading: Reading, trained: bool) -> Json:
    found: Json = {name: getattr(reading, name) for name in ("sequences", "steps", "checkpoints")}
    if trained:
        found["skipped_steps"] = reading.skipped_steps
    return found if not trained or reading.withheld_from is None else {**found, "withheld_from": reading.withheld_from}


def _contents_json(contents: Contents) -> Json:
    kept, rejected = ("headings", "pages", "tokens"), ("reason", "duplicate_of")
    chunks = [
        {name: value for name, value in asdict(one).items() if name not in (rejected if one.reason is None else kept)}
        for one in contents.chunks
    ]
    found = {**asdict(contents), "chunks": chunks}
    return {name: rows for name, rows in found.items() if rows}


def _before_json(one: OtherRun) -> Json:
    found: Json = {"checkpoint": one.model, "problem": one.problem}
    if one.run is None:
        return found
    found["run"] = one.run.settings
    found |= {} if one.count is None else {"count": one.count}
    documents = one.documents
    return found if documents is None else {**found, "documents": [document.to_json(True) for document in documents]}


def _tuned_json(one: OtherRun) -> Json:
    documents = [document.to_json(True) for document in one.documents or ()]
    steps = one.run.steps if one.run else 0
    head = {"model": one.model, "bases": list(one.bases), "steps": steps, "problem": one.problem}
    return {**head, "documents": documents}
