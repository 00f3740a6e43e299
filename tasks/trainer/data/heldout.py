"""Held-out documents, and the windows in which their tokens are predicted. Does not import torch.

Reads the held-out shards; writes and reads the documents that a run measures during training (`heldout.json`:
{source: [{tokens, bytes}]}).
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.formats.tokens.origins import version_of
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

    Of shards that accumulate versions, each version has an equal share as far as it has the text, and the documents
    with the lowest ids are taken, which are hashes. Of other shards the first documents are taken.

    Args:
        shards: token shards.
        source: name of the source.
        max_tokens: see above.
        left_out: ids of documents to leave out.

    Returns:
        the documents, in the order of shard names and rows.

    Raises:
        InputError: the source has no held-out document.
    """
    versions: dict[int, list[str]] = defaultdict(list)
    for name in shards.names(source, HELDOUT):
        versions[version_of(shards.entry(name).part)].append(name)
    queues = [_queue(shards, names, left_out, by_id=len(versions) > 1) for names in versions.values()]
    places = sorted(_shared_out(queues, max_tokens))
    if not places:
        raise InputError(
            f'the source "{source}" has no held-out document', "raise encode.heldout_min or give it more text"
        )
    return [
        HeldoutDocument(place.uid, shards.shard(place.shard).slice(place.row, 0, place.tokens), place.n_bytes)
        for place in places
    ]


class _Place(NamedTuple):
    shard: str
    row: int
    tokens: int
    n_bytes: int
    uid: bytes


def _queue(shards: ShardSet, names: Sequence[str], left_out: Collection[bytes], by_id: bool) -> Iterator[_Place]:
    """Yields the documents of some shards, those with the lowest ids first or in the order of the shards."""

    def in_order() -> Iterator[_Place]:
        for name in names:
            shard = shards.shard(name)
            for row, (length, size) in enumerate(zip(shard.lengths.tolist(), shard.n_bytes.tolist(), strict=True)):
                if (uid := shard.uid(row)) not in left_out:
                    yield _Place(name, row, length, size, uid)

    return iter(sorted(in_order(), key=lambda place: place.uid)) if by_id else in_order()


def _shared_out(queues: Sequence[Iterator[_Place]], max_tokens: int) -> list[_Place]:
    """Returns the first documents of every queue, about as many tokens of each; one that is too long ends its queue."""
    taken: list[_Place] = []
    left, shares = max_tokens, [(0, number) for number in range(len(queues))]
    while shares:
        share, number = heappop(shares)
        place = next(queues[number], None)
        if place and (place.tokens <= left or not taken):
            taken.append(place)
            left -= place.tokens
            heappush(shares, (share + place.tokens, number))
    return taken


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
