"""Bits per byte of held-out text, comparable between tokenizers; for a trained model, or during a run. Tasks in a run.

bpb = sum of -log2 p over all tokens of the documents / UTF-8 bytes of their text (Gao et al. 2020, arXiv 2101.00027,
section 3.1). Every token is predicted once, including end-of-text, and the first token only from end-of-text. A
document longer than the model's context is evaluated in windows that overlap by half, so that later tokens have at
least half a context; this takes two forward passes per token.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tasks.trainer.data.batches import Batch
from tasks.trainer.data.heldout import EvaluationWindow, HeldoutDocument, evaluation_windows
from tasks.trainer.evaluation.items import EncodedItem, ScoringRequest, continuous, finite
from tasks.trainer.logs import BPB
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.parallel.replica import Replica

SECONDS = "heldout_s"
"""Field of the step log with the duration of the measurement in seconds."""


def document_bits(model: Transformer, documents: Iterable[HeldoutDocument], eos_id: int, context: int,
                  batch_windows: int = 16) -> list[float]:  # fmt: skip
    """Returns the sum of -log2 p over the tokens of each document; raises InputError if one is not finite."""
    all_documents = list(documents)
    ordered = [
        w for n, document in enumerate(all_documents) for w in evaluation_windows(n, document.tokens, eos_id, context)
    ]
    # Sorted by length, which reduces padding; the sort is stable, so that batches are reproducible.
    ordered.sort(key=lambda window: len(window.inputs))
    bits = [0.0] * len(all_documents)
    for start in range(0, len(ordered), batch_windows):
        batch = ordered[start : start + batch_windows]
        for window, loss in zip(batch, nats(model, batch), strict=True):
            bits[window.document] += loss / math.log(2)
    return [finite(value, f"the document {one.uid.hex()}") for value, one in zip(bits, all_documents, strict=True)]


@torch.no_grad()
def nats(model: Transformer, batch: list[EvaluationWindow]) -> list[float]:
    """Returns for each window the summed -ln p of its labels from `first` on."""
    length = max(len(window.inputs) for window in batch)
    inputs, labels = np.zeros((2, len(batch), length), dtype=np.int64)
    counted = np.zeros((len(batch), length), dtype=bool)
    for row, window in enumerate(batch):
        size = len(window.inputs)
        inputs[row, :size], labels[row, :size] = window.inputs, window.labels
        counted[row, window.first : size] = True
    tokens = torch.from_numpy(inputs)
    # One document per row. Padding is at the end, which causal attention ignores.
    hidden = model.hidden(tokens, torch.zeros_like(tokens))
    sums = []
    for row in range(len(batch)):
        logits = model.logits(hidden[row]).float()
        losses = F.cross_entropy(logits, torch.from_numpy(labels[row]), reduction="none")
        sums.append(float(losses.double()[torch.from_numpy(counted[row])].sum()))
    return sums


def use_threads(count: int) -> None:
    """Sets the number of threads that torch uses per operation in this process."""
    torch.set_num_threads(count)


class HeldoutBpb:
    """Measures bits per byte of held-out text during a run, in any layout.

    Documents are predicted in the windows of the evaluation (`heldout.evaluation_windows`), so the results agree up to
    rounding. Several windows are packed into one sequence, as separate documents. A part is a batch of sequences of one
    source, of a fixed shape; its loss is computed by the ranks that share a microbatch (`Replica.probe`). Parts do not
    depend on the ranks, and their losses are added in a fixed order, so replicated ranks give a result bit-identical to
    that of one rank. The measurement only reads the weights and does not affect the training.

    Args:
        documents: by source.
        replica: the model.
        rows: sequences per part.
        seq_len: positions of a sequence.
        eos_id: the end-of-text token, from which the first token of a document is predicted.
        every: numbers of steps; the text is measured after each multiple of one of them.
        steps: of the run; the last one is measured as well.
    """

    def __init__(
        self,
        documents: Mapping[str, Sequence[HeldoutDocument]],
        replica: Replica,
        rows: int,
        seq_len: int,
        eos_id: int,
        every: Sequence[int] = (1,),
        steps: int = 0,
    ) -> None:
        self._replica, self._every, self._steps = replica, every, steps
        self._bytes = {
            source: sum(document.n_bytes for document in of_source) for source, of_source in documents.items()
        }
        parts = [
            (source, part)
            for source, of_source in documents.items()
            for part in _parts([document.tokens for document in of_source], rows, seq_len, eos_id)
        ]
        self._sources, self._parts = [source for source, _ in parts], [part for _, part in parts]

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Measures if it is due after a step (0-based), and after the last step."""
        if step + 1 == self._steps or any((step + 1) % every == 0 for every in self._every):
            line |= self.measure()

    def measure(self) -> dict[str, float | None]:
        """Returns the fields of the step log for the current weights; all ranks call this, and the result is equal.

        Values that are not finite are None.
        """
        started = time.perf_counter()
        bits = dict.fromkeys(self._bytes, 0.0)
        for source, loss in zip(self._sources, _losses(self._replica, self._parts), strict=True):
            bits[source] += loss / math.log(2)
        by_source = {source: bits[source] / size for source, size in self._bytes.items()}
        fields = {BPB: fmean(by_source.values()), **{f"{BPB}/{source}": value for source, value in by_source.items()}}
        values = {name: value if math.isfinite(value) else None for name, value in fields.items()}
        return values | {SECONDS: round(time.perf_counter() - started, 4)}


class TaskMetrics:
    """Measures evaluation tasks after the last step of a run, by their continuous metrics (`items.continuous`).

    A part is one answer after its prompt, without padding, because a part has a single loss. Its length is any, so the
    ranks must hold whole sequences: in no layout, or with sharded weights only. The likelihoods are those of `scoring`
    up to rounding.

    Args:
        tasks: items by task.
        replica: the model.
        seq_len: maximum number of tokens the model reads.
        eos_id: the end-of-text token.
        steps: of the run.
    """

    def __init__(
        self, tasks: Mapping[str, Sequence[EncodedItem]], replica: Replica, seq_len: int, eos_id: int, steps: int
    ) -> None:
        self._tasks, self._replica, self._steps = tasks, replica, steps
        answers = (one for items in tasks.values() for item in items for one in item.answers)
        windows = [_answer_window(one.request, seq_len) for one in answers]
        self._parts = [_batch([[window]], len(window.inputs), eos_id) for window in windows]

    def after_step(self, step: int, line: dict[str, Any]) -> None:
        """Adds `bpb/<task>/<metric>` after the last step; values that are not finite are None."""
        if step + 1 < self._steps:
            return
        losses = iter(_losses(self._replica, self._parts))
        for task, items in self._tasks.items():
            found = continuous(items, [list(islice(losses, len(item.answers))) for item in items])
            line |= {f"{BPB}/{task}/{name}": x if math.isfinite(x) else None for name, x in found.items()}


def _losses(replica: Replica, parts: Sequence[Batch]) -> list[float]:
    """Returns the summed loss of each part, in nats, equal on all ranks."""
    first, shares = replica.numbers.start, replica.numbers.step
    own = range(len(parts))[first::shares]
    # All ranks compute the same number of parts; surplus results are ignored.
    count = -(-len(parts) // shares)
    losses = replica.probe([parts[at] for at in [*own, *[0] * (count - len(own))]])
    whole = torch.zeros(len(parts), dtype=torch.float64, device=replica.ranks.device)
    whole[list(own)] = torch.from_numpy(losses[: len(own)]).to(whole.device)
    replica.ranks.sum([whole])
    totals: list[float] = whole.tolist()
    return totals


def _answer_window(request: ScoringRequest, context: int) -> EvaluationWindow:
    """Returns an answer after its prompt, which is truncated from the left, as a window with the answer's labels."""
    # One more than the context, because the last token is only predicted.
    tokens = np.array([*request.prompt, *request.answer][-(context + 1) :], dtype=np.int64)
    return EvaluationWindow(0, tokens[:-1], tokens[1:], len(tokens) - 1 - len(request.answer))


def _parts(documents: Sequence[np.ndarray], rows: int, seq_len: int, eos_id: int) -> Iterator[Batch]:
    """Yields the parts of one source; the unused rest of the last sequences has no labels."""
    sequences: list[list[EvaluationWindow]] = []
    room = 0
    for number, tokens in enumerate(documents):
        for window in evaluation_windows(number, tokens, eos_id, seq_len):
            if room < len(window.inputs):
                sequences.append([])
                room = seq_len
            sequences[-1].append(window)
            room -= len(window.inputs)
    for first in range(0, len(sequences), rows):
        group = sequences[first : first + rows]
        yield _batch([*group, *[[]] * (rows - len(group))], seq_len, eos_id)


def _batch(sequences: Sequence[Sequence[EvaluationWindow]], seq_len: int, eos_id: int) -> Batch:
    tokens = np.full((len(sequences), seq_len), eos_id, dtype=np.int64)
    labels = np.full_like(tokens, IGNORED)
    documents = np.zeros_like(tokens)
    for row, windows_of_row in enumerate(sequences):
        at = 0
        for number, window in enumerate(windows_of_row):
            end = at + len(window.inputs)
            tokens[row, at:end], documents[row, at:end] = window.inputs, number
            labels[row, at + window.first : end] = window.labels[window.first :]
            at = end
        documents[row, at:] = len(windows_of_row)
    return Batch.of(tokens, labels, documents)
