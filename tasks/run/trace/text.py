"""Traces and explanations as text, for a terminal and the page in Airflow."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tasks.formats.documents.examples import ExampleSource
from tasks.formats.tokens.readings import Reading
from tasks.formats.tokens.shard import TRAIN
from tasks.run.trace.answer import (
    Document,
    LineageTrace,
    PageTrace,
    RelatedRun,
    StepTrace,
    Trace,
    TrainingRun,
    TunedStepTrace,
)
from tasks.run.trace.graph import Contents, DocumentCapture, DocumentChunk

if TYPE_CHECKING:
    from tasks.run.trace.explain import ExplainedSpan, Explanation

SHOWN = 12
"""Longest list that is shown in full."""

_WIDTH = 100
_SPAN_WIDTH = 300
_WITHHELD = "taken down, or it or its shard spoiled that step"
_WITHHELD_EXAMPLE = "taken down, or it spoiled that step"


def render(trace: Trace) -> str:
    """Returns the result of `tasks.run.trace.trace.trace` as text."""
    if isinstance(trace, TunedStepTrace):
        return "\n".join(_tuned_step(trace))
    assert isinstance(trace, LineageTrace)
    lineage = trace.lineage
    if isinstance(trace, StepTrace):
        lines = _step(trace)
    else:
        assert isinstance(trace, PageTrace)
        lines = _page(trace) if trace.count is None else _domain(trace, trace.count)
    if lineage.unrecorded:
        lines += ["", lineage.unrecorded]
    for run in lineage.before:
        lines += ["", f"before: {run.model}, from whose weights the run began", *_origin_run(run)]
    lines += render_tuned(trace.tuned if isinstance(trace, PageTrace) else ())
    groups = ", ".join(f"{ref['group']} ({ref['fingerprint'][:12]})" for ref in lineage.measured.values())
    requests = f" ({trace.requests:,} requests)" if trace.requests else ""
    lines += ["", f"read from: {', '.join(lineage.artifacts.values())}{requests}"]
    return "\n".join([*lines, *([f"measured as: {groups}"] if groups else [])])


def _page(trace: PageTrace) -> list[str]:
    lines = [trace.asked]
    for document in trace.documents:
        lines += ["", *_document(document, trace.lineage.run)]
    for capture in trace.captures_without_document:
        lines += ["", f"capture {capture.record_id or capture.url}: gave no document ({capture.reason})"]
    if trace.lineage.before and (first := trace.first):
        lines += ["", f"first read by {first.checkpoint} in step {first.step:,}"]
    if len(lines) == 1 and not trace.lineage.unrecorded:
        lines += ["", "never captured: neither a document nor a rejected capture has this address"]
        if "://" not in trace.asked:
            lines.append("a document of a file has the address file://SOURCE/PATH; `trace step:0` shows some")
    return lines


def _domain(trace: PageTrace, count: int) -> list[str]:
    lines = [f"{trace.asked.removeprefix('domain:')} and the hosts below it: {count:,} kept documents"]
    for document in trace.documents:
        lines += ["", document.url, *_document(document, trace.lineage.run)]
    more = count - len(trace.documents)
    return [*lines, "", f"and {more:,} more: --all shows them"] if more else lines


def _origin_run(run: RelatedRun) -> Iterator[str]:
    """Yields what a run that the model comes from has read."""
    if run.run is None:
        yield f"  not known  {run.problem}"
    elif run.documents is None:
        yield f"  steps      {run.run.steps:,}"
    else:
        for document in run.documents:
            yield from _document(document, run.run)
        if not run.documents:
            yield f"  steps      none of the {run.run.steps:,} steps read it"
        if (more := (run.count or 0) - len(run.documents)) > 0:
            yield f"and {more:,} more: --all shows them"


def render_tuned(runs: Iterable[RelatedRun]) -> list[str]:
    """Returns, as lines, what fine-tuned models have read (`PageTrace.tuned`)."""
    lines = []
    for run in runs:
        lines += ["", f"fine-tuned: {run.model}, begun from {' <- '.join(run.bases)}"]
        if run.run is None:
            lines.append(f"  not known  {run.problem}")
            continue
        if not run.documents:
            lines.append(f"  steps      none of the {run.run.steps:,} steps read it")
        for document in run.documents or ():
            lines += _document(document, run.run)
    return lines


def _document(document: Document, run: TrainingRun | None) -> Iterator[str]:
    """Yields the fate of a document, and the steps of a run that read it; `run` is None if nothing was trained."""
    head = f"document {document.id} of source {document.source}"
    yield f"{head}  {document.url}" if document.fate == "learned" else head
    if document.capture:
        yield from _capture(document.capture)
    if document.rejection:
        rejection = document.rejection
        copy = f", a copy of {rejection.duplicate_of}" if rejection.duplicate_of else ""
        yield f"  rejected   {', '.join(rejection.reasons)}{copy}"
    if document.fate == "extracted":
        yield "  extracted  not filtered yet: the stage consolidate has not run"
    if position := document.position:
        yield f"  kept       {position.n_tokens:,} tokens in {position.shard}, row {position.row:,}"
    if document.contents:
        yield from _contents(document.contents)
    if document.examples:
        pages = sorted({page for example in document.examples for page in example.pages or ()})
        yield f"  examples   {len(document.examples):,} chunks{f', of page {some(pages)}' if pages else ''}"
    if document.position and document.position.split != TRAIN:
        yield "  held out   measures bits per byte; no step reads it"
    elif document.reading:
        yield from _readers(document.reading, run, _WITHHELD_EXAMPLE if document.examples else _WITHHELD)


def _capture(capture: DocumentCapture) -> Iterator[str]:
    """Yields where a capture is, and where it comes from."""
    if capture.warc_file:
        offset, at = capture.warc_offset, capture.fetched_at
        position = "in a file without random access" if offset is None else f"at byte {offset:,}"
        fetched = f", fetched {at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
        yield f"  capture    {capture.warc_file} {position}{fetched}"
    if capture.dataset:
        yield f"  from       {capture.dataset}"
    if there := capture.provenance:
        yield f"  from       {there.crawl}, {there.file} at byte {there.file_offset:,}, {there.length:,} bytes"


def _readers(reading: Reading, run: TrainingRun | None, withheld: str) -> Iterator[str]:
    """Yields the sequences with a document, the steps that read it and the checkpoints after them."""
    yield f"  sequences  {some(reading.sequences)}"
    if reading.withheld_from is not None:
        yield f"  withheld   from step {reading.withheld_from:,} on: {withheld}"
    if run is None:
        yield "  steps      none yet: nothing was trained from this plan"
    elif not reading.steps:
        yield f"  steps      none of the {run.steps:,} steps read it"
    else:
        yield f"  steps      {_steps(reading)}"
        checkpoints = [f"step-{count:08d}" for count in reading.checkpoints]
        yield f"  seen by    {', '.join(checkpoints) or 'no checkpoint'}"


def _steps(reading: Reading) -> str:
    skipped = f" (skipped: {some(reading.skipped_steps)})" if reading.skipped_steps else ""
    return f"{some(reading.steps)}{skipped}"


def _contents(contents: Contents) -> Iterator[str]:
    """Yields a document's evaluation items, repeated paragraphs and chunks."""
    items, repeats = contents.items, contents.repeats
    if items:
        first = [f"{match.set} {match.item} ({match.share:.0%}, {match.words:,} words)" for match in items[:SHOWN]]
        more = [f"and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
        yield f"  contains   {', '.join([*first, *more])}"
    if repeats:
        documents, domains = max((paragraph.documents, paragraph.domains) for paragraph in repeats)
        most = f"the most common of {documents:,} documents on {domains:,} domains"
        yield f"  repeats    {len(repeats):,} paragraphs, {most}"
    yield from _chunks(contents.chunks)


def _chunks(chunks: Sequence[DocumentChunk]) -> Iterator[str]:
    """Yields a line for each of a document's first chunks: its range, and its contents or why it was rejected."""
    if not chunks:
        return
    yield f"  chunks     {sum(chunk.reason is None for chunk in chunks):,} of {len(chunks):,} kept"
    for chunk in chunks[:SHOWN]:
        if chunk.reason is not None:
            text = f"rejected: {chunk.reason}{f' of {chunk.duplicate_of}' if chunk.duplicate_of else ''}"
        else:
            pages = f", page {some(chunk.pages)}" if chunk.pages else ""
            headings = f", in {' > '.join(chunk.headings)}" if chunk.headings else ""
            text = f"{chunk.tokens:,} tokens{pages}{headings}"
        yield f"    {chunk.id}  {chunk.start:,} .. {chunk.end - 1:,}  {text}"
    if len(chunks) > SHOWN:
        yield f"    and {len(chunks) - SHOWN:,} more"


def _step(trace: StepTrace) -> list[str]:
    assert trace.lineage.run is not None
    skipped = f", skipped ({trace.skipped}): it did not change the model" if trace.skipped else ""
    lines = [
        f"step {trace.step:,} of {trace.lineage.run.steps:,}: {len(trace.sequences)} sequences, "
        f"first in checkpoint step-{trace.first_checkpoint:08d}{skipped}"
    ]
    more = 0
    for sequence in trace.sequences:
        if sequence.slices is None:
            more += 1
            continue
        lines += ["", f"{sequence.source} sequence {sequence.sequence:,}, epoch {sequence.epoch}"]
        for part in sequence.slices:
            pages = f", page {some(part.pages)}" if part.pages else ""
            text = f"withheld: {_WITHHELD}" if part.withheld else " ".join(part.text.split())
            lines.append(f"  {part.url or part.id}  tokens {part.start:,} .. {part.start + part.length - 1:,}{pages}")
            lines.append(f"    {text[:_WIDTH]}")
    return [*lines, "", f"and {more:,} more sequences: --all shows their pages"] if more else lines


def _tuned_step(trace: TunedStepTrace) -> Iterator[str]:
    skipped = ", skipped: it did not change the model" if trace.skipped else ""
    bases = " <- ".join(trace.bases)
    yield f"step {trace.step} of {trace.model}, begun from {bases}: {len(trace.rows)} rows{skipped}"
    for row in trace.rows:
        withheld = f", withheld: {_WITHHELD_EXAMPLE}" if row.withheld else ""
        yield f"  sequence {row.sequence}  {_example_source(row.source)}{withheld}"
        for box in row.source.get("boxes") or ():
            corners = ", ".join(f"{box[name]:.0f}" for name in ("x0", "y0", "x1", "y1"))
            yield f"    page {box['page']}, box {corners}"


def _example_source(source: ExampleSource) -> str:
    if "file" in source:
        row_id = f" ({source['id']})" if source["id"] else ""
        return f"{source['file']} line {source['line']:,}{row_id}"
    pages = f", page {some(source['pages'])}" if source.get("pages") else ""
    return f"{source['url']}{pages}  chunk {source['chunk']} of document {source['document']}"


def some(numbers: Sequence[int]) -> str:
    """Formats the first numbers of a list, and the count of further ones.

    >>> some([1, 2000]), some([])
    ('1, 2,000', 'none')
    """
    first = ", ".join(f"{number:,}" for number in numbers[:SHOWN])
    return f"{first} and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else first or "none"


def render_explanation(explanation: "Explanation") -> str:
    """Returns the result of `tasks.run.trace.explain.explain` as text."""
    count, total = len(explanation.spans), explanation.spans_found
    length, tokens = explanation.min_tokens, f"{explanation.training_tokens:,} training tokens"
    if count:
        shown = "" if count == total else f", the {count} rarest are shown"
        spans, occur = ("span", "occurs") if total == 1 else ("spans", "occur")
        lines = [f"{total} {spans} of {length} tokens or more {occur} verbatim in the {tokens}{shown}"]
    else:
        lines = [f"no span of {length} tokens or more occurs verbatim in the {tokens}"]
    for span in explanation.spans:
        lines += ["", *_span(span, explanation.run)]
    return "\n".join([*lines, "", f"read from: {', '.join(explanation.artifacts.values())}"])


def _span(span: "ExplainedSpan", run: TrainingRun | None) -> Iterator[str]:
    text = " ".join(span.text.split())
    text = text if len(text) <= _SPAN_WIDTH else f"{text[: _SPAN_WIDTH // 2]} … {text[-_SPAN_WIDTH // 2 :]}"
    shown = sum(len(document.starts) for document in span.documents)
    occurrences = f"{span.count:,} times" if span.count != 1 else "once"
    rest = f", {shown} of them shown" if shown < span.count else ""
    yield f'characters {span.start:,} .. {span.end - 1:,}: "{text}"'
    yield f"  {span.tokens:,} tokens, {span.bits:,.0f} bits; occurs {occurrences}{rest}"
    for document in span.documents:
        yield f"  {document.url or document.id}  from token {some(document.starts)}"
        yield f"    {_read_by(document.reading, run)}"
        for checkpoint, reading in document.before.items():
            yield f"    before: {checkpoint} read the page in {_steps_and_checkpoint(reading)}"


def _read_by(reading: Reading, run: TrainingRun | None) -> str:
    sequences = f"sequences {some(reading.sequences)}"
    if not reading.sequences:
        return "in no training sequence"
    if run is None:
        return f"{sequences}; nothing was trained from them yet"
    return (
        _steps_and_checkpoint(reading) if reading.steps else f"{sequences}; none of the {run.steps:,} steps read them"
    )


def _steps_and_checkpoint(reading: Reading) -> str:
    first = min(reading.checkpoints, default=None)
    checkpoint = "no checkpoint has seen it" if first is None else f"first seen by step-{first:08d}"
    return f"steps {_steps(reading)}; {checkpoint}"
