"""The verdict on a document: all reasons why it goes, the document that it is a copy of, and its tier where it stays.

Pure functions over co-partitioned columns. The reasons of the filters come first, in their order; being a copy is the
last one, so that a document that is dropped for another reason never is the keeper of one that would be good enough.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.rules import reasons, tiers

COPY = "duplicate_"
"""Begins the reason of a document that goes as a copy; behind it stands the kind, "exact" or "near"."""

COLUMNS = ["id", "duplicate_of", "kind"]
"""What is read of dedup's verdict."""


class Verdicts(NamedTuple):
    """What becomes of some documents, row by row.

    Attributes:
        reasons: why each goes, the first one first; empty where it stays.
        duplicate_of: id of the document that each is a copy of, or None.
        tiers: "gold" or "silver" where it stays, "" where it goes.
    """

    reasons: list[list[str]]
    duplicate_of: list[str | None]
    tiers: list[str]

    @property
    def first(self) -> list[str]:
        """The first reason of each, "" where it stays."""
        return [why[0] if why else "" for why in self.reasons]

    @property
    def stays(self) -> pa.Array:
        """Which documents stay."""
        return pa.array([not why for why in self.reasons], pa.bool_())


def verdicts(
    config: ConsolidateConfig,
    sources: pa.ChunkedArray,
    judged: pa.Table,
    resolved: pa.Table,
    duplicates: pa.Table,
) -> Verdicts:
    """Returns the verdict on each document of one part.

    Args:
        config: the stage's settings.
        sources: source of each document.
        judged: `error`, and the columns of the annotators that the filters and the marks of `gold` read.
        resolved: the documents that go as copies of one that stays (`resolve.COPIES`).
        duplicates: what dedup says of each document: `COLUMNS`.
    """
    found = reasons(config, sources, judged)
    keepers = _add_copies(config, found, resolved, duplicates)
    stays = pa.array([not why for why in found], pa.bool_())
    of_kept = iter(tiers(config, sources.filter(stays), judged.filter(stays)))
    return Verdicts(found, keepers, ["" if why else next(of_kept) for why in found])


def _add_copies(
    config: ConsolidateConfig, found: Sequence[list[str]], resolved: pa.Table, duplicates: pa.Table
) -> list[str | None]:
    """Adds being a copy to the reasons; returns the document that each is a copy of."""
    going: dict[str, Mapping[str, Any]] = {row["id"]: row for row in resolved.to_pylist()}
    keepers: list[str | None] = []
    for why, row in zip(found, duplicates.to_pylist(), strict=True):
        # A document that fails a rule keeps dedup's verdict as a further reason; one that passes has the resolved one.
        copy = (row if row["duplicate_of"] and config.dedup else None) if why else going.get(row["id"])
        keepers.append(copy["duplicate_of"] if copy else None)
        if copy:
            why.append(f"{COPY}{copy['kind']}")
    return keepers
