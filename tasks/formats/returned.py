"""Documents that come back: those that went as duplicates of a document that is no longer in the dedup index.

Reads the copies of an index (`tasks.formats.dedup.dedup_index`). Each part of the index with such documents gives one part of
the next version's `extracted`, `returned-<number>`.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.formats.dedup.dedup_index import NAMES, DedupIndex
from tasks.formats.documents.tombstones import Tombstones

_PREFIX = "returned-"


def returned_part_name(number: int) -> str:
    """Returns the name of the part with the documents that come back from one part of the index."""
    return f"{_PREFIX}{number:05d}"


def is_returned(name: str) -> bool:
    """Returns whether a part of documents is one of documents that have come back."""
    return name.startswith(_PREFIX)


def id_array(values: Sequence[str]) -> pa.Array:
    """Returns document ids as an array, also where there is none."""
    return pa.array(values, pa.string())


def forgotten(index: DedupIndex, takedowns: Tombstones, number: int) -> pa.Array:
    """Returns the ids of the documents and copies of one part of the index that are taken down."""
    if not takedowns:
        return id_array([])
    held = pa.concat_tables([index.names(number), index.copies(number).select(NAMES.names)])
    return held.filter(pa.array(takedowns.mask(held))).column("id").combine_chunks()


def returning(index: DedupIndex, gone: pa.Array, takedowns: Tombstones, number: int) -> pa.Table:
    """Returns the copies in one part of the index that come back, by origin and row (schema COPIES).

    Args:
        index: the index of the version before.
        gone: ids of the index that are taken down (`forgotten`, of all parts).
        takedowns: what is taken down does not come back itself.
        number: of the part.
    """
    copies = index.copies(number)
    alone = pc.or_(pc.is_null(copies.column("duplicate_of")), pc.is_in(copies.column("duplicate_of"), value_set=gone))
    back: NDArray[np.bool_] = alone.to_numpy()
    if takedowns:
        back = back & ~takedowns.mask(copies)
    return copies.filter(pa.array(back)).sort_by([("origin", "ascending"), ("row", "ascending")])


def returned_documents(index: DedupIndex, copies: pa.Table) -> pa.Table:
    """Returns the documents of some copies, as they were extracted, sorted by id."""
    origins = copies.column("origin").to_numpy()
    found = [
        index.documents_at(origin, copies.column("row").to_numpy()[origins == origin])
        for origin in np.unique(origins).tolist()
    ]
    return pa.concat_tables(found).sort_by("id")
