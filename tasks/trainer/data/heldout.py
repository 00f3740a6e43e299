"""Held-out documents, and the windows in which their tokens are predicted. Does not import torch.

Reads the held-out shards; writes and reads the documents that a run measures during training (`heldout.json`:
{source: [{tokens, bytes}]}).
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    """A window of a document: int64 inputs, and int64 labels of the same length (the token after each input).

    Labels before `first` belong to the previous window.
    """

    document: int
    inputs: NDArray[np.int64]
    labels: NDArray[np.int64]
    first: int


def heldout_documents(
    shards: ShardSet, source: str, max_tokens: int, left_out: Collection[bytes] = ()
) -> list[HeldoutDocument]:
    """Returns held-out documents of a source with up to `max_tokens` tokens in total, at least one document.

    Args:
        shards: token shards.
        source: name of the source.
        max_tokens: see above.
        left_out: ids of documents to leave out.

    Raises:
        InputError: the source has no held-out document.
    """
    documents: list[HeldoutDocument] = []
    tokens = 0
    for document in shards.heldout(source):
        if document[0] in left_out:
            continue
        if documents and tokens + len(document[1]) > max_tokens:
            break
        documents.append(HeldoutDocument(*document))
        tokens += len(document[1])
    if not documents:
        raise InputError(
            f'the source "{source}" has no held-out document', "raise encode.heldout_min or give it more text"
        )
    return documents


def evaluation_windows(document: int, tokens: NDArray[Any], eos_id: int, context: int) -> Iterator[EvaluationWindow]:
    """Yields the windows in which the tokens of one document are predicted, each token once.

    Args:
        document: index of the document, stored in its windows.
        tokens: tokens of the document, shape (n,).
        eos_id: the end-of-text token, from which the first token is predicted.
        context: maximum number of inputs per window.
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


def heldout_by_source(shards: ShardSet, max_tokens: int) -> dict[str, list[HeldoutDocument]]:
    """Returns the held-out documents of each source that has any, as `heldout_documents` does.

    Raises:
        InputError: no source has a held-out document.
    """
    sources = [source for source in shards.sources if shards.n_documents(source, HELDOUT)]
    if not sources:
        raise InputError("the shards have no held-out document", "raise encode.heldout_share")
    return {source: heldout_documents(shards, source, max_tokens) for source in sources}


def write(path: Path, documents: Mapping[str, Sequence[HeldoutDocument]]) -> None:
    """Writes documents by source to a local file."""
    content = {
        source: [{"tokens": document.tokens.tolist(), "bytes": document.n_bytes} for document in of_source]
        for source, of_source in documents.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def read(path: Path) -> dict[str, list[HeldoutDocument]]:
    """Returns the documents by source that `write` wrote, without ids."""
    content = json.loads(path.read_text())
    return {
        source: [HeldoutDocument(b"", np.array(entry["tokens"], dtype=np.int64), entry["bytes"]) for entry in entries]
        for source, entries in content.items()
    }
