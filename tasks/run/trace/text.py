"""Text of traces and explanations, for a terminal and the page in Airflow."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tasks.formats.tokens.readings import Reading
from tasks.formats.tokens.shard import TRAIN
from tasks.run.trace.graph import Capture, Chunk, Contents
from tasks.run.trace.trace import (
    Document,
    LineageTrace,
    OtherRun,
    PageTrace,
    Row,
    Run,
    StepTrace,
    Trace,
    TunedStepTrace,
)

if TYPE_CHECKING:
    from tasks.run.trace.explain import Explanation, Span

SHOWN = 12
"""Entries of a list that are shown."""

_WIDTH = 100
_SPAN_WIDTH = 300
_WITHHELD = "taken down, or it or its shard had spoilt that step"
_WITHHELD_EXAMPLE = "taken down, or it had spoilt that step"


def render(found: Trace) -> str:
    """Returns the result of `tasks.run.trace.trace.trace` as text."""
    if isinstance(found, TunedStepTrace):
        return "\n".join(_tuned_step(found))
    assert isinstance(found, LineageTrace)
    lineage = found.lineage
    if isinstance(found, StepTrace):
        lines = _step(found)
    else:
        assert isinstance(found, PageTrace)
        lines = _page(found) if found.count is None else _domain(found, found.count)
    for one in lineage.before:
        lines += ["", f"before: {one.model}, from whose weights the run began", *_before(one)]
    lines += tunings(found.tuned if isinstance(found, PageTrace) else ())
    groups = ", ".join(f"{ref['group']} ({ref['fingerprint'][:12]})" for ref in lineage.measured.values())
    requests = f" ({found.requests:,} requests)" if found.requests else ""
    lines += ["", f"read from: {', '.join(lineage.artifacts.values())}{requests}"]
    return "\n".join([*lines, *([f"measured as: {groups}"] if groups else [])])


def _page(found: PageTrace) -> list[str]:
    lines = [found.asked]
    for document in found.documents:
        lines += ["", *_document(document, found.lineage.run)]
    for lost in found.captures_without_document:
        lines += ["", f"capture {lost.record_id or lost.url}: gave no document ({lost.reason})"]
    if len(lines) == 1:
        lines += ["", "never captured: neither a document nor a rejected capture has this address"]
    return lines


def _domain(found: PageTrace, count: int) -> list[str]:
    lines = [f"{found.asked.removeprefix('domain:')} and the hosts below it: {count:,} kept documents"]
    for document in found.documents:
        lines += ["", document.url, *_document(document, found.lineage.run)]
    left = count - len(found.documents)
    return [*lines, "", f"and {left:,} more: --all shows them"] if left else lines


def _before(one: OtherRun) -> Iterator[str]:
    """Yields what an earlier run read, from whose weights the model comes."""
    if one.run is None:
        yield f"  not known  {one.problem}"
    elif one.documents is None:
        yield f"  steps      {one.run.steps:,}"
    else:
        for document in one.documents:
            yield from _document(document, one.run)
        if not one.documents:
            yield f"  steps      none of the {one.run.steps:,} steps read it"
        if (left := (one.count or 0) - len(one.documents)) > 0:
            yield f"and {left:,} more: --all shows them"


def tunings(found: Iterable[OtherRun]) -> list[str]:
    """Returns what fine-tuned models have read (`PageTrace.tuned`), as lines."""
    lines = []
    for one in found:
        lines += ["", f"fine-tuned: {one.model}, begun from {' <- '.join(one.bases)}"]
        if one.run is None:
            lines.append(f"  not known  {one.problem}")
            continue
        if not one.documents:
            lines.append(f"  steps      none of the {one.run.steps:,} steps read it")
        for document in one.documents or ():
            lines += _document(document, one.run)
    return lines


def _document(document: Document, run: Run | None) -> Iterator[str]:
    """Yields what became of a document and who read it, in a run of training or fine-tuning; None: nothing has run."""
    of = f"document {document.id} of source {document.source}"
    yield f"{of}  {document.url}" if document.fate == "learned" else of
    if document.capture and document.capture.warc_file:
        yield _capture(document.capture)
    if document.rejection:
        why = document.rejection
        copy = f", a copy of {why.duplicate_of}" if why.duplicate_of else ""
        yield f"  rejected   {', '.join(why.reasons)}{copy}"
    if document.fate == "extracted":
        yield "  extracted  not yet judged: the stage consolidate has not run"
    if document.place:
        yield f"  kept       {document.place.n_tokens:,} tokens in {document.place.shard}, row {document.place.row:,}"
    if document.contents:
        yield from _contents(document.contents)
    if document.examples:
        pages = sorted({page for one in document.examples for page in one.pages or ()})
        yield f"  examples   {len(document.examples):,} chunks{f', of page {some(pages)}' if pages else ''}"
    if document.place and document.place.split != TRAIN:
        yield "  held out   measures bits per byte; no step reads it"
    elif document.reading:
        yield from _readers(document.reading, run, _WITHHELD_EXAMPLE if document.examples else _WITHHELD)


def _capture(capture: Capture) -> str:
    offset, at = capture.warc_offset, capture.fetched_at
    place = "in a file without places to begin at" if offset is None else f"at byte {offset:,}"
    fetched = f", fetched {at:%Y-%m-%d %H:%M:%S} UTC" if at else ""
    return f"  capture    {capture.warc_file} {place}{fetched}"


def _readers(reading: Reading, run: Run | None, withheld: str) -> Iterator[str]:
    """Yields the sequences that have a document, the steps that read it and the checkpoints that saw it."""
    yield f"  sequences  {some(reading.sequences)}"
    if reading.withheld_from is not None:
        yield f"  withheld   from step {reading.withheld_from:,} on: {withheld}"
    if run is None:
        yield "  steps      none yet: nothing was trained from this plan"
    elif not reading.steps:
        yield f"  steps      none of the {run.steps:,} steps read it"
    else:
        yield f"  steps      {_steps(reading)}"
        seen_by = [f"step-{count:08d}" for count in reading.checkpoints]
        yield f"  seen by    {', '.join(seen_by) or 'no checkpoint'}"


def _steps(reading: Reading) -> str:
    skipped = f" (skipped: {some(reading.skipped_steps)})" if reading.skipped_steps else ""
    return f"{some(reading.steps)}{skipped}"


def _contents(contents: Contents) -> Iterator[str]:
    """Yields the evaluation items that a document contains, what it repeats, and its chunks."""
    items, repeats = contents.items, contents.repeats
    if items:
        shown = [f"{one.set} {one.item} ({one.share:.0%}, {one.words:,} words)" for one in items[:SHOWN]]
        more = [f"and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
        yield f"  contains   {', '.join([*shown, *more])}"
    if repeats:
        documents, domains = max((one.documents, one.domains) for one in repeats)
        most = f"the most common of {documents:,} documents on {domains:,} domains"
        yield f"  repeats    {len(repeats):,} paragraphs, {most}"
    yield from _chunks(contents.chunks)


def _chunks(chunks: Sequence[Chunk]) -> Iterator[str]:
    """Yields a line for each of a document's first chunks: its place, and what is in it or why it was rejected."""
    if not chunks:
        return
    yield f"  chunks     {sum(one.reason is None for one in chunks):,} of {len(chunks):,} kept"
    for one in chunks[:SHOWN]:
        if one.reason is not None:
            what = f"rejected: {one.reason}{f' of {one.duplicate_of}' if one.duplicate_of else ''}"
        else:
            pages = f", page {some(one.pages)}" if one.pages else ""
            what = f"{one.tokens:,} tokens{pages}{', in ' if one.headings else ''}{' > '.join(one.headings or ())}"
        yield f"    {one.id}  {one.start:,} .. {one.end - 1:,}  {what}"
    if len(chunks) > SHOWN:
        yield f"    and {len(chunks) - SHOWN:,} more"


def _step(found: StepTrace) -> list[str]:
    assert found.lineage.run is not None
    skipped = f", skipped ({found.skipped}): it did not change the model" if found.skipped else ""
    lines = [
        f"step {found.step:,} of {found.lineage.run.steps:,}: {len(found.sequences)} sequences, "
        f"first in checkpoint step-{found.first_checkpoint:08d}{skipped}"
    ]
    left = 0
    for sequence in found.sequences:
        if sequence.slices is None:
            left += 1
            continue
        lines += ["", f"{sequence.source} sequence {sequence.sequence:,}, epoch {sequence.epoch}"]
        for one in sequence.slices:
            pages = f", page {some(one.pages)}" if one.pages else ""
            text = f"withheld: {_WITHHELD}" if one.withheld else " ".join(one.text.split())
            lines.append(f"  {one.url or one.id}  tokens {one.start:,} .. {one.start + one.length - 1:,}{pages}")
            lines.append(f"    {text[:_WIDTH]}")
    return [*lines, "", f"and {left:,} more sequences: --all shows their pages"] if left else lines


def _tuned_step(found: TunedStepTrace) -> Iterator[str]:
    skipped = ", skipped: it did not change the model" if found.skipped else ""
    begun = " <- ".join(found.bases)
    yield f"step {found.step} of {found.model}, begun from {begun}: {len(found.rows)} rows{skipped}"
    for row in found.rows:
        gone = ", withheld: taken down, or it had spoilt a step" if row.withheld else ""
        yield f"  sequence {row.sequence}  {_origin(row)}{gone}"
        for box in row.origin.get("boxes") or ():
            place = ", ".join(f"{box[name]:.0f}" for name in ("x0", "y0", "x1", "y1"))
            yield f"    page {box['page']}, box {place}"


def _origin(row: Row) -> str:
    origin = row.origin
    if "file" in origin:
        named = f" ({origin['id']})" if origin["id"] else ""
        return f"{origin['file']} line {origin['line']:,}{named}"
    pages = f", page {some(origin['pages'])}" if origin.get("pages") else ""
    return f"{origin['url']}{pages}  chunk {origin['chunk']} of document {origin['document']}"


def some(numbers: Sequence[int]) -> str:
    """Returns the first numbers of a list, and how many more there are.

    >>> some([1, 2000]), some([])
    ('1, 2,000', 'none')
    """
    shown = ", ".join(f"{number:,}" for number in numbers[:SHOWN])
    return f"{shown} and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else shown or "none"


def render_explanation(found: "Explanation") -> str:
    """Returns the result of `tasks.run.trace.explain.explain` as text."""
    tokens, least = f"{found.training_tokens:,} training tokens", found.min_tokens
    if found.spans:
        shown = "" if len(found.spans) == found.spans_found else f", the {len(found.spans)} rarest are shown"
        lines = [f"{found.spans_found} spans of {least} tokens or more stand verbatim in the {tokens}{shown}"]
    else:
        lines = [f"no span of {least} tokens or more stands verbatim in the {tokens}"]
    for span in found.spans:
        lines += ["", *_explained(span, found.run)]
    return "\n".join([*lines, "", f"read from: {', '.join(found.artifacts.values())}"])


def _explained(span: "Span", run: Run | None) -> Iterator[str]:
    text = " ".join(span.text.split())
    text = text if len(text) <= _SPAN_WIDTH else f"{text[: _SPAN_WIDTH // 2]} … {text[-_SPAN_WIDTH // 2 :]}"
    followed = sum(len(document.starts) for document in span.documents)
    places = f"{span.count:,} times" if span.count != 1 else "once"
    rest = f", {followed} of them shown" if followed < span.count else ""
    yield f'characters {span.start:,} .. {span.end - 1:,}: "{text}"'
    yield f"  {span.tokens:,} tokens, {span.bits:,.0f} bits; stands there {places}{rest}"
    for document in span.documents:
        yield f"  {document.url or document.id}  from token {some(document.starts)}"
        yield f"    {_read_by(document.reading, run)}"
        for checkpoint, reading in document.before.items():
            yield f"    before: {checkpoint} read the page in {_first_seen(reading)}"


def _read_by(reading: Reading, run: Run | None) -> str:
    sequences = f"sequences {some(reading.sequences)}"
    if not reading.sequences:
        return "in no training sequence"
    if run is None:
        return f"{sequences}; nothing was trained from them yet"
    return _first_seen(reading) if reading.steps else f"{sequences}; none of the {run.steps:,} steps read them"


def _first_seen(reading: Reading) -> str:
    first = min(reading.checkpoints, default=None)
    seen = "no checkpoint has seen it" if first is None else f"first seen by step-{first:08d}"
    return f"steps {_steps(reading)}; {seen}"
