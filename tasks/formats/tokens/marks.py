"""Withheld documents: their rows in the token shards, and the step from which a training run did not read them.

Reads the document index of the shards (`index`) to find the rows that are taken down, so that shards written before a
takedown can still be used.

Writes and reads `withheld.json` of a checkpoint, the marks of the run: a list of {step, takedowns, rows: {shard: [row,
..]}}, ascending by step. From that step on these rows of the token shards were blank. A mark for documents that spoiled
a step has no takedowns but a `reason`, and `shards` for shards that are entirely blank. The file exists only if there
are marks.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from tasks.core.artifact import Artifact
from tasks.core.config import Config, canonical_json
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.index import ENTRIES, DocumentIndex, IndexEntry
from tasks.formats.web.domain import is_public_suffix

FILE = "withheld.json"

Rows = Mapping[str, NDArray[np.int64]]
"""Shard -> rows of documents, ascending, shape (rows,); shards without such rows are omitted."""


class Mark(Config):
    """Documents that are blank from a step on.

    Attributes:
        step: first step at which they are blank, from 0.
        takedowns: ids of the takedown artifacts.
        rows: ascending rows by shard, of all these takedowns.
        reason: why the step with these documents was refused; "" for takedowns.
        shards: shards whose rows are all blank.
    """

    step: int
    takedowns: tuple[str, ...] = ()
    rows: dict[str, tuple[int, ...]]
    reason: str = Field(default="", exclude_if=lambda reason: not reason)
    shards: tuple[str, ...] = Field(default=(), exclude_if=lambda shards: not shards)


_MARKS = TypeAdapter(tuple[Mark, ...])


def to_json(marks: Sequence[Mark]) -> bytes:
    """Returns marks as the content of FILE; equal marks give equal bytes."""
    return (canonical_json(list(marks)) + "\n").encode()


def from_json(content: bytes | str) -> tuple[Mark, ...]:
    """Parses the content of FILE."""
    return _MARKS.validate_json(content)


def of_run(checkpoint: Artifact) -> tuple[Mark, ...]:
    """Returns the marks of a finished run; () if it has none."""
    return from_json(checkpoint.read(FILE)) if FILE in checkpoint.files(FILE) else ()


def first_blank(marks: Iterable[Mark], shard: str, row: int) -> int | None:
    """Returns the first step at which a document was blank, or None if it never was.

    >>> first_blank([Mark(step=5, takedowns=(), rows={"web-train-00000-000": (2,)})], "web-train-00000-000", 2)
    5
    """
    blank = (mark.step for mark in marks if shard in mark.shards or _has(mark.rows.get(shard, ()), row))
    return next(blank, None)


def _has(rows: Sequence[int], row: int) -> bool:
    position = bisect_left(rows, row)
    return position < len(rows) and rows[position] == row


def plain(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """Returns marks as JSON values."""
    return [mark.model_dump(mode="json") for mark in marks]


def withheld_rows(shards: Artifact, tombstones: Tombstones) -> dict[str, NDArray[np.int64]]:
    """Returns the rows of an encoding that are taken down, by shard; without tombstones nothing is read.

    Args:
        shards: artifact of the stage encode.
        tombstones: tombstones in force.

    Raises:
        InputError: a file of the index cannot be read.
    """
    return rows_by_shard(covered_entries(shards, tombstones))


def covered_entries(shards: Artifact, tombstones: Tombstones) -> pa.Table:
    """Returns the documents of an encoding that are taken down (schema ENTRIES), by part, shard and row."""
    if not tombstones:
        return _table([])
    index = DocumentIndex(shards)
    if any(map(is_public_suffix, tombstones.domains)):  # the index has no keys for public suffixes
        tables = list(index.entries())
    else:
        tables = [_table(_candidates(index, tombstones))]
    return pa.concat_tables(table.filter(pa.array(tombstones.mask(table))) for table in tables)


def _candidates(index: DocumentIndex, tombstones: Tombstones) -> list[IndexEntry]:
    """Returns the tombstones' documents, and all those of their hosts, because the URL of a page has many spellings."""
    entries = {index.by_uid(bytes.fromhex(document)) for document in tombstones.documents}
    for name in {*tombstones.domains, *tombstones.hosts}:
        entries.update(index.by_domain(name)[1])
    for url in tombstones.file_urls:
        entries.update(index.by_url(url))
    return sorted((entry for entry in entries if entry), key=lambda entry: (entry.part, entry.shard, entry.row))


def _table(entries: Sequence[IndexEntry]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(ENTRIES.names, (entry.uid, entry.url, entry.shard, entry.row), strict=True)) for entry in entries],
        schema=ENTRIES,
    )


def rows_by_shard(entries: pa.Table) -> dict[str, NDArray[np.int64]]:
    """Groups the rows of a table with columns shard and row by shard."""
    shards = np.array(entries.column("shard").to_pylist(), dtype=object)
    rows = np.array(entries.column("row").to_pylist(), dtype=np.int64)
    return {str(shard): np.sort(rows[shards == shard]) for shard in sorted(set(shards.tolist()))}
