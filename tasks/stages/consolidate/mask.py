"""Masking: personal data in texts, titles and metadata becomes a placeholder; lines that a rule drops are left out."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import InputError
from tasks.core.stage import Part
from tasks.filters.recognisers.scan import find
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import in_scope


def masked(
    config: ConsolidateConfig, documents: pa.Table, judged: pa.Table, stays: Sequence[bool], part: Part | None = None
) -> list[str]:
    """Returns the texts of some documents as the settings want them.

    Args:
        config: the stage's settings.
        documents: id, source and text.
        judged: the annotators' columns, in the same order.
        stays: whether a document is kept; of one that goes, which is shown to people, no lines are taken out.
        part: where spans are counted.

    Returns:
        texts; "" for one that was not searched for personal data where that is to be masked.

    Raises:
        InputError: a span lies outside its text.
    """
    ids, texts = (documents.column(name).to_pylist() for name in ("id", "text"))
    found = []
    for identity, text, spans in zip(ids, texts, _spans(config, documents, judged, stays), strict=True):
        try:
            found.append("" if spans is None else mask(text, spans).strip("\n") if spans else text)
        except ValueError as error:
            raise InputError(f"document {identity}: {error}", "run annotate on these documents again") from error
        if part:
            part.metric("pii_masked", sum(1 for span in spans or () if span["kind"]))
    return found


def masked_titles(config: ConsolidateConfig, titles: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns titles as the settings want them; annotators see texts only, so titles are searched here."""
    if not config.mask_pii:
        return titles
    found = [mask(title, [span._asdict() for span in find(title)]) for title in titles.to_pylist()]
    return pa.chunked_array([pa.array(found, pa.string())])


def masked_metadata(config: ConsolidateConfig, metadata: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns metadata as the settings want it: JSON objects, of which the texts are searched here, like titles."""
    if not config.mask_pii:
        return metadata
    known: dict[str, str] = {}
    found = [text and _object(text, known) for text in metadata.to_pylist()]
    return pa.chunked_array([pa.array(found, pa.string())])


def _object(text: str, known: dict[str, str]) -> str:
    held = json.loads(text)
    masked = _searched(held, known)
    # As it was written, to the byte, where there is nothing to mask.
    return text if masked == held else json.dumps(masked, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _searched(value: Any, known: dict[str, str]) -> Any:
    """Returns a value of JSON with its texts masked; `known` holds those that have been looked at before."""
    if isinstance(value, str):
        if value not in known:
            known[value] = mask(value, [span._asdict() for span in find(value)])
        return known[value]
    if isinstance(value, dict):
        return {name: _searched(one, known) for name, one in value.items()}
    return [_searched(one, known) for one in value] if isinstance(value, list) else value


def _spans(
    config: ConsolidateConfig, documents: pa.Table, judged: pa.Table, stays: Sequence[bool]
) -> Iterator[list[Mapping[str, Any]] | None]:
    """Yields what is to be replaced in each text; None where it is not known what is personal in it."""
    rows = documents.num_rows
    personal = judged.column("pii").to_pylist() if config.mask_pii else [{"spans": []}] * rows
    lines: list[Any] = [None] * rows
    if config.drop_lines:
        shortened = pa.array(in_scope(config, documents.column("source")) & np.asarray(stays, np.bool_))
        lines = pc.if_else(shortened, judged.column("c4"), pa.scalar(None, judged.column("c4").type)).to_pylist()
    for text, found, dropped in zip(documents.column("text").to_pylist(), personal, lines, strict=True):
        if found is None:
            yield None
        else:
            yield [*found["spans"], *(_line_spans(text, dropped["dropped_lines"]) if dropped else ())]


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
