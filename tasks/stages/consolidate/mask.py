"""Masking of personal data in texts, titles and metadata; removal of lines dropped by C4's rules or repeated elsewhere.

Pure functions. All spans are positions in the extracted text and are applied at once, so that none shifts another.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.errors import InputError
from tasks.core.stage import Part
from tasks.filters.recognisers.scan import mask, without_personal_data
from tasks.formats.documents.document import REPEATED
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import in_scope


def mask_texts(
    config: ConsolidateConfig, documents: pa.Table, judged: pa.Table, is_kept: Sequence[bool], part: Part | None = None
) -> list[str]:
    """Returns the texts of some documents, masked and shortened according to the settings.

    Args:
        config: the stage's settings.
        documents: id, source and text.
        judged: the annotators' columns, in the same order.
        is_kept: whether each document is kept; rejected ones, which the audit page shows, are not shortened.
        part: the part whose metrics count the spans.

    Returns:
        texts; "" for a text without attributes of `pii` if `mask_pii` is set.

    Raises:
        InputError: a span is outside its text.
    """
    ids, texts = (documents.column(name).to_pylist() for name in ("id", "text"))
    results = []
    for doc_id, text, spans in zip(ids, texts, _spans(config, documents, judged, is_kept), strict=True):
        try:
            results.append("" if spans is None else mask(text, spans).strip("\n") if spans else text)
        except ValueError as error:
            raise InputError(f"document {doc_id}: {error}", "run annotate on these documents again") from error
        if part:
            part.metric("pii_masked", sum(1 for span in spans or () if span["kind"]))
    return results


def mask_titles(config: ConsolidateConfig, titles: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns titles, masked according to the settings; searched here, because annotators only read texts."""
    if not config.mask_pii:
        return titles
    masked = [without_personal_data(title) for title in titles.to_pylist()]
    return pa.chunked_array([pa.array(masked, pa.string())])


def mask_metadata(config: ConsolidateConfig, metadata: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns metadata (JSON objects) with their strings masked according to the settings, like titles."""
    if not config.mask_pii:
        return metadata
    cache: dict[str, str] = {}
    masked = [text and _mask_object(text, cache) for text in metadata.to_pylist()]
    return pa.chunked_array([pa.array(masked, pa.string())])


def _mask_object(text: str, cache: dict[str, str]) -> str:
    parsed = json.loads(text)
    masked = _mask_value(parsed, cache)
    # The original bytes, if there is nothing to mask.
    return text if masked == parsed else json.dumps(masked, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _mask_value(value: Any, cache: dict[str, str]) -> Any:
    """Returns a JSON value with its strings masked; `cache` has the masked forms of strings."""
    if isinstance(value, str):
        if value not in cache:
            cache[value] = without_personal_data(value)
        return cache[value]
    if isinstance(value, dict):
        return {name: _mask_value(item, cache) for name, item in value.items()}
    return [_mask_value(item, cache) for item in value] if isinstance(value, list) else value


def _spans(
    config: ConsolidateConfig, documents: pa.Table, judged: pa.Table, is_kept: Sequence[bool]
) -> Iterator[list[Mapping[str, Any]] | None]:
    """Yields the spans to replace in each text; None if it has no attributes of `pii`."""
    shortened = pa.array(in_scope(config, documents.column("source")) & np.asarray(is_kept, np.bool_))

    def of_shortened(name: str) -> list[Any]:
        column = judged.column(name)
        values: list[Any] = pc.if_else(shortened, column, pa.scalar(None, column.type)).to_pylist()
        return values

    rows = documents.num_rows
    personal = judged.column("pii").to_pylist() if config.mask_pii else [{"spans": []}] * rows
    lines = of_shortened("c4") if config.drop_lines else [None] * rows
    is_cut = config.cut_repeated and REPEATED in judged.column_names
    repeated = of_shortened(REPEATED) if is_cut else [None] * rows
    texts = documents.column("text").to_pylist()
    for text, pii, c4, repeats in zip(texts, personal, lines, repeated, strict=True):
        if pii is None:
            yield None
        else:
            dropped_lines = line_spans(text, c4["dropped_lines"]) if c4 else ()
            yield [*pii["spans"], *dropped_lines, *(_whole_lines(text, repeats["spans"]) if repeats else ())]


def _whole_lines(text: str, spans: Sequence[Mapping[str, int]]) -> Iterator[Mapping[str, Any]]:
    """Yields the spans of paragraphs, each with the indentation before it and the line ends after it."""
    for span in spans:
        begin, end = text.rfind("\n", 0, span["begin"]) + 1, span["end"]
        while end < len(text) and text[end].isspace():
            end = text.find("\n", end) + 1 or len(text)
        yield {"kind": "", "start": begin, "end": end}


def line_spans(text: str, numbers: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """Yields the spans of lines with their line ends; the kind is "", so that no placeholder is inserted."""
    dropped, at = set(numbers), 0
    for number, line in enumerate(text.split("\n")):
        end = min(at + len(line) + 1, len(text))
        if number in dropped and end > at:
            yield {"kind": "", "start": at, "end": end}
        at += len(line) + 1
