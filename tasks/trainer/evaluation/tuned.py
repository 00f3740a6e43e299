"""What fine-tuned models are compared on: held-out text that no example was made from, in a context of both models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.artifact import Artifact, ArtifactId
from tasks.formats.documents.examples import Examples
from tasks.formats.tokens.exposure import origin_of
from tasks.formats.tokens.shard import HELDOUT as SPLIT
from tasks.formats.tokens.shard import ShardSet
from tasks.trainer.evaluation.comparison import TOKENIZER, Contender, HeldoutText, texts_of
from tasks.trainer.model import model_file


def limited(contender: Contender, context: int, folder: Path) -> Contender:
    """Returns a model whose context is limited to a number of tokens."""
    content = json.loads(contender.description.read_text()) | {"seq_len": context}
    path = folder / contender.label / model_file.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return replace(contender, description=path)


def learned_documents(examples: Artifact) -> set[str]:
    """Returns the ids of the documents with learned chunks."""
    ids: set[str] = set()

    def collect(rows: pa.Table) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        ids.update(rows.column("id").to_pylist())
        return np.zeros(rows.num_rows, np.bool_)

    Examples(examples).where(collect)
    return ids


def unlearned_texts(
    tuned: Artifact, tokenizer: Artifact, max_tokens: int, learned: set[str]
) -> tuple[dict[str, list[HeldoutText]], int]:
    """Returns the held-out documents without learned ones, by source, and the number of learned ones.

    They are those of the pretraining that a fine-tuned model, or its base, began from; none if its shards are gone.
    """
    shards = _shards(tuned)
    if shards is None or not any(shards.n_documents(source, SPLIT) for source in shards.sources):
        return {}, 0
    all_texts = texts_of(shards, tokenizer.read(TOKENIZER).decode(), max_tokens)
    texts = {
        source: [document for document in documents if document.uid.hex() not in learned]
        for source, documents in all_texts.items()
    }
    left_out = sum(map(len, all_texts.values())) - sum(map(len, texts.values()))
    return {source: documents for source, documents in texts.items() if documents}, left_out


def _shards(model: Artifact) -> ShardSet | None:
    """Opens the shards of the original pretraining; None if they, or a model in between, are missing."""
    checkpoint: Artifact | None = model
    while checkpoint:
        ref = next((ref for ref in checkpoint.record.inputs if ref.role == "shards"), None)
        if ref:
            artifact = Artifact.find(checkpoint.store, ArtifactId.parse(ref.address))
            unchanged = artifact is not None and artifact.record.content == ref.content
            return ShardSet.open(artifact) if artifact and unchanged else None
        checkpoint = origin_of(checkpoint)
    return None
