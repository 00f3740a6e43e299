"""Long repeats: which tokens of the training documents stand in a run that occurs elsewhere, too.

The files of an artifact `repeats`:

    repeats/<shard>.parquet  one row per document of a training shard, in its order (DOCUMENT)
    longest.parquet          the repeats of most tokens (REPEAT)
    frequent.parquet         those of most occurrences (REPEAT)

A repeat is a run of at least `[repeats] min_tokens` tokens that occurs more than once in the training documents, within
one or in several; none has an end-of-text token (Lee et al. 2022, "Deduplicating Training Data Makes Language Models
Better", section 4.1). Places are tokens of the document, end exclusive.
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
AGAIN = pa.struct(_BOUNDS)
"""Tokens that stand in an earlier repeat, and in none that is the first of its kind."""
SPAN = pa.struct([*_BOUNDS, pa.field("occurrences", pa.uint32(), nullable=False)])
"""Tokens in repeats, and the largest number of occurrences of a run of `min_tokens` tokens within them."""
DOCUMENT = pa.schema(
    [
        pa.field("doc_uid", pa.binary(16), nullable=False),
        pa.field("tokens", pa.uint32(), nullable=False),  # without end-of-text
        pa.field("share", pa.float32(), nullable=False),  # of its tokens in repeats
        pa.field("again_share", pa.float32(), nullable=False),  # of its tokens in `again`
        pa.field("spans", pa.list_(SPAN), nullable=False),
        pa.field("again", pa.list_(AGAIN), nullable=False),
    ]
)

REPEAT = pa.schema(
    [
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("occurrences", pa.int64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),  # with it; of 1,000 occurrences where there are more
        pa.field("domains", pa.int64(), nullable=False),  # registered domains of these; of a file its source
        pa.field("url", pa.string(), nullable=False),  # of the document of the first occurrence
        pa.field("begin", pa.int64(), nullable=False),  # its first token there
        pa.field("example", pa.string(), nullable=False),  # how it begins, with personal data masked
    ]
)


class Again(NamedTuple):
    """Runs of tokens of a shard's documents that stand earlier, too; columns of shape (runs,), by row and place."""

    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


def path_of(shard: str) -> str:
    """Returns the file with the documents of a shard."""
    return f"{KIND}/{shard}.parquet"


def again_in(repeats: ArtifactFolder, shard: str, rows: int) -> Again:
    """Reads what a shard of so many documents repeats; raises InputError where the file is that of another shard."""
    column = repeats.table(path_of(shard), columns=["again"]).column("again").combine_chunks()
    if len(column) != rows:
        raise InputError(
            f"{repeats.address} has {len(column):,} documents of the shard {shard}, which has {rows:,}",
            "run the stage repeats on these shards again",
        )
    flat = column.flatten()
    begin, end = (pc.struct_field(flat, name).to_numpy().astype(np.int64) for name in ("begin", "end"))
    return Again(pc.list_parent_indices(column).to_numpy(), begin, end)


def kept_pieces(rows: NDArray[np.int64], lengths: NDArray[np.int64], again: Again) -> NDArray[np.int64]:
    """Returns (number, begin, end) of the runs of tokens that are left of documents, shape (runs, 3), in their order.

    Nothing is left of a document of which nothing but its end-of-text token would be.

    Args:
        rows: some documents of a shard, ascending; `number` counts in these.
        lengths: tokens of each with end-of-text, of the shape of `rows`.
        again: what the documents of the shard repeat.
    """
    found = []
    firsts, ends = (np.searchsorted(again.row, rows, side=side).tolist() for side in ("left", "right"))
    for number, (length, first, end) in enumerate(zip(lengths.tolist(), firsts, ends, strict=True)):
        begins = [0, *again.end[first:end].tolist()]
        pieces = [
            pair for pair in zip(begins, [*again.begin[first:end].tolist(), length], strict=True) if pair[0] < pair[1]
        ]
        if first == end or pieces != [(length - 1, length)]:
            found += [(number, *pair) for pair in pieces]
    return np.array(found, np.int64).reshape(-1, 3)
