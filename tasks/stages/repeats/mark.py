"""Second step, per shard: the tokens of each document that are in repeats.

Reads the `occurrences/` of all ranges (OCCURRENCE) and one training shard. Writes `repeats/<shard>.parquet`
(`tasks.formats.tokens.repeats.DOCUMENT`).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats.dedup.sorted_runs import Buckets, read_range
from tasks.formats.tokens.repeats import DOCUMENT, KIND, RUN, SPAN
from tasks.formats.tokens.shard import ShardSet
from tasks.stages.repeats.maximal import OCCURRENCE

_BLOCK_TOKENS = 1 << 22


class ShardJob(NamedTuple):
    """One shard: its name, and the offset of its tokens in those of all shards."""

    shard: str
    begin: int


class _RepeatMasks(NamedTuple):
    """Masks of the tokens of some documents: `inside` repeats, and `again` without first occurrences."""

    inside: NDArray[np.bool_]
    again: NDArray[np.bool_]
    starts: NDArray[np.int64]
    """Starts of repeated runs of `width` tokens, ascending; `counts` has their numbers of occurrences."""
    counts: NDArray[np.int64]


def mark_shard(width: int, shards: ShardSet, own: ArtifactFolder, ranges: Buckets, part: Part, job: ShardJob) -> None:
    """Writes one part; runs on a worker.

    Args:
        width: length of the shortest repeat, in tokens.
        shards: the shards.
        own: folder of the stage's artifact.
        ranges: names of its files with occurrences.
        part: receives the file.
        job: the shard.
    """
    shard = shards.shard(job.shard)
    part.count_in(shard.rows)
    begin, tables = job.begin, [DOCUMENT.empty_table()]
    uids = shard.uids
    for rows, lengths in _blocks(shard.lengths):
        size = int(lengths.sum())
        records = read_range(own, ranges.paths(), OCCURRENCE, 2 * begin, 2 * (begin + size))
        masks = _masks(records, begin, size, width)
        tables.append(_table(masks, lengths, uids[rows]))
        part.metric("tokens", size - len(lengths))
        part.metric("repeated_tokens", int(masks.inside.sum()))
        part.metric("again_tokens", int(masks.again.sum()))
        begin += size
    table = pa.concat_tables(tables).combine_chunks()
    part.metric("documents_with_repeats", int(np.count_nonzero(table.column("share").to_numpy())))
    part.table(KIND, table)


def _blocks(lengths: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yields runs of documents of about `_BLOCK_TOKENS` tokens: their rows, and the tokens of each."""
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // _BLOCK_TOKENS)) + 1
    edges = [0, *cuts.tolist(), len(lengths)]
    for first, end in pairwise(edges):
        if end > first:
            yield slice(first, end), lengths[first:end]


def _masks(records: NDArray[np.void], begin: int, size: int, width: int) -> _RepeatMasks:
    order = np.argsort(records["key"], kind="stable")
    starts = (records["key"][order] >> np.uint64(1)).astype(np.int64) - begin
    earlier = (records["key"][order] & np.uint64(1)).astype(np.bool_)
    inside = _covered(starts, size, width)
    again = _covered(starts[earlier], size, width) & ~_covered(starts[~earlier], size, width)
    return _RepeatMasks(inside, again, starts, records["count"][order].astype(np.int64))


def _covered(starts: NDArray[np.int64], size: int, width: int) -> NDArray[np.bool_]:
    """Returns a mask of the tokens covered by runs of `width` tokens at `starts`, shape (size,)."""
    change = np.zeros(size + 1, np.int32)
    np.add.at(change, starts, 1)
    np.add.at(change, starts + width, -1)
    covered: NDArray[np.bool_] = np.cumsum(change[:-1]) > 0
    return covered


def _table(masks: _RepeatMasks, lengths: NDArray[np.int64], uids: NDArray[np.uint8]) -> pa.Table:
    ends = np.cumsum(lengths)
    begins = ends - lengths
    first, end = _runs(masks.inside)
    max_counts = np.empty(0, np.int64)
    if len(first):
        max_counts = np.maximum.reduceat(masks.counts, np.searchsorted(masks.starts, first))
    tokens = lengths - 1
    columns = [
        pa.array([uid.tobytes() for uid in uids], pa.binary(16)),
        pa.array(tokens, pa.uint32()),
        *(_share(mask, begins, ends, tokens) for mask in (masks.inside, masks.again)),
        _lists(first, end, begins, SPAN, max_counts),
        _lists(*_runs(masks.again), begins, RUN),
    ]
    return pa.table(columns, schema=DOCUMENT)


def _runs(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns starts and ends of runs of true values; none crosses documents, whose last token is never true."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return edges[::2], edges[1::2]


def _share(
    mask: NDArray[np.bool_], begins: NDArray[np.int64], ends: NDArray[np.int64], tokens: NDArray[np.int64]
) -> pa.Array:
    total = np.append(0, np.cumsum(mask))
    return pa.array((total[ends] - total[begins]) / np.maximum(tokens, 1), pa.float32())


def _lists(
    first: NDArray[np.int64],
    end: NDArray[np.int64],
    begins: NDArray[np.int64],
    kind: pa.StructType,
    *more: NDArray[Any],
) -> pa.Array:
    """Returns runs as a list per document, with positions relative to the document."""
    document = np.searchsorted(begins, first, side="right") - 1
    values = [first - begins[document], end - begins[document], *more]
    arrays = [pa.array(value, field.type) for value, field in zip(values, kind, strict=True)]
    offsets = np.searchsorted(document, np.arange(len(begins) + 1)).astype(np.int32)
    structs = pa.StructArray.from_arrays(arrays, fields=list(kind))
    return pa.ListArray.from_arrays(pa.array(offsets), structs)
