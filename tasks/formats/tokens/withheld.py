"""Withheld rows: where in the token shards the documents lie that were taken down.

Reads the document index of the shards (`index`), so that shards made before a takedown serve after it.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.formats.tokens.index import FOLDER, read_entries
from tasks.formats.tombstones import Tombstones

Rows = Mapping[str, NDArray[np.int64]]
"""Shard -> rows of documents, ascending; shards without any are left out."""


def withheld_rows(shards: Artifact, tombstones: Tombstones) -> dict[str, NDArray[np.int64]]:
    """Returns the rows of an encoding that are taken down; {} without tombstones, and then nothing is read.

    Args:
        shards: artifact of the stage encode.
        tombstones: what is taken down.

    Raises:
        InputError: a file of the index cannot be read.
    """
    return rows_by_shard(covered_entries(shards, tombstones))


def covered_entries(shards: Artifact, tombstones: Tombstones) -> pa.Table:
    """Returns doc_uid, url, shard and row of the documents of an encoding that are taken down, in index order."""
    found = []
    for path in shards.files(f"{FOLDER}/") if tombstones else []:
        entries = read_entries(shards, path)
        found.append(entries.filter(pa.array(tombstones.mask(entries))))
    return pa.concat_tables(found) if found else pa.table({"shard": pa.array([], pa.string()), "row": []})


def rows_by_shard(entries: pa.Table) -> dict[str, NDArray[np.int64]]:
    """Returns the rows of a table with the columns shard and row by shard."""
    shards = np.array(entries.column("shard").to_pylist(), dtype=object)
    rows = np.array(entries.column("row").to_pylist(), dtype=np.int64)
    return {str(shard): np.sort(rows[shards == shard]) for shard in sorted(set(shards.tolist()))}
