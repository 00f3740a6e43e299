"""Spoilt shards: shards whose documents spoil steps again and again, so that all of them are withheld.

A search per refused step finds the documents of one batch (`poison`). Where most of what a shard has given lately was
found, the rest of it is taken to be no better.
"""

from collections.abc import Mapping, Sequence

from tasks.formats.tokens.marks import Mark
from tasks.trainer.data.batches import StepData

REPEATED = 3
"""Steps that documents of a shard must have spoilt."""
LOOK_BACK = 200
"""Steps whose documents are counted, the present one included."""
LEAST_SHARE = 0.5
"""Share of the shard's documents in these steps that must have been found."""


def spoilt_shards(
    marks: Sequence[Mark], rows: Mapping[str, Sequence[int]], step: int, batches: StepData
) -> tuple[str, ...]:
    """Returns the names of the shards, ascending, that are spoilt as a whole; a function of its arguments.

    Args:
        marks: of the run so far.
        rows: what has spoilt this step: rows by shard.
        step: 0-based.
        batches: the batches of the run.
    """
    before = [mark.rows for mark in marks if mark.reason]
    suspects = {shard for shard in rows if 1 + sum(shard in found for found in before) >= REPEATED}
    if not suspects:
        return ()
    bad = {(shard, row) for found in (*before, rows) for shard, several in found.items() for row in several}
    read = {place for at in range(max(0, step + 1 - LOOK_BACK), step + 1) for place in batches.documents(at)}
    mine = {shard: [place for place in read if place[0] == shard] for shard in suspects}
    return tuple(sorted(s for s, of in mine.items() if len(bad.intersection(of)) >= LEAST_SHARE * len(of)))
