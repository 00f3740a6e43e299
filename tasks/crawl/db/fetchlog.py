"""The fetch log: one row for every URL tried and what came of it, and one row for every link that was found.

Written by fetch and render beside each WARC file, read again by a fetch that resumes, by update and by publish.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tasks.crawl.url import Link, link

# What a capture is to the crawl.
PAGE = "page"
SITEMAP = "sitemap"
FEED = "feed"

# Nutch's words for what a fetch can come to.
SUCCESS = "fetch_success"
NOT_MODIFIED = "fetch_notmodified"
REDIRECT_TEMPORARY = "fetch_redir_temp"
REDIRECT_PERMANENT = "fetch_redir_perm"
GONE = "fetch_gone"
RETRY = "fetch_retry"

_NEVER = datetime.max.replace(tzinfo=UTC)

CAPTURED = frozenset({SUCCESS, NOT_MODIFIED})

FETCH_LOG = pa.schema(
    [
        pa.field("key", pa.uuid(), nullable=False),  # tasks.crawl.url.key
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
        pa.field("kind", pa.string(), nullable=False),  # page, sitemap or feed
        pa.field("canonical", pa.string(), nullable=False),  # the address that the page names as its own, or ""
        pa.field("render", pa.bool_(), nullable=False),  # the page needs a browser to show its text
        pa.field("fetched_at", pa.timestamp("ms", tz="UTC")),  # when it was tried
        pa.field("etag", pa.string(), nullable=False),
        pa.field("last_modified", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),  # for people
    ]
)


class Outcome(NamedTuple):
    """What came of one URL; the columns of the log (`FETCH_LOG` says what each holds)."""

    key: bytes
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
    kind: str = PAGE
    canonical: str = ""
    render: bool = False
    outlinks: tuple[Link, ...] = ()
    fetched_at: datetime | None = None
    etag: str = ""
    last_modified: str = ""
    error: str = ""


LINKS = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),  # that owns the target
        pa.field("key", pa.uuid(), nullable=False),  # of the target, as are url and host
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("redirect", pa.bool_(), nullable=False),
        pa.field("depth", pa.int32(), nullable=False),  # the least that its sources give it
        pa.field("seen", pa.timestamp("ms", tz="UTC")),  # first
        pa.field("sources", pa.list_(pa.int32()), nullable=False),  # rows of the log beside it that lead there
        pa.field("source_hosts", pa.list_(pa.string()), nullable=False),  # hosts of these, other than its own
    ]
)


def to_table(outcomes: Iterable[Outcome]) -> pa.Table:
    """Returns the outcomes as a table (FETCH_LOG) sorted by URL."""
    rows = sorted(outcomes, key=lambda one: one.url)
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in FETCH_LOG]
    return pa.Table.from_arrays(columns, schema=FETCH_LOG)


def to_links(outcomes: Iterable[Outcome], partitions: int) -> pa.Table:
    """Returns links and redirects of the outcomes as a table (LINKS), sorted by partition and key, each target once.

    Once, because pages of a site share most of their links; sorted, so that the update of one partition reads only the
    row groups that hold its links.
    """
    pages = sorted(outcomes, key=lambda one: one.url)
    # What a sitemap lists is no further from the seeds than the sitemap.
    depths = ([one.depth + (one.kind != SITEMAP) for one in pages], [one.depth for one in pages])
    hosts = [one.host for one in pages]
    seen = [one.fetched_at or _NEVER for one in pages]
    found: tuple[dict[Link, list[int]], dict[Link, list[int]]] = (defaultdict(list), defaultdict(list))
    for number, one in enumerate(pages):
        for to in one.outlinks:
            found[False][to].append(number)
        if one.redirect:
            found[True][link(one.redirect)].append(number)
    rows = [(to, redirect, sources) for redirect in (False, True) for to, sources in found[redirect].items()]
    rows.sort(key=lambda row: (row[0].owner % partitions, row[0].key, row[1]))
    first = [min([seen[number] for number in sources]) for _, _, sources in rows]
    columns = [
        [to.owner % partitions for to, _, _ in rows],
        [to.key for to, _, _ in rows],
        [to.url for to, _, _ in rows],
        [to.host for to, _, _ in rows],
        [redirect for _, redirect, _ in rows],
        [min([depths[redirect][number] for number in sources]) for _, redirect, sources in rows],
        [None if when is _NEVER else when for when in first],
        [sources for _, _, sources in rows],
        [sorted({hosts[number] for number in sources} - {to.host}) for to, _, sources in rows],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, LINKS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=LINKS)


def from_tables(log: pa.Table, links: pa.Table) -> list[Outcome]:
    """Returns the outcomes that a log and its links tell of."""
    outlinks: dict[int, list[Link]] = defaultdict(list)
    for row in links.filter(pc.invert(links.column("redirect"))).select(["url", "sources"]).to_pylist():
        target = link(row["url"])
        for number in row["sources"]:
            outlinks[number].append(target)
    names = [name for name in Outcome._fields if name != "outlinks"]
    rows = [{**row, "key": row["key"].bytes} for row in log.select(names).to_pylist()]
    return [Outcome(**row, outlinks=tuple(outlinks[number])) for number, row in enumerate(rows)]
