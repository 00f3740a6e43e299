"""Stage encode: kept documents -> token shards, one set of files per source and split.

Reads `documents` (kept/), `tokenizer` and the token files of the recipe; writes
`shards/<source>-<split>-<part>-<piece>.arrow` (see `shard`), `checksums/<shard>.npy` (of its blocks, see `checksums`),
`index/` and `keys/` (the location of each document, see `index` and `key_index`), `fertility/<part>.json` and
`fertility.json` (see `fertility`; for the documents of a part with the lowest hashes, up to 1/64 of its bytes or
128 KiB).

With `accumulate`, the parts of the version before (`earlier`) are taken over by reference, in front of the new ones,
whose names begin with the number of their version; `origins.json` has, for each part, the documents that it was made
from (`formats.tokens.origins`).

The record has the rows and tokens of each shard (`FileEntry`), so no shard is opened to count them.

The end-of-text token is appended to every document, so that plans refer to stored tokens only and the model sees the
ends of texts. It counts in n_tokens but not in n_bytes.
"""

import heapq
import itertools
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core import parquet, ranges
from tasks.core.artifact import Artifact, ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.merges.row_marks import RowMarks
from tasks.core.remote import concurrently
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.documents import key_index
from tasks.formats.documents.document import heldout_draws
from tasks.formats.documents.key_index import MergedKeys
from tasks.formats.hooks import Hooks
from tasks.formats.tokens.index import IndexedShard, write_index
from tasks.formats.tokens.labels import label
from tasks.formats.tokens.origins import Origin, part_name, read_origins, versions_in, write_origins
from tasks.formats.tokens.shard import FOLDER as SHARDS
from tasks.formats.tokens.shard import (
    HELDOUT,
    TRAIN,
    ShardBuffer,
    TokenFormat,
    column_of,
    label_values,
    list_array,
    part_number,
    shard_name,
    write_shard,
)
from tasks.stages.tokens import EncodeConfig, known, token_import
from tasks.stages.tokens.bpe import TOKENIZER, digest, eos_of, load
from tasks.stages.tokens.encoder import SLOW, open_encoder
from tasks.stages.tokens.fertility import (
    FERTILITY,
    FERTILITY_FOLDER,
    FertilityCounts,
    fertility_metrics,
    fertility_table,
)
from tasks.stages.tokens.sample import KEPT, id_hashes
from tasks.stages.tokens.token_import import TokenSource

log = logging.getLogger("sluice.tokens")

VERSION = 6
_SUMMARY = "summary"  # sorts after the parts
_SLOW_PARTS = "slow_parts"
"""Metric, by reason (`encoder.SLOW`): parts that the reference has encoded."""
_COLUMNS = ["id", "url", "source", "text", "language"]

_PIECE_BYTES = 16 << 20
"""UTF-8 bytes of text that are encoded together; their tokens are then in memory as uint32."""

_IMPORTED_TOGETHER = 4096
"""Documents of a token file that are added together."""

_VERIFIED_EVERY, _VERIFIED_MIN = 1000, 4
"""One in `_VERIFIED_EVERY` documents, and at least `_VERIFIED_MIN` per part, are also encoded by the reference."""

_MEASURED_SHARE, _MEASURED_MIN = 64, 1 << 17
"""Limit of the fertility sample of a part: its bytes divided by `_MEASURED_SHARE`, at least `_MEASURED_MIN` bytes."""


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


class _NewPart(NamedTuple):
    """A part of documents or of a token file: the number in the names of its shards, and what it is made from."""

    number: int
    source: str | TokenSource
    """The path of the documents, or the file."""
    known: RowMarks | None = None
    """The documents that the version before has; None if there is none."""

    def is_new(self) -> NDArray[np.bool_] | None:
        """Returns which documents no earlier version has, shape (documents,); None if there is no earlier version."""
        return np.frombuffer(self.known.read(), np.uint8) == 0 if self.known else None


def run(config: EncodeConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Encodes every kept document; raises InputError if there is none."""
    documents, artifact = inputs["documents"], inputs["tokenizer"]
    _check_columns(documents, config.columns)
    earlier = inputs.get("earlier")
    origins = read_origins(earlier) if earlier else {}
    carried = [record for record in earlier.parts if record.name in origins] if earlier else []
    tokenizer = load(artifact)
    job = _EncodeJob(
        documents=documents.folder,
        tokenizer=artifact.folder,
        format=TokenFormat(tokenizer.get_vocab_size(), eos_of(artifact, tokenizer), digest(artifact)),
        shard_tokens=config.shard_tokens,
        columns=config.columns,
        heldout_below=thresholds(documents, documents.files(KEPT), engine, config),
        heldout_share=round(config.heldout_share * 2**64),
    )
    to_encode, to_import = _new_parts(config, documents, _first_number(carried))
    if config.accumulate:
        version = versions_in(origins) + 1
        for spec in (*to_encode, *to_import):
            origins[part_name(version, spec.name)] = Origin(documents=str(documents.address), part=spec.name)
        to_encode, to_import = (
            [replace(spec, name=part_name(version, spec.name)) for spec in specs] for specs in (to_encode, to_import)
        )
    keys = MergedKeys.of(earlier) if earlier else None
    if keys:
        to_encode, to_import = _without_known(job, keys, to_encode, to_import, output, engine)
    records = output.map_parts(engine, partial(_encode_part, job), to_encode)
    records += output.map_parts(engine, partial(_import_part, job), to_import)
    if earlier:
        records += [output.carry(earlier, record) for record in carried]
        known.leave_out(output)
    by_name = sorted(records, key=lambda record: record.name)
    report = _report(job, by_name, origins, output)
    key_index.merge(output, engine, by_name, keys)
    return report


def _report(job: _EncodeJob, records: Sequence[PartRecord], origins: Mapping[str, Origin], output: Output) -> Report:
    """Writes the tables of all parts, and returns the sums of their metrics."""
    totals: dict[str, float] = defaultdict(float)
    for record in records:
        for name, value in record.metrics.items():
            totals[name] += value
    if not totals.get("tokens"):
        raise InputError(f"{job.documents.address} has no kept document to encode", "see its funnel for the reasons")
    table = _fertility(output, records, origins)
    for source in sorted(job.heldout_below):
        if not totals.get(f"tokens/{source}/{HELDOUT}"):
            log.warning('the source "%s" has no held-out document: its bits per byte cannot be measured', source)
    note = f"{totals['tokens']:,.0f} tokens, {totals['bytes'] / totals['tokens']:.2f} bytes per token"
    for reason, words in SLOW.items():
        if slow := totals.get(f"{_SLOW_PARTS}/{reason}"):
            note += f"; {slow:,.0f} parts encoded by tokenizers, at a tenth of the speed or less: {words}"
    return Report(metrics=dict(sorted((totals | fertility_metrics(table)).items())), note=note)


def external(config: EncodeConfig) -> dict[str, list[str]]:
    """Returns the token files that the stage reads, by role `tokens:<source>`; for Megatron-LM both files."""
    paths: dict[str, list[str]] = defaultdict(list)
    for source, file, _ in token_import.find_files(config):
        paths[f"tokens:{source}"].append(file.path)
        if file.path.endswith(".idx"):
            paths[f"tokens:{source}"].append(file.path.removesuffix(".idx") + ".bin")
    return dict(paths)


HOOKS = Hooks(external=external)


def _check_columns(documents: Artifact, columns: Sequence[str]) -> None:
    """Raises InputError if the documents, by their first part, do not have a column of labels."""
    for path in documents.files(KEPT)[:1]:
        with documents.open(path) as file:
            present = parquet.schema(file).names
        for column in map(column_of, columns):
            if column not in present:
                raise InputError(
                    f"[encode] columns: the documents {documents.address} have no column {column}",
                    f"remove it from the recipe, or name one of {', '.join(sorted(present))}",
                )


def _first_number(carried: Sequence[PartRecord]) -> int:
    """Returns the number after those of the shards of some parts."""
    shards = [file.path for record in carried for file in record.files if file.path.startswith(f"{SHARDS}/")]
    return max((part_number(path.removesuffix(".arrow")) for path in shards), default=-1) + 1


def _new_parts(config: EncodeConfig, documents: Artifact, first: int) -> tuple[list[PartSpec], list[PartSpec]]:
    """Returns the parts of documents and of token files, which have the numbers from `first` on in this order."""
    paths, files = documents.files(KEPT), token_import.find_files(config)
    names = [path.removeprefix(KEPT).removesuffix(".parquet") for path in paths]
    encoded = [
        PartSpec(name, _NewPart(first + at, path)) for at, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    name, first = f"tokens-{{:05d}}-of-{len(files):05d}", first + len(paths)
    return encoded, [PartSpec(name.format(at), _NewPart(first + at, file)) for at, file in enumerate(files)]


def _without_known(
    job: _EncodeJob,
    earlier: MergedKeys,
    to_encode: Sequence[PartSpec],
    to_import: Sequence[PartSpec],
    output: Output,
    engine: Engine,
) -> tuple[list[PartSpec], list[PartSpec]]:
    """Returns the parts with the documents that the version before has, which are not encoded again."""
    specs = [*to_encode, *to_import]
    marks = known.find_known(earlier, partial(_names, job), [spec.payload.source for spec in specs], output, engine)
    marked = [
        replace(spec, payload=spec.payload._replace(known=of_part)) for spec, of_part in zip(specs, marks, strict=True)
    ]
    return marked[: len(to_encode)], marked[len(to_encode) :]


def _names(job: _EncodeJob, source: str | TokenSource) -> known.Names:
    """Returns ids and URLs of the documents of a part."""
    if isinstance(source, str):
        table = job.documents.table(source, ["id", "url"])
        return table.column("id").to_pylist(), table.column("url").to_pylist()
    rows = list(token_import.names(source))
    return [uid.hex() for uid, _ in rows], [url for _, url in rows]


def _fertility(output: Output, records: Sequence[PartRecord], origins: Mapping[str, Origin]) -> dict[str, Any]:
    """Sums the counts of all parts, and writes the table and, if there are any, the origins of the parts."""
    files = [file for record in records for file in record.files if file.path.startswith(f"{FERTILITY_FOLDER}/")]
    table = fertility_table(map(json.loads, concurrently(output.store.read, map(output.folder.place, files))))
    if _SUMMARY not in output.committed:
        with output.part(_SUMMARY, conserved=False) as part:
            part.write(FERTILITY, json.dumps(table, indent=2, sort_keys=True).encode() + b"\n")
            if origins:
                write_origins(part, origins)
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
            hashes[source] = heapq.nsmallest(config.heldout_min, [*hashes[source], *lowest])
    below = {}
    for source in sorted(counts):
        minimum = min(config.heldout_min, counts[source] // 10)
        limit = hashes[source][minimum - 1] + 1 if minimum else 0
        below[source] = max(limit, round(config.heldout_share * 2**64))
    return below


def _lowest(documents: ArtifactFolder, count: int, path: str) -> dict[str, tuple[int, list[int]]]:
    """Returns for each source the number of its documents in a part and its `count` lowest hashes."""
    with parquet.open_file(documents.local(path)) as file:
        table = file.read(columns=["id", "source"])
    draws = np.array(heldout_draws(table.column("id").to_pylist()), np.uint64)
    sources = table.column("source").combine_chunks().dictionary_encode()
    lowest = {}
    for code, source in enumerate(sources.dictionary.to_pylist()):
        of_source = draws[sources.indices.to_numpy() == code]
        lowest[source] = (len(of_source), np.sort(of_source)[:count].tolist())
    return lowest


def _import_part(job: _EncodeJob, part: Part, new: _NewPart) -> None:
    """Copies the documents of a token file; their labels are unknown."""
    token_source, is_new = cast(TokenSource, new.source), new.is_new()
    below = job.heldout_below.get(token_source.source, job.heldout_share)
    writer = ShardWriter(part, new.number, job.format, job.columns, job.shard_tokens)
    rows = token_import.documents(token_source, job.format, job.tokenizer.read(TOKENIZER).decode())
    while several := list(itertools.islice(rows, _IMPORTED_TOGETHER)):
        documents, tokens, n_bytes = zip(*several, strict=True)
        unknown = [label(None, "")] * len(documents)
        uids, urls = [document.uid for document in documents], [document.url for document in documents]
        table = documents_table(uids, urls, tokens, n_bytes, dict.fromkeys(job.columns, unknown))
        table = _new(part, table, None if is_new is None else is_new[part.rows_in :][: len(documents)])
        is_heldout = pa.array(
            [draw < below for draw in heldout_draws(uid.hex() for uid in table.column("doc_uid").to_pylist())],
            pa.bool_(),
        )
        writer.add(table.filter(is_heldout), token_source.source, HELDOUT)
        writer.add(table.filter(pc.invert(is_heldout)), token_source.source, TRAIN)
    writer.close()
    part.write(f"{FERTILITY_FOLDER}/{part.name}.json", json.dumps(FertilityCounts().record(), sort_keys=True).encode())


def _new(part: Part, table: pa.Table, is_new: NDArray[np.bool_] | None) -> pa.Table:
    """Returns the rows whose documents no earlier version has encoded; counts all, and the others as rejected."""
    part.count_in(table.num_rows)
    if is_new is None:
        return table
    if count := int(np.count_nonzero(~is_new)):
        part.reject("encoded_before", count)
    return table.filter(pa.array(is_new))


def _encode_part(job: _EncodeJob, part: Part, new: _NewPart) -> None:
    """Encodes the documents of a part."""
    table = _new(part, _read(job, cast(str, new.source)), new.is_new())
    encoder = open_encoder(job.tokenizer.read(TOKENIZER).decode())
    sample = _Sample.of(table)
    texts = table.column("text")
    encoder.check(texts.take(pa.array(sample.verified, pa.int64())).combine_chunks())
    if encoder.slow_because:
        part.metric(f"{_SLOW_PARTS}/{encoder.slow_because}", 1)
    writer = ShardWriter(part, new.number, job.format, job.columns, job.shard_tokens)
    counts, first = FertilityCounts(), 0
    for piece in _pieces(table):
        tokens = encoder.encode(piece.column("text"))
        for (source, split), documents in _grouped(job, piece, tokens):
            writer.add(documents, source, split)
        begin, end = np.searchsorted(sample.measured, (first, first + piece.num_rows))
        for row in (sample.measured[begin:end] - first).tolist():
            text, source, language = (piece.column(name)[row].as_py() for name in ("text", "source", "language"))
            counts.add(label(language, "language"), source, text, len(tokens[row]), len(text.encode()))
        first += piece.num_rows
    writer.close()
    part.write(f"{FERTILITY_FOLDER}/{part.name}.json", json.dumps(counts.record(), sort_keys=True).encode())


def _read(job: _EncodeJob, path: str) -> pa.Table:
    """Returns `_COLUMNS` of the documents of a part, and the labels as columns `@<name>`."""
    label_columns = {name: column_of(name) for name in job.columns}
    with parquet.open_file(job.documents.local(path)) as file:
        table = file.read(columns=list(dict.fromkeys([*_COLUMNS, *label_columns.values()])))
    documents = table.select(_COLUMNS)
    for name, column in label_columns.items():
        documents = documents.append_column(f"@{name}", label_values(table.column(column).combine_chunks(), name))
    return documents


def _pieces(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a table in order, `_PIECE_BYTES` of text at a time."""
    for batch in table.to_batches():
        ends = np.cumsum(pc.binary_length(batch.column("text")).to_numpy(), dtype=np.int64)
        first = 0
        while first < batch.num_rows:
            before = ends[first - 1] if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + _PIECE_BYTES, side="right")))
            yield batch.slice(first, end - first)
            first = end


def _grouped(
    job: _EncodeJob, piece: pa.RecordBatch, tokens: pa.LargeListArray
) -> Iterator[tuple[tuple[str, str], pa.Table]]:
    """Yields ((source, split), documents) for the documents of a piece, in order, as tables of `ShardWriter`."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    ids, sources = piece.column("id").to_pylist(), piece.column("source").to_pylist()
    for row, (draw, source) in enumerate(zip(heldout_draws(ids), sources, strict=True)):
        rows[source, HELDOUT if draw < job.heldout_below[source] else TRAIN].append(row)
    order = list(itertools.chain.from_iterable(rows.values()))
    sorted_piece = piece.select(["url", *(f"@{name}" for name in job.columns)]).take(pa.array(order))
    uids = bytes.fromhex("".join([ids[row] for row in order]))
    documents = pa.table(
        {
            "doc_uid": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(order), [None, pa.py_buffer(uids)]),
            "tokens": _with_end_of_text(tokens, order, job.format),
            "n_bytes": pc.binary_length(piece.column("text")).take(pa.array(order)).cast(pa.uint32()),
            **dict(zip(sorted_piece.schema.names, sorted_piece.columns, strict=True)),
        }
    )
    first = 0
    for key, several in rows.items():
        yield key, documents.slice(first, len(several))
        first += len(several)


def _with_end_of_text(encoded: pa.LargeListArray, order: list[int], fmt: TokenFormat) -> pa.LargeListArray:
    """Returns the tokens of the documents in another order, each with end-of-text, in the dtype of the shards."""
    edges, tokens = encoded.offsets.to_numpy(), encoded.values.to_numpy()
    begins, ends = edges[:-1][order], edges[1:][order]
    offsets = np.concatenate([[0], np.cumsum(ends - begins + 1)])
    flat = np.full(offsets[-1], fmt.eos_id, dtype=fmt.dtype)
    for begin, end, at in zip(begins.tolist(), ends.tolist(), offsets.tolist(), strict=False):
        flat[at : at + end - begin] = tokens[begin:end]
    return pa.LargeListArray.from_arrays(offsets, flat)


@dataclass(frozen=True)
class _Sample:
    """Rows of a part that are selected by a hash of the document's id, ascending."""

    verified: list[int]
    """Rows that are also encoded by the reference."""
    measured: NDArray[np.int64]
    """Rows whose words are counted."""

    @classmethod
    def of(cls, table: pa.Table) -> "_Sample":
        hashes = id_hashes(table.column("id").to_pylist(), "watch")
        ranked = np.argsort(hashes, kind="stable")
        sizes = pc.binary_length(table.column("text")).to_numpy().astype(np.int64)
        limit = max(int(sizes.sum()) // _MEASURED_SHARE, _MEASURED_MIN)
        count = int(np.searchsorted(np.cumsum(sizes[ranked]), limit))
        verified = {*ranked[:_VERIFIED_MIN].tolist(), *np.flatnonzero(hashes % _VERIFIED_EVERY == 0).tolist()}
        return cls(sorted(verified), np.sort(ranked[: count + 1]))


def documents_table(
    uids: Sequence[bytes],
    urls: Sequence[str],
    tokens: Sequence[NDArray[Any]],
    n_bytes: Sequence[int],
    labels: Mapping[str, Sequence[str]] | None = None,
) -> pa.Table:
    """Returns a table of documents that are not in Arrow arrays."""
    columns = {
        "doc_uid": pa.array(uids, pa.binary(16)),
        "url": pa.array(urls, pa.string()),
        "tokens": list_array(tokens),
        "n_bytes": pa.array(n_bytes, pa.uint32()),
    }
    return pa.table(columns | {f"@{name}": pa.array(values, pa.string()) for name, values in (labels or {}).items()})


class ShardWriter:
    """Buffers the documents of one part by source and split, and writes a shard when a buffer is full.

    Documents come as Arrow tables, a row per document in the order of the part:

        doc_uid   fixed_size_binary(16)
        url       string
        tokens    large_list<uint16 | uint32>   with end-of-text, in the dtype of the shards
        n_bytes   uint32                        UTF-8 bytes of the text
        @<name>   string                        the label in each label column

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
        self._buffers: dict[tuple[str, str], list[pa.Table]] = defaultdict(list)
        self._sizes: dict[tuple[str, str], int] = defaultdict(int)
        self._pieces: dict[tuple[str, str], int] = defaultdict(int)
        self._written: list[IndexedShard] = []
        self._bytes = 0

    def add(self, documents: pa.Table, source: str, split: str) -> None:
        """Adds documents of one source and split."""
        key = (source, split)
        self._bytes += pc.sum(documents.column("n_bytes")).as_py() or 0
        lengths = pc.list_value_length(documents.column("tokens")).to_numpy()
        while documents.num_rows:
            # The document that fills the shard is its last one.
            ends = self._sizes[key] + np.cumsum(lengths)
            count = min(int(np.searchsorted(ends, self._shard_tokens)) + 1, len(lengths))
            self._buffers[key].append(documents.slice(0, count))
            self._sizes[key] = int(ends[count - 1])
            if self._sizes[key] >= self._shard_tokens:
                self._flush(key)
            documents, lengths = documents.slice(count), lengths[count:]

    def close(self) -> None:
        """Writes the remaining buffers and the index."""
        for key in sorted(self._buffers):
            self._flush(key)
        self._part.metric("bytes", self._bytes)
        write_index(self._part, self._written)

    def _flush(self, key: tuple[str, str]) -> None:
        table = pa.concat_tables(self._buffers.pop(key)).combine_chunks()
        documents = {name: table.column(name).chunk(0) for name in table.column_names}
        name = shard_name(*key, self._index, self._pieces[key])
        labels = {column: documents[f"@{column}"] for column in self._columns}
        buffer = ShardBuffer(*key, documents["doc_uid"], documents["tokens"], documents["n_bytes"], labels)
        rows, tokens = table.num_rows, self._sizes[key]
        with ranges.checksummed_file(self._part, f"{SHARDS}/{name}.arrow", rows, tokens) as file:
            offsets = write_shard(file, buffer, self._format)
        lengths = pc.list_value_length(buffer.tokens).to_numpy()
        self._written.append(IndexedShard(name, buffer.uids, documents["url"], offsets, lengths))
        self._part.count_out(rows)
        self._part.metric("tokens", tokens)
        self._part.metric(f"tokens/{'/'.join(key)}", tokens)
        self._pieces[key] += 1
        self._sizes[key] = 0
