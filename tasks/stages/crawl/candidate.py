"""A URL that a crawl cycle may request, with its fields of the fetch list."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Earlier:
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
    earlier: Earlier | None = None
    seed: bool = False
