"""Stage tokenizer: kept documents -> a byte-level BPE tokenizer, and its fertility in each language.

Reads `documents` (kept/); writes `tokenizer.json` (Hugging Face format) and `fertility.json`.

Byte-level: every text can be encoded and decoded without loss, and there is no "unknown" token. The same documents and
settings give the same bytes of `tokenizer.json` on any number of workers: the sample is drawn by a hash of the
document's id, ordered by that hash, and merges are trained in one thread.
"""

import heapq
import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.text import hash64, words
from tasks.stages.tokens.config import TokenizerConfig
from tasks.stages.tokens.encoder import Reference

log = logging.getLogger("sluice.tokens")

VERSION = 1
EOS = "<|endoftext|>"
TOKENIZER = "tokenizer.json"
FERTILITY = "fertility.json"
KEPT = "kept/"
# Bytes that one document contributes to the sample at most, so that a single long book does not dominate it.
_MOST_BYTES_OF_ONE = 200_000


def run(config: TokenizerConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains the tokenizer; raises InputError if no document has text."""
    if TOKENIZER in output.committed:
        return _report(output)
    documents = inputs["documents"]
    sample = draw(documents, engine, config)
    tokenizer = train((text for _, text in sample), config)
    size = tokenizer.get_vocab_size()
    if size < config.vocab_size:
        log.warning(
            "the sample gives %d of the %d entries asked for: it is too small or too uniform", size, config.vocab_size
        )
    fit = fertility(tokenizer, sample)
    with output.part(TOKENIZER, conserved=False) as part:
        with part.file(TOKENIZER) as file:
            file.write(tokenizer.to_str(pretty=True).encode())
        with part.file(FERTILITY) as file:
            file.write(json.dumps(fit, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        part.metric("vocab_size", size)
        part.metric("sample_documents", len(sample))
        part.metric("bytes_per_token", fit["all"]["bytes_per_token"])
        part.metric("tokens_per_word", fit["all"]["tokens_per_word"])
    return _report(output)


def _report(output: Output) -> Report:
    metrics = output.committed[TOKENIZER].metrics
    note = f"{metrics['vocab_size']:,.0f} entries, {metrics['bytes_per_token']:.2f} bytes per token"
    return Report(metrics=dict(metrics), note=note)


def load(artifact: Artifact) -> Tokenizer:
    """Reads the tokenizer of an artifact, set to encode special tokens in a text as plain characters."""
    return Reference(artifact.read(TOKENIZER).decode()).tokenizer


def eos_of(tokenizer: Tokenizer, where: str) -> int:
    """Returns the id of the end-of-text token; raises InputError if the tokenizer has none."""
    eos = tokenizer.token_to_id(EOS)
    if eos is None:
        raise InputError(f"the tokenizer of {where} has no {EOS} token", "run the stage tokenizer again")
    return int(eos)


def digest(artifact: Artifact) -> str:
    """Returns the sha256 of the tokenizer's file, its identifier in shards and models."""
    return sha256_of(artifact.read(TOKENIZER))


def draw(documents: Artifact, engine: Engine, config: TokenizerConfig) -> list[tuple[str, str]]:
    """Draws the sample: (language, text) in the order of the hash of (seed, id), up to `sample_bytes`.

    Two passes: ids and lengths of all documents first, then the texts of the sample.

    Raises:
        InputError: there is no text at all, or none of a source with a weight.
    """
    paths = documents.files(KEPT)
    ranked: list[list[_Ranked]] = [[] for _ in paths]
    for index, rows in engine.map(partial(_ranks, documents.folder, config), paths):
        ranked[index] = rows
    chosen: dict[str, int] = {}
    sizes: dict[str, int] = defaultdict(int)
    for rank, doc_id, source, size in heapq.merge(*ranked):
        pool = _pool(config, source)
        if sizes[pool] < _budget(config, pool):
            chosen[doc_id] = rank
            sizes[pool] += min(size, _MOST_BYTES_OF_ONE)
    missing = sorted(source for source, weight in config.weights.items() if weight and not sizes[source])
    if not chosen or missing:
        what = f'text of the source "{missing[0]}"' if missing else "document with text"
        raise InputError(f"{documents.address} has no kept {what}", "look at its funnel for the reasons")
    sample: list[tuple[int, str, str]] = []
    for _, texts in engine.map(partial(_texts, documents.folder, chosen), paths):
        sample.extend(texts)
    return [(language, text) for _, language, text in sorted(sample)]


_Ranked = tuple[int, str, str, int]
"""Hash, id, source and UTF-8 bytes of a document."""


def _pool(config: TokenizerConfig, source: str) -> str:
    return source if config.weights else ""


def _budget(config: TokenizerConfig, pool: str) -> float:
    return config.sample_bytes * config.weights.get(pool, 0.0) if config.weights else config.sample_bytes


def _ranks(documents: ArtifactFolder, config: TokenizerConfig, path: str) -> list[_Ranked]:
    table = documents.table(path, columns=["id", "source", "text"])
    sizes = pc.binary_length(table.column("text").cast(pa.large_binary())).to_pylist()
    ids, sources = table.column("id").to_pylist(), table.column("source").to_pylist()
    purpose = f"sample/{config.seed}"
    rows = sorted(
        (id_hash(doc_id, purpose), doc_id, source, size)
        for doc_id, source, size in zip(ids, sources, sizes, strict=True)
        if size
    )
    # Documents beyond the size of the whole sample cannot be drawn.
    kept: list[_Ranked] = []
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        pool = _pool(config, row[2])
        if totals[pool] < _budget(config, pool):
            kept.append(row)
            totals[pool] += min(row[3], _MOST_BYTES_OF_ONE)
    return kept


def _texts(documents: ArtifactFolder, chosen: dict[str, int], path: str) -> list[tuple[int, str, str]]:
    table = documents.table(path, columns=["id", "language", "text"], filters=pc.field("id").isin(list(chosen)))
    columns = (table.column(name).to_pylist() for name in ("id", "language", "text"))
    return [
        (chosen[doc_id], language or "unknown", text.encode()[:_MOST_BYTES_OF_ONE].decode(errors="ignore"))
        for doc_id, language, text in zip(*columns, strict=True)
    ]


def id_hash(doc_id: str, purpose: str) -> int:
    """Returns a uniform 64-bit hash of a document's id and a purpose."""
    return hash64(f"{purpose}/{doc_id}")


def train(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Trains the merges; the end-of-text token has id 0, followed by the 256 bytes."""
    _one_thread()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=config.min_frequency,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def fertility(tokenizer: Tokenizer, sample: list[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Returns tokens per word and bytes per token for each language of the sample, and for "all"."""
    counts: dict[str, list[int]] = {}
    for language, of_text in _batches(tokenizer, sample):
        for key in (language, "all"):
            row = counts.setdefault(key, [0, 0, 0, 0])
            for column, amount in enumerate(of_text):
                row[column] += amount
    return {
        key: {
            "documents": documents,
            "tokens": tokens,
            "tokens_per_word": round(tokens / max(n_words, 1), 4),
            "bytes_per_token": round(n_bytes / max(tokens, 1), 4),
        }
        for key, (documents, tokens, n_words, n_bytes) in counts.items()
    }


def _batches(tokenizer: Tokenizer, sample: list[tuple[str, str]]) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    for first in range(0, len(sample), 256):
        rows = sample[first : first + 256]
        encodings = tokenizer.encode_batch_fast([text for _, text in rows], add_special_tokens=False)
        for (language, text), encoding in zip(rows, encodings, strict=True):
            yield language, (1, len(encoding.ids), len(words(text)), len(text.encode()))


def _one_thread() -> None:
    # Parts already use all cores, and the order in which threads count pairs varies.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
