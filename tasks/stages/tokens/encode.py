"""Stage encode: kept documents -> token shards, one set of files per source and split.

Reads `documents` (kept/), `tokenizer` and the token files of the recipe; writes
`shards/<source>-<split>-<part>-<piece>.arrow` (see `shard`), `checksums/<shard>.npy` (of its blocks, see `checksums`),
`index/` and `keys/` (the location of each document, see `index` and `key_index`), `fertility/<part>.json` and
`fertility.json` (see `bpe`; for the documents of a part with the lowest hashes, up to 1/64 of its bytes or 128 KiB).

The end-of-text token is appended to every document, so that plans refer to stored tokens only and the model sees the
ends of texts. It counts in n_tokens but not in n_bytes.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core import parquet, ranges
from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.documents import key_index
from tasks.formats.documents.document import heldout_draw
from tasks.formats.tokens.index import EncodedDocument, write_index
from tasks.formats.tokens.labels import label
from tasks.formats.tokens.shard import (
    FOLDER,
    HELDOUT,
    TRAIN,
    ShardBuffer,
    TokenFormat,
    column_of,
    label_values,
    shard_name,
    write_shard,
)
from tasks.stages.tokens import EncodeConfig, token_import
from tasks.stages.tokens.bpe import (
    FERTILITY,
    FERTILITY_FOLDER,
    KEPT,
    TOKENIZER,
    FertilityCounts,
    digest,
    eos_of,
    fertility_metrics,
    fertility_table,
    id_hash,
    load,
)
from tasks.stages.tokens.encoder import Tokens, VerifiedEncoder, open_encoder
from tasks.stages.tokens.token_import import TokenSource

log = logging.getLogger("sluice.tokens")

VERSION = 3
_SUMMARY = "summary"  # sorts after the parts
_BATCH = 512
_COLUMNS = ["id", "url", "source", "text", "language"]

_VERIFIED_EVERY, _VERIFIED_MIN = 1000, 4
"""One in `_VERIFIED_EVERY` documents, and at least `_VERIFIED_MIN` per part, are also encoded by the reference."""

_MEASURED_SHARE, _MEASURED_MIN = 64, 1 << 17
"""Limit of the fertility sample of a part: its bytes divided by `_MEASURED_SHARE`, at least `_MEASURED_MIN` bytes."""


@dataclass(frozen=True)
class EncodedRow:
    """One document: its tokens with end-of-text, the UTF-8 bytes of its text, and its label in each column."""

    uid: bytes
    url: str
    tokens: NDArray[Any]
    n_bytes: int
    labels: tuple[str, ...]


class ShardWriter:
    """Buffers the documents of one part by source and split, and writes a shard when a buffer is full.

    Args:
        part: the part to write.
        index: number of the part, used in the names of its shards.
        fmt: format of the shards.
        columns: names of the labels.
        shard_tokens: number of tokens after which a shard is closed.
    """

    def __init__(self, part: Part, index: int, fmt: TokenFormat, columns: Sequence[str], shard_tokens: int) -> None:
        self._part = part
        self._index = index
        self._format = fmt
        self._columns = columns
        self._shard_tokens = shard_tokens
        self._buffers: dict[tuple[str, str], list[EncodedRow]] = defaultdict(list)
        self._sizes: dict[tuple[str, str], int] = defaultdict(int)
        self._pieces: dict[tuple[str, str], int] = defaultdict(int)
        self._entries: list[EncodedDocument] = []
        self._bytes = 0

    def add(self, row: EncodedRow, source: str, split: str) -> None:
        """Adds one document."""
        key = (source, split)
        self._buffers[key].append(row)
        self._sizes[key] += len(row.tokens)
        self._bytes += row.n_bytes
        if self._sizes[key] >= self._shard_tokens:
            self._flush(key)

    def close(self) -> None:
        """Writes the remaining buffers and the index."""
        for key in sorted(self._buffers):
            self._flush(key)
        self._part.metric("bytes", self._bytes)
        write_index(self._part, self._entries)

    def _flush(self, key: tuple[str, str]) -> None:
        rows = self._buffers.pop(key)
        name = shard_name(*key, self._index, self._pieces[key])
        uids, tokens, n_bytes = [r.uid for r in rows], [r.tokens for r in rows], [r.n_bytes for r in rows]
        labels = {column: [row.labels[at] for row in rows] for at, column in enumerate(self._columns)}
        path = f"{FOLDER}/{name}.arrow"
        with ranges.checksummed_file(self._part, path, rows=len(rows)) as file:
            buffer = ShardBuffer(*key, uids, tokens, n_bytes, labels)
            offsets = write_shard(file, buffer, self._format).tolist()
        self._entries.extend(
            EncodedDocument(name, row, document.uid, document.url, offset, len(document.tokens))
            for row, (document, offset) in enumerate(zip(rows, offsets, strict=True))
        )
        self._part.count_out(len(rows))
        self._part.metric("tokens", self._sizes[key])
        self._part.metric(f"tokens/{'/'.join(key)}", self._sizes[key])
        self._pieces[key] += 1
        self._sizes[key] = 0


@dataclass(frozen=True)
class _EncodeJob:
    """Shared inputs of all parts: the documents, the encoding, and the hash limit of each source's held-out set."""

    documents: ArtifactFolder
    tokenizer: ArtifactFolder
    format: TokenFormat
    shard_tokens: int
    columns: tuple[str, ...]
    heldout_below: dict[str, int]
    heldout_share: int
    """The same limit for a source without documents."""


def run(config: EncodeConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Encodes every kept document; raises InputError if there is none."""
    documents, artifact = inputs["documents"], inputs["tokenizer"]
    paths = documents.files(KEPT)
    tokenizer = load(artifact)
    fmt = TokenFormat(tokenizer.get_vocab_size(), eos_of(artifact, tokenizer), digest(artifact))
    below = thresholds(documents, paths, engine, config)
    share = round(config.heldout_share * 2**64)
    job = _EncodeJob(documents.folder, artifact.folder, fmt, config.shard_tokens, config.columns, below, share)
    specs = [PartSpec(_stem(path), (index, path)) for index, path in enumerate(paths)]
    specs += _imports(config, len(paths))
    records = output.map_parts(engine, partial(_make_part, job), specs)
    totals: dict[str, float] = defaultdict(float)
    for record in records:
        for name, value in record.metrics.items():
            totals[name] += value
    if not totals.get("tokens"):
        raise InputError(f"{documents.address} has no kept document to encode", "see its funnel for the reasons")
    key_index.merge(output, engine, records)
    table = _fertility(output, [record.name for record in records])
    for source in sorted(job.heldout_below):
        if not totals.get(f"tokens/{source}/{HELDOUT}"):
            log.warning('the source "%s" has no held-out document: its bits per byte cannot be measured', source)
    note = f"{totals['tokens']:,.0f} tokens, {totals['bytes'] / totals['tokens']:.2f} bytes per token"
    return Report(metrics=dict(sorted((totals | fertility_metrics(table)).items())), note=note)


def external(config: EncodeConfig) -> dict[str, list[str]]:
    """Returns the token files that the stage reads, by role `tokens:<source>`; for Megatron-LM both files."""
    paths: dict[str, list[str]] = defaultdict(list)
    for source, file, _ in token_import.find_files(config):
        paths[f"tokens:{source}"].append(file.path)
        if file.path.endswith(".idx"):
            paths[f"tokens:{source}"].append(file.path.removesuffix(".idx") + ".bin")
    return dict(paths)


def _imports(config: EncodeConfig, first: int) -> list[PartSpec]:
    """Returns one part per token file; their numbers and names come after those of the documents."""
    files = token_import.find_files(config)
    count = len(files)
    return [PartSpec(f"tokens-{at:05d}-of-{count:05d}", (first + at, file)) for at, file in enumerate(files)]


def _fertility(output: Output, parts: list[str]) -> dict[str, Any]:
    """Sums the counts of all parts, and writes the table."""
    folder = ArtifactFolder(output.store, output.address, output.address.path)
    table = fertility_table(json.loads(folder.read(f"{FERTILITY_FOLDER}/{name}.json")) for name in parts)
    if _SUMMARY not in output.committed:
        with output.part(_SUMMARY, conserved=False) as part, part.file(FERTILITY) as file:
            file.write(json.dumps(table, indent=2, sort_keys=True).encode() + b"\n")
    return table


def thresholds(documents: Artifact, paths: list[str], engine: Engine, config: EncodeConfig) -> dict[str, int]:
    """Returns for each source the hash below which a document is held out.

    It is `heldout_share` of the range of the hash or, for a small source, the limit that includes `heldout_min`
    documents (at most a tenth of the source).
    """
    hashes: dict[str, list[int]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for _, by_source in engine.map(partial(_lowest, documents.folder, config.heldout_min), paths):
        for source, (count, lowest) in by_source.items():
            counts[source] += count
            hashes[source].extend(lowest)
    below = {}
    for source in sorted(counts):
        minimum = min(config.heldout_min, counts[source] // 10)
        limit = sorted(hashes[source])[minimum - 1] + 1 if minimum else 0
        below[source] = max(limit, round(config.heldout_share * 2**64))
    return below


def _lowest(documents: ArtifactFolder, count: int, path: str) -> dict[str, tuple[int, list[int]]]:
    """Returns for each source the number of its documents in a part and its `count` lowest hashes."""
    table = documents.table(path, columns=["id", "source"])
    hashes: dict[str, list[int]] = defaultdict(list)
    for doc_id, source in zip(table.column("id").to_pylist(), table.column("source").to_pylist(), strict=True):
        hashes[source].append(heldout_draw(doc_id))
    return {source: (len(values), sorted(values)[:count]) for source, values in hashes.items()}


def _stem(path: str) -> str:
    return path.removeprefix(KEPT).removesuffix(".parquet")


def _make_part(job: _EncodeJob, part: Part, payload: tuple[int, str | TokenSource]) -> None:
    index, source = payload
    if isinstance(source, str):
        _encode_part(job, part, index, source)
    else:
        _import_part(job, part, index, source)


def _import_part(job: _EncodeJob, part: Part, index: int, token_source: TokenSource) -> None:
    """Copies the documents of a token file; their labels are unknown."""
    below = job.heldout_below.get(token_source.source, job.heldout_share)
    labels = (label(None, ""),) * len(job.columns)
    writer = ShardWriter(part, index, job.format, job.columns, job.shard_tokens)
    for document, tokens, n_bytes in token_import.documents(
        token_source, job.format, job.tokenizer.read(TOKENIZER).decode()
    ):
        part.count_in()
        split = HELDOUT if heldout_draw(document.uid.hex()) < below else TRAIN
        writer.add(EncodedRow(document.uid, document.url, tokens, n_bytes, labels), token_source.source, split)
    writer.close()
    with part.file(f"{FERTILITY_FOLDER}/{part.name}.json") as file:
        file.write(json.dumps(FertilityCounts().sums, sort_keys=True).encode())


def _encode_part(job: _EncodeJob, part: Part, index: int, path: str) -> None:
    table = _read(job, path)
    part.count_in(table.num_rows)
    encoder = open_encoder(job.tokenizer.read(TOKENIZER).decode())
    sample = _Sample.of(table)
    encoder.check(table.column("text").take(pa.array(sample.verified, pa.int64())).to_pylist())
    writer, counts, first = ShardWriter(part, index, job.format, job.columns, job.shard_tokens), FertilityCounts(), 0
    for batch in table.to_batches(max_chunksize=_BATCH):
        for number, (source, split, row) in enumerate(_encode_batch(job, encoder, batch), first):
            writer.add(row, source, split)
            if number in sample.measured:
                text, language = (batch.column(name)[number - first].as_py() for name in ("text", "language"))
                counts.add(label(language, "language"), source, text, len(row.tokens) - 1, row.n_bytes)
        first += batch.num_rows
    writer.close()
    with part.file(f"{FERTILITY_FOLDER}/{part.name}.json") as file:
        file.write(json.dumps(counts.sums, sort_keys=True).encode())


def _read(job: _EncodeJob, path: str) -> pa.Table:
    """Returns `_COLUMNS` of the documents of a part, and the labels as columns `@<name>`; raises InputError."""
    label_columns = {name: column_of(name) for name in job.columns}
    for column in sorted({*label_columns.values()} - {*parquet.schema(job.documents.local(path)).names}):
        raise InputError(f"[encode] columns: the documents have no column {column}", "remove it from the recipe")
    table = job.documents.table(path, columns=list(dict.fromkeys([*_COLUMNS, *label_columns.values()])))
    documents = table.select(_COLUMNS)
    for name, column in label_columns.items():
        labels = label_values(table.column(column).combine_chunks(), name)
        documents = documents.append_column(f"@{name}", pa.array(labels, pa.string()))
    return documents


@dataclass(frozen=True)
class _Sample:
    """Rows of a part that are selected by a hash of the document's id."""

    verified: list[int]
    """Rows that are also encoded by the reference."""
    measured: frozenset[int]
    """Rows whose words are counted."""

    @classmethod
    def of(cls, table: pa.Table) -> "_Sample":
        hashes = [id_hash(doc_id, "watch") for doc_id in table.column("id").to_pylist()]
        ranked = sorted(range(len(hashes)), key=hashes.__getitem__)
        sizes = pc.binary_length(table.column("text")).to_numpy().astype(np.int64)
        limit = max(int(sizes.sum()) // _MEASURED_SHARE, _MEASURED_MIN)
        count = int(np.searchsorted(np.cumsum(sizes[ranked]), limit))
        verified = {
            *ranked[:_VERIFIED_MIN],
            *(row for row, number in enumerate(hashes) if number % _VERIFIED_EVERY == 0),
        }
        return cls(sorted(verified), frozenset(ranked[: count + 1]))


def _encode_batch(
    job: _EncodeJob, encoder: VerifiedEncoder, batch: pa.RecordBatch
) -> Iterator[tuple[str, str, EncodedRow]]:
    """Yields (source, split, row) for each document of a batch, in order."""
    ids, urls, sources, texts = (batch.column(name).to_pylist() for name in ("id", "url", "source", "text"))
    sizes = pc.binary_length(batch.column("text")).to_pylist()
    columns = [batch.column(f"@{name}").to_pylist() for name in job.columns]
    labels = zip(*columns, strict=True) if columns else ((),) * len(ids)
    encoded = _with_end_of_text(encoder.encode(texts), job.format)
    for doc_id, url, source, size, tokens, values in zip(ids, urls, sources, sizes, encoded, labels, strict=True):
        split = HELDOUT if heldout_draw(doc_id) < job.heldout_below[source] else TRAIN
        yield source, split, EncodedRow(bytes.fromhex(doc_id), url, tokens, size, values)


def _with_end_of_text(encoded: list[Tokens], fmt: TokenFormat) -> list[NDArray[Any]]:
    """Returns the tokens of each document with end-of-text, in the dtype of the shards, as views of one array."""
    ends = np.cumsum([len(tokens) + 1 for tokens in encoded], dtype=np.int64).tolist()
    flat = np.full(ends[-1] if ends else 0, fmt.eos_id, dtype=fmt.dtype)
    views, first = [], 0
    for tokens, end in zip(encoded, ends, strict=True):
        flat[first : end - 1] = tokens
        views.append(flat[first:end])
        first = end
    return views
