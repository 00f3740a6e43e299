"""The held-out text on which arms with different settings are measured: the same documents for each of them.

They are those that the current settings hold out, with their text as these settings extract it. An arm with another
tokenizer encodes the same text with its own, and bits per byte have the same denominator. A document is left out for
all arms if one of them is trained on it, or on its duplicate by the current settings or by the arm's: with a looser
deduplication, an arm would be measured on what it has read.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow.compute as pc

from tasks.core.artifact import Artifact
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.shard import HELDOUT, TRAIN, ShardSet, parse_shard_name
from tasks.trainer.data.heldout import HeldoutDocument, heldout_documents
from tasks.trainer.evaluation.items import TOKENIZER

REJECTED = "rejected/"


def sources_of(shards: ShardSet) -> dict[str, int]:
    """Returns the number of held-out documents of each source that has any."""
    counts = {source: shards.n_documents(source, HELDOUT) for source in shards.sources}
    return {source: count for source, count in sorted(counts.items()) if count}


def measured(
    shards: ShardSet, max_tokens: int, left_out: Collection[bytes], tokenizers: tuple[Artifact, Artifact], eos_id: int
) -> dict[str, list[HeldoutDocument]]:
    """Returns the held-out documents of each source, in the tokens of an arm.

    Args:
        shards: of the current settings.
        max_tokens: most tokens of a source, as the current settings encode it, in whole documents.
        left_out: ids of documents that are not measured.
        tokenizers: of the current settings, and of the arm.
        eos_id: end-of-text token of the arm.

    Raises:
        InputError: all held-out documents of a source are left out.
    """
    found = {source: heldout_documents(shards, source, max_tokens, left_out) for source in sources_of(shards)}
    if tokenizers[0].record.content == tokenizers[1].record.content:
        return found
    # Imported here, because it brings torch: `arms` runs where there is none, and a run would load it twice.
    from tasks.trainer.evaluation.comparison import decode_texts, encode_texts

    current, own = (tokenizer.read(TOKENIZER).decode() for tokenizer in tokenizers)
    return {
        source: list(encode_texts(decode_texts(documents, current), own, eos_id)) for source, documents in found.items()
    }


def trained_on(
    heldout: ShardSet, max_tokens: int, encoded: Sequence[Artifact], documents: Sequence[Artifact]
) -> list[str]:
    """Returns the ids of the held-out documents that are left out, sorted.

    Args:
        heldout: the shards of the current settings.
        max_tokens: see `measured`.
        encoded: the shards of each variant, the current one first.
        documents: of each variant, in the same order.
    """
    indexes = [DocumentIndex(shards) for shards in encoded]
    copies = [_copies(artifact) for artifact in documents]
    left_out: set[bytes] = set()
    for source in sources_of(heldout):
        tokens = 0
        for uid, document, _ in heldout.heldout(source):
            if tokens > max_tokens:
                break
            same = (uid, *copies[0].get(uid, ()))
            if any(
                _is_trained(index, [*same, *of_arm.get(uid, ())]) for index, of_arm in zip(indexes, copies, strict=True)
            ):
                left_out.add(uid)
            else:
                tokens += len(document)
    return sorted(uid.hex() for uid in left_out)


def _is_trained(index: DocumentIndex, uids: Iterable[bytes]) -> bool:
    entries = (index.by_uid(uid) for uid in uids)
    return any(entry is not None and parse_shard_name(entry.shard)[1] == TRAIN for entry in entries)


def _copies(documents: Artifact) -> Mapping[bytes, list[bytes]]:
    """Returns the duplicates of each document that was rejected as one, or that another one was rejected for."""
    copies: dict[bytes, list[bytes]] = defaultdict(list)
    for one, other in _pairs(documents):
        copies[one].append(other)
        copies[other].append(one)
    return copies


def _pairs(documents: Artifact) -> Iterator[tuple[bytes, bytes]]:
    for path in documents.files(REJECTED):
        if path.endswith(".parquet"):
            table = documents.table(path, columns=["id", "duplicate_of"])
            table = table.filter(pc.is_valid(table.column("duplicate_of")))
            for one, other in zip(*(column.to_pylist() for column in table.columns), strict=True):
                yield bytes.fromhex(one), bytes.fromhex(other)
