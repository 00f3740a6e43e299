"""Readings of a document or example: the sequences with its tokens, the steps that read them, the later checkpoints.

Reads a plan; of a checkpoint or a fine-tuned model `run.json`, `loss.parquet` and `withheld.json`, if they exist; and
the examples that the record of a fine-tuned model names.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.part import Part
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

_SETTINGS = ("steps", "batch_size", "ramp", "seed", "weights", "anneal", "checkpoint_steps", "best", "ended_early")

TUNED = "finetuned"
"""Kind of the artifacts with fine-tuned models."""
EXAMPLES = "examples"
"""Role of the examples among the inputs of a fine-tuning, and kind of the artifacts."""
LOSSES = "loss.parquet"
LOSS = pa.schema(
    [
        ("step", pa.int64()),
        ("loss", pa.float64()),
        ("lr", pa.float64()),
        ("grad_norm", pa.float64()),
        ("tokens", pa.int64()),
    ]
)
"""Schema of `LOSSES`: step (0-based), nats per token and gradient norm (null for a skipped step), learning rate, and
tokens trained on after the step."""


def write_losses(part: Part, lines: Sequence[Mapping[str, Any]]) -> None:
    """Writes `LOSSES` of a run whose step log has these lines."""
    with part.file(LOSSES, rows=len(lines)) as file:
        table = pa.table({name: [line[name] for line in lines] for name in LOSS.names}, schema=LOSS)
        pq.write_table(table, file, compression="zstd")


def skipped_steps_of(model: Artifact) -> frozenset[int]:
    """Returns the steps that did not change a model: a loss spike or NaN, or passed over after a rollback."""
    return frozenset(model.table(LOSSES, ["step"], pc.field("loss").is_null()).column("step").to_pylist())


def checkpoints_of(run: Mapping[str, Any]) -> list[int]:
    """Returns the checkpoints of a run by its `run.json`, as completed steps: the milestones and the best one."""
    return sorted({*run["checkpoint_steps"], *([run["best"]["step"]] if "best" in run else [])})


@dataclass(frozen=True)
class Reading:
    """The sequences, steps and checkpoints that read tokens of a document, ascending; empty for a held-out document."""

    source: str
    """Their source in the plan: a value of the column by which it was packed."""
    sequences: list[int]
    steps: list[int]
    """Steps with the tokens in their batch, including skipped ones."""
    skipped_steps: list[int]
    """The steps that did not change the model."""
    checkpoints: list[int]
    """Checkpoints of a model that had learned from the tokens, as numbers of completed steps."""
    withheld_from: int | None
    """First step at which the document was blank, because it was taken down."""

    @property
    def learned(self) -> list[int]:
        """The steps that changed the model."""
        return [step for step in self.steps if step not in self.skipped_steps]


def reading_of(
    run: Mapping[str, Any],
    order: Order,
    skipped_steps: frozenset[int],
    source: str,
    sequences: list[int],
    blank: int | None,
) -> Reading:
    """Returns the readings of some sequences of a source.

    Args:
        run: `run.json` of a checkpoint.
        order: order of the run.
        skipped_steps: steps that did not change the model.
        source: source of the sequences.
        sequences: sequence numbers, ascending.
        blank: first step at which the tokens were blank; None if they were read to the end.
    """
    until = run["steps"] if blank is None else min(blank, run["steps"])
    steps = sorted({step for sequence in sequences for step in order.steps_of(source, sequence, until)})
    skipped = [step for step in steps if step in skipped_steps]
    first_learned = next((step for step in steps if step not in skipped_steps), None)
    checkpoints = [count for count in checkpoints_of(run) if first_learned is not None and first_learned < count]
    return Reading(source, sequences, steps, skipped, checkpoints, blank)


class Readings:
    """The readings of a run, or only the sequences of documents before there is a run.

    Args:
        index: index of the token shards; None before encoding.
        plan: plan that was packed from the shards; None before packing.
        checkpoint: checkpoint that was trained on the plan; None before training.
        until: number of the run's steps that count, if another run started from the checkpoint after them.
    """

    def __init__(
        self, index: DocumentIndex | None, plan: Plan | None, checkpoint: Artifact | None, until: int | None = None
    ) -> None:
        self._index = index
        self._plan = plan
        self._checkpoint = checkpoint
        self._until = until

    @cached_property
    def run(self) -> dict[str, Any] | None:
        """`run.json` of the checkpoint, up to the last step that counts."""
        if self._checkpoint is None:
            return None
        run: dict[str, Any] = json.loads(self._checkpoint.read("run.json"))
        if self._until is None:
            return run
        counts = [count for count in run["checkpoint_steps"] if count <= self._until]
        if run.get("best", {}).get("step", 0) > self._until:
            run.pop("best")
        return {**run, "steps": self._until, "checkpoint_steps": counts}

    @property
    def settings(self) -> dict[str, Any] | None:
        """The settings of the run to show in a trace."""
        return self.run and {name: self.run[name] for name in _SETTINGS if name in self.run}

    @cached_property
    def order(self) -> Order | None:
        """The order in which the run read its sequences."""
        return Order.of_run(self.run) if self.run else None

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Marks of the documents that were blank from a step on."""
        return of_run(self._checkpoint) if self._checkpoint else ()

    @cached_property
    def skipped_steps(self) -> frozenset[int]:
        """Steps that did not change the model (`skipped_steps_of`)."""
        return skipped_steps_of(self._checkpoint) if self._checkpoint else frozenset()

    def why_skipped(self, step: int) -> str:
        """Returns why a step did not change the model, such as "loss_spike" or "passed_over"; "" if it did."""
        if self._checkpoint is None or self.run is None or step not in self.skipped_steps:
            return ""
        milestone = next(count for count in self.run["checkpoint_steps"] if count > step)
        lines = map(json.loads, self._checkpoint.read(f"skipped/step-{milestone:08d}.jsonl").splitlines())
        return next((str(line["reason"]) for line in lines if line["step"] == step), "")

    def of(self, shard: str, row: int, ranges: Sequence[tuple[int, int]] | None = None) -> Reading:
        """Returns the readings of a document, or of some of its tokens.

        Args:
            shard: name of its shard.
            row: its row in the shard.
            ranges: (first token, number of tokens) relative to the document; None for all tokens.
        """
        source = self._source_of(shard, row)
        sequences = self._sequences(source, shard, row, ranges)
        if self.run is None or self.order is None:
            return Reading(source, sequences, [], [], [], None)
        blank = first_blank(self.marks, shard, row)
        return reading_of(self.run, self.order, self.skipped_steps, source, sequences, blank)

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
        sequences = set[int]()
        for first, length in ranges:
            sequences.update(self._plan.sequences_of(source, shard, row, begin + first, begin + first + length))
        return sorted(sequences)


class ExampleDocument(NamedTuple):
    """A document whose chunks are examples."""

    id: str
    url: str
    source: str


def is_tuned(model: Artifact) -> bool:
    """Returns whether a model was fine-tuned."""
    return any(ref.role == EXAMPLES for ref in model.record.inputs)


def by_document(examples: Examples, numbers: Iterable[int]) -> dict[ExampleDocument, list[int]]:
    """Groups examples by document, sorted by its URL and id."""
    numbers_by_document: dict[ExampleDocument, list[int]] = {}
    for number in numbers:
        origin = examples[number].origin
        document = ExampleDocument(origin["document"], origin["url"], origin["source"])
        numbers_by_document.setdefault(document, []).append(number)
    return dict(sorted(numbers_by_document.items(), key=lambda item: (item[0].url, item[0].id)))


def withheld_examples(examples: Artifact, tombstones: Tombstones) -> dict[str, NDArray[np.int64]]:
    """Returns the rows of examples whose documents are taken down, ascending, by file; {} if there are none."""
    if not tombstones:
        return {}
    opened = Examples(examples)
    rows: dict[str, list[int]] = {}
    for part, row in map(opened.place, opened.where(tombstones.mask)):
        rows.setdefault(opened.paths[part], []).append(row)
    return {path: np.array(numbers, np.int64) for path, numbers in rows.items()}


def recipes_of(examples: Artifact) -> list[str]:
    """Returns the recipes whose chunks became examples."""
    names = (ref.address.partition("@")[0].partition("/") for ref in examples.record.inputs)
    return sorted({recipe for recipe, _, kind in names if kind == CHUNKS})


class ExampleReadings:
    """The readings of a fine-tuning run.

    Args:
        model: artifact of the stage `finetune`.

    Raises:
        InputError: its examples are missing.
    """

    def __init__(self, model: Artifact) -> None:
        self._model = model
        self.run: dict[str, Any] = json.loads(model.read("run.json"))
        self.order = Order.of_run(self.run)
        self.marks = of_run(model)
        self.examples = Examples(model.open_input(EXAMPLES))

    @cached_property
    def skipped_steps(self) -> frozenset[int]:
        """Steps that did not change the model."""
        return skipped_steps_of(self._model)

    def blank_from(self, number: int) -> int | None:
        """Returns the first step at which an example was blank, or None if it never was."""
        part, row = self.examples.place(number)
        return first_blank(self.marks, self.examples.paths[part], row)

    def of(self, numbers: Iterable[int]) -> Reading:
        """Returns the readings of some examples; `withheld_from` is None unless all of them became blank."""
        readings = list(self._each(numbers))
        blank = [reading.withheld_from for reading in readings]
        steps, skipped = (sorted({*_all(readings, name)}) for name in ("steps", "skipped_steps"))
        return Reading(
            EXAMPLES_SOURCE,
            sorted({*_all(readings, "sequences")}),
            steps,
            skipped,
            sorted({*_all(readings, "checkpoints")}),
            None if None in blank else max((reading for reading in blank if reading is not None), default=None),
        )

    def _each(self, numbers: Iterable[int]) -> Iterator[Reading]:
        for number in numbers:
            sequences, blank = [self.examples.sequence_of(number)], self.blank_from(number)
            yield reading_of(self.run, self.order, self.skipped_steps, EXAMPLES_SOURCE, sequences, blank)


def _all(readings: Iterable[Reading], name: str) -> Iterator[int]:
    return (value for reading in readings for value in getattr(reading, name))
