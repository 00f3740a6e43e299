"""Documents of a version with their measured values, and texts with marks where the stage masked or removed something.

Reads `extracted` and the measured columns, for the pages; writes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.formats.documents.document import CONTAMINATED, REPEATED
from tasks.stages.consolidate.aligned_inputs import AlignedParts
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.mask import line_spans
from tasks.stages.consolidate.rules import limit_values


class TextPiece(NamedTuple):
    """A stretch of a text; `mark` says what it is, "" for nothing special."""

    text: str
    mark: str


class LimitValue(NamedTuple):
    """The value of a document beside a limit; `side` as in `Threshold`, `bound` None for no limit."""

    path: str
    reason: str
    side: str
    bound: float | None
    value: float
    is_beyond: bool
    """Whether the limit drops the document."""


@dataclass(frozen=True)
class MarkedDocument:
    """A document of `extracted`.

    Attributes:
        id: its id.
        url: its URL.
        source: its source.
        title: its title; may have personal data.
        language: its code; "" if it was not measured.
        pieces: the text; None if it is taken down, or if no annotator could find its personal data.
        values: its values beside the numeric limits.
    """

    id: str
    url: str
    source: str
    title: str
    language: str
    pieces: tuple[TextPiece, ...] | None
    values: tuple[LimitValue, ...]

    @property
    def text(self) -> str:
        """The text, with personal data masked; "" if it may not be shown."""
        return "".join(piece.text for piece in self.pieces or ())


def read_documents(
    config: ConsolidateConfig, aligned: AlignedParts, part: str, ids: Sequence[str]
) -> dict[str, MarkedDocument]:
    """Returns the documents of one part with these ids, as far as it has them, by id.

    Args:
        config: the settings of the version.
        aligned: the inputs of the version.
        part: name of the part.
        ids: ids of documents.
    """
    annotators = [name for name in aligned.groups if name in (*config.reads(), "pii", "c4", "language")]
    documents, judged, _ = aligned.part(part, ["id", "url", "source", "title", "text"], annotators, ["id"])
    chosen = pc.is_in(documents.column("id"), value_set=pa.array(list(ids), pa.string()))
    documents, judged = documents.filter(chosen), judged.filter(chosen)
    hidden = aligned.taken_down(documents).tolist()
    values = _values_by_row(config, documents.column("source"), judged)
    rows = judged.to_pylist()
    return {
        row["id"]: MarkedDocument(
            row["id"],
            row["url"],
            row["source"],
            row["title"],
            (found.get("language") or {}).get("label", ""),
            None if is_hidden else _pieces(config, row["text"], found),
            tuple(values.get(at, ())),
        )
        for at, (row, found, is_hidden) in enumerate(zip(documents.to_pylist(), rows, hidden, strict=True))
    }


def _values_by_row(
    config: ConsolidateConfig, sources: pa.ChunkedArray, judged: pa.Table
) -> Mapping[int, list[LimitValue]]:
    found: dict[int, list[LimitValue]] = {}
    for rows, limit in limit_values(config, sources, judged, np.zeros(len(sources), np.bool_)):
        for row, value, is_beyond in zip(rows.tolist(), limit.values.tolist(), limit.beyond().tolist(), strict=True):
            entry = LimitValue(limit.path, limit.reason, limit.side, limit.bound, float(value), is_beyond)
            found.setdefault(row, []).append(entry)
    return found


def _pieces(config: ConsolidateConfig, text: str, found: Mapping[str, Any]) -> tuple[TextPiece, ...] | None:
    """Returns a text with its marks; None if its personal data is unknown and would be masked."""
    personal = found.get("pii")
    if config.mask_pii and not personal:
        return None
    marks = list(_marks(config, text, found))
    personal_spans = personal["spans"] if config.mask_pii and personal else []
    marks += [(span["start"], span["end"], span["kind"]) for span in personal_spans]
    kinds = len(marks) - len(personal_spans)
    owner = np.full(len(text), -1, np.int64)
    for number, (start, end, _) in enumerate(marks):  # later marks, those of personal data, precede
        owner[start:end] = number
    bounds = [0, *(np.flatnonzero(owner[1:] != owner[:-1]) + 1).tolist(), len(text)]
    pieces = []
    for start, end in pairwise(bounds):
        if start < end:
            number = int(owner[start])
            mark = marks[number][2] if number >= 0 else ""
            hides = number >= kinds
            pieces.append(TextPiece(f"<{mark}>" if hides else text[start:end], f"masked: {mark}" if hides else mark))
    return tuple(pieces)


def _marks(config: ConsolidateConfig, text: str, found: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Yields start, end and meaning of what the records say about stretches of a text."""
    if repeated := found.get(REPEATED):
        mark = "repeated paragraph, removed if kept" if config.cut_repeated else "repeated paragraph"
        yield from ((span["begin"], span["end"], mark) for span in repeated["spans"])
    if config.drop_lines and (lines := found.get("c4")):
        spans = line_spans(text, lines["dropped_lines"])
        yield from ((span["start"], span["end"], "line that C4's rules remove") for span in spans)
    if item := found.get(CONTAMINATED):
        yield item["begin"], item["end"], f"evaluation item {item['item']} of {item['set']}"
