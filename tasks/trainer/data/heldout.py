"""Held-out documents, and the windows in which their tokens are predicted. Without torch.

Reads the held-out shards; writes and reads the file of documents that a run measures while it trains (`heldout.json`:
{source: [{tokens, bytes}]}).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.formats.tokens.shard import HELDOUT, ShardSet


@dataclass(frozen=True)
class HeldoutDocument:
    """A held-out document: its id, tokens (end-of-text last) and the UTF-8 bytes of its text."""

    uid: bytes
    tokens: NDArray[Any]
    n_bytes: int


@dataclass(frozen=True)
class EvaluationWindow:
    """A window of a document: int64 inputs, and int64 labels of the same length (the token that follows each input).

    Labels before `first` were predicted in the previous window.
    """

    document: int
    inputs: NDArray[np.int64]
    labels: NDArray[np.int64]
    first: int


def heldout(shards: ShardSet, source: str, max_tokens: int) -> list[HeldoutDocument]:
    """Returns held-out documents of a source up to `max_tokens` tokens, at least one.

    Raises:
        InputError: the source has none.
    """
    documents: list[HeldoutDocument] = []
    tokens = 0
    for document in shards.heldout(source):
        if documents and tokens + len(document[1]) > max_tokens:
            break
        documents.append(HeldoutDocument(*document))
        tokens += len(document[1])
    if not documents:
        raise InputError(
            f'the source "{source}" has no held-out document', "raise encode.heldout_min or give it more text"
        )
    return documents


def windows(document: int, tokens: NDArray[Any], eos_id: int, context: int) -> Iterator[EvaluationWindow]:
    """Yields the windows in which the tokens of one document are predicted, each token once.

    Args:
        document: number that the windows carry.
        tokens: tokens of the document, shape (n,).
        eos_id: what the first token is predicted from.
        context: inputs of a window at most.
    """
    labels = tokens.astype(np.int64)
    inputs = np.concatenate([[eos_id], labels[:-1]])
    yield EvaluationWindow(document, inputs[:context], labels[:context], 0)
    stride = max(1, context // 2)
    done = min(context, len(labels))
    while done < len(labels):
        end = min(done + stride, len(labels))
        begin = end - context
        yield EvaluationWindow(document, inputs[begin:end], labels[begin:end], done - begin)
        done = end


def of_sources(shards: ShardSet, max_tokens: int) -> dict[str, list[HeldoutDocument]]:
    """Returns the documents (`heldout`) of each source that has some held out.

    Raises:
        InputError: no source has.
    """
    sources = [source for source in shards.sources if shards.n_documents(source, HELDOUT)]
    if not sources:
        raise InputError("the shards have no held-out document", "raise encode.heldout_share")
    return {source: heldout(shards, source, max_tokens) for source in sources}


def write(path: Path, documents: Mapping[str, Sequence[HeldoutDocument]]) -> None:
    """Writes documents by source to a local file."""
    content = {
        source: [{"tokens": one.tokens.tolist(), "bytes": one.n_bytes} for one in some]
        for source, some in documents.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def read(path: Path) -> dict[str, list[HeldoutDocument]]:
    """Returns what `write` was given, without ids."""
    content = json.loads(path.read_text())
    return {
        source: [HeldoutDocument(b"", np.array(one["tokens"], dtype=np.int64), one["bytes"]) for one in some]
        for source, some in content.items()
    }
