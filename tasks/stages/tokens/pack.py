"""Stage pack: token shards -> a plan, the document slices of each sequence.

Reads `shards`, and the takedowns in force (`takedowns`), whose documents get no slice; writes `plan/` (see
`formats.tokens.plan`) and its `checksums/`. Another sequence length rewrites 20 bytes per slice and no token. Sources
with more than 2**28 tokens are packed in parts, each by itself and on any worker.

With `leave_out_repeats` the `repeats` are read, too: what is left of a document before, between and behind them is
packed like documents of their own, and no attention crosses the gap.

`concat` joins documents end to end and cuts every `seq_len` tokens: at most the last `seq_len - 1` tokens of a part are
dropped, and there is no padding; documents may be split between sequences. `best_fit` splits only documents that are
longer than a sequence, and pads.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import ranges
from tasks.core.artifact import ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.documents.tombstones import TAKEDOWN, tombstones_of
from tasks.formats.tokens.labels import SOURCE
from tasks.formats.tokens.marks import Rows, withheld_rows
from tasks.formats.tokens.plan import FOLDER, SLICE, SUMMARY, Slices, array_name, arrays_of, write_array
from tasks.formats.tokens.repeats import read_repeated_runs, remaining_runs
from tasks.formats.tokens.shard import HELDOUT, TRAIN, ShardSet, parse_shard_name
from tasks.stages.tokens import PackConfig

VERSION = 3
SUMMARY_PART = "summary.json"  # no source has a dot in its name
_PART_TOKENS = 2**28

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


class Packed(NamedTuple):
    """The sequences of one part."""

    slices: Slices
    """Sorted by sequence and position."""
    lengths: NDArray[np.int64]
    """Slices of each sequence, shape (sequences,)."""


def concat(documents: Documents, seq_len: int) -> Packed:
    """Joins documents end to end and cuts every `seq_len` tokens; the tokens after the last whole sequence are left."""
    starts = np.cumsum(documents.length) - documents.length
    sequences = int(documents.length.sum()) // seq_len
    end = sequences * seq_len
    # A slice begins where a document or a sequence begins.
    cuts = np.unique(np.concatenate([starts[starts < end], np.arange(0, end, seq_len)]))
    document = np.searchsorted(starts, cuts, side="right") - 1
    slices = _slices(documents, document, cuts - starts[document], np.diff(np.append(cuts, end)))
    return Packed(slices, np.bincount(cuts // seq_len, minlength=sequences))


def best_fit(documents: Documents, seq_len: int) -> Packed:
    """Cuts only documents that are longer than a sequence; packs the rest where they fit best.

    Best-fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"): documents are cut every
    `seq_len` tokens from their beginning; the pieces, the longest first, are put into the sequence with the least room
    that is enough. Sequences are filled to 99.9 % of their room and more in usual text, the rest of each is padding.
    """
    pieces = -(-documents.length // seq_len)
    document = np.repeat(np.arange(len(pieces)), pieces)
    begin = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * seq_len
    length = np.minimum(documents.length[document] - begin, seq_len)
    sequence = _best_fit_decreasing(length, seq_len)
    order = np.argsort(sequence, kind="stable")
    return Packed(_slices(documents, document[order], begin[order], length[order]), np.bincount(sequence))


def _best_fit_decreasing(lengths: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Returns the bin of each piece, shape (pieces,); bins count from 0 in the order in which they are opened."""
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # room -> bins with exactly that room
    rooms = 0  # bit r is set where a bin with room r exists: the least room that is enough is the lowest set bit
    bins = np.empty(len(lengths), dtype=np.int64)
    opened = 0
    order = np.argsort(-lengths, kind="stable")
    for piece, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if enough := rooms >> length:
            room = length + (enough & -enough).bit_length() - 1
            number = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, number = capacity, opened
            opened += 1
        bins[piece] = number
        left = room - length
        if left:
            with_room[left].append(number)
            rooms |= 1 << left
    return bins


def _slices(
    documents: Documents, document: NDArray[np.int64], begin: NDArray[np.int64], length: NDArray[np.int64]
) -> Slices:
    """Returns slices of `length` tokens from token `begin` of some documents, by their numbers."""
    slices = np.empty(len(document), dtype=SLICE)
    slices["shard"] = documents.shard[document]
    slices["row"] = documents.row[document]
    slices["offset"] = documents.offset[document] + begin
    slices["length"] = length
    return slices


METHODS = {"concat": concat, "best_fit": best_fit}


class _Job(NamedTuple):
    """One part to pack: a source's documents in some shards."""

    source: str
    number: int
    shards: tuple[str, ...]


def run(config: PackConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Packs every source; raises InputError if no source fills a single sequence, or no column is called `by`."""
    shards = ShardSet.open(inputs["shards"])
    jobs = [job for source, names in _contents(shards, config.by).items() for job in _jobs(source, names, _PART_TOKENS)]
    specs = [PartSpec(f"{job.source}-{job.number:05d}", job) for job in jobs]
    withheld = withheld_rows(inputs["shards"], tombstones_of(inputs))
    records = output.map_parts(engine, partial(_pack, shards, config, withheld, _repeats(config, inputs)), specs)
    made = {record.name: {name: int(value) for name, value in record.metrics.items()} for record in records}
    counts = [made[spec.name] for spec in specs]
    if not any(count["sequences"] for count in counts):
        raise InputError(
            f"{inputs['shards'].address}: no source has the {config.seq_len} tokens of one sequence",
            "lower [pack] seq_len or feed more text",
        )
    if SUMMARY_PART not in output.committed:
        with output.part(SUMMARY_PART, conserved=False) as part, part.file(SUMMARY) as file:
            content = _summary(config, shards, jobs, counts)
            file.write(json.dumps(content, indent=2, sort_keys=True).encode() + b"\n")
    return _report(config, jobs, counts)


def _repeats(config: PackConfig, inputs: Inputs) -> ArtifactFolder | None:
    """Returns the long repeats that are left out; None where they stay."""
    if not config.leave_out_repeats:
        return None
    if "repeats" not in inputs:
        raise InputError("[pack] leave_out_repeats: no repeats were looked for", "set [repeats] enabled = true")
    return inputs["repeats"].folder


def _contents(shards: ShardSet, by: str) -> dict[str, dict[str, int]]:
    """Returns for each value of a column the shards with training documents of it, and their tokens."""
    found: dict[str, dict[str, int]] = {source: {} for source in shards.sources} if by == SOURCE else defaultdict(dict)
    for name in shards.all_names:
        source, split = parse_shard_name(name)
        if split != TRAIN:
            continue
        shard = shards.shard(name)
        if by == SOURCE:
            found[source][name] = shard.n_tokens
            continue
        column = shard.column(by)
        tokens = np.bincount(column.indices.to_numpy(), shard.lengths, len(column.dictionary)).astype(np.int64)
        for value, count in zip(column.dictionary.to_pylist(), tokens.tolist(), strict=True):
            if count:
                found[value][name] = count
    return dict(sorted(found.items()))


def _jobs(source: str, tokens: dict[str, int], part_tokens: int) -> list[_Job]:
    """Groups shards, in order of their names, into parts of about `part_tokens` tokens; at least one."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, count in tokens.items():
        if size >= part_tokens:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += count
    return [_Job(source, number, tuple(group)) for number, group in enumerate(groups)]


def _pack(
    shards: ShardSet, config: PackConfig, withheld: Rows, repeats: ArtifactFolder | None, part: Part, job: _Job
) -> None:
    everything = _documents(shards, job, config.by)
    kept = _kept(shards, everything, withheld)
    documents = Documents(*(column[kept] for column in everything))
    if repeats:
        documents = _left_of(shards, repeats, documents, job, part)
    packed = METHODS[config.method](documents, config.seq_len)
    if len(packed.lengths):
        for array, values in arrays_of(packed.slices, packed.lengths):
            with ranges.checksummed_file(
                part, f"{FOLDER}/{array_name(job.source, job.number, array)}", rows=len(values)
            ) as file:
                write_array(file, values)
    used, split = _used(packed)
    part.count_in(len(kept))
    part.count_out(used)
    if taken_down := int(np.count_nonzero(~kept)):
        part.reject(TAKEDOWN, taken_down)
    if left := len(np.unique(_keys(documents.shard, documents.row))) - used:
        part.reject("incomplete_last_sequence", left)
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


def _left_of(shards: ShardSet, repeats: ArtifactFolder, documents: Documents, job: _Job, part: Part) -> Documents:
    """Returns documents without what they repeat, and counts what is gone."""
    left = _without_repeats(shards, repeats, documents, job.shards)
    part.metric("repeated_tokens", int(documents.length.sum() - left.length.sum()))
    if gone := len(documents.row) - len(np.unique(_keys(left.shard, left.row))):
        part.reject("repeated", gone)
    return left


def _without_repeats(
    shards: ShardSet, repeats: ArtifactFolder, documents: Documents, names: Sequence[str]
) -> Documents:
    """Returns what is left of documents without what they repeat; of one document there may be several pieces, or none.

    Raises:
        InputError: the repeats are of other shards.
    """
    numbers, found = _numbers(shards), [Documents(*(column[:0] for column in documents))]
    for name in names:
        mine = Documents(*(column[documents.shard == numbers[name]] for column in documents))
        again = read_repeated_runs(repeats, name, shards.shard(name).rows)
        number, begin, end = remaining_runs(mine.row, mine.length, again).T
        found.append(Documents(mine.shard[number], mine.row[number], mine.offset[number] + begin, end - begin))
    return Documents(*map(np.concatenate, zip(*found, strict=True)))


def _documents(shards: ShardSet, job: _Job, by: str) -> Documents:
    numbers, columns = _numbers(shards), []
    for name in job.shards:
        shard = shards.shard(name)
        rows = np.arange(shard.rows) if by == SOURCE else _rows_with(shard.column(by), job.source)
        columns.append((np.full(len(rows), numbers[name]), rows, shard.token_offsets[rows], shard.lengths[rows]))
    empty = [np.empty(0, np.int64)] * len(Documents._fields)
    documents = Documents(*(np.concatenate(column) for column in zip(*columns, empty, strict=True)))
    if len(documents.offset) and int((documents.offset + documents.length).max()) >= 2**32:
        raise InputError("a token shard is longer than 2**32 tokens", "lower [encode] shard_tokens")
    return documents


def _rows_with(column: pa.DictionaryArray, value: str) -> NDArray[np.int64]:
    return np.flatnonzero(column.indices.to_numpy() == column.dictionary.index(value).as_py())


def _kept(shards: ShardSet, documents: Documents, withheld: Rows) -> NDArray[np.bool_]:
    """Returns which documents are not withheld, shape (documents,)."""
    kept = np.ones(len(documents.row), dtype=bool)
    numbers = _numbers(shards) if withheld else {}
    for name, rows in withheld.items():
        kept &= (documents.shard != numbers[name]) | ~np.isin(documents.row, rows)
    return kept


def _numbers(shards: ShardSet) -> dict[str, int]:
    return {name: number for number, name in enumerate(shards.all_names)}


def _keys(shard: NDArray[np.integer], row: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Returns one number per document."""
    keys: NDArray[np.uint64] = shard.astype(np.uint64) << np.uint64(32) | row.astype(np.uint64)
    return keys


def _used(packed: Packed) -> tuple[int, int]:
    """Returns how many documents have tokens in a sequence, and how many of them in several."""
    keys = _keys(packed.slices["shard"], packed.slices["row"])
    sequences = np.repeat(np.arange(len(packed.lengths)), packed.lengths)
    order = np.lexsort((sequences, keys))
    keys, sequences = keys[order], sequences[order]
    new = np.append(True, (np.diff(keys) != 0) | (np.diff(sequences) != 0))[: len(keys)]
    _, several = np.unique(keys[new], return_counts=True)
    return len(several), int(np.count_nonzero(several > 1))


def _summary(config: PackConfig, shards: ShardSet, jobs: list[_Job], counts: list[dict[str, int]]) -> dict[str, object]:
    fmt, numbers = shards.format, _numbers(shards)
    parts = defaultdict(list)
    totals: dict[str, dict[str, int]] = {name: defaultdict(int) for name in _COUNTS}
    for job, count in zip(jobs, counts, strict=True):
        inside = [numbers[name] for name in job.shards]
        about = {
            "sequences": count["sequences"],
            "first_shard": min(inside, default=0),
            "last_shard": max(inside, default=0),
        }
        parts[job.source].append(about)
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
        "shards": shards.all_names,
        "parts": parts,
        **totals,
        "heldout_documents": {source: shards.n_documents(source, HELDOUT) for source in shards.sources},
        "heldout_tokens": {source: shards.n_tokens(source, HELDOUT) for source in shards.sources},
    }


def _report(config: PackConfig, jobs: list[_Job], counts: list[dict[str, int]]) -> Report:
    """Returns totals; `waste` is the share of tokens dropped and of positions padded."""
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
