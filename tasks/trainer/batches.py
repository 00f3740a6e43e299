"""Global batches: which tokens a step trains on, as a function of the step.

Reads the token shards, the plan and the order; has no state, so that steps can be computed in any order and any number
of ranks computes the same batches.

At a document boundary the end-of-text token ends document A and starts document B: it is the last label of A and the
first input of B. So B's first token is predicted from the same token that the evaluation puts before a document, and
attention from B to A is masked.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.core.config import sha256_of_json
from tasks.core.errors import InputError
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.plan import Plan, Slice
from tasks.formats.tokens.shard import ShardSet
from tasks.trainer.config import TrainSpec
from tasks.trainer.loss import IGNORED


@dataclass(frozen=True)
class Batch:
    """Sequences of one step, or of a part of it; int64 [sequences, seq_len] each.

    `documents` numbers the documents within a sequence, in the sense of the attention mask (see above).
    """

    tokens: Tensor
    labels: Tensor
    documents: Tensor

    def part(self, number: int, count: int) -> "Batch":
        """Returns every `count`-th sequence from `number` on."""
        return Batch(self.tokens[number::count], self.labels[number::count], self.documents[number::count])


class Batches:
    """The batches of a run.

    Args:
        spec: the run.

    Raises:
        InputError: shards or plan are missing, empty or do not fit each other.
    """

    def __init__(self, spec: TrainSpec) -> None:
        self.plan = Plan.read(spec.plan)
        self.seq_len = self.plan.seq_len
        self.shards = ShardSet(spec.shards)
        self.vocab_size, self.eos_id = self.shards.format.vocab_size, self.shards.format.eos_id
        self.order = Order(self.plan.sequences, dict(spec.weights), spec.run.batch_size, spec.run.seed)
        self.identity = sha256_of_json(self.plan.summary)

    def batch(self, step: int) -> Batch:
        """Returns the global batch of a step."""
        rows = [self._sequence(source, sequence) for source, sequence, _ in self.order.batch(step)]
        tokens, labels, documents = (torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))
        return Batch(tokens, labels, documents)

    def pieces(self, step: int) -> list[list[Slice]]:
        """Returns the slices of each sequence of a step's batch."""
        return [self.plan.slices(source, sequence) for source, sequence, _ in self.order.batch(step)]

    def slices(self, step: int) -> list[dict[str, Any]]:
        """Returns the document slices of a step's batch for a log: source, sequence, document id, start, length."""
        return [
            {
                "source": source,
                "sequence": sequence,
                "document": self.shards.shard(piece.shard).uid(piece.row).hex(),
                "start": piece.start,
                "length": piece.length,
            }
            for source, sequence, _ in self.order.batch(step)
            for piece in self.plan.slices(source, sequence)
        ]

    def _sequence(self, source: str, sequence: int) -> tuple[NDArray[np.int64], ...]:
        """Returns tokens, labels and documents of one sequence, int64 [seq_len] each."""
        slices = self.plan.slices(source, sequence)
        parts = [self.shards.slice(piece.shard, piece.row, piece.start, piece.length) for piece in slices]
        tokens = np.concatenate(parts).astype(np.int64)
        if len(tokens) != self.seq_len:
            raise InputError(
                f'sequence {sequence} of "{source}" has {len(tokens)} tokens in the plan, not {self.seq_len}',
                "run the stage pack again",
            )
        slice_numbers = np.repeat(np.arange(len(slices)), [piece.length for piece in slices])
        closes = tokens[:-1] == self.eos_id
        documents = np.append(np.where(closes, slice_numbers[1:], slice_numbers[:-1]), slice_numbers[-1])
        labels = np.append(tokens[1:], self._after(slices[-1], int(tokens[-1])))
        # After a slice without end-of-text the next document starts without a token to predict it from.
        labels[:-1][(slice_numbers[:-1] != slice_numbers[1:]) & ~closes] = IGNORED
        return tokens, labels, documents

    def _after(self, piece: Slice, last: int) -> int:
        """Returns the token that follows the last one of a sequence in its document, or IGNORED after end-of-text."""
        if last == self.eos_id:
            return IGNORED
        return int(self.shards.slice(piece.shard, piece.row, piece.start + piece.length, 1)[0])
