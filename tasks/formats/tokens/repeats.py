"""Long repeats: runs of tokens that occur more than once in the training documents.

The files of an artifact `repeats`:

    repeats/<shard>.parquet  one row per document of a training shard, in the same order (DOCUMENT)
    longest.parquet          the repeats with the most tokens (REPEAT)
    frequent.parquet         the repeats with the most occurrences (REPEAT)

A repeat is a run of at least `[repeats] min_tokens` tokens that occurs more than once, within one training document or
in several. No repeat contains an end-of-text token (Lee et al. 2022, "Deduplicating Training Data Makes Language Models
Better", section 4.1). Bounds are token indices in the document, end exclusive.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.errors import InputError

KIND = "repeats"
"""Kind of the artifact, its role as an input, and the folder with one file per shard."""
LONGEST, FREQUENT = "longest.parquet", "frequent.parquet"

_BOUNDS = [pa.field("begin", pa.uint32(), nullable=False), pa.field("end", pa.uint32(), nullable=False)]
RUN = pa.struct(_BOUNDS)
"""A run of tokens that all repeat an earlier occurrence and are part of no first occurrence."""
SPAN = pa.struct([*_BOUNDS, pa.field("occurrences", pa.uint32(), nullable=False)])
"""A run of tokens in repeats, and the maximum number of occurrences of a run of `min_tokens` tokens in it."""
DOCUMENT = pa.schema(
    [
        pa.field("doc_uid", pa.binary(16), nullable=False),
        pa.field("tokens", pa.uint32(), nullable=False),  # excluding end-of-text
        pa.field("share", pa.float32(), nullable=False),  # share of its tokens in `spans`
        pa.field("again_share", pa.float32(), nullable=False),  # share of its tokens in `again`
        pa.field("spans", pa.list_(SPAN), nullable=False),
        pa.field("again", pa.list_(RUN), nullable=False),
    ]
)

REPEAT = pa.schema(
    [
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("occurrences", pa.int64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),  # that contain it, among at most 1,000 occurrences
        pa.field("domains", pa.int64(), nullable=False),  # registered domains of these; for a file its source
        pa.field("url", pa.string(), nullable=False),  # of the document with the first occurrence
        pa.field("begin", pa.int64(), nullable=False),  # token index of the first occurrence
        pa.field("example", pa.string(), nullable=False),  # beginning of its text, with personal data masked
    ]
)


class RepeatedRuns(NamedTuple):
    """Repeated runs of a shard's documents (`again`): columns of shape (runs,), sorted by row and begin."""

    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


def path_of(shard: str) -> str:
    """Returns the path of the file with the documents of a shard."""
    return f"{KIND}/{shard}.parquet"


def read_repeated_runs(repeats: ArtifactFolder, shard: str, rows: int) -> RepeatedRuns:
    """Reads the repeated runs of a shard of `rows` documents; raises InputError if the file has other documents."""
    column = repeats.table(path_of(shard), columns=["again"]).column("again").combine_chunks()
    if len(column) != rows:
        raise InputError(
            f"{repeats.address} has {len(column):,} documents of the shard {shard}, which has {rows:,}",
            "run the stage repeats on these shards again",
        )
    flat = column.flatten()
    begin, end = (pc.struct_field(flat, name).to_numpy().astype(np.int64) for name in ("begin", "end"))
    return RepeatedRuns(pc.list_parent_indices(column).to_numpy(), begin, end)


def remaining_runs(rows: NDArray[np.int64], lengths: NDArray[np.int64], again: RepeatedRuns) -> NDArray[np.int64]:
    """Returns (number, begin, end) of the runs of tokens that are not repeated, shape (runs, 3), in document order.

    A document of which only the end-of-text token would remain has none.

    Args:
        rows: some documents of a shard, ascending; `number` is an index into it.
        lengths: tokens of each document including end-of-text, same shape as `rows`.
        again: repeated runs of the documents of the shard.
    """
    runs = []
    firsts, ends = (np.searchsorted(again.row, rows, side=side).tolist() for side in ("left", "right"))
    for number, (length, first, end) in enumerate(zip(lengths.tolist(), firsts, ends, strict=True)):
        begins = [0, *again.end[first:end].tolist()]
        pieces = [
            pair for pair in zip(begins, [*again.begin[first:end].tolist(), length], strict=True) if pair[0] < pair[1]
        ]
        if first == end or pieces != [(length - 1, length)]:
            runs += [(number, *pair) for pair in pieces]
    return np.array(runs, np.int64).reshape(-1, 3)
