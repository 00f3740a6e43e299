"""Masking: personal data becomes a placeholder that names its kind.

Pure functions, used by `stage`.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def mask(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """Replaces each span by its kind in angle brackets.

    Spans that overlap become one placeholder, of the kind of the longest: part of a number that is masked must not stay
    readable because another finder saw only half of it.

    Args:
        text: the document's text.
        spans: `kind`, `start`, `end` (code points, end exclusive), in any order.

    Raises:
        ValueError: a span is empty or lies outside the text.

    >>> mask("write to ann@example.org now", [{"kind": "email", "start": 9, "end": 24}])
    'write to <email> now'
    """
    pieces, at = [], 0
    for start, end, kind in _regions(spans, len(text)):
        pieces += [text[at:start], f"<{kind}>"]
        at = end
    return "".join([*pieces, text[at:]])


def _regions(spans: Sequence[Mapping[str, Any]], length: int) -> list[tuple[int, int, str]]:
    """Unites overlapping spans; returns (start, end, kind) in text order."""
    found: list[tuple[int, int, str]] = []
    longest = 0
    for start, end, kind in sorted((span["start"], span["end"], span["kind"]) for span in spans):
        if not 0 <= start < end <= length:
            raise ValueError(f"the {kind} span {start}..{end} lies outside a text of {length} characters")
        if not found or start >= found[-1][1]:
            found.append((start, end, kind))
            longest = end - start
            continue
        first, last, name = found[-1]
        found[-1] = (first, max(last, end), kind if end - start > longest else name)
        longest = max(longest, end - start)
    return found
