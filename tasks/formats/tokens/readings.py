"""Readings: which sequences have tokens of a document or example, which steps read these, which checkpoints came after.

Reads a plan, and of a checkpoint `run.json`, `loss.parquet` and `withheld.json` as far as they exist; of a fine-tuned
model `run.json`, `loss.jsonl` and `withheld.json`, and the examples that its record names.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactId
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.examples import SOURCE as EXAMPLES_SOURCE
from tasks.formats.documents.examples import Examples
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.labels import SOURCE
from tasks.formats.tokens.marks import Mark, first_blank, of_run
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.shard import TRAIN, parse_shard_name

_SETTINGS = ("steps", "batch_size", "seed", "weights", "anneal", "checkpoint_steps")

TUNED = "finetuned"
"""Kind of the artifacts that are fine-tuned models."""
EXAMPLES = "examples"
"""Role of the examples among the inputs of a fine-tuning, and kind of the artifacts."""


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


class Page(NamedTuple):
    """A document of examples."""

    id: str
    url: str
    source: str


def is_tuned(model: Artifact) -> bool:
    """Returns whether a model was fine-tuned."""
    return any(ref.role == EXAMPLES for ref in model.record.inputs)


def by_document(examples: Examples, numbers: Iterable[int]) -> dict[Page, list[int]]:
    """Returns the numbers of examples by their document, in the order of its URL and id."""
    found: dict[Page, list[int]] = {}
    for number in numbers:
        origin = examples[number].origin
        found.setdefault(Page(origin["document"], origin["url"], origin["source"]), []).append(number)
    return dict(sorted(found.items(), key=lambda one: (one[0].url, one[0].id)))


def withheld_examples(examples: Artifact, tombstones: Tombstones) -> dict[str, NDArray[np.int64]]:
    """Returns the rows of examples whose documents are taken down, by file, ascending; {} where there are none."""
    if not tombstones:
        return {}
    found = Examples(examples)
    rows: dict[str, list[int]] = {}
    for part, row in map(found.place, found.where(tombstones.mask)):
        rows.setdefault(found.paths[part], []).append(row)
    return {path: np.array(several, np.int64) for path, several in rows.items()}


def recipes_of(examples: Artifact) -> list[str]:
    """Returns the recipes whose chunks became examples."""
    names = (ref.address.partition("@")[0].partition("/") for ref in examples.record.inputs)
    return sorted({recipe for recipe, _, kind in names if kind == CHUNKS})


class ExampleReadings:
    """The readings of a fine-tuning.

    Args:
        model: artifact of the stage `finetune`.

    Raises:
        InputError: its examples are gone.
    """

    def __init__(self, model: Artifact) -> None:
        self._model = model
        self.run: dict[str, Any] = json.loads(model.read("run.json"))
        self.order = Order.of_run(self.run)
        self.marks = of_run(model)
        (ref,) = (ref for ref in model.record.inputs if ref.role == EXAMPLES)
        self.examples = Examples(Artifact.open_at(model.store, ArtifactId.parse(ref.address)))

    @cached_property
    def skipped_steps(self) -> frozenset[int]:
        """Steps whose batch did not change the model."""
        lines = map(json.loads, self._model.read("loss.jsonl").splitlines())
        return frozenset(line["step"] for line in lines if line["loss"] is None)

    def blank_from(self, number: int) -> int | None:
        """Returns the first step at which an example was blank; None where it never was."""
        part, row = self.examples.place(number)
        return first_blank(self.marks, self.examples.paths[part], row)

    def of(self, numbers: Iterable[int]) -> Reading:
        """Returns who read some examples; `withheld_from` is there where all of them were blank in the end."""
        each = list(self._each(numbers))
        blank = [one.withheld_from for one in each]
        steps, skipped = (sorted({*_all(each, name)}) for name in ("steps", "skipped_steps"))
        return Reading(
            EXAMPLES_SOURCE,
            sorted({*_all(each, "sequences")}),
            steps,
            skipped,
            sorted({*_all(each, "checkpoints")}),
            None if None in blank else max((one for one in blank if one is not None), default=None),
        )

    def _each(self, numbers: Iterable[int]) -> Iterator[Reading]:
        for number in numbers:
            sequences, blank = [self.examples.sequence_of(number)], self.blank_from(number)
            yield read_by(self.run, self.order, self.skipped_steps, EXAMPLES_SOURCE, sequences, blank)


def _all(each: Iterable[Reading], name: str) -> Iterator[int]:
    return (value for one in each for value in getattr(one, name))
