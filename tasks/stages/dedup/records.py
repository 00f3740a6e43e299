"""The packed records that the passes of this stage exchange, in sorted runs (`tasks.formats.sorted_runs`).

Those that outlive the stage are in `tasks.formats.dedup_index`. A document is named by its row id
(`tasks.formats.row_ids`), and a text by the row id of its first document: the smallest of all with equal text.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.formats.mix import mix
from tasks.formats.packed_ids import HALVES

PAIR = np.dtype([("key", "<u8"), ("left", "<u8"), ("right", "<u8")])
"""Two texts that share a band, left < right, by a hash of both."""

ROW_ID = np.dtype([("key", "<u8")])
"""A row id."""

LINK = np.dtype([("key", "<u8"), ("left", "<u8"), ("right", "<u8"), ("jaccard", "<f4"), ("equal", "u1")])
"""A verified pair of texts; or (`equal`) a text and another document with it. By a hash of left."""

EDGE = np.dtype([("key", "<u8"), ("node", "<u8"), ("other", "<u8")])
"""An edge of the graph of verified pairs, by a hash of `node`."""

LABELLED = np.dtype(
    [("key", "<u8"), ("label", "<u8"), ("left", "<u8"), ("right", "<u8"), ("jaccard", "<f4"), ("equal", "u1")]
)
"""A link with the label of its cluster, by a hash of the label."""

VERDICT = np.dtype(
    [
        ("key", "<u8"),
        ("keeper", HALVES),
        ("jaccard", "<f4"),
        ("kind", "u1"),
        ("cluster", HALVES),
        ("text", HALVES),
        ("rank", "<u4"),
        ("bucket", "<u4"),
    ]
)
"""The verdict on a document of a cluster, by its row id. `kind` is an index into `KINDS`."""

RECAPTURED = np.dtype([("key", "<u8"), ("page", "<u8")])
"""A document whose page has another capture, by its row id."""

KINDS = ("", "exact", "near")
"""Kinds of verdicts; "" for a document that is kept."""


def pair_key(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a hash of each pair, uniform over 64 bits."""
    return mix(mix(left) + right)


def packed(dtype: np.dtype[np.void], **columns: NDArray[np.generic]) -> NDArray[np.void]:
    """Returns records with the given columns; the other fields are 0."""
    records = np.zeros(len(next(iter(columns.values()))), dtype)
    for name, column in columns.items():
        records[name] = column
    return records
