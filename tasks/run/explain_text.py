"""Text rendering of the result of an explanation."""

from typing import Any

Found = dict[str, Any]

_SHOWN = 8
_WIDTH = 300


def render(found: Found) -> str:
    """Returns the result of `tasks.run.explain.explain` as text."""
    tokens = f"{found['training_tokens']:,} training tokens"
    least = found["min_tokens"]
    if found["spans"]:
        shown = "" if len(found["spans"]) == found["spans_found"] else f", the {len(found['spans'])} rarest are shown"
        lines = [f"{found['spans_found']} spans of {least} tokens or more stand verbatim in the {tokens}{shown}"]
    else:
        lines = [f"no span of {least} tokens or more stands verbatim in the {tokens}"]
    for span in found["spans"]:
        lines += ["", *_span(span, found["run"])]
    return "\n".join([*lines, "", f"read from: {', '.join(found['artifacts'].values())}"])


def _span(span: Found, run: Found | None) -> list[str]:
    text = " ".join(span["text"].split())
    text = text if len(text) <= _WIDTH else f"{text[: _WIDTH // 2]} … {text[-_WIDTH // 2 :]}"
    followed = sum(len(document["starts"]) for document in span["documents"])
    places = f"{span['count']:,} times" if span["count"] != 1 else "once"
    rest = f", {followed} of them shown" if followed < span["count"] else ""
    lines = [
        f'characters {span["start"]:,} .. {span["end"] - 1:,}: "{text}"',
        f"  {span['tokens']:,} tokens, {span['bits']:,.0f} bits; stands there {places}{rest}",
    ]
    for document in span["documents"]:
        lines.append(f"  {document['url'] or document['id']}  from token {_some(document['starts'])}")
        lines.append(f"    {_reading(document, run)}")
        lines += [f"    before: {one['checkpoint']} read the page in {_steps(one)}" for one in document["before"]]
    return lines


def _reading(document: Found, run: Found | None) -> str:
    if not document["sequences"]:
        return "in no training sequence"
    if run is None:
        return f"sequences {_some(document['sequences'])}; nothing was trained from them yet"
    if not document["steps"]:
        return f"sequences {_some(document['sequences'])}; none of the {run['steps']:,} steps read them"
    return _steps(document)


def _steps(reading: Found) -> str:
    skipped = f" (skipped: {_some(reading['skipped_steps'])})" if reading["skipped_steps"] else ""
    first = reading["first_checkpoint"]
    seen = "no checkpoint has seen it" if first is None else f"first seen by step-{first:08d}"
    return f"steps {_some(reading['steps'])}{skipped}; {seen}"


def _some(numbers: list[int]) -> str:
    shown = ", ".join(f"{number:,}" for number in numbers[:_SHOWN])
    return f"{shown} and {len(numbers) - _SHOWN:,} more" if len(numbers) > _SHOWN else shown
