"""The order of preference of documents: highest quality first, then earliest fetch (unknown last), then smallest id.

`preference/<part>.bin` has one record of 28 bytes per document, in row order, smaller is preferred in every field. So
any set of documents is ordered by its own records, without an order of the whole corpus, and documents of several
cycles can be compared.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.formats import packed_ids
from tasks.formats.packed_ids import HALVES
from tasks.formats.row_ids import part_of, row_of

PREFERENCE = np.dtype([("quality", "<u4"), ("fetched", "<u8"), ("id", HALVES)])
FOLDER = "preference"


def preferences(quality: pa.ChunkedArray, fetched_at: pa.ChunkedArray, ids: pa.ChunkedArray) -> NDArray[np.void]:
    """Returns the records (dtype PREFERENCE) of documents.

    Args:
        quality: float32, without nulls.
        fetched_at: timestamps in milliseconds, null where unknown.
        ids: document ids, 32 hex digits each.

    Raises:
        InputError: an id is something else.
    """
    records = np.empty(len(ids), PREFERENCE)
    records["quality"] = ~_ordered(quality.to_numpy().astype(np.float32))
    stamps = pc.fill_null(fetched_at.cast(pa.int64()), 0).to_numpy()
    fetched = stamps.astype(np.uint64) ^ np.uint64(1 << 63)  # negative ones first
    records["fetched"] = np.where(fetched_at.is_valid().to_numpy(), fetched, np.iinfo(np.uint64).max)
    records["id"] = packed_ids.pack(ids)
    return records


def _ordered(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Returns integers in the order of the numbers; what is not a number is below all."""
    bits = (np.where(np.isnan(values), np.float32(-np.inf), values) + np.float32(0)).view(np.uint32)  # -0.0 is 0.0
    negative = bits >> np.uint32(31) == 1
    return np.where(negative, ~bits, bits | np.uint32(1 << 31))


def order(records: NDArray[np.void], row_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the indices of documents, most preferred first; of equal records the smaller row id is preferred."""
    ids = records["id"]
    return np.lexsort((row_ids, ids[:, 1], ids[:, 0], records["fetched"], records["quality"]))


def read(folder: ArtifactFolder, names: Sequence[str], row_ids: NDArray[np.uint64]) -> NDArray[np.void]:
    """Returns the records of documents, part by part.

    Args:
        folder: this stage's artifact.
        names: the parts of the corpus, by number.
        row_ids: in any order.
    """
    found = np.empty(len(row_ids), PREFERENCE)
    sequence = np.argsort(row_ids)
    parts = part_of(row_ids[sequence])
    for part in np.unique(parts).tolist():
        mine = sequence[np.searchsorted(parts, part) : np.searchsorted(parts, part, side="right")]
        mapped = np.memmap(folder.local(f"{FOLDER}/{names[part]}.bin"), PREFERENCE, mode="r")
        found[mine] = mapped[row_of(row_ids[mine])]
    return found
