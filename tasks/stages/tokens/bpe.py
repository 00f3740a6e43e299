"""Stage tokenizer: kept documents -> a byte-level BPE tokenizer, trained or imported, and its fertility.

Reads `documents` (kept/) and, where the recipe names one, the file of a tokenizer (see `token_import`); writes
`tokenizer.json` (Hugging Face format), `tokenizer_config.json` (the end-of-text token) and `fertility.json`: tokens per
word and bytes per token of the sample, by language and by source. Words are those of
`tasks.formats.documents.text.words`; in languages that write no space between them the bytes say more.

Byte-level: every text can be encoded and decoded without loss, and there is no "unknown" token. The same documents and
settings give the same bytes of `tokenizer.json` on any number of workers: the sample is drawn by a hash of the
document's id, ordered by that hash, and merges are trained in one thread.
"""

import heapq
import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.text import hash64, words
from tasks.formats.tokens.labels import label
from tasks.stages.tokens import TokenizerConfig, token_import
from tasks.stages.tokens.encoder import Reference

log = logging.getLogger("sluice.tokens")

VERSION = 2
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
KEPT = "kept/"

# Bytes that one document contributes to the sample at most, so that a single long book does not dominate it.
_MOST_BYTES_OF_ONE = 200_000

_Ranked = tuple[int, str, str, int]
"""Hash, id, source and UTF-8 bytes of a document."""

FERTILITY = "fertility.json"
"""File with the content of `fertility_table`."""

ALL, KINDS = "all", ("language", "source")

FERTILITY_FOLDER = "fertility"
"""Folder with the sums of each part."""


def external(config: TokenizerConfig) -> dict[str, list[str]]:
    """Returns the external file that the stage reads, by role."""
    return {"tokenizer": [config.file]} if config.file else {}


def run(config: TokenizerConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains or imports the tokenizer; raises InputError if no document has text, or the imported one is unusable."""
    if TOKENIZER in output.committed:
        return _report(output)
    documents = inputs["documents"]
    sample = draw(documents, engine, config)
    if config.file:
        made = token_import.read(config.file, config.end_of_text)
    else:
        made = train((one.text for one in sample), config).to_str(pretty=True)
    tokenizer = Reference(made).tokenizer
    size = tokenizer.get_vocab_size()
    if size < config.vocab_size and not config.file:
        log.warning(
            "the sample gives %d of the %d entries asked for: it is too small or too uniform", size, config.vocab_size
        )
    fit = _fertility(tokenizer, sample)
    with output.part(TOKENIZER, conserved=False) as part:
        for name, content in ((TOKENIZER_CONFIG, {"eos_token": config.end_of_text}), (FERTILITY, fit)):
            with part.file(name) as file:
                file.write(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        with part.file(TOKENIZER) as file:
            file.write(made.encode())
        part.metric("vocab_size", size)
        part.metric("sample_documents", len(sample))
        part.metric("bytes_per_token", fit["all"]["bytes_per_token"])
        part.metric("tokens_per_word", fit["all"]["tokens_per_word"])
        for name, value in fertility_metrics(fit).items():
            part.metric(name, value)
    return _report(output)


def _report(output: Output) -> Report:
    metrics = output.committed[TOKENIZER].metrics
    note = f"{metrics['vocab_size']:,.0f} entries, {metrics['bytes_per_token']:.2f} bytes per token"
    return Report(metrics=dict(metrics), note=note)


def load(artifact: Artifact) -> Tokenizer:
    """Reads the tokenizer of an artifact, set to encode special tokens in a text as plain characters."""
    return Reference(artifact.read(TOKENIZER).decode()).tokenizer


def eos_of(artifact: Artifact, tokenizer: Tokenizer) -> int:
    """Returns the id of the end-of-text token of an artifact's tokenizer."""
    eos: int = tokenizer.get_vocab()[json.loads(artifact.read(TOKENIZER_CONFIG))["eos_token"]]
    return eos


def digest(artifact: Artifact) -> str:
    """Returns the sha256 of the tokenizer's file, its identifier in shards and models."""
    return sha256_of(artifact.read(TOKENIZER))


class Drawn(NamedTuple):
    """One document of the sample."""

    rank: int
    """Hash of (seed, id)."""
    language: str
    source: str
    text: str


def draw(documents: Artifact, engine: Engine, config: TokenizerConfig) -> list[Drawn]:
    """Draws the sample in the order of the hash of (seed, id), up to `sample_bytes`.

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
    sample: list[Drawn] = []
    for _, texts in engine.map(partial(_texts, documents.folder, chosen), paths):
        sample.extend(texts)
    return sorted(sample)


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


def _texts(documents: ArtifactFolder, chosen: dict[str, int], path: str) -> list[Drawn]:
    columns = ["id", "language", "source", "text"]
    table = documents.table(path, columns=columns, filters=pc.field("id").isin(list(chosen)))
    return [
        Drawn(chosen[doc_id], label(language, "language"), source, _beginning(text))
        for doc_id, language, source, text in zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    ]


def _beginning(text: str) -> str:
    return text.encode()[:_MOST_BYTES_OF_ONE].decode(errors="ignore")


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
        special_tokens=[config.end_of_text],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _fertility(tokenizer: Tokenizer, sample: list[Drawn]) -> dict[str, Any]:
    counts = Counts()
    for first in range(0, len(sample), 256):
        rows = sample[first : first + 256]
        encodings = tokenizer.encode_batch_fast([one.text for one in rows], add_special_tokens=False)
        for one, encoding in zip(rows, encodings, strict=True):
            counts.add(one.language, one.source, one.text, len(encoding.ids), len(one.text.encode()))
    return fertility_table([counts.sums])


def _one_thread() -> None:
    # Parts already use all cores, and the order in which threads count pairs varies.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


class Counts:
    """Sums of documents, tokens, words and UTF-8 bytes, for all documents and by language and source."""

    def __init__(self) -> None:
        self.sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """By `all`, `language/<name>` and `source/<name>`."""

    def add(self, language: str, source: str, text: str, tokens: int, n_bytes: int) -> None:
        """Adds one document of `tokens` tokens."""
        amounts = [1, tokens, len(words(text)), n_bytes]
        for key in (ALL, f"language/{language}", f"source/{source}"):
            self.sums[key] = list(map(sum, zip(self.sums[key], amounts, strict=True)))


def fertility_table(parts: Iterable[Mapping[str, list[int]]]) -> dict[str, Any]:
    """Returns {"all": row, "language": {name: row}, "source": {name: row}} from the sums of the parts.

    A row is {documents, tokens, tokens_per_word, bytes_per_token}.
    """
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for part in parts:
        for key, amounts in part.items():
            sums[key] = list(map(sum, zip(sums[key], amounts, strict=True)))
    found: dict[str, Any] = {ALL: _fertility_row(sums.pop(ALL, [0, 0, 0, 0])), **{kind: {} for kind in KINDS}}
    for key, amounts in sorted(sums.items()):
        kind, _, name = key.partition("/")
        found[kind][name] = _fertility_row(amounts)
    return found


def fertility_metrics(table: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a table: `tokens_per_word/language/en`, and so on."""
    return {
        f"{measure}/{kind}/{name}": row[measure]
        for kind in KINDS
        for name, row in table[kind].items()
        for measure in ("tokens_per_word", "bytes_per_token")
    }


def _fertility_row(sums: list[int]) -> dict[str, float]:
    documents, tokens, n_words, n_bytes = sums
    return {
        "documents": documents,
        "tokens": tokens,
        "tokens_per_word": round(tokens / max(n_words, 1), 4),
        "bytes_per_token": round(n_bytes / max(tokens, 1), 4),
    }
