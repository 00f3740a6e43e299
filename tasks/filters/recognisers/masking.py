"""Masking: spans of a text, such as the personal data in it, give way to their kinds in angle brackets."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.filters.recognisers.scan import find


def without_personal_data(text: str) -> str:
    """Returns a text with the personal data in it replaced by its kind.

    >>> without_personal_data("write to ann@example.org now")
    'write to <email> now'
    """
    return mask(text, [span._asdict() for span in find(text)])


def mask(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """Replaces each span by its kind in angle brackets.

    Overlapping spans become one placeholder with the kind of the longest, so that no part of a masked number remains
    because another recogniser matched only half of it.

    Args:
        text: the document's text.
        spans: `kind`, `start`, `end` (code points, end exclusive), in any order; the kind "" gives no placeholder.

    Raises:
        ValueError: a span is empty or lies outside the text.

    >>> mask("write to ann@example.org now", [{"kind": "email", "start": 9, "end": 24}])
    'write to <email> now'
    """
    pieces, at = [], 0
    for start, end, kind in _regions(spans, len(text)):
        pieces += [text[at:start], f"<{kind}>" if kind else ""]
        at = end
    return "".join([*pieces, text[at:]])


def _regions(spans: Sequence[Mapping[str, Any]], length: int) -> list[tuple[int, int, str]]:
    """Merges overlapping spans; returns (start, end, kind) in text order."""
    merged: list[tuple[int, int, str]] = []
    longest = 0
    for start, end, kind in sorted((span["start"], span["end"], span["kind"]) for span in spans):
        if not 0 <= start < end <= length:
            raise ValueError(f"the {kind} span {start}..{end} lies outside a text of {length} characters")
        if not merged or start >= merged[-1][1]:
            merged.append((start, end, kind))
            longest = end - start
            continue
        first, last, name = merged[-1]
        merged[-1] = (first, max(last, end), kind if end - start > longest else name)
        longest = max(longest, end - start)
    return merged
