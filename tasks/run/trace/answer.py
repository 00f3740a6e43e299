"""What a trace answers: documents with their fate and the steps that read them, or a step with what it read.

Every answer is a frozen dataclass with `to_json`. `Lineage` describes the artifacts that it was read from.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, cast

from tasks.formats.documents.examples import ExampleSource
from tasks.formats.tokens.readings import Reading
from tasks.run.result import Json
from tasks.run.trace.graph import Contents, DocumentCapture, LineageReader

LookUp = Callable[[LineageReader], "tuple[Sequence[Document] | None, int | None]"]
"""Returns the traced documents in a lineage, None if the trace is not of documents; and their total for a domain."""


@dataclass(frozen=True)
class TrainingRun:
    """Settings of a training run."""

    steps: int
    settings: Json
    """The settings of `run.json` that `Readings.settings` selects."""

    @classmethod
    def of(cls, reader: LineageReader) -> "TrainingRun | None":
        """Returns the training run of a lineage; None if nothing was trained."""
        settings = reader.readings.settings
        return cls(settings["steps"], settings) if settings else None


@dataclass(frozen=True)
class ShardRow:
    """Position of the tokens of a kept document: a row in a shard of a split."""

    split: str
    shard: str
    row: int
    n_tokens: int


@dataclass(frozen=True)
class Rejection:
    """Reasons why a document was rejected; `reason` is the first of them."""

    reason: str
    reasons: list[str]
    duplicate_of: str | None


@dataclass(frozen=True)
class LearnedExample:
    """An example made from a document: its chunk, and the pages with the chunk; None for documents without pages."""

    chunk: str
    pages: list[int] | None


@dataclass(frozen=True)
class Document:
    """A document, its fate, and the steps of training or fine-tuning that read it.

    Attributes:
        fate: "kept"; "rejected"; "extracted": not filtered yet; "learned": parts of it became examples.
        position: for a kept document.
        rejection: for a rejected document.
        reading: for a kept or learned document.
        capture: None if it is not known.
        contents: None if they were not read.
        examples: for a learned document.
    """

    id: str
    url: str
    source: str
    fate: Literal["kept", "rejected", "extracted", "learned"]
    position: ShardRow | None = None
    rejection: Rejection | None = None
    reading: Reading | None = None
    capture: DocumentCapture | None = None
    contents: Contents | None = None
    examples: tuple[LearnedExample, ...] = ()

    def to_json(self, trained: bool) -> Json:
        """Returns the document as JSON; `trained`: whether there is a training run and so skipped steps are known."""
        head = {"id": self.id, "url": self.url, "source": self.source}
        reading = _reading_json(self.reading, trained) if self.reading else {}
        if self.fate == "learned":
            return {**head, "examples": [asdict(example) for example in self.examples], **reading}
        fields = {**(asdict(self.capture) if self.capture else {}), **head, "fate": self.fate}
        for part in (self.position, self.rejection):
            fields |= asdict(part) if part else {}
        return {**fields, **reading, **(_contents_json(self.contents) if self.contents else {})}


@dataclass(frozen=True)
class RelatedRun:
    """The traced documents that the run of another model has read.

    The other model is one whose weights the traced model began from, or a fine-tuned model.

    Attributes:
        model: id of the model.
        bases: for a fine-tuned model, the models that it comes from, nearest first.
        problem: why it is not known what the model has read, or "".
        run: the run; None if it is not known.
        documents: the documents; None if the trace is not of documents, but of a step.
        count: for a domain, the total number of documents, of which `documents` are the first.
    """

    model: str
    bases: tuple[str, ...] = ()
    problem: str = ""
    run: TrainingRun | None = None
    documents: tuple[Document, ...] | None = None
    count: int | None = None


@dataclass(frozen=True)
class Trace:
    """The result of a trace: the query, its kind, and the number of requests to a remote store."""

    asked: str
    kind: str
    requests: int = field(default=0, kw_only=True)

    def to_json(self) -> Json:
        """Returns the trace as JSON."""
        return {"asked": self.asked, "kind": self.kind, **self._body(), "requests": self.requests}

    def _body(self) -> Json:
        raise NotImplementedError


@dataclass(frozen=True)
class Lineage:
    """The artifacts that a trace was read from.

    Attributes:
        recipe: name of the recipe.
        artifacts: ids of the artifacts, by kind.
        measured: address and fingerprint of the group of each annotator.
        run: the training run; None if nothing was trained.
        before: the runs that the model comes from, nearest first.
        unrecorded: says that the model was imported, so that its training is not on record; "" if it was not.
    """

    recipe: str
    artifacts: dict[str, str]
    measured: dict[str, dict[str, str]]
    run: TrainingRun | None
    before: tuple[RelatedRun, ...]
    unrecorded: str = ""

    @classmethod
    def of(cls, reader: LineageReader, look_up: LookUp) -> "Lineage":
        """Describes the artifacts of a reader, and applies `look_up` to the runs that its model comes from."""
        before = []
        for origin in reader.origins():
            documents, count = look_up(origin.reader) if origin.reader else (None, None)
            before.append(
                RelatedRun(
                    model=origin.checkpoint,
                    problem=origin.problem,
                    run=TrainingRun.of(origin.reader) if origin.reader else None,
                    documents=None if documents is None else tuple(documents),
                    count=count,
                )
            )
        run, unrecorded = TrainingRun.of(reader), reader.unrecorded
        return cls(reader.recipe, reader.addresses, reader.measured, run, tuple(before), unrecorded)


@dataclass(frozen=True)
class LineageTrace(Trace):
    """A trace through the artifacts of one lineage."""

    lineage: Lineage

    def _body(self) -> Json:
        lineage = self.lineage
        head: Json = {"recipe": lineage.recipe, "artifacts": lineage.artifacts, "measured": lineage.measured}
        head |= {"unrecorded": lineage.unrecorded} if lineage.unrecorded else {}
        before = [_origin_json(run) for run in lineage.before]
        return {**head, "run": lineage.run.settings if lineage.run else None, **self._result(), "before": before}

    def _result(self) -> Json:
        raise NotImplementedError


@dataclass(frozen=True)
class FailedCapture:
    """A capture that gave no document, and the reason."""

    record_id: str | None
    url: str
    reason: str


@dataclass(frozen=True)
class FirstReading:
    """The run of a chain of models, each begun from the one before, that was the first to learn from a page."""

    checkpoint: str
    step: int


@dataclass(frozen=True)
class PageTrace(LineageTrace):
    """Documents of a URL, an id or a domain, and the runs that read them.

    Attributes:
        documents: the documents; for a domain, the first of them.
        tuned: fine-tuned models that come from the model, or have read some of the documents.
        captures_without_document: for a URL or id.
        count: for a domain, the total number of documents.
    """

    documents: tuple[Document, ...]
    tuned: tuple[RelatedRun, ...]
    captures_without_document: tuple[FailedCapture, ...] = ()
    count: int | None = None

    @property
    def first(self) -> FirstReading | None:
        """The first run and step that learned from the documents, as far as runs are known; None if none did."""
        own = self.lineage.artifacts.get("checkpoint", "")
        runs = [*((run.model, run.documents or ()) for run in reversed(self.lineage.before)), (own, self.documents)]
        for checkpoint, documents in runs:
            if steps := [step for one in documents if one.reading for step in one.reading.learned]:
                return FirstReading(checkpoint, min(steps))
        return None

    def _result(self) -> Json:
        documents = [document.to_json(self.lineage.run is not None) for document in self.documents]
        if self.count is not None:
            return {"count": self.count, "documents": documents}
        captures = [asdict(capture) for capture in self.captures_without_document]
        first = {"first": asdict(self.first) if self.first else None} if self.lineage.before else {}
        return {"documents": documents, "captures_without_document": captures, **first}

    def _body(self) -> Json:
        return {**super()._body(), "tuned": [_tuned_json(run) for run in self.tuned]}


@dataclass(frozen=True)
class SequenceSlice:
    """The part of a document in a sequence.

    Attributes:
        id: id of the document.
        url: URL of the document.
        start: first token, counted in the document.
        length: number of tokens.
        pos: first token, counted in the sequence.
        withheld: whether the step did not read it, because it was taken down or because it or its shard spoiled steps.
        pages: numbers of the pages with it; [] for a document without pages.
        text: the beginning of the text that the model read.
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
        """Returns the fields as JSON values, without `withheld` and `pages` if these are empty."""
        omitted = {name for name in ("withheld", "pages") if not getattr(self, name)}
        return {name: value for name, value in asdict(self).items() if name not in omitted}


@dataclass(frozen=True)
class StepSequence:
    """A sequence of a step; `slices` is None if its pages are not shown."""

    source: str
    sequence: int
    epoch: int
    slices: tuple[SequenceSlice, ...] | None = None

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        fields: Json = {"source": self.source, "sequence": self.sequence, "epoch": self.epoch}
        return fields if self.slices is None else {**fields, "slices": [part.to_json() for part in self.slices]}


@dataclass(frozen=True)
class StepTrace(LineageTrace):
    """A step with the pages in its sequences; `skipped` is why it did not change the model, or ""."""

    step: int
    skipped: str
    first_checkpoint: int | None
    sequences: tuple[StepSequence, ...]

    def _result(self) -> Json:
        step: Json = {"step": self.step, "skipped": self.skipped, "first_checkpoint": self.first_checkpoint}
        return {**step, "sequences": [sequence.to_json() for sequence in self.sequences]}


@dataclass(frozen=True)
class ExampleRow:
    """An example that a step of a fine-tuning read, with its sequence and its source."""

    sequence: int
    source: ExampleSource
    withheld: bool


@dataclass(frozen=True)
class TunedStepTrace(Trace):
    """A step of a fine-tuning with its examples in the order of the batch; `bases` as in `RelatedRun`."""

    model: str
    bases: tuple[str, ...]
    step: int
    skipped: bool
    rows: tuple[ExampleRow, ...]

    def _body(self) -> Json:
        rows: list[Json] = [
            {"sequence": row.sequence, **cast(Json, row.source), **({"withheld": True} if row.withheld else {})}
            for row in self.rows
        ]
        step: Json = {"model": self.model, "bases": list(self.bases), "step": self.step, "skipped": self.skipped}
        return {**step, "rows": rows}


def _reading_json(reading: Reading, trained: bool) -> Json:
    fields: Json = {name: getattr(reading, name) for name in ("sequences", "steps", "checkpoints")}
    if trained:
        fields["skipped_steps"] = reading.skipped_steps
        if reading.withheld_from is not None:
            fields["withheld_from"] = reading.withheld_from
    return fields


def _contents_json(contents: Contents) -> Json:
    kept_only, rejected_only = ("headings", "pages", "tokens"), ("reason", "duplicate_of")
    chunks = []
    for chunk in contents.chunks:
        omitted = rejected_only if chunk.reason is None else kept_only
        chunks.append({name: value for name, value in asdict(chunk).items() if name not in omitted})
    fields = {**asdict(contents), "chunks": chunks}
    return {name: rows for name, rows in fields.items() if rows}


def _origin_json(run: RelatedRun) -> Json:
    fields: Json = {"checkpoint": run.model, "problem": run.problem}
    if run.run is None:
        return fields
    fields["run"] = run.run.settings
    if run.count is not None:
        fields["count"] = run.count
    if run.documents is not None:
        fields["documents"] = [document.to_json(True) for document in run.documents]
    return fields


def _tuned_json(run: RelatedRun) -> Json:
    documents = [document.to_json(True) for document in run.documents or ()]
    steps = run.run.steps if run.run else 0
    head: Json = {"model": run.model, "bases": list(run.bases), "steps": steps, "problem": run.problem}
    return {**head, "documents": documents}
