"""The fetch list: what each partition has to try in one cycle. Written by generate, read by fetch and update."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa

from tasks.artifact import Artifact
from tasks.crawl.config import CrawlConfig
from tasks.crawl.url import Scope, canonical
from tasks.crawl.warc import Earlier
from tasks.crawl.waves import Candidate

BUDGETS = "budgets.json"

FETCHLIST = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("seed", pa.bool_(), nullable=False),
        # The last full capture, for conditional requests; "" and null where there is none.
        pa.field("etag", pa.string(), nullable=False),
        pa.field("last_modified", pa.string(), nullable=False),
        pa.field("payload_digest", pa.string(), nullable=False),
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("captured_at", pa.timestamp("ms", tz="UTC")),
    ]
)


def member(number: int) -> str:
    """Returns the name of a partition: "p0", "p1", ..."""
    return f"p{number}"


def file_of(number: int) -> str:
    """Returns the partition's file within the artifact."""
    return f"fetchlist/{member(number)}.parquet"


def candidates(table: pa.Table) -> list[Candidate]:
    """Returns the rows of a fetch list as candidates."""
    return [_candidate(row) for row in table.to_pylist()]


def budget(fetchlist: Artifact, number: int) -> int:
    """Returns how many requests a partition may make in this cycle."""
    return int(json.loads(fetchlist.read(BUDGETS))[member(number)])


def shares(total: int, partitions: int, busy: Iterable[int]) -> dict[str, int]:
    """Splits the cycle's requests evenly over the partitions that have anything to fetch; the first get the rest."""
    working = sorted(set(busy))
    each, rest = divmod(total, len(working) or 1)
    split = {number: each + (rank < rest) for rank, number in enumerate(working)}
    return {member(number): split.get(number, 0) for number in range(partitions)}


def scope_of(config: CrawlConfig) -> Scope:
    """Returns which hosts the crawl covers."""
    return Scope.of(config.include_hosts, [url for seed in config.seeds if (url := canonical(seed))])


def _candidate(row: dict[str, Any]) -> Candidate:
    captured_at: datetime | None = row["captured_at"]
    earlier = None
    if row["record_id"] and captured_at is not None:
        earlier = Earlier(row["url"], captured_at, row["record_id"], row["payload_digest"])
    return Candidate(
        url=row["url"],
        depth=row["depth"],
        etag=row["etag"],
        last_modified=row["last_modified"],
        earlier=earlier,
        seed=row["seed"],
    )
