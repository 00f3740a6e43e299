"""Readings: which sequences contain tokens of a document, which steps read these, and which checkpoints came after.

Reads a plan, and of a checkpoint `run.json`, `loss.parquet` and `withheld.json` as far as they exist.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow.compute as pc

from tasks.core.artifact import Artifact
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.labels import SOURCE
from tasks.formats.tokens.marks import Mark, first_blank, of_run
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import TRAIN, parse_shard_name

_SETTINGS = ("steps", "batch_size", "seed", "weights", "anneal", "checkpoint_steps")


@dataclass(frozen=True)
class Reading:
    """Who read some tokens of a document; numbers ascending. Of a held-out document everything is empty."""

    source: str
    """The source of the plan that has them: a value of the column by which it was packed."""
    sequences: list[int]
    steps: list[int]
    """Steps whose batch had them, also those that were skipped."""
    skipped_steps: list[int]
    """Those of the steps that did not change the model."""
    checkpoints: list[int]
    """Checkpoints, as steps done, of a model that had learned from them."""
    withheld_from: int | None
    """First step at which the document was blank, because it had been taken down."""

    @property
    def learned(self) -> list[int]:
        """The steps that changed the model."""
        return [step for step in self.steps if step not in self.skipped_steps]


def read_by(
    run: Mapping[str, Any],
    order: Order,
    skipped_steps: frozenset[int],
    source: str,
    sequences: list[int],
    blank: int | None,
) -> Reading:
    """Returns who read some sequences of a source.

    Args:
        run: `run.json` of a checkpoint.
        order: of the run.
        skipped_steps: those that did not change the model.
        source: of the sequences.
        sequences: their numbers, ascending.
        blank: first step at which nothing was read of them any more; None: they were read to the end.
    """
    until = run["steps"] if blank is None else blank
    steps = sorted({step for sequence in sequences for step in order.steps_of(source, sequence, until)})
    skipped = [step for step in steps if step in skipped_steps]
    first = next((step for step in steps if step not in skipped_steps), None)
    seen_by = [count for count in run["checkpoint_steps"] if first is not None and first < count]
    return Reading(source, sequences, steps, skipped, seen_by, blank)


class Readings:
    """The readings of a run, or only the sequences where there is none yet.

    Args:
        index: where the documents lie in the token shards; None before encoding.
        plan: the plan that was packed from them; None before packing.
        checkpoint: what was trained on it; None before training.
    """

    def __init__(self, index: DocumentIndex | None, plan: Plan | None, checkpoint: Artifact | None) -> None:
        self._index = index
        self._plan = plan
        self._checkpoint = checkpoint

    @cached_property
    def run(self) -> dict[str, Any] | None:
        """`run.json` of the checkpoint."""
        return json.loads(self._checkpoint.read("run.json")) if self._checkpoint else None

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings of the run that a look-up shows, as far as it has them."""
        return self.run and {name: self.run[name] for name in _SETTINGS if name in self.run}

    @cached_property
    def order(self) -> Order | None:
        """The order in which the run read its sequences."""
        return Order.of_run(self.run) if self.run else None

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """From which steps on documents were blank."""
        return of_run(self._checkpoint) if self._checkpoint else ()

    @cached_property
    def skipped_steps(self) -> frozenset[int]:
        """Steps whose batch did not change the model: a spike, not a number, or passed over after a rollback."""
        if self._checkpoint is None:
            return frozenset()
        table = self._checkpoint.table("loss.parquet", ["step"], pc.field("loss").is_null())
        return frozenset(table.column("step").to_pylist())

    def why_skipped(self, step: int) -> str:
        """Returns why a step did not change the model: "loss_spike", "passed_over" (`tasks.trainer`); "" for others."""
        if self._checkpoint is None or self.run is None or step not in self.skipped_steps:
            return ""
        milestone = next(count for count in self.run["checkpoint_steps"] if count > step)
        lines = map(json.loads, self._checkpoint.read(f"skipped/step-{milestone:08d}.jsonl").splitlines())
        return next((str(line["reason"]) for line in lines if line["step"] == step), "")

    def of(self, shard: str, row: int, ranges: Sequence[tuple[int, int]] | None = None) -> Reading:
        """Returns who read a document, or some of its tokens.

        Args:
            shard: name of its shard.
            row: its row in the shard.
            ranges: (first token, number of tokens) counted in the document; None: all of it.
        """
        source = self._source_of(shard, row)
        sequences = self._sequences(source, shard, row, ranges)
        if self.run is None or self.order is None:
            return Reading(source, sequences, [], [], [], None)
        blank = first_blank(self.marks, shard, row)
        return read_by(self.run, self.order, self.skipped_steps, source, sequences, blank)

    def _source_of(self, shard: str, row: int) -> str:
        by = self._plan.summary["by"] if self._plan else SOURCE
        if by == SOURCE or self._index is None:
            return parse_shard_name(shard)[0]
        return self._index.label(shard, row, by)

    def _sequences(self, source: str, shard: str, row: int, ranges: Sequence[tuple[int, int]] | None) -> list[int]:
        if not self._plan or not self._index or parse_shard_name(shard)[1] != TRAIN:
            return []
        if source not in self._plan.sequences:
            return []
        if ranges is None:
            return self._plan.sequences_of(source, shard, row)
        begin = self._index.at([(shard, row)])[0].offset
        found = set[int]()
        for first, length in ranges:
            found.update(self._plan.sequences_of(source, shard, row, begin + first, begin + first + length))
        return sorted(found)
