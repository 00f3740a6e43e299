"""Who read an example: the steps of a fine-tuning, and the states of the model that came after them.

Reads `run.json`, `loss.jsonl` and `withheld.json` of an artifact `finetuned`, and the examples that its record names.
"""

import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactId
from tasks.formats.documents.chunks import KIND as CHUNKS
from tasks.formats.documents.examples import SOURCE as EXAMPLES_SOURCE
from tasks.formats.documents.examples import Examples
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.marks import first_blank, of_run
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.readings import Reading, read_by

TUNED = "finetuned"
"""Kind of the artifacts that are fine-tuned models."""
EXAMPLES = "examples"
"""Role of the examples among the inputs of a fine-tuning, and kind of the artifacts."""


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
