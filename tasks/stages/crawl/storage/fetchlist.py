"""The fetch list: the URLs that one partition fetches in one cycle, each of them a candidate.

Files of one partition (artifact `fetchlist/p<n>`): `urls.parquet` (FETCHLIST, in the order of the front queues);
`hosts.parquet` (LISTED_HOSTS) and `robots.parquet` (crawldb.ROBOTS, rules that are still valid) of the listed hosts;
and `policy.json` (`tasks.stages.crawl.policy`) if the recipe names a hosts file.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from tasks.formats.web.domain import Link, owner_of

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
        pa.field("seed", pa.bool8()),  # the Arrow type of DuckDB's booleans
        # The last full capture, for conditional requests; "" and null if there is none.
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
        pa.field("cap", pa.int64()),  # maximum number of requests in this cycle
        pa.field("crawl_delay_s", pa.float64()),
        pa.field("latency_s", pa.float64()),
        pa.field("failures", pa.int32()),
        pa.field("backoff_until", _TIME),
    ]
)


@dataclass(frozen=True)
class EarlierCapture:
    """An earlier capture, to which a revisit record refers."""

    url: str
    fetched_at: datetime
    record_id: str
    payload_digest: str


@dataclass(frozen=True)
class Candidate:
    """One URL to fetch.

    Attributes:
        link: the canonical URL with its key, host and owner.
        depth: number of links from a seed.
        score: priority; 1 for a seed page of a host of mean rank, half of that at a depth of one link.
        hops: number of redirects that led to the URL.
        via: URL of the page that links or redirects to this one, or "".
        etag: ETag of the earlier capture, or "".
        last_modified: Last-Modified of the earlier capture, or "".
        earlier: the earlier capture, for a revisit record, or None.
        seed: whether the URL is a seed of the recipe.
    """

    link: Link
    depth: int
    score: float = 1.0
    hops: int = 0
    via: str = ""
    etag: str = ""
    last_modified: str = ""
    earlier: EarlierCapture | None = None
    seed: bool = False

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.link.url


def shares(total: int, listed: dict[str, int]) -> dict[str, int]:
    """Splits the requests of a cycle evenly over the partitions with listed URLs; the first ones get the remainder.

    Partitions without URLs get no share. Partitions with few URLs get a full share, because links found during the
    fetch may use it.

    Args:
        total: number of requests.
        listed: number of listed URLs by partition.
    """
    active = sorted(name for name, count in listed.items() if count)
    each, rest = divmod(total, len(active) or 1)
    return {**dict.fromkeys(listed, 0), **{name: each + (rank < rest) for rank, name in enumerate(active)}}


def candidate(row: dict[str, Any]) -> Candidate:
    """Returns a row of a fetch list as a candidate."""
    captured_at: datetime | None = row["captured_at"]
    earlier = None
    if row["record_id"] and captured_at is not None:
        earlier = EarlierCapture(row["url"], captured_at, f"urn:uuid:{row['record_id']}", row["payload_digest"])
    return Candidate(
        link=Link(row["url"], row["key"].bytes, row["host"], owner_of(row["host"])),
        depth=row["depth"],
        score=row["score"],
        etag=row["etag"],
        last_modified=row["last_modified"],
        earlier=earlier,
        seed=row["seed"],
    )
