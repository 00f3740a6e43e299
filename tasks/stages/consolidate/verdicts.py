"""Verdicts on documents: all reasons to drop it, the document that it duplicates, and the tier of a kept one.

Pure functions over co-partitioned columns. Reasons are ordered by filter, duplication last.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import reasons, tiers

DUPLICATE = "duplicate_"
"""Prefix of the reason of a duplicate, followed by the kind, "exact" or "near"."""

COLUMNS = ["id", "duplicate_of", "kind"]
"""Columns of dedup's verdict that are read."""


class Verdicts(NamedTuple):
    """Verdicts row by row.

    Attributes:
        reasons: all reasons to drop a document, by precedence; empty if it is kept.
        duplicate_of: id of the document that it duplicates, or None.
        tiers: "gold" or "silver" if it is kept, else "".
    """

    reasons: list[list[str]]
    duplicate_of: list[str | None]
    tiers: list[str]

    @property
    def first(self) -> list[str]:
        """The first reason of each document, "" if it is kept."""
        return [why[0] if why else "" for why in self.reasons]

    @property
    def stays(self) -> pa.Array:
        """Whether each document is kept."""
        return pa.array([not why for why in self.reasons], pa.bool_())


def verdicts(
    config: ConsolidateConfig,
    sources: pa.ChunkedArray,
    judged: pa.Table,
    resolved: pa.Table,
    duplicates: pa.Table,
    taken_down: NDArray[np.bool_],
) -> Verdicts:
    """Returns the verdict on each document of one part.

    Args:
        config: the stage's settings.
        sources: source of each document.
        judged: `error`, and the columns of the annotators that the filters and the marks of `gold` read.
        resolved: the documents to drop as copies of a kept one (`resolve.COPIES`).
        duplicates: dedup's verdict on each document: `COLUMNS`.
        taken_down: whether each document is taken down, shape (rows,).
    """
    found = reasons(config, sources, judged, taken_down)
    duplicate_of = _add_copies(config, found, resolved, duplicates)
    stays = pa.array([not why for why in found], pa.bool_())
    of_kept = iter(tiers(config, sources.filter(stays), judged.filter(stays)))
    return Verdicts(found, duplicate_of, ["" if why else next(of_kept) for why in found])


def _add_copies(
    config: ConsolidateConfig, found: Sequence[list[str]], resolved: pa.Table, duplicates: pa.Table
) -> list[str | None]:
    """Adds duplication to the reasons; returns the document that each document duplicates."""
    dropped: dict[str, Mapping[str, Any]] = {row["id"]: row for row in resolved.to_pylist()}
    duplicate_of: list[str | None] = []
    for why, row in zip(found, duplicates.to_pylist(), strict=True):
        # For a filtered document dedup's verdict is a further reason; for one that passes, the resolved one decides.
        copy = (row if row["duplicate_of"] and config.dedup else None) if why else dropped.get(row["id"])
        duplicate_of.append(copy["duplicate_of"] if copy else None)
        if copy:
            why.append(f"{DUPLICATE}{copy['kind']}")
    return duplicate_of
