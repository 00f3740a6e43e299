"""The values that the numeric limits are compared with, over the documents of a version.

Reads `extracted` and the measured columns; writes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import LimitValues, gold_values, limit_values


@dataclass(frozen=True)
class LimitSummary:
    """A numeric limit, and the values of the documents to which it applies.

    Attributes:
        path: dotted path of the limit below the section.
        reason: the reason to drop a document beyond it; "silver" for a minimum of the tier gold.
        side: "least", "most" or "below": what the limit is.
        bound: the limit; None for no limit.
        values: the values, shape (n,).
        beyond: number of documents beyond it.
        alone: number of those that are beyond no other numeric limit; for gold, no other minimum.
    """

    path: str
    reason: str
    side: str
    bound: float | None
    values: NDArray[np.float64]
    beyond: int
    alone: int


class _OfPart(NamedTuple):
    """A limit with the values of one part."""

    limit: LimitValues
    beyond: int
    alone: int


def summaries(
    config: ConsolidateConfig, inputs: AlignedInputs, parts: Sequence[str] | None = None, most: int | None = None
) -> list[LimitSummary]:
    """Returns the numeric limits with their values, in order of precedence, general limits first, and those of gold.

    Args:
        config: the settings.
        inputs: the documents and their measurements.
        parts: names of the parts to read; None for all. Takes 8 bytes per document of these and limit.
        most: number of documents to read of each part, as in `what_if`; None for all.
    """
    found: dict[tuple[str, str], list[_OfPart]] = {}
    for name in inputs.names() if parts is None else parts:
        documents, judged, _ = inputs.parts.part(name, ["id", "source"], config.reads(), ["id"])
        taken_down = inputs.parts.taken_down(name, documents.num_rows)[:most]
        documents, judged = documents.slice(0, most), judged.slice(0, most)
        for values in (limit_values, gold_values):
            limits = list(values(config, documents.column("source"), judged, taken_down))
            for of_part in _counted(limits, documents.num_rows):
                found.setdefault((of_part.limit.path, of_part.limit.reason), []).append(of_part)
    return [_sum(limits) for limits in found.values()]


def _counted(limits: Sequence[LimitValues], rows: int) -> Iterator[_OfPart]:
    """Yields the limits of one part with the numbers of documents beyond each, and beyond no other one."""
    masks = [limit.beyond() for limit in limits]
    reasons = np.zeros(rows, np.int64)
    for limit, mask in zip(limits, masks, strict=True):
        reasons[limit.rows[mask]] += 1
    for limit, mask in zip(limits, masks, strict=True):
        yield _OfPart(limit, int(mask.sum()), int((reasons[limit.rows[mask]] == 1).sum()))


def _sum(parts: Sequence[_OfPart]) -> LimitSummary:
    first = parts[0].limit
    values = np.concatenate([part.limit.values for part in parts]).astype(np.float64)
    beyond, alone = sum(part.beyond for part in parts), sum(part.alone for part in parts)
    return LimitSummary(first.path, first.reason, first.side, first.bound, values, beyond, alone)
