"""Withheld documents: where they lie in the token shards, and from which step on a training run no longer read them.

Reads the document index of the shards (`index`) for the rows that are taken down, so that shards made before a takedown
serve after it.

Writes and reads `withheld.json` of a checkpoint, the marks of the run: a list of {step, takedowns, rows: {shard: [row,
..]}}, ascending by step. From that step on these rows of the token shards were blank. A mark of documents that spoilt a
step has no takedowns and a `reason`, and `shards` where all of a shard is blank. The file is there only where there is
a mark.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from tasks.core.artifact import Artifact
from tasks.core.config import Config, canonical_json
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.index import ENTRIES, DocumentIndex, Entry
from tasks.formats.web.domain import is_public_suffix

FILE = "withheld.json"

Rows = Mapping[str, NDArray[np.int64]]
"""Shard -> rows of documents, ascending; shards without any are left out."""


class Mark(Config):
    """Documents that are blank from a step on.

    `step` counts from 0; `takedowns` are ids of artifacts; `rows` has the ascending rows of each shard, of this mark's
    takedowns together. `reason` is why the step was refused whose documents these are; "" for takedowns. Of `shards`
    every row is blank.
    """

    step: int
    takedowns: tuple[str, ...] = ()
    rows: dict[str, tuple[int, ...]]
    reason: str = Field(default="", exclude_if=lambda reason: not reason)
    shards: tuple[str, ...] = Field(default=(), exclude_if=lambda shards: not shards)


def to_json(marks: Sequence[Mark]) -> bytes:
    """Returns the content of FILE; equal marks give equal bytes."""
    return (canonical_json(list(marks)) + "\n").encode()


def from_json(content: bytes | str) -> tuple[Mark, ...]:
    """Reads the content of FILE."""
    return tuple(_List.model_validate_json(f'{{"marks":{_text(content)}}}').marks)


def of_run(checkpoint: Artifact) -> tuple[Mark, ...]:
    """Returns the marks of a finished run; () for one that no takedown has met."""
    return from_json(checkpoint.read(FILE)) if FILE in checkpoint.files(FILE) else ()


def first_blank(marks: Iterable[Mark], shard: str, row: int) -> int | None:
    """Returns the first step at which a document was blank, or None where it never was.

    >>> first_blank([Mark(step=5, takedowns=(), rows={"web-train-00000-000": (2,)})], "web-train-00000-000", 2)
    5
    """
    blank = (mark.step for mark in marks if shard in mark.shards or _has(mark.rows.get(shard, ()), row))
    return next(blank, None)


def _has(rows: Sequence[int], row: int) -> bool:
    at = bisect_left(rows, row)
    return at < len(rows) and rows[at] == row


class _List(Config):
    marks: tuple[Mark, ...]


def _text(content: bytes | str) -> str:
    return content if isinstance(content, str) else content.decode()


def plain(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """Returns marks as JSON values."""
    return [mark.model_dump(mode="json") for mark in marks]


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
