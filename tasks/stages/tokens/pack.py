"""Stage pack: token shards -> a plan, the document slices of each sequence.

Reads `shards`, and the takedowns in force (`takedowns`), whose documents get no slice; writes `plan/` (see
`formats.tokens.plan`) and its `checksums/`. Another sequence length rewrites 20 bytes per slice and no token. Sources
with more than 2**28 tokens are packed in parts, each by itself and on any worker.

`concat` joins documents end to end and cuts every `seq_len` tokens: at most the last `seq_len - 1` tokens of a part are
dropped, and there is no padding; documents may be split between sequences. `best_fit` splits only documents that are
longer than a sequence, and pads.
"""

import json
from collections import defaultdict
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core import checksums
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.tokens.labels import SOURCE
from tasks.formats.tokens.plan import FOLDER, SUMMARY, array_name, arrays_of, write_array
from tasks.formats.tokens.shard import HELDOUT, TRAIN, parse_shard_name
from tasks.formats.tokens.shard_set import ShardSet
from tasks.formats.tokens.withheld import Rows, withheld_rows
from tasks.formats.tombstones import TAKEDOWN, tombstones_of
from tasks.stages.tokens.config import PackConfig
from tasks.stages.tokens.packing import Documents, Packed, best_fit, concat

VERSION = 3
SUMMARY_PART = "summary.json"  # no source has a dot in its name
METHODS = {"concat": concat, "best_fit": best_fit}
_PART_TOKENS = 2**28
_COUNTS = (
    "sequences",
    "tokens",
    "documents",
    "split_documents",
    "dropped_tokens",
    "padding_tokens",
)


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
    records = output.map_parts(engine, partial(_pack, shards, config, withheld), specs)
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


def _pack(shards: ShardSet, config: PackConfig, withheld: Rows, part: Part, job: _Job) -> None:
    everything = _documents(shards, job, config.by)
    kept = _kept(shards, everything, withheld)
    documents = Documents(*(column[kept] for column in everything))
    packed = METHODS[config.method](documents, config.seq_len)
    if len(packed.lengths):
        for array, values in arrays_of(packed.slices, packed.lengths):
            with checksums.file(
                part, f"{FOLDER}/{array_name(job.source, job.number, array)}", rows=len(values)
            ) as file:
                write_array(file, values)
    used, split = _used(packed)
    part.count_in(len(kept))
    part.count_out(used)
    if taken_down := int(np.count_nonzero(~kept)):
        part.reject(TAKEDOWN, taken_down)
    if left := len(documents.length) - used:
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


def _used(packed: Packed) -> tuple[int, int]:
    """Returns how many documents have tokens in a sequence, and how many of them in several."""
    keys = packed.slices["shard"].astype(np.uint64) << np.uint64(32) | packed.slices["row"]
    _, slices = np.unique(keys, return_counts=True)
    return len(slices), int(np.count_nonzero(slices > 1))


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
    wasted = totals["dropped_tokens"] + totals["padding_tokens"]
    totals["waste"] = wasted / (totals["tokens"] + wasted)
    by_source: dict[str, int] = defaultdict(int)
    for job, count in zip(jobs, counts, strict=True):
        by_source[job.source] += count["sequences"]
    note = ", ".join(f"{source} {sequences:,}" for source, sequences in by_source.items())
    return Report(metrics=totals, note=f"sequences of {config.seq_len}: {note}; {totals['waste']:.2%} wasted")
