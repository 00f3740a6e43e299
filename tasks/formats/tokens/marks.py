"""Marks of a training run: from which step on it no longer read some documents, taken down meanwhile or poisoned.

Writes and reads `withheld.json` of a checkpoint, a list of {step, takedowns, rows: {shard: [row, ..]}}, ascending by
step: from that step on these rows of the token shards were blank. A mark of documents that spoilt a step has no
takedowns and a `reason`, and `shards` where all of a shard is blank. The file is there only where there is a mark.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field

from tasks.core.artifact import Artifact
from tasks.core.config import Config, canonical_json

FILE = "withheld.json"


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
