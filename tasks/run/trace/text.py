"""Text of what `trace`, traces of fine-tunings and `explain` return."""

from collections.abc import Iterator, Sequence
from typing import Any

Found = dict[str, Any]

_WIDTH = 100
_WITHHELD = "taken down, or it or its shard had spoilt that step"


def render(found: Found) -> str:
    """Returns the result of `tasks.run.trace.trace.trace` as text."""
    if found["kind"] == "tuned":
        return render_tuned(found)
    lines = {"step": _step, "domain": _domain}.get(found["kind"], _page)(found)
    made = ", ".join(found["artifacts"].values())
    groups = ", ".join(f"{ref['group']} ({ref['fingerprint'][:12]})" for ref in found["measured"].values())
    requests = f" ({found['requests']:,} requests)" if found["requests"] else ""
    for one in found["before"]:
        lines += ["", *_before(one)]
    lines += tunings(found.get("tuned", []))
    return "\n".join([*lines, "", f"read from: {made}{requests}", *([f"measured as: {groups}"] if groups else [])])


def _page(found: Found) -> list[str]:
    lines = [found["asked"]]
    for document in found["documents"]:
        lines += ["", *_document(document, found["run"])]
    for capture in found["captures_without_document"]:
        lines += ["", f"capture {capture['record_id'] or capture['url']}: gave no document ({capture['reason']})"]
    if len(lines) == 1:
        lines += ["", "never captured: neither a document nor a rejected capture has this address"]
    return lines


def _domain(found: Found) -> list[str]:
    lines = [f"{found['asked'].removeprefix('domain:')} and the hosts below it: {found['count']:,} kept documents"]
    for document in found["documents"]:
        lines += ["", document["url"], *_document(document, found["run"])]
    left = found["count"] - len(found["documents"])
    return [*lines, "", f"and {left:,} more: --all shows them"] if left else lines


def _document(document: Found, run: Found | None) -> list[str]:
    lines = [f"document {document['id']} of source {document['source']}"]
    if document.get("warc_file"):
        fetched = f", fetched {document['fetched_at']:%Y-%m-%d %H:%M:%S} UTC" if document.get("fetched_at") else ""
        offset = document["warc_offset"]
        place = "in a file without places to begin at" if offset is None else f"at byte {offset:,}"
        lines.append(f"  capture    {document['warc_file']} {place}{fetched}")
    if document["fate"] == "rejected":
        copy = f", a copy of {document['duplicate_of']}" if document.get("duplicate_of") else ""
        return [*lines, f"  rejected   {', '.join(document['reasons'])}{copy}", *_contents(document)]
    if document["fate"] == "extracted":
        return [*lines, "  extracted  not yet judged: the stage consolidate has not run"]
    lines.append(f"  kept       {document['n_tokens']:,} tokens in {document['shard']}, row {document['row']:,}")
    lines += _contents(document)
    if document["split"] != "train":
        return [*lines, "  held out   measures bits per byte; no step reads it"]
    lines.append(f"  sequences  {some(document['sequences'])}")
    if "withheld_from" in document:
        lines.append(f"  withheld   from step {document['withheld_from']:,} on: {_WITHHELD}")
    if run is None:
        return [*lines, "  steps      none yet: nothing was trained from this plan"]
    if not document["steps"]:
        return [*lines, f"  steps      none of the {run['steps']:,} steps read it"]
    skipped = f" (skipped: {some(document['skipped_steps'])})" if document["skipped_steps"] else ""
    lines.append(f"  steps      {some(document['steps'])}{skipped}")
    seen_by = [f"step-{count:08d}" for count in document["checkpoints"]]
    return [*lines, f"  seen by    {', '.join(seen_by) or 'no checkpoint'}"]


def _contents(document: Found) -> list[str]:
    """Returns the evaluation items that the document contains, what it repeats, and its chunks."""
    items = document.get("items", [])
    shown = [f"{one['set']} {one['item']} ({one['share']:.0%}, {one['words']:,} words)" for one in items[:SHOWN]]
    more = [f"and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
    lines = [f"  contains   {', '.join([*shown, *more])}"] if items else []
    repeats = document.get("repeats", [])
    most = max(((one["documents"], one["domains"]) for one in repeats), default=(0, 0))
    counts = f"{len(repeats):,} paragraphs, the most common of {most[0]:,} documents on {most[1]:,} domains"
    lines += [f"  repeats    {counts}"] if repeats else []
    return [*lines, *_chunks(document.get("chunks", []))]


def _chunks(chunks: list[Found]) -> list[str]:
    """Returns a line for each of a document's first chunks: its place, and what is in it or why it was rejected."""
    if not chunks:
        return []
    kept = sum("reason" not in one for one in chunks)
    lines = [f"  chunks     {kept:,} of {len(chunks):,} kept"]
    for one in chunks[:SHOWN]:
        if "reason" in one:
            copy = f" of {one['duplicate_of']}" if one["duplicate_of"] else ""
            what = f"rejected: {one['reason']}{copy}"
        else:
            pages = f", page {some(one['pages'])}" if one["pages"] else ""
            what = f"{one['tokens']:,} tokens{pages}{', in ' if one['headings'] else ''}{' > '.join(one['headings'])}"
        lines.append(f"    {one['id']}  {one['start']:,} .. {one['end'] - 1:,}  {what}")
    return [*lines, f"    and {len(chunks) - SHOWN:,} more"] if len(chunks) > SHOWN else lines


def _before(earlier: Found) -> list[str]:
    """Returns what an earlier run read, from whose weights the model comes."""
    lines = [f"before: {earlier['checkpoint']}, from whose weights the run began"]
    if earlier["problem"]:
        return [*lines, f"  not known  {earlier['problem']}"]
    if "documents" not in earlier:
        return [*lines, f"  steps      {earlier['run']['steps']:,}"]
    for document in earlier["documents"]:
        lines += _document(document, earlier["run"])
    if not earlier["documents"]:
        lines.append(f"  steps      none of the {earlier['run']['steps']:,} steps read it")
    left = earlier.get("count", 0) - len(earlier["documents"])
    return [*lines, f"and {left:,} more: --all shows them"] if left > 0 else lines


def _step(found: Found) -> list[str]:
    run = found["run"]
    skipped = f", skipped ({found['skipped']}): it did not change the model" if found["skipped"] else ""
    lines = [
        f"step {found['step']:,} of {run['steps']:,}: {len(found['sequences'])} sequences, "
        f"first in checkpoint step-{found['first_checkpoint']:08d}{skipped}"
    ]
    shown = [sequence for sequence in found["sequences"] if "slices" in sequence]
    for sequence in shown:
        lines += ["", f"{sequence['source']} sequence {sequence['sequence']:,}, epoch {sequence['epoch']}"]
        for piece in sequence["slices"]:
            last = piece["start"] + piece["length"] - 1
            text = f"withheld: {_WITHHELD}" if piece.get("withheld") else " ".join(piece["text"].split())
            pages = f", page {some(piece['pages'])}" if "pages" in piece else ""
            lines.append(f"  {piece['url'] or piece['id']}  tokens {piece['start']:,} .. {last:,}{pages}")
            lines.append(f"    {text[:_WIDTH]}")
    left = len(found["sequences"]) - len(shown)
    return [*lines, "", f"and {left:,} more sequences: --all shows their pages"] if left else lines


SHOWN = 12
"""Entries of a list that are shown."""


def some(numbers: Sequence[int]) -> str:
    """Returns the first numbers of a list, and how many more there are.

    >>> some([1, 2000]), some([])
    ('1, 2,000', 'none')
    """
    shown = ", ".join(f"{number:,}" for number in numbers[:SHOWN])
    return f"{shown} and {len(numbers) - SHOWN:,} more" if len(numbers) > SHOWN else shown or "none"


_SPAN_WIDTH = 300


def render_explanation(found: Found) -> str:
    """Returns the result of `tasks.run.trace.explain.explain` as text."""
    tokens = f"{found['training_tokens']:,} training tokens"
    least = found["min_tokens"]
    if found["spans"]:
        shown = "" if len(found["spans"]) == found["spans_found"] else f", the {len(found['spans'])} rarest are shown"
        lines = [f"{found['spans_found']} spans of {least} tokens or more stand verbatim in the {tokens}{shown}"]
    else:
        lines = [f"no span of {least} tokens or more stands verbatim in the {tokens}"]
    for span in found["spans"]:
        lines += ["", *_explained(span, found["run"])]
    return "\n".join([*lines, "", f"read from: {', '.join(found['artifacts'].values())}"])


def _explained(span: Found, run: Found | None) -> list[str]:
    text = " ".join(span["text"].split())
    text = text if len(text) <= _SPAN_WIDTH else f"{text[: _SPAN_WIDTH // 2]} … {text[-_SPAN_WIDTH // 2 :]}"
    followed = sum(len(document["starts"]) for document in span["documents"])
    places = f"{span['count']:,} times" if span["count"] != 1 else "once"
    rest = f", {followed} of them shown" if followed < span["count"] else ""
    lines = [
        f'characters {span["start"]:,} .. {span["end"] - 1:,}: "{text}"',
        f"  {span['tokens']:,} tokens, {span['bits']:,.0f} bits; stands there {places}{rest}",
    ]
    for document in span["documents"]:
        lines.append(f"  {document['url'] or document['id']}  from token {some(document['starts'])}")
        lines.append(f"    {_reading(document, run)}")
        lines += [f"    before: {one['checkpoint']} read the page in {_steps(one)}" for one in document["before"]]
    return lines


def _reading(document: Found, run: Found | None) -> str:
    if not document["sequences"]:
        return "in no training sequence"
    if run is None:
        return f"sequences {some(document['sequences'])}; nothing was trained from them yet"
    if not document["steps"]:
        return f"sequences {some(document['sequences'])}; none of the {run['steps']:,} steps read them"
    return _steps(document)


def _steps(reading: Found) -> str:
    skipped = f" (skipped: {some(reading['skipped_steps'])})" if reading["skipped_steps"] else ""
    first = reading["first_checkpoint"]
    seen = "no checkpoint has seen it" if first is None else f"first seen by step-{first:08d}"
    return f"steps {some(reading['steps'])}{skipped}; {seen}"


def render_tuned(found: Found) -> str:
    """Returns the result of `tasks.run.trace.tuned.trace_tuned` as text."""
    skipped = ", skipped: it did not change the model" if found["skipped"] else ""
    begun = " <- ".join(found["bases"])
    lines = [f"step {found['step']} of {found['model']}, begun from {begun}: {len(found['rows'])} rows{skipped}"]
    for row in found["rows"]:
        gone = ", withheld: taken down, or it had spoilt a step" if row.get("withheld") else ""
        lines += [f"  sequence {row['sequence']}  {_place(row)}{gone}", *_boxes(row)]
    return "\n".join(lines)


def _place(row: Found) -> str:
    if "file" in row:
        named = f" ({row['id']})" if row["id"] else ""
        return f"{row['file']} line {row['line']:,}{named}"
    pages = f", page {some(row['pages'])}" if row.get("pages") else ""
    return f"{row['url']}{pages}  chunk {row['chunk']} of document {row['document']}"


def _boxes(row: Found) -> Iterator[str]:
    for box in row.get("boxes") or ():
        place = ", ".join(f"{box[name]:.0f}" for name in ("x0", "y0", "x1", "y1"))
        yield f"    page {box['page']}, box {place}"


def tunings(found: Sequence[Found]) -> list[str]:
    """Returns the result of `tasks.run.trace.tuned.tunings_of` as lines."""
    lines = []
    for one in found:
        lines += ["", f"fine-tuned: {one['model']}, begun from {' <- '.join(one['bases'])}"]
        if one["problem"]:
            lines.append(f"  not known  {one['problem']}")
            continue
        if not one["documents"]:
            lines.append(f"  steps      none of the {one['steps']:,} steps read it")
        for document in one["documents"]:
            lines += _tuned_document(document, one["steps"])
    return lines


def _tuned_document(document: Found, steps: int) -> Iterator[str]:
    yield f"document {document['id']} of source {document['source']}  {document['url']}"
    pages = sorted({page for one in document["examples"] for page in one["pages"] or ()})
    of = f", of page {some(pages)}" if pages else ""
    yield f"  examples   {len(document['examples']):,} chunks{of}"
    yield f"  sequences  {some(document['sequences'])}"
    if "withheld_from" in document:
        yield f"  withheld   from step {document['withheld_from']:,} on: taken down, or it had spoilt that step"
    if not document["steps"]:
        yield f"  steps      none of the {steps:,} steps read it"
        return
    skipped = f" (skipped: {some(document['skipped_steps'])})" if document["skipped_steps"] else ""
    yield f"  steps      {some(document['steps'])}{skipped}"
    seen_by = [f"step-{count:08d}" for count in document["checkpoints"]]
    yield f"  seen by    {', '.join(seen_by) or 'no checkpoint'}"
