"""Stage pack: token shards -> a plan, the document slices of each sequence.

Reads `shards`, and the takedowns in force (`takedowns`), whose documents get no slice; writes `plan/<source>.parquet`
and `plan/summary.json` (see `plan`). Another sequence length rewrites about 20 bytes per document and no token.

`concat` joins a source's documents end to end and cuts every `seq_len` tokens: at most the last `seq_len - 1` tokens
are dropped, and there is no padding; documents may be split between sequences.
"""

import json
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report
from tasks.formats.tokens.plan import FOLDER, SCHEMA, SUMMARY, write_plan
from tasks.formats.tokens.shard import HELDOUT, ShardSet
from tasks.formats.tokens.withheld import Rows, withheld_rows, without
from tasks.formats.tombstones import TAKEDOWN, tombstones_of
from tasks.stages.tokens.config import PackConfig

VERSION = 1
SUMMARY_PART = "summary.json"  # no source has a dot in its name


def run(config: PackConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Packs every source; raises InputError if no source fills a single sequence."""
    shards = ShardSet.open(inputs["shards"])
    sources = shards.sources
    specs = [PartSpec(source, source) for source in sources]
    withheld = withheld_rows(inputs["shards"], tombstones_of(inputs))
    records = output.map_parts(engine, partial(_pack_source, shards, config.seq_len, withheld), specs)
    metrics = {record.name: {name: int(value) for name, value in record.metrics.items()} for record in records}
    if not any(counts["sequences"] for counts in metrics.values()):
        raise InputError(
            f"{inputs['shards'].address}: no source has the {config.seq_len} tokens of one sequence",
            "lower [pack] seq_len or feed more text",
        )
    summary = _summary(config, shards, metrics)
    if SUMMARY_PART not in output.committed:
        with output.part(SUMMARY_PART, conserved=False) as part, part.file(SUMMARY) as file:
            file.write(json.dumps(summary, indent=2, sort_keys=True).encode() + b"\n")
    totals = {name: float(sum(counts[name] for counts in metrics.values())) for name in ("sequences", "dropped_tokens")}
    note = ", ".join(f"{source} {counts['sequences']:,}" for source, counts in metrics.items())
    return Report(metrics=totals, note=f"sequences of {config.seq_len}: {note}")


def _summary(config: PackConfig, shards: ShardSet, metrics: dict[str, dict[str, int]]) -> dict[str, object]:
    fmt = shards.format
    names = ("sequences", "tokens", "documents", "dropped_tokens", "heldout_documents", "heldout_tokens")
    return {
        "seq_len": config.seq_len,
        "method": config.method,
        "vocab_size": fmt.vocab_size,
        "eos_id": fmt.eos_id,
        "tokens_dtype": fmt.dtype,
        "tokenizer_sha256": fmt.tokenizer_sha256,
        **{name: {source: counts[name] for source, counts in metrics.items()} for name in names},
    }


def _pack_source(shards: ShardSet, seq_len: int, withheld: Rows, part: Part, source: str) -> None:
    lengths = [(name, without(name, shards.shard(name).lengths, withheld)) for name in shards.names(source)]
    total = sum(int(sizes.sum()) for _, sizes in lengths)
    sequences = total // seq_len
    tables = list(concat(lengths, seq_len))
    table = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
    with part.file(f"{FOLDER}/{source}.parquet", rows=table.num_rows) as file:
        write_plan(file, table)
    documents = sum(len(sizes) for _, sizes in lengths)
    taken_down = sum(len(withheld.get(name, ())) for name, _ in lengths)
    sizes = np.concatenate([np.empty(0, np.int64), *(sizes for _, sizes in lengths)])
    packed = int(np.count_nonzero((np.cumsum(sizes) - sizes < sequences * seq_len) & (sizes > 0)))
    part.count_in(documents)
    part.count_out(packed)
    if taken_down:
        part.reject(TAKEDOWN, taken_down)
    if documents > packed + taken_down:
        part.reject("incomplete_last_sequence", documents - packed - taken_down)
    part.metric("sequences", sequences)
    part.metric("tokens", sequences * seq_len)
    part.metric("dropped_tokens", total - sequences * seq_len)
    part.metric("documents", packed)
    part.metric("heldout_documents", shards.n_documents(source, HELDOUT))
    part.metric("heldout_tokens", shards.n_tokens(source, HELDOUT))


def concat(lengths: list[tuple[str, NDArray[np.int64]]], seq_len: int) -> Iterator[pa.Table]:
    """Joins documents end to end over all shards and cuts them every `seq_len` tokens.

    Args:
        lengths: name of each shard and numbers of tokens of its documents, shape (rows,); one of 0 gets no slice.
        seq_len: tokens per sequence.

    Yields:
        one plan table per shard; without the tokens after the last whole sequence.
    """
    end = sum(int(sizes.sum()) for _, sizes in lengths) // seq_len * seq_len
    begin = 0  # position of the shard's first token in the joined stream
    for name, sizes in lengths:
        starts = begin + np.concatenate([[0], np.cumsum(sizes)])
        stop = min(int(starts[-1]), end)
        # A slice begins where a document or a sequence begins.
        chunks = np.arange(-(-begin // seq_len) * seq_len, stop, seq_len)
        cuts = np.unique(np.concatenate([starts[:-1][starts[:-1] < stop], chunks]))
        row = np.searchsorted(starts, cuts, side="right") - 1
        columns = {
            "seq_id": cuts // seq_len,
            "shard": pa.repeat(name, len(cuts)),
            "row": row,
            "start": cuts - starts[row],
            "len": np.diff(np.append(cuts, stop)),
            "pos": cuts % seq_len,
        }
        yield pa.table([pa.array(columns[field.name]).cast(field.type) for field in SCHEMA], schema=SCHEMA)
        begin = int(starts[-1])
