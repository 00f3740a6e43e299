"""Text rendering of the result of a trace."""

from typing import Any

from tasks.run.numbers_text import SHOWN, some
from tasks.run.tuned_text import render_tuned, tunings

Found = dict[str, Any]

_WIDTH = 100
_WITHHELD = "taken down, or it or its shard had spoilt that step"


def render(found: Found) -> str:
    """Returns the result of `tasks.run.trace.trace` as text."""
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
