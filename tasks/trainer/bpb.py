"""Bits per byte: cross-entropy of held-out text, comparable between tokenizers.

bpb = sum of -log2 p over all tokens of the documents / UTF-8 bytes of their text (Gao et al. 2020, arXiv 2101.00027,
section 3.1). Every token is predicted once, end-of-text included, the first from end-of-text alone. A document longer
than the model's context is evaluated in windows that overlap by half, so that a token far from the start has at least
half a context; that costs two forward passes per token.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.tokens.shard_set import ShardSet
from tasks.trainer import model_file
from tasks.trainer.checkpoint import MODEL
from tasks.trainer.model import Transformer


@dataclass(frozen=True)
class Heldout:
    """A held-out document: its id, tokens (end-of-text last) and the UTF-8 bytes of its text."""

    uid: bytes
    tokens: NDArray[Any]
    n_bytes: int


@dataclass(frozen=True)
class Window:
    """A window of a document: int64 inputs, and int64 labels of the same length (the token that follows each input).

    Labels before `first` were predicted in the previous window.
    """

    document: int
    inputs: NDArray[np.int64]
    labels: NDArray[np.int64]
    first: int


def heldout(shards: ShardSet, source: str, max_tokens: int) -> list[Heldout]:
    """Returns held-out documents of a source up to `max_tokens` tokens, at least one.

    Raises:
        InputError: the source has none.
    """
    documents: list[Heldout] = []
    tokens = 0
    for document in shards.heldout(source):
        if documents and tokens + len(document[1]) > max_tokens:
            break
        documents.append(Heldout(*document))
        tokens += len(document[1])
    if not documents:
        raise InputError(
            f'the source "{source}" has no held-out document', "raise encode.heldout_min or give it more text"
        )
    return documents


def windows(document: int, tokens: NDArray[Any], eos_id: int, context: int) -> Iterator[Window]:
    """Yields the windows in which the tokens of one document are predicted, each token once.

    Args:
        document: number that the windows carry.
        tokens: tokens of the document, shape (n,).
        eos_id: what the first token is predicted from.
        context: inputs of a window at most.
    """
    labels = tokens.astype(np.int64)
    inputs = np.concatenate([[eos_id], labels[:-1]])
    yield Window(document, inputs[:context], labels[:context], 0)
    stride = max(1, context // 2)
    done = min(context, len(labels))
    while done < len(labels):
        end = min(done + stride, len(labels))
        begin = end - context
        yield Window(document, inputs[begin:end], labels[begin:end], done - begin)
        done = end


@torch.no_grad()
def nats(model: Transformer, batch: list[Window]) -> list[float]:
    """Returns for each window the summed -ln p of its labels from `first` on."""
    length = max(len(window.inputs) for window in batch)
    inputs, labels = np.zeros((2, len(batch), length), dtype=np.int64)
    counted = np.zeros((len(batch), length), dtype=bool)
    for row, window in enumerate(batch):
        size = len(window.inputs)
        inputs[row, :size], labels[row, :size] = window.inputs, window.labels
        counted[row, window.first : size] = True
    tokens = torch.from_numpy(inputs)
    # One document per row; what pads a row stands behind it, where causal attention does not look.
    hidden = model.hidden(tokens, torch.zeros_like(tokens))
    sums = []
    for row in range(len(batch)):
        logits = F.linear(hidden[row], model.head_weight).float()
        lost = F.cross_entropy(logits, torch.from_numpy(labels[row]), reduction="none")
        sums.append(float(lost.double()[torch.from_numpy(counted[row])].sum()))
    return sums


def document_bits(model: Transformer, documents: Iterable[Heldout], eos_id: int, context: int,
                  batch_windows: int = 16) -> list[float]:  # fmt: skip
    """Returns the bits that the model needs for each document."""
    all_documents = list(documents)
    todo = [w for n, document in enumerate(all_documents) for w in windows(n, document.tokens, eos_id, context)]
    # Like lengths together: fewer padded positions. Stable, so that the batches are the same every time.
    todo.sort(key=lambda window: len(window.inputs))
    bits = [0.0] * len(all_documents)
    for start in range(0, len(todo), batch_windows):
        batch = todo[start : start + batch_windows]
        for window, lost in zip(batch, nats(model, batch), strict=True):
            bits[window.document] += lost / math.log(2)
    return bits


def bits_per_byte(documents: Iterable[Heldout], bits: Iterable[float]) -> float:
    """Returns all bits over all bytes."""
    return math.fsum(bits) / sum(document.n_bytes for document in documents)


def evaluate_bpb(model_dir: str, shards: ShardSet | Artifact, sources: Iterable[str],
                 max_tokens_per_source: int, seq_len: int, threads: int = 1) -> dict[str, float]:  # fmt: skip
    """Returns the bits per byte of each source's held-out text.

    Args:
        model_dir: local folder with `model.json` and `model.safetensors`.
        shards: token shards, or the artifact that holds them.
        sources: names of sources.
        max_tokens_per_source: upper bound, in whole documents.
        seq_len: tokens of context.
        threads: CPU threads of torch in this process from now on; another number may round differently.

    Raises:
        InputError: the model cannot be loaded, or a source has no held-out document.
    """
    torch.set_num_threads(threads)
    folder = Path(model_dir)
    model, description = model_file.load_model(folder / model_file.FILE, folder / MODEL)
    opened = ShardSet.open(shards) if isinstance(shards, Artifact) else shards
    scores = {}
    for source in sorted(sources):
        documents = heldout(opened, source, max_tokens_per_source)
        scores[source] = bits_per_byte(documents, document_bits(model, documents, description["eos_id"], seq_len))
    return scores


def use_threads(count: int) -> None:
    """Sets how many threads of this process one operation of the model may use."""
    torch.set_num_threads(count)
