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
from tasks.formats.tokens.plan import Plan
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

    def slices(self, step: int) -> list[dict[str, Any]]:
        """Returns the document slices of a step's batch for a log: source, sequence, document id, start, length."""
        found = []
        for source, sequence, _ in self.order.batch(step):
            for number, row, offset, length in self.plan.slices(source, sequence).tolist():
                shard = self.shards.shard(self.plan.shards[number])
                start = offset - shard.token_offset(row)
                names = {"source": source, "sequence": sequence, "document": shard.uid(row).hex()}
                found.append({**names, "start": start, "length": length})
        return found

    def _sequence(self, source: str, sequence: int) -> tuple[NDArray[np.int64], ...]:
        """Returns tokens, labels and documents of one sequence, int64 [seq_len] each.

        Positions after the last token are padding: end-of-text without a label, in a document of their own.
        """
        slices = self.plan.slices(source, sequence)
        read = np.concatenate([self._tokens(*place) for place in slices[["shard", "offset", "length"]].tolist()])
        count, padding = len(read), self.seq_len - len(read)
        if padding < 0:
            raise InputError(
                f'sequence {sequence} of "{source}" has {count} tokens in the plan, more than {self.seq_len}',
                "run the stage pack again",
            )
        tokens = np.concatenate([read, np.full(padding, self.eos_id, read.dtype)]).astype(np.int64)
        numbers = np.repeat(np.arange(len(slices) + 1), np.append(slices["length"], padding))
        closes = tokens[:-1] == self.eos_id
        documents = np.append(np.where(closes, numbers[1:], numbers[:-1]), numbers[-1])
        labels = np.append(tokens[1:], IGNORED)
        # After a slice without end-of-text the next document starts without a token to predict it from.
        labels[:-1][(numbers[:-1] != numbers[1:]) & ~closes] = IGNORED
        labels[count:] = IGNORED
        labels[count - 1] = self._after(slices[-1], int(tokens[count - 1]))
        return tokens, labels, documents

    def _tokens(self, shard: int, offset: int, length: int) -> NDArray[Any]:
        return self.shards.shard(self.plan.shards[shard]).flat[offset : offset + length]

    def _after(self, piece: np.void, last: int) -> int:
        """Returns the token that follows the last one of a sequence in its document, or IGNORED after end-of-text."""
        if last == self.eos_id:
            return IGNORED
        return int(self._tokens(piece["shard"], int(piece["offset"]) + int(piece["length"]), 1)[0])
