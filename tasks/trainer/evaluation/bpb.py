"""Bits per byte: cross-entropy of held-out text, comparable between tokenizers.

bpb = sum of -log2 p over all tokens of the documents / UTF-8 bytes of their text (Gao et al. 2020, arXiv 2101.00027,
section 3.1). Every token is predicted once, end-of-text included, the first from end-of-text alone. A document longer
than the model's context is evaluated in windows that overlap by half, so that a token far from the start has at least
half a context; that costs two forward passes per token.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from tasks.core.artifact import Artifact
from tasks.formats.tokens.shard_set import ShardSet
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.data.heldout import Heldout, Window, heldout, windows
from tasks.trainer.model import model_file
from tasks.trainer.model.transformer import Transformer


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
