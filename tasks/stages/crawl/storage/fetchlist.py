"""The fetch list: the URLs that one partition tries in one cycle, and each of them as a candidate.

Files of one partition (artifact `fetchlist/p<n>`): `urls.parquet` (FETCHLIST, in the order of the front queues),
`hosts.parquet` (LISTED_HOSTS) and `robots.parquet` (crawldb.ROBOTS, rules that are still valid), both of the hosts
listed; and `policy.json` (`tasks.stages.crawl.policy`) where the recipe names a hosts file.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

URLS_FILE = "urls.parquet"
HOSTS_FILE = "hosts.parquet"
ROBOTS_FILE = "robots.parquet"

_TIME = pa.timestamp("us", tz="UTC")

FETCHLIST = pa.schema(
    [
        pa.field("key", pa.uuid()),
        pa.field("url", pa.string()),
        pa.field("host", pa.string()),
        pa.field("depth", pa.int32()),
        pa.field("score", pa.float64()),
        pa.field("seed", pa.bool8()),  # as DuckDB hands truth values over
        # The last full capture, for conditional requests; "" and null where there is none.
        pa.field("etag", pa.string()),
        pa.field("last_modified", pa.string()),
        pa.field("payload_digest", pa.string()),
        pa.field("record_id", pa.uuid()),
        pa.field("captured_at", _TIME),
    ]
)

LISTED_HOSTS = pa.schema(
    [
        pa.field("host", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("cap", pa.int64()),  # requests it may get in this cycle
        pa.field("crawl_delay_s", pa.float64()),
        pa.field("latency_s", pa.float64()),
        pa.field("failures", pa.int32()),
        pa.field("backoff_until", _TIME),
    ]
)


@dataclass(frozen=True)
class EarlierCapture:
    """The capture that a revisit record refers to."""

    url: str
    fetched_at: datetime
    record_id: str
    payload_digest: str


@dataclass(frozen=True)
class Candidate:
    """One URL to try.

    Attributes:
        url: canonical.
        depth: links from a seed.
        score: its priority; 1 is a page of a host of mean rank, at a depth of one link it is halved.
        hops: redirects followed to get here.
        via: the page that led here, or "".
        etag: validators of the earlier capture, or "".
        last_modified: the same.
        earlier: that capture, for the revisit record, or None.
        seed: whether the recipe names it.
    """

    url: str
    depth: int
    score: float = 1.0
    hops: int = 0
    via: str = ""
    etag: str = ""
    last_modified: str = ""
    earlier: EarlierCapture | None = None
    seed: bool = False


def candidates(table: pa.Table) -> list[Candidate]:
    """Returns the rows of a fetch list as candidates."""
    return [_candidate(row) for row in table.to_pylist()]


def shares(total: int, listed: dict[str, int]) -> dict[str, int]:
    """Splits the cycle's requests evenly over the partitions that have URLs listed; the first get the rest.

    A partition without work gives its share away; one with few URLs does not, because pages that it finds on the way
    may use it up.
    """
    working = sorted(name for name, count in listed.items() if count)
    each, rest = divmod(total, len(working) or 1)
    return {**dict.fromkeys(listed, 0), **{name: each + (rank < rest) for rank, name in enumerate(working)}}


def _candidate(row: dict[str, Any]) -> Candidate:
    captured_at: datetime | None = row["captured_at"]
    earlier = None
    if row["record_id"] and captured_at is not None:
        earlier = EarlierCapture(row["url"], captured_at, f"urn:uuid:{row['record_id']}", row["payload_digest"])
    return Candidate(
        url=row["url"],
        depth=row["depth"],
        score=row["score"],
        etag=row["etag"],
        last_modified=row["last_modified"],
        earlier=earlier,
        seed=row["seed"],
    )
