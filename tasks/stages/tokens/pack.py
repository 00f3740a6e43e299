"""Stage pack: token shards -> a plan, the document slices of each sequence.

Reads `shards`: their numbers of documents and tokens in the record, the places of documents in the index and, unless
`by` is the source, label columns; no tokens. Documents under the takedowns in force (`takedowns`) have no slices; nor
have those of accumulated shards whose page a later version has captured again. Writes `plan/` (see
`formats.tokens.plan`) and its `checksums/`. A new sequence length rewrites 20 bytes per slice and no tokens. Sources
with more than 2**28 tokens are packed in independent parts, on any worker.

With `leave_out_repeats`, `repeats` is read too: the pieces of a document before, between and after its repeats are
packed like separate documents, and attention does not cross the gaps.

`concat` concatenates documents and cuts every `seq_len` tokens: at most the last `seq_len - 1` tokens of a part are
dropped, and there is no padding; documents may be split between sequences. `best_fit` splits only documents that are
longer than a sequence, and pads the sequences.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import ranges
from tasks.core.artifact import Artifact, ArtifactFolder, FileEntry, PartRecord
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.merges.row_marks import RowMarks
from tasks.core.ranges import RangeFile, RangeReader, entries_of
from tasks.core.remote import concurrently
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.documents.tombstones import TAKEDOWN, tombstones_of
from tasks.formats.tokens.index import IndexedRows, indexed_rows, read_records
from tasks.formats.tokens.labels import LONGEST, SOURCE
from tasks.formats.tokens.marks import Rows, withheld_rows
from tasks.formats.tokens.origins import leave_out, superseded_marks
from tasks.formats.tokens.plan import FOLDER, SLICE, SUMMARY, Slices, array_name, arrays_of, write_array
from tasks.formats.tokens.plan_tables import part_row, shard_rows, write_tables
from tasks.formats.tokens.repeats import read_repeated_runs, remaining_runs
from tasks.formats.tokens.shard import (
    HELDOUT,
    TRAIN,
    ShardSet,
    TokenFormat,
    parse_shard_name,
    read_format,
    read_labels,
    shard_path,
)
from tasks.stages.tokens import PackConfig

VERSION = 4
SUMMARY_PART = "summary.json"  # no source has a dot in its name
_PART_TOKENS = 2**28
_SPAN_TOKENS, _SPAN_SEQUENCES = 2**18, 16
"""Tokens that `best_fit` packs together, or as many as so many sequences have. A quarter of those that a run reads
together (`shuffle`), because a run's blocks do not begin where a span does."""
SUPERSEDED = "superseded"
"""Reason of documents whose page a later version has captured again."""

_COUNTS = (
    "sequences",
    "tokens",
    "documents",
    "split_documents",
    "dropped_tokens",
    "padding_tokens",
)


class Documents(NamedTuple):
    """Documents to pack, in order, as columns of shape (documents,); the fields are those of SLICE, as int64."""

    shard: NDArray[np.int64]
    row: NDArray[np.int64]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]

    def where(self, mask: NDArray[np.bool_]) -> "Documents":
        """Returns the documents of a mask of shape (documents,)."""
        return Documents(self.shard[mask], self.row[mask], self.offset[mask], self.length[mask])


class PackedSequences(NamedTuple):
    """The sequences of one part."""

    slices: Slices
    """Sorted by sequence and position."""
    lengths: NDArray[np.int64]
    """Number of slices of each sequence, shape (sequences,)."""


def concat(documents: Documents, seq_len: int) -> PackedSequences:
    """Concatenates documents and cuts every `seq_len` tokens; drops the tokens after the last whole sequence."""
    starts = np.cumsum(documents.length) - documents.length
    sequences = int(documents.length.sum()) // seq_len
    end = sequences * seq_len
    # A slice begins at the beginning of a document or a sequence.
    cuts = np.unique(np.concatenate([starts[starts < end], np.arange(0, end, seq_len)]))
    document = np.searchsorted(starts, cuts, side="right") - 1
    slices = _slices(documents, document, cuts - starts[document], np.diff(np.append(cuts, end)))
    return PackedSequences(slices, np.bincount(cuts // seq_len, minlength=sequences))


def best_fit(documents: Documents, seq_len: int) -> PackedSequences:
    """Cuts only documents that are longer than a sequence; packs the pieces where they fit best.

    Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"): documents are cut every
    `seq_len` tokens from their beginning; the pieces, longest first, are put into the sequence with the smallest
    sufficient free space. With ordinary text, sequences are filled to 99.8 or 99.9 %; the rest is padding.

    So that successive sequences are read from few bytes, this is done for spans of about `_SPAN_TOKENS` successive
    tokens: a sequence has pieces of one span, and of the next one if it was not full.
    """
    pieces = -(-documents.length // seq_len)
    document = np.repeat(np.arange(len(pieces)), pieces)
    begin = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * seq_len
    length = np.minimum(documents.length[document] - begin, seq_len)
    span = (np.cumsum(length) - length) // max(_SPAN_TOKENS, _SPAN_SEQUENCES * seq_len)
    sequence = _best_fit_decreasing(length, span, seq_len)
    order = np.argsort(sequence, kind="stable")
    return PackedSequences(_slices(documents, document[order], begin[order], length[order]), np.bincount(sequence))


def _best_fit_decreasing(lengths: NDArray[np.int64], span: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Returns the bin of each piece, shape (pieces,); bins are numbered from 0 in the order of their first use.

    Args:
        lengths: of the pieces.
        span: of each piece, ascending. A bin has pieces of the span in which it was first used, and of the next one.
        capacity: of a bin.
    """
    bins = np.empty(len(lengths), dtype=np.int64)
    open_bins, earlier = _Bins(capacity), 0
    for pieces in np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(span)) + 1):
        open_bins, earlier = open_bins.since(earlier), open_bins.count
        for piece in pieces[np.argsort(-lengths[pieces], kind="stable")].tolist():
            bins[piece] = open_bins.put(int(lengths[piece]))
    return bins


class _Bins:
    """Bins with free space, looked up by it."""

    def __init__(self, capacity: int, count: int = 0) -> None:
        self.count = count
        """Bins so far."""
        self._capacity = capacity
        self._by_space: dict[int, list[int]] = {}
        self._spaces = 0  # bit s is set if a bin with free space s exists: the lowest set bit is the smallest space

    def put(self, length: int) -> int:
        """Puts a piece into the bin with the smallest sufficient space, or a new one; returns its number."""
        if sufficient := self._spaces >> length:
            space = length + (sufficient & -sufficient).bit_length() - 1
            numbers = self._by_space[space]
            number = numbers.pop()
            if not numbers:
                self._spaces ^= 1 << space
        else:
            space, number = self._capacity, self.count
            self.count += 1
        if rest := space - length:
            self._add(number, rest)
        return number

    def since(self, first: int) -> "_Bins":
        """Returns only the bins from number `first` on."""
        bins = _Bins(self._capacity, self.count)
        for space, numbers in self._by_space.items():
            for number in numbers:
                if number >= first:
                    bins._add(number, space)
        return bins

    def _add(self, number: int, space: int) -> None:
        self._by_space.setdefault(space, []).append(number)
        self._spaces |= 1 << space


def _slices(
    documents: Documents, document: NDArray[np.int64], begin: NDArray[np.int64], length: NDArray[np.int64]
) -> Slices:
    """Returns slices of `length` tokens from token `begin` of documents, given by their numbers."""
    slices = np.empty(len(document), dtype=SLICE)
    slices["shard"] = documents.shard[document]
    slices["row"] = documents.row[document]
    slices["offset"] = documents.offset[document] + begin
    slices["length"] = length
    return slices


METHODS = {"concat": concat, "best_fit": best_fit}


class _PackJob(NamedTuple):
    """One part to pack: a source's documents in some shards."""

    source: str
    number: int
    artifact: Artifact
    """With the parts that have these shards."""
    shards: tuple[IndexedRows, ...]
    numbers: tuple[int, ...]
    """Those of the shards in the plan."""
    superseded: tuple[RowMarks, ...]
    """Marks of the documents of each shard that a later version has captured again; () without earlier versions."""


def run(config: PackConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Packs every source; raises InputError if no source fills a sequence, or there is no column `by`."""
    artifact, shards = inputs["shards"], ShardSet.open(inputs["shards"])
    contents = _sources(shards) if config.by == SOURCE else _values(artifact, shards, config.by, engine)
    jobs = _jobs(artifact, shards, contents, superseded_marks(artifact, output, engine))
    specs = [PartSpec(_part_name(job), job) for job in jobs]
    withheld = withheld_rows(artifact, tombstones_of(inputs))
    records = output.map_parts(engine, partial(_pack, config, withheld, _repeats(config, inputs)), specs)
    leave_out(output)
    metrics = {record.name: {name: int(value) for name, value in record.metrics.items()} for record in records}
    counts = [metrics[spec.name] for spec in specs]
    if not any(count["sequences"] for count in counts):
        raise InputError(
            f"{artifact.address}: no source has the {config.seq_len} tokens of one sequence",
            "lower [pack] seq_len or add text",
        )
    if SUMMARY_PART not in output.committed:
        with output.part(SUMMARY_PART, conserved=False) as part:
            rows = shard_rows(artifact.parts, shards.all_names)
            tables = write_tables(part, rows, _part_rows(jobs, counts, {record.name: record for record in records}))
            fmt = _format(artifact, shards.all_names[0])
            content = {**_summary(config, shards, fmt, jobs, counts), "tables": tables}
            part.write(SUMMARY, json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")
    return _report(config, jobs, counts)


def _repeats(config: PackConfig, inputs: Inputs) -> ArtifactFolder | None:
    """Returns the folder of the long repeats to exclude, or None to keep them."""
    if not config.leave_out_repeats:
        return None
    if "repeats" not in inputs:
        raise InputError("[pack] leave_out_repeats: the search for repeats is disabled", "set [repeats] enabled = true")
    return inputs["repeats"].folder


def _sources(shards: ShardSet) -> dict[str, dict[str, int]]:
    """Returns the training shards of each source and their numbers of tokens, by name."""
    return {source: {name: shards.entry(name).tokens for name in shards.names(source)} for source in shards.sources}


def _values(artifact: Artifact, shards: ShardSet, by: str, engine: Engine) -> dict[str, dict[str, int]]:
    """Returns the shards with training documents of each value of a column, and their numbers of tokens, by name.

    Workers read the columns of the shards of each part.
    """
    by_part: dict[str, list[str]] = defaultdict(list)
    for name in shards.all_names:
        if parse_shard_name(name)[1] == TRAIN:
            by_part[shards.entry(name).part].append(name)
    groups = [(artifact.limited_to([part]), by_part[part.name]) for part in artifact.parts if part.name in by_part]
    found: dict[str, dict[str, int]] = {}
    for number, counts in engine.map(partial(_count_values, by), groups):
        found |= zip(groups[number][1], counts, strict=True)
    tokens_by_shard: dict[str, dict[str, int]] = defaultdict(dict)
    for name in sorted(found):
        for value, count in found[name].items():
            if len(value) > LONGEST:
                raise InputError(
                    f'[pack] by = "{by}" gives a name of more than {LONGEST} characters, "{value[:40]}..."',
                    "name columns with few, short values",
                )
            tokens_by_shard[value][name] = count
    return dict(sorted(tokens_by_shard.items()))


def _count_values(by: str, shards: tuple[Artifact, Sequence[str]]) -> list[dict[str, int]]:
    """Returns the tokens of each value of a column, for each of some shards of an artifact."""
    counts = []
    for column, lengths in _labels(shards[0], by, shards[1]):
        tokens = np.bincount(column.indices.to_numpy(), lengths, len(column.dictionary)).astype(np.int64)
        pairs = zip(column.dictionary.to_pylist(), tokens.tolist(), strict=True)
        counts.append({value: count for value, count in pairs if count})
    return counts


def _labels(
    artifact: Artifact, by: str, names: Sequence[str]
) -> Iterator[tuple[pa.DictionaryArray, NDArray[np.int64]]]:
    """Yields the value of a column and the number of tokens of each document, for each of some shards."""
    reader = RangeReader(entries_of(artifact, [shard_path(name) for name in names]))
    for number in range(len(names)):
        yield read_labels(cast(BinaryIO, RangeFile(reader, number)), by)
    reader.close()


def _format(artifact: Artifact, name: str) -> TokenFormat:
    """Returns the format of all shards, by that of one of them."""
    reader = RangeReader(entries_of(artifact, [shard_path(name)]))
    found = read_format(cast(BinaryIO, RangeFile(reader, 0)), name)
    reader.close()
    return found


def _jobs(
    artifact: Artifact, shards: ShardSet, contents: Mapping[str, dict[str, int]], superseded: Mapping[str, RowMarks]
) -> list[_PackJob]:
    """Returns the parts to pack, each with the records of the parts whose shards its worker reads."""
    numbers, places = {name: number for number, name in enumerate(shards.all_names)}, indexed_rows(artifact)
    records, jobs = {part.name: part for part in artifact.parts}, []
    for source, tokens in contents.items():
        for number, names in enumerate(_groups(tokens, _PART_TOKENS)):
            of_job = tuple(places[name] for name in names)
            limited = artifact.limited_to(records[part] for part in dict.fromkeys(shard.part for shard in of_job))
            marks = tuple(superseded[name] for name in names) if superseded else ()
            jobs.append(_PackJob(source, number, limited, of_job, tuple(numbers[name] for name in names), marks))
    return jobs


def _groups(tokens: dict[str, int], part_tokens: int) -> list[list[str]]:
    """Groups shards, in order of their names, into parts of about `part_tokens` tokens; at least one."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, count in tokens.items():
        if size >= part_tokens:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += count
    return groups


def _pack(
    config: PackConfig,
    withheld: Rows,
    repeats: ArtifactFolder | None,
    part: Part,
    job: _PackJob,
) -> None:
    documents = _documents(job, config.by)
    part.count_in(len(documents.row))
    for reason, rows in ((TAKEDOWN, withheld), (SUPERSEDED, _superseded(job))):
        is_kept = _is_in_none(job, documents, rows)
        documents = documents.where(is_kept)
        if count := int(np.count_nonzero(~is_kept)):
            part.reject(reason, count)
    if repeats:
        remaining = _without_repeats(repeats, documents, job)
        part.metric("repeated_tokens", int(documents.length.sum() - remaining.length.sum()))
        if excluded := len(documents.row) - len(np.unique(_keys(remaining.shard, remaining.row))):
            part.reject("repeated", excluded)
        documents = remaining
    packed = METHODS[config.method](documents, config.seq_len)
    if len(packed.lengths):
        for array, values in arrays_of(packed.slices, packed.lengths):
            with ranges.checksummed_file(
                part, f"{FOLDER}/{array_name(job.source, job.number, array)}", rows=len(values)
            ) as file:
                write_array(file, values)
    used, split = _count_used(packed)
    part.count_out(used)
    if unused := len(np.unique(_keys(documents.shard, documents.row))) - used:
        part.reject("incomplete_last_sequence", unused)
    tokens = int(packed.slices["length"].sum())
    counts = {
        "sequences": len(packed.lengths),
        "tokens": tokens,
        "documents": used,
        "split_documents": split,
        "dropped_tokens": int(documents.length.sum()) - tokens,
        "padding_tokens": len(packed.lengths) * config.seq_len - tokens,
    }
    for name, value in counts.items():
        part.metric(name, value)


def _superseded(job: _PackJob) -> Rows:
    """Returns the rows of each shard that a later version has captured again."""
    marks = [np.frombuffer(data, np.uint8) for data in concurrently(RowMarks.read, job.superseded)]
    # There are no marks without earlier versions.
    return {shard.shard: np.flatnonzero(of_shard) for shard, of_shard in zip(job.shards, marks, strict=False)}


def _without_repeats(repeats: ArtifactFolder, documents: Documents, job: _PackJob) -> Documents:
    """Returns the pieces of documents without their repeats; a document may have several pieces or none.

    Raises:
        InputError: the repeats are from other shards.
    """
    pieces = [documents.where(np.zeros(len(documents.row), np.bool_))]
    for shard, number_in_plan in zip(job.shards, job.numbers, strict=True):
        in_shard = documents.where(documents.shard == number_in_plan)
        repeated_runs = read_repeated_runs(repeats, shard.shard, shard.rows)
        number, begin, end = remaining_runs(in_shard.row, in_shard.length, repeated_runs).T
        pieces.append(
            Documents(in_shard.shard[number], in_shard.row[number], in_shard.offset[number] + begin, end - begin)
        )
    return Documents(*map(np.concatenate, zip(*pieces, strict=True)))


def _documents(job: _PackJob, by: str) -> Documents:
    if by == SOURCE:
        of_source = [np.arange(shard.rows) for shard in job.shards]
    else:
        labels = _labels(job.artifact, by, [shard.shard for shard in job.shards])
        of_source = [_rows_with(column, job.source) for column, _ in labels]
    columns = []
    for number, rows, records in zip(job.numbers, of_source, read_records(job.artifact, job.shards), strict=True):
        offset, length = (records[name][rows].astype(np.int64) for name in ("offset", "tokens"))
        columns.append((np.full(len(rows), number), rows, offset, length))
    empty = [np.empty(0, np.int64)] * len(Documents._fields)
    documents = Documents(*(np.concatenate(column) for column in zip(*columns, empty, strict=True)))
    if len(documents.offset) and int((documents.offset + documents.length).max()) >= 2**32:
        raise InputError("a token shard is longer than 2**32 tokens", "lower [encode] shard_tokens")
    return documents


def _rows_with(column: pa.DictionaryArray, value: str) -> NDArray[np.int64]:
    return np.flatnonzero(column.indices.to_numpy() == column.dictionary.index(value).as_py())


def _is_in_none(job: _PackJob, documents: Documents, rows_by_shard: Rows) -> NDArray[np.bool_]:
    """Returns a mask of the documents that are not among some rows, shape (documents,)."""
    mask = np.ones(len(documents.row), dtype=bool)
    for shard, number in zip(job.shards, job.numbers, strict=True):
        if shard.shard in rows_by_shard:
            mask &= (documents.shard != number) | ~np.isin(documents.row, rows_by_shard[shard.shard])
    return mask


def _keys(shard: NDArray[np.integer], row: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Returns a unique number per document."""
    keys: NDArray[np.uint64] = shard.astype(np.uint64) << np.uint64(32) | row.astype(np.uint64)
    return keys


def _count_used(packed: PackedSequences) -> tuple[int, int]:
    """Returns the number of documents with tokens in sequences, and the number of those in several sequences."""
    keys = _keys(packed.slices["shard"], packed.slices["row"])
    sequences = np.repeat(np.arange(len(packed.lengths)), packed.lengths)
    order = np.lexsort((sequences, keys))
    keys, sequences = keys[order], sequences[order]
    new = np.append(True, (np.diff(keys) != 0) | (np.diff(sequences) != 0))[: len(keys)]
    _, several = np.unique(keys[new], return_counts=True)
    return len(several), int(np.count_nonzero(several > 1))


def _summary(
    config: PackConfig, shards: ShardSet, fmt: TokenFormat, jobs: list[_PackJob], counts: list[dict[str, int]]
) -> dict[str, object]:
    parts: dict[str, tuple[int, int]] = {}
    totals: dict[str, dict[str, int]] = {name: defaultdict(int) for name in _COUNTS}
    for row, (job, count) in enumerate(zip(jobs, counts, strict=True)):
        parts[job.source] = (parts.get(job.source, (row, row))[0], row + 1)
        for name in _COUNTS:
            totals[name][job.source] += count[name]
    return {
        "seq_len": config.seq_len,
        "method": config.method,
        "by": config.by,
        "vocab_size": fmt.vocab_size,
        "eos_id": fmt.eos_id,
        "tokens_dtype": fmt.dtype,
        "tokenizer_sha256": fmt.tokenizer_sha256,
        "parts": parts,
        **totals,
        "heldout_documents": {source: shards.n_documents(source, HELDOUT) for source in shards.sources},
        "heldout_tokens": {source: shards.n_tokens(source, HELDOUT) for source in shards.sources},
    }


def _part_rows(
    jobs: list[_PackJob], counts: list[dict[str, int]], records: Mapping[str, PartRecord]
) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of the table of parts, in the order of the jobs."""
    begins: dict[str, int] = defaultdict(int)
    for job, count in zip(jobs, counts, strict=True):
        files = {file.path: file for file in records[_part_name(job)].files}

        def entry(array: str, files: dict[str, FileEntry] = files, job: _PackJob = job) -> tuple[FileEntry, FileEntry]:
            path = f"{FOLDER}/{array_name(job.source, job.number, array)}"
            return files[path], files[ranges.checksums_path(path)]

        shards = min(job.numbers, default=0), max(job.numbers, default=0)
        yield part_row(begins[job.source], count["sequences"], shards, entry)
        begins[job.source] += count["sequences"]


def _part_name(job: _PackJob) -> str:
    return f"{job.source}-{job.number:05d}"


def _report(config: PackConfig, jobs: list[_PackJob], counts: list[dict[str, int]]) -> Report:
    """Returns the totals; `waste` is the share of dropped tokens and padded positions."""
    totals = {name: float(sum(count[name] for count in counts)) for name in _COUNTS}
    if config.leave_out_repeats:
        totals["repeated_tokens"] = float(sum(count["repeated_tokens"] for count in counts))
    wasted = totals["dropped_tokens"] + totals["padding_tokens"]
    totals["waste"] = wasted / (totals["tokens"] + wasted)
    by_source: dict[str, int] = defaultdict(int)
    for job, count in zip(jobs, counts, strict=True):
        by_source[job.source] += count["sequences"]
    note = ", ".join(f"{source} {sequences:,}" for source, sequences in by_source.items())
    return Report(metrics=totals, note=f"sequences of {config.seq_len}: {note}; {totals['waste']:.2%} wasted")
