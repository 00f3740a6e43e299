"""Global batches as a function of the step, and a loader that prepares them in advance.

Reads ranges of the token shards, the plan and the order. Batches are stateless: they can be computed in any order, by
several threads, and are the same for any number of ranks. The batches of a fine-tuning are a function of the step, too.

At a document boundary, the end-of-text token ends document A and starts document B: it is the last label of A and the
first input of B. So B's first token is predicted from the same token that evaluation puts before a document, and
attention from B to A is masked.

A sequence of a fine-tuning is `eos A B C`: each text ends with end-of-text, from which the first token of the next text
is predicted, and texts do not attend to one another. A label is the next token if it is learned, else IGNORED. Texts of
an imported chat template begin with their own first token instead, which is not predicted. Sequences are drawn by
`Order` with the examples as the only source, so all sequences are read once per epoch.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.core.config import sha256_of_json
from tasks.core.errors import InputError
from tasks.core.ranges import RangeFile, RangeReader, ReadRequest
from tasks.formats.documents.examples import SOURCE, Example, Examples
from tasks.formats.tokens.order import VERSION, Order
from tasks.formats.tokens.plan import SLICE, Plan, Slices
from tasks.formats.tokens.shard import read_uids
from tasks.formats.tokens.shuffle import Windows
from tasks.trainer.config import TrainSpec
from tasks.trainer.model.attention import Bounds
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.spec import open_artifact

Ints = NDArray[np.int64]
WORKERS = 2
LOOK_AHEAD_STEPS = 8
"""Maximum number of steps prepared in advance. An outage of the remote store that is shorter causes no delay."""
LOOK_AHEAD_BYTES = 2**28
"""Maximum size of the batches prepared in advance, in bytes per rank; at least one step is always prepared."""
_BYTES_PER_TOKEN = 3 * 8


@dataclass(frozen=True)
class Batch:
    """Sequences of a step, or of a part of it; int64 [sequences, seq_len] each.

    `documents` numbers the documents within a sequence, for the attention mask (see above). `bounds` has the same
    boundaries for attention over concatenated sequences.
    """

    tokens: Tensor
    labels: Tensor
    documents: Tensor
    bounds: Bounds

    @classmethod
    def of(cls, tokens: Ints, labels: Ints, documents: Ints) -> "Batch":
        """Returns a batch of arrays of shape (sequences, seq_len), without copying them."""
        bounds = Bounds.of(documents)
        return cls(torch.from_numpy(tokens), torch.from_numpy(labels), torch.from_numpy(documents), bounds)

    def pinned(self) -> "Batch":
        """Returns a copy in page-locked memory, for asynchronous transfers to a GPU."""
        return self._mapped(Tensor.pin_memory)

    def on(self, device: torch.device) -> "Batch":
        """Returns the batch on a device; the copy of a pinned batch to a GPU is queued, and not waited for."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def _mapped(self, of: Callable[[Tensor], Tensor]) -> "Batch":
        learned = self.bounds.learned
        bounds = self.bounds._replace(starts=of(self.bounds.starts), learned=None if learned is None else of(learned))
        return Batch(of(self.tokens), of(self.labels), of(self.documents), bounds)


class StepData(ABC):
    """Batches as a function of the step, for pretraining (`Batches`) or fine-tuning (`ExampleBatches`)."""

    order: Order
    vocab_size: int
    eos_id: int
    seq_len: int
    batch_size: int
    microbatch: int
    file_names: Sequence[str]
    """Names of the files that slices refer to by number."""
    identity: str
    """SHA-256 of everything that determines the batches, except for the settings of the loop."""

    @abstractmethod
    def close(self) -> None:
        """Stops the threads that fetch data."""

    @abstractmethod
    def microbatches(self, step: int, numbers: Sequence[int]) -> dict[int, Batch]:
        """Returns some microbatches of a step by number: of m microbatches, number n has the sequences n, n + m, ..

        Numbers from m on are left out: while the batch grows, a step has fewer microbatches than later ones.
        """

    @abstractmethod
    def slices_in(self, source: str, sequence: int) -> Slices:
        """Returns the slices of a sequence."""

    @abstractmethod
    def slices(self, step: int) -> list[dict[str, Any]]:
        """Returns the contents of a step's batch, for a log."""

    def microbatch_count(self, step: int) -> int:
        """Returns the number of microbatches of a step."""
        return self.order.size_of(step) // self.microbatch

    def drawn(self, step: int, number: int) -> list[tuple[str, int]]:
        """Returns source and number of each sequence of a microbatch."""
        sequences = self.order.batch(step)[number :: self.microbatch_count(step)]
        return [(source, sequence) for source, sequence, _ in sequences]

    def slices_of(self, step: int, number: int) -> list[Slices]:
        """Returns the slices of each sequence of a microbatch."""
        return [self.slices_in(*one) for one in self.drawn(step, number)]

    def documents(self, step: int) -> dict[tuple[str, int], str]:
        """Returns the source of each document or example in a step's batch, by (file, row)."""
        return {
            (self.file_names[file], row): source
            for source, sequence, _ in self.order.batch(step)
            for file, row in self.slices_in(source, sequence)[["shard", "row"]].tolist()
        }


def open_data(spec: TrainSpec) -> StepData:
    """Opens the data of a run; raises InputError if it is missing, empty or damaged."""
    if spec.tuning is None:
        return Batches(spec)
    return ExampleBatches(spec)


class Batches(StepData):
    """The batches of a pretraining run.

    Args:
        spec: the run.

    Raises:
        InputError: shards or plan are missing, empty or damaged, or do not match. Can also be raised for a batch.
    """

    def __init__(self, spec: TrainSpec) -> None:
        assert spec.plan is not None, "a fine-tuning has no plan"
        plan, self.shards = open_artifact(spec.plan), open_artifact(spec.shards)
        if any(ref.content != self.shards.record.content for ref in plan.record.inputs if ref.role == "shards"):
            raise InputError(
                f"{plan.address} was packed from other shards than {self.shards.address}", "run the stage pack again"
            )
        self.plan = Plan.open(plan)
        self.seq_len = self.plan.seq_len
        self.file_names: Sequence[str] = self.plan.shards
        self.reader = RangeReader(lambda number: self.plan.tables.shard(number, self.shards.folder))
        self.vocab_size, self.eos_id = self.plan.format.vocab_size, self.plan.format.eos_id
        self._dtype = np.dtype(self.plan.format.dtype)
        self.batch_size, self.microbatch = spec.run.batch_size, spec.run.microbatch
        windows = Windows.of(self.seq_len, self.batch_size)
        self.order = Order(
            self.plan.sequences,
            dict(spec.weights),
            self.batch_size,
            spec.run.seed,
            spec.anneal,
            windows,
            [(stage.steps, stage.batch_size) for stage in spec.run.ramp],
        )
        self.identity = sha256_of_json([VERSION, spec.plan.content])

    def close(self) -> None:
        """Stops the threads that fetch blocks."""
        self.reader.close()
        self.plan.close()

    def batch(self, step: int) -> Batch:
        """Returns the global batch of a step."""
        return Batch.of(*self._rows(step, range(self.order.size_of(step))))

    def microbatches(self, step: int, numbers: Sequence[int]) -> dict[int, Batch]:
        """Returns some microbatches of a step by number (see `StepData`); reads only the tokens of these."""
        count = self.microbatch_count(step)
        numbers = [number for number in numbers if number < count]
        slots = [slot for number in numbers for slot in range(number, count * self.microbatch, count)]
        arrays = self._rows(step, slots)
        rows = (slice(first, first + self.microbatch) for first in range(0, len(slots), self.microbatch))
        return {
            number: Batch.of(*(array[selected] for array in arrays))
            for number, selected in zip(numbers, rows, strict=True)
        }

    def slices_in(self, source: str, sequence: int) -> Slices:
        """Returns the slices of a sequence."""
        return self.plan.slices(source, sequence)

    def slices(self, step: int) -> list[dict[str, Any]]:
        """Returns the document slices of a step's batch for a log.

        Each has source, sequence, document id, shard, and offset and length in the shard (see `plan`).
        """
        drawn = [one[:2] for one in self.order.batch(step)]
        pieces = [
            (*one, *piece)
            for one, slices in zip(drawn, self.plan.slices_of(drawn), strict=True)
            for piece in slices.tolist()
        ]
        rows: dict[int, set[int]] = defaultdict(set)
        for _, _, shard, row, _, _ in pieces:
            rows[shard].add(row)
        uids = {shard: read_uids(self._file(shard), row_numbers) for shard, row_numbers in rows.items()}
        names = ("source", "sequence", "document", "shard", "offset", "length")
        return [
            dict(zip(names, (source, sequence, uids[shard][row], self.file_names[shard], offset, length), strict=True))
            for source, sequence, shard, row, offset, length in pieces
        ]

    def _rows(self, step: int, slots: Sequence[int]) -> tuple[Ints, Ints, Ints]:
        """Returns tokens, labels and documents of some slots of a step, shape (slots, seq_len) each.

        Positions after the last token of a sequence are padding: end-of-text without a label, as a separate document.
        """
        drawn = self.order.batch(step)
        slices = self.plan.slices_of([drawn[slot][:2] for slot in slots])
        flat, counts = np.concatenate(slices), np.array([len(sequence) for sequence in slices])
        firsts = np.cumsum(counts) - counts
        lengths = np.add.reduceat(flat["length"].astype(np.int64), firsts)
        if (lengths > self.seq_len).any():
            source, sequence, _ = drawn[slots[int(np.argmax(lengths))]]
            raise InputError(
                f'sequence {sequence} of "{source}" has {lengths.max()} tokens in the plan, more than {self.seq_len}',
                "run the stage pack again",
            )
        return self._masked(self._read(flat, counts, lengths), _numbers(flat, counts, lengths, self.seq_len), lengths)

    def _read(self, slices: Slices, counts: Ints, used: Ints) -> NDArray[Any]:
        """Returns the tokens of sequences and the token that follows each in its shard, shape (rows, seq_len + 1).

        The following token is directly after the last token of the sequence, even if the sequence is short. Shard files
        have bytes after their last token (`shard`), so there is always something to read.
        """
        tokens = np.empty((len(counts), self.seq_len + 1), self._dtype)
        size = self._dtype.itemsize
        out = tokens.reshape(-1).view(np.uint8).data
        runs = _runs(slices, counts, used, self.seq_len + 1)
        self.reader.read(
            ReadRequest(shard, offset * size, out[place * size : (place + length) * size])
            for shard, offset, length, place in runs
        )
        return tokens

    def _masked(self, read: NDArray[Any], numbers: Ints, used: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns tokens, labels and documents of sequences.

        Args:
            read: result of `_read`.
            numbers: number of the slice of each position, shape (rows, seq_len).
            used: tokens of each sequence, shape (rows,).
        """
        rows, last = np.arange(len(used)), used - 1
        following = read[rows, used].astype(np.int64)
        tokens = read[:, :-1].astype(np.int64)
        padding = np.arange(self.seq_len) >= used[:, None] if (used < self.seq_len).any() else None
        if padding is not None:
            tokens[padding] = self.eos_id
        closes = tokens[:, :-1] == self.eos_id
        documents = numbers.copy()
        np.copyto(documents[:, :-1], numbers[:, 1:], where=closes)
        labels = np.empty_like(tokens)
        labels[:, :-1] = tokens[:, 1:]
        # After a slice without end-of-text the next document starts without a token to predict it from.
        labels[:, :-1][(numbers[:, :-1] != numbers[:, 1:]) & ~closes] = IGNORED
        if padding is not None:
            labels[padding] = IGNORED
        # A sequence that ends within a document is followed by the next token of that document.
        labels[rows, last] = np.where(tokens[rows, last] == self.eos_id, IGNORED, following)
        return tokens, labels, documents

    def _file(self, shard: int) -> Any:
        return RangeFile(self.reader, shard)


class Loader:
    """The microbatches of one rank, step by step; threads prepare the next steps while the model trains.

    A batch is a function of its step, so the number of threads affects timing only. Threads suffice: one thread
    prepares tens of millions of tokens per second, mostly within NumPy, and a model consumes tens of thousands. Only
    waiting for a remote store takes time, and threads wait concurrently.

    Args:
        batches: the batches of the run.
        numbers: the microbatches of this rank.
        steps: steps of the run; none is prepared beyond.
        device: target of the batches; for a GPU they are in page-locked memory.
        workers: number of threads; 0: batches are computed on demand.
    """

    def __init__(
        self, batches: StepData, numbers: Sequence[int], steps: int, device: torch.device, workers: int = WORKERS
    ) -> None:
        self._batches, self._numbers, self._steps = batches, numbers, steps
        self._pin = device.type == "cuda"
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="loader") if workers else None
        size = len(numbers) * batches.microbatch * batches.seq_len * _BYTES_PER_TOKEN
        self._ahead = max(1, min(LOOK_AHEAD_STEPS, LOOK_AHEAD_BYTES // size))
        self._futures: dict[int, Future[dict[int, Batch]]] = {}

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the threads, because torch aborts a process that exits while a thread runs its code."""
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def microbatches(self, step: int) -> dict[int, Batch]:
        """Returns the microbatches of a step by number, and starts to prepare the next steps.

        Raises:
            InputError, StoreError, TransientError: as `Batches`, for the step that cannot be computed.
        """
        if self._pool is None:
            return self._load(step)
        self._futures = {ahead: future for ahead, future in self._futures.items() if ahead >= step}
        for ahead in range(step, min(step + 1 + self._ahead, max(self._steps, step + 1))):
            if ahead not in self._futures:
                self._futures[ahead] = self._pool.submit(self._load, ahead)
        return self._futures.pop(step).result()

    def _load(self, step: int) -> dict[int, Batch]:
        batches = self._batches.microbatches(step, self._numbers)
        return {number: batch.pinned() for number, batch in batches.items()} if self._pin else batches


def _numbers(slices: Slices, counts: Ints, used: Ints, seq_len: int) -> Ints:
    """Returns the slice number of each position, shape (rows, seq_len); padding counts as one more slice."""
    total = len(slices) + len(counts)
    ends = np.cumsum(counts + 1)
    lengths = np.empty(total, np.int64)
    is_slice = np.ones(total, bool)
    is_slice[ends - 1] = False
    lengths[is_slice] = slices["length"]
    lengths[~is_slice] = seq_len - used
    numbers = np.arange(total) - np.repeat(ends - counts - 1, counts + 1)
    return np.repeat(numbers, lengths).reshape(len(counts), seq_len)


def _runs(slices: Slices, counts: Ints, used: Ints, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (shard, offset, length, place) of runs of tokens; adjacent slices of a file are merged into one run.

    The last run of a sequence has one more token. `place` is the position in the flattened rows of `width` tokens.
    """
    shard, offset, length = (slices[name].astype(np.int64) for name in ("shard", "offset", "length"))
    row = np.repeat(np.arange(len(counts)), counts)
    begins = np.ones(len(slices), bool)
    begins[1:] = (np.diff(shard) != 0) | (np.diff(row) != 0) | (offset[1:] != offset[:-1] + length[:-1])
    at = np.flatnonzero(begins)
    position = np.cumsum(length) - length - np.repeat(np.cumsum(used) - used, counts)
    lengths = np.add.reduceat(length, at)
    is_last = np.append(row[at][1:] != row[at][:-1], True)
    columns = (shard[at], offset[at], lengths + is_last, row[at] * width + position[at])
    return cast("Iterator[tuple[int, int, int, int]]", zip(*(column.tolist() for column in columns), strict=True))


def with_learned(batch: Batch) -> Batch:
    """Returns a batch on the CPU with what a loss needs that selects positions: `learned` and `documents` of bounds."""
    learned = (batch.labels.flatten() != IGNORED).nonzero()[:, 0]
    return replace(batch, bounds=batch.bounds._replace(learned=learned, documents=int(batch.documents.max()) + 1))


class ExampleBatches(StepData):
    """The batches of a fine-tuning.

    Args:
        spec: the run, with `tuning`.

    Raises:
        InputError: the examples are missing or empty, or have changed.
    """

    def __init__(self, spec: TrainSpec) -> None:
        assert spec.tuning is not None
        tuning = spec.tuning
        self.examples = Examples(open_artifact(spec.shards))
        self.seq_len, self.vocab_size, self.eos_id = tuning.seq_len, tuning.vocab_size, tuning.eos_id
        self._selects = tuning.loss == "dpo"
        self.file_names = self.examples.paths
        self.batch_size, self.microbatch = spec.run.batch_size, spec.run.microbatch
        windows, weights = Windows.of(self.seq_len, self.batch_size), {SOURCE: 1.0}
        self.order = Order({SOURCE: self.examples.sequences}, weights, self.batch_size, spec.run.seed, None, windows)
        self.identity = sha256_of_json([VERSION, spec.shards.content, tuning.model_dump(mode="json")])

    def close(self) -> None:
        """Does nothing: the example files are memory-mapped."""

    def microbatches(self, step: int, numbers: Sequence[int]) -> dict[int, Batch]:
        """Returns some microbatches of a step by number: of m microbatches, number n has the sequences n, n + m, .."""
        return {number: self._batch([sequence for _, sequence in self.drawn(step, number)]) for number in numbers}

    def slices(self, step: int) -> list[dict[str, Any]]:
        """Returns the origin of each example of a step's batch: {sequence, file, line, id}."""
        return [
            {"sequence": sequence, **origin}
            for _, sequence, _ in self.order.batch(step)
            for origin in self.examples.sources(sequence)
        ]

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

    def slices_in(self, source: str, sequence: int) -> Slices:
        """Returns the examples of a sequence: file, row, 0, positions; its first end-of-text is of the first one."""
        slices = np.zeros(len(self.examples.numbers(sequence)), SLICE)
        for at, number in enumerate(self.examples.numbers(sequence)):
            part, row = self.examples.place(number)
            slices[at] = (part, row, 0, sum(self.examples[number].lengths))
        if not self.examples.own_begin:
            slices["length"][0] += 1
            slices["length"][-1] -= 1
        return slices
