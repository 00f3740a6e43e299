"""The fetch log: one row for every URL tried, and what came of it.

Written by fetch beside each WARC file, read again by a fetch that resumes, by update and by publish.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime

import pyarrow as pa

# Nutch's words for what a fetch can come to.
SUCCESS = "fetch_success"
NOT_MODIFIED = "fetch_notmodified"
REDIRECT_TEMPORARY = "fetch_redir_temp"
REDIRECT_PERMANENT = "fetch_redir_perm"
GONE = "fetch_gone"
RETRY = "fetch_retry"

CAPTURED = frozenset({SUCCESS, NOT_MODIFIED})

FETCH_LOG = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),  # blake2b-128 of the canonical URL, hex
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),  # with port where it is not the scheme's own
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # why there is no capture; "" where there is one
        pa.field("requested", pa.bool_(), nullable=False),  # whether the host was asked
        pa.field("http_status", pa.int32()),
        pa.field("mime", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),  # of the body as received
        pa.field("payload_digest", pa.string(), nullable=False),
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("warc_file", pa.string(), nullable=False),  # relative to the segment
        pa.field("warc_offset", pa.int64()),
        pa.field("redirect", pa.string(), nullable=False),
        pa.field("outlinks", pa.list_(pa.string()), nullable=False),  # canonical, in scope, in page order
        pa.field("fetched_at", pa.timestamp("ms", tz="UTC")),  # when it was tried
        pa.field("etag", pa.string(), nullable=False),
        pa.field("last_modified", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),  # for people
    ]
)


@dataclass(frozen=True)
class Outcome:
    """What came of one URL; the columns of the log (`FETCH_LOG` says what each holds)."""

    key: str
    url: str
    host: str
    depth: int
    status: str
    reason: str = ""
    requested: bool = False
    http_status: int | None = None
    mime: str = ""
    bytes: int = 0
    payload_digest: str = ""
    record_id: str = ""
    warc_file: str = ""
    warc_offset: int | None = None
    redirect: str = ""
    outlinks: tuple[str, ...] = ()
    fetched_at: datetime | None = None
    etag: str = ""
    last_modified: str = ""
    error: str = ""


def to_table(outcomes: Iterable[Outcome]) -> pa.Table:
    """Returns the outcomes as a table sorted by URL."""
    rows = sorted(outcomes, key=lambda one: one.url)
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in FETCH_LOG]
    return pa.Table.from_arrays(columns, schema=FETCH_LOG)


def from_table(table: pa.Table) -> list[Outcome]:
    """Returns the rows of a log."""
    names = [field.name for field in fields(Outcome)]
    return [Outcome(**{**row, "outlinks": tuple(row["outlinks"])}) for row in table.select(names).to_pylist()]
