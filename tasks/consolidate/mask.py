"""Masking: personal data becomes a placeholder that names its kind, and lines that a rule drops are taken out.

Used by `stage`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tasks.consolidate.config import ConsolidateConfig
from tasks.errors import InputError
from tasks.stage import Part


def masked(
    config: ConsolidateConfig, documents: pa.Table, judged: pa.Table, taken: pa.Array, part: Part | None
) -> list[str]:
    """Returns the texts of the documents that are taken, as the settings want them.

    Args:
        config: the stage's settings.
        documents: id and text.
        judged: the annotators' columns, in the same order.
        taken: a boolean per document.
        part: where spans are counted, or None.

    Raises:
        InputError: a span lies outside its text.
    """
    ids, texts = (documents.column(name).filter(taken).to_pylist() for name in ("id", "text"))
    several = _spans(config, texts, judged.filter(taken))
    found = []
    for identity, text, spans in zip(ids, texts, several, strict=True):
        try:
            found.append(mask(text, spans).strip("\n") if spans else text)
        except ValueError as error:
            raise InputError(f"document {identity}: {error}", "run annotate on these documents again") from error
        if part:
            part.metric("pii_masked", sum(1 for span in spans if span["kind"]))
    return found


def _spans(config: ConsolidateConfig, texts: Sequence[str], judged: pa.Table) -> Iterator[list[Mapping[str, Any]]]:
    pii = judged.column("pii").to_pylist() if config.mask_pii else [None] * len(texts)
    lines = judged.column("c4").to_pylist() if config.drop_lines else [None] * len(texts)
    for text, personal, dropped in zip(texts, pii, lines, strict=True):
        spans = list(personal["spans"]) if personal else []
        yield [*spans, *_line_spans(text, dropped["dropped_lines"])] if dropped else spans


def _line_spans(text: str, numbers: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """Yields the spans of lines, each with its line end; their kind is "", which leaves no placeholder."""
    wanted, at = set(numbers), 0
    for number, line in enumerate(text.split("\n")):
        end = min(at + len(line) + 1, len(text))
        if number in wanted and end > at:
            yield {"kind": "", "start": at, "end": end}
        at += len(line) + 1


def mask(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """Replaces each span by its kind in angle brackets.

    Spans that overlap become one placeholder, of the kind of the longest: part of a number that is masked must not stay
    readable because another finder saw only half of it.

    Args:
        text: the document's text.
        spans: `kind`, `start`, `end` (code points, end exclusive), in any order; the kind "" leaves nothing behind.

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
