"""Global batches of a fine-tuning as a function of the step, like those of pretraining (`tasks.trainer.data.batches`).

A sequence is `eos A B C`: each text ends with end-of-text, from which the first token of the next text is predicted,
and texts do not attend to one another. A label is the next token if it is learned, else IGNORED. Texts of an imported
chat template begin with their own first token instead, which is not predicted. Sequences are drawn by `Order` with the
examples as the only source, so all sequences are read once per epoch.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.core.config import sha256_of_json
from tasks.formats.documents.examples import SOURCE, Example, Examples
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.plan import SLICE, Slices
from tasks.trainer.config import TrainSpec
from tasks.trainer.data.batches import Batch, Ints, open_shards
from tasks.trainer.model.loss import IGNORED


def with_learned(batch: Batch) -> Batch:
    """Returns a batch on the CPU with what a loss needs that selects positions: `learned` and `documents` of bounds."""
    learned = (batch.labels.flatten() != IGNORED).nonzero()[:, 0]
    return replace(batch, bounds=batch.bounds._replace(learned=learned, documents=int(batch.documents.max()) + 1))


class ExampleBatches:
    """The batches of a fine-tuning.

    Args:
        spec: the run, with `tuning`.

    Raises:
        InputError: the examples are missing or empty, or have changed.
    """

    def __init__(self, spec: TrainSpec) -> None:
        assert spec.tuning is not None
        tuning = spec.tuning
        self.examples = Examples(open_shards(spec.shards))
        self.seq_len, self.vocab_size, self.eos_id = tuning.seq_len, tuning.vocab_size, tuning.eos_id
        self._selects = tuning.loss == "dpo"
        self.file_names = self.examples.paths
        self.batch_size, self.microbatch = spec.run.batch_size, spec.run.microbatch
        self.order = Order({SOURCE: self.examples.sequences}, {SOURCE: 1.0}, self.batch_size, spec.run.seed)
        self.identity = sha256_of_json([spec.shards.content, tuning.model_dump(mode="json")])

    def close(self) -> None:
        """Does nothing: the example files are memory-mapped."""

    def microbatches(self, step: int, numbers: Sequence[int]) -> dict[int, Batch]:
        """Returns some microbatches of a step by number: of m microbatches, number n has the sequences n, n + m, .."""
        drawn = self._drawn(step)
        return {number: self._batch(drawn[number :: self.batch_size // self.microbatch]) for number in numbers}

    def slices_of(self, step: int, number: int) -> list[Slices]:
        """Returns the examples of each sequence of a microbatch as slices: number of the file, row, positions."""
        drawn = self._drawn(step)[number :: self.batch_size // self.microbatch]
        return [self._slices(sequence) for sequence in drawn]

    def documents(self, step: int) -> set[tuple[str, int]]:
        """Returns (file, row) of the examples of a step's batch."""
        places = [self.examples.place(n) for sequence in self._drawn(step) for n in self.examples.numbers(sequence)]
        return {(self.file_names[part], row) for part, row in places}

    def slices(self, step: int) -> list[dict[str, Any]]:
        """Returns the origin of each example of a step's batch: {sequence, file, line, id}."""
        drawn = self._drawn(step)
        return [{"sequence": sequence, **origin} for sequence in drawn for origin in self.examples.sources(sequence)]

    def _drawn(self, step: int) -> list[int]:
        return [sequence for _, sequence, _ in self.order.batch(step)]

    def _batch(self, sequences: Sequence[int]) -> Batch:
        rows = [self._row([self.examples[n] for n in self.examples.numbers(sequence)]) for sequence in sequences]
        tokens, labels, documents = (np.stack(column) for column in zip(*rows, strict=True))
        batch = Batch.of(tokens, labels, documents)
        return with_learned(batch) if self._selects else batch

    def _row(self, examples: Sequence[Example]) -> tuple[Ints, Ints, Ints]:
        """Returns tokens, labels and documents of a sequence, shape (seq_len,) each; padding is a separate document.

        The chosen text of a preference has an even document number, and the rejected one the next number.
        """
        texts = [text for example in examples for text in self.examples.texts(example, self.eos_id)]
        lengths = [len(text.tokens) for text in texts]
        used = sum(lengths)
        tokens = np.full(self.seq_len, self.eos_id, dtype=np.int64)
        tokens[:used] = np.concatenate([[text.before, *text.tokens[:-1]] for text in texts])
        labels = np.full(self.seq_len, IGNORED, dtype=np.int64)
        labels[:used] = np.concatenate(
            [np.where(text.learned, text.tokens.astype(np.int64), IGNORED) for text in texts]
        )
        documents = np.repeat(np.arange(len(lengths) + 1), [*lengths, self.seq_len - used])
        return tokens, labels, documents

    def _slices(self, sequence: int) -> Slices:
        """Returns the slices of a sequence; the end-of-text at its start belongs to the first example."""
        slices = np.zeros(len(self.examples.numbers(sequence)), SLICE)
        for at, number in enumerate(self.examples.numbers(sequence)):
            part, row = self.examples.place(number)
            slices[at] = (part, row, 0, sum(self.examples[number].lengths))
        if not self.examples.own_begin:
            slices["length"][0] += 1
            slices["length"][-1] -= 1
        return slices
