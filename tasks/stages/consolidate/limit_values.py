"""The values that the numeric limits of the filters are compared with, over the documents of a version.

Reads `extracted` and the measured columns; writes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import LimitValues, limit_values


@dataclass(frozen=True)
class LimitSummary:
    """A numeric limit, and the values of the documents to which it applies.

    Attributes:
        path: dotted path of the limit below the section.
        reason: the reason to drop a document beyond it.
        side: "least" or "most": what the limit is.
        bound: the limit; None for no limit.
        values: the values, shape (n,).
        beyond: number of documents beyond it.
        alone: number of those that are beyond no other numeric limit.
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
    """Returns the numeric limits of the filters with their values, in order of precedence, general limits first.

    Args:
        config: the settings.
        inputs: the documents and their measurements.
        parts: names of the parts to read; None for all. Takes 8 bytes per document of these and limit.
        most: number of documents to read of each part, as in `what_if`; None for all.
    """
    found: dict[tuple[str, str], list[_OfPart]] = {}
    for name in inputs.names() if parts is None else parts:
        documents, judged, _ = inputs.parts.part(name, ["id", "source"], config.filters, ["id"])
        taken_down = inputs.parts.taken_down(name, documents.num_rows)[:most]
        documents, judged = documents.slice(0, most), judged.slice(0, most)
        limits = list(limit_values(config, documents.column("source"), judged, taken_down))
        masks = [_beyond(limit) for limit in limits]
        reasons = np.zeros(documents.num_rows, np.int64)
        for limit, mask in zip(limits, masks, strict=True):
            reasons[limit.rows[mask]] += 1
        for limit, mask in zip(limits, masks, strict=True):
            alone = int((reasons[limit.rows[mask]] == 1).sum())
            found.setdefault((limit.path, limit.reason), []).append(_OfPart(limit, int(mask.sum()), alone))
    return [_sum(limits) for limits in found.values()]


def _beyond(limit: LimitValues) -> NDArray[np.bool_]:
    if limit.bound is None:
        return np.zeros(len(limit.rows), np.bool_)
    mask: NDArray[np.bool_] = limit.values < limit.bound if limit.side == "least" else limit.values > limit.bound
    return mask


def _sum(parts: Sequence[_OfPart]) -> LimitSummary:
    first = parts[0].limit
    values = np.concatenate([part.limit.values for part in parts]).astype(np.float64)
    beyond, alone = sum(part.beyond for part in parts), sum(part.alone for part in parts)
    return LimitSummary(first.path, first.reason, first.side, first.bound, values, beyond, alone)
