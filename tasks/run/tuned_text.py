"""Text rendering of the traces of fine-tunings."""

from collections.abc import Iterator, Sequence
from typing import Any

from tasks.run.numbers_text import some

Found = dict[str, Any]


def render_tuned(found: Found) -> str:
    """Returns the result of `tasks.run.tuned_trace.trace_tuned` as text."""
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
    """Returns the result of `tasks.run.tuned_trace.tunings_of` as lines."""
    lines = []
    for one in found:
        lines += ["", f"fine-tuned: {one['model']}, begun from {' <- '.join(one['bases'])}"]
        if one["problem"]:
            lines.append(f"  not known  {one['problem']}")
            continue
        if not one["documents"]:
            lines.append(f"  steps      none of the {one['steps']:,} steps read it")
        for document in one["documents"]:
            lines += _document(document, one["steps"])
    return lines


def _document(document: Found, steps: int) -> Iterator[str]:
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
