"""The values that the numeric limits are compared with, over the documents of a version.

Reads `extracted` and the measured columns; writes nothing.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tasks.filters.base import Threshold
from tasks.stages.consolidate.aligned_inputs import AlignedInputs
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import RowThreshold, gold_values, limit_values


class LimitSummary(NamedTuple):
    """A numeric limit with the values of the documents to which it applies.

    Attributes:
        limit: the limit; its path is below the section, its reason "silver" for a minimum of the tier gold.
        beyond: number of documents beyond it.
        alone: number of those that are beyond no other numeric limit; for gold, no other minimum.
    """

    limit: Threshold
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
    found: dict[tuple[str, str], list[LimitSummary]] = {}
    for name in inputs.names() if parts is None else parts:
        documents, judged, _ = inputs.parts.part(name, ["id", "url", "source"], config.reads(), ["id"])
        documents, judged = documents.slice(0, most), judged.slice(0, most)
        taken_down = inputs.parts.taken_down(documents)
        for values in (limit_values, gold_values):
            limits = list(values(config, documents.column("source"), judged, taken_down))
            for of_part in _counted(limits, documents.num_rows):
                found.setdefault((of_part.limit.path, of_part.limit.reason), []).append(of_part)
    return [_sum(limits) for limits in found.values()]


def _counted(limits: Sequence[RowThreshold], rows: int) -> Iterator[LimitSummary]:
    """Yields the limits of one part with the numbers of documents beyond each, and beyond no other one."""
    beyond = [rows_of_limit[limit.beyond()] for rows_of_limit, limit in limits]
    reasons = np.zeros(rows, np.int64)
    for rows_beyond in beyond:
        reasons[rows_beyond] += 1
    for (_, limit), rows_beyond in zip(limits, beyond, strict=True):
        yield LimitSummary(limit, len(rows_beyond), int((reasons[rows_beyond] == 1).sum()))


def _sum(parts: Sequence[LimitSummary]) -> LimitSummary:
    values = np.concatenate([part.limit.values for part in parts]).astype(np.float64)
    beyond, alone = sum(part.beyond for part in parts), sum(part.alone for part in parts)
    return LimitSummary(parts[0].limit._replace(values=values), beyond, alone)
