"""Withheld rows: where in the token shards the documents lie that were taken down.

Reads the document index of the shards (`index`), so that shards made before a takedown serve after it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.artifact import Artifact
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.index import ENTRIES, DocumentIndex, Entry
from tasks.formats.web.domain import is_public_suffix

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
    """Returns doc_uid, url, shard and row of the documents of an encoding that are taken down, by part and place."""
    if not tombstones:
        return _table([])
    index = DocumentIndex(shards)
    if any(map(is_public_suffix, tombstones.domains)):  # the index has the domains below these
        tables = list(index.entries())
    else:
        tables = [_table(_candidates(index, tombstones))]
    return pa.concat_tables(table.filter(pa.array(tombstones.mask(table))) for table in tables)


def _candidates(index: DocumentIndex, tombstones: Tombstones) -> list[Entry]:
    """Returns the documents by id, and all of the tombstones' hosts, because a URL may be written in many ways."""
    found = {index.by_uid(bytes.fromhex(one)) for one in tombstones.documents}
    for name in {*tombstones.domains, *tombstones.hosts}:
        found.update(index.by_domain(name)[1])
    return sorted((one for one in found if one), key=lambda one: (one.part, one.shard, one.row))


def _table(entries: Sequence[Entry]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(ENTRIES.names, (one.uid, one.url, one.shard, one.row), strict=True)) for one in entries],
        schema=ENTRIES,
    )


def rows_by_shard(entries: pa.Table) -> dict[str, NDArray[np.int64]]:
    """Returns the rows of a table with the columns shard and row by shard."""
    shards = np.array(entries.column("shard").to_pylist(), dtype=object)
    rows = np.array(entries.column("row").to_pylist(), dtype=np.int64)
    return {str(shard): np.sort(rows[shards == shard]) for shard in sorted(set(shards.tolist()))}
