"""The fetch log: one row with the outcome of every URL tried, and one row for every link found.

Reads and writes `log/` and `links/` beside each WARC file of a segment.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.formats.domain import Link, link

# Kinds of captures.
PAGE = "page"
SITEMAP = "sitemap"
FEED = "feed"

# Nutch's terms for the outcomes of a fetch.
SUCCESS = "fetch_success"
NOT_MODIFIED = "fetch_notmodified"
REDIRECT_TEMPORARY = "fetch_redir_temp"
REDIRECT_PERMANENT = "fetch_redir_perm"
GONE = "fetch_gone"
RETRY = "fetch_retry"
# Not one of Nutch's, whose duplicates are found later: the bytes of another page of the host in this crawl.
DUPLICATE = "fetch_duplicate"

# Of a link beside its text: itself, its place in a table, its sources, and its row when the table is made.
_LINK_BYTES = 500
_LASTMOD_BYTES = 200

CAPTURED = frozenset({SUCCESS, NOT_MODIFIED, DUPLICATE})
"""Outcomes with a record in a WARC file."""

FETCH_LOG = pa.schema(
    [
        pa.field("key", pa.uuid(), nullable=False),  # tasks.formats.url.key
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),  # with port where it is not the scheme's default
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # why there is no full capture; "" where there is one
        pa.field("requested", pa.bool_(), nullable=False),  # whether a request was sent
        pa.field("http_status", pa.int32()),
        pa.field("mime", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),  # of the body as received
        pa.field("payload_digest", pa.string(), nullable=False),
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("warc_file", pa.string(), nullable=False),  # relative to the segment
        pa.field("warc_offset", pa.int64()),
        pa.field("redirect", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),  # page, sitemap or feed
        pa.field("canonical", pa.string(), nullable=False),  # the page's rel="canonical" link, or ""
        pa.field("title", pa.string(), nullable=False),  # the page's, 200 characters of it
        pa.field("render", pa.bool_(), nullable=False),  # the page needs a browser to show its text
        pa.field("fetched_at", pa.timestamp("ms", tz="UTC")),  # when it was tried
        pa.field("etag", pa.string(), nullable=False),
        pa.field("last_modified", pa.string(), nullable=False),
        pa.field("terms", pa.string(), nullable=False),  # what was stated of its use, as JSON (`page.terms`), or ""
        pa.field("unread", pa.string(), nullable=False),  # why the links of a page could not be read, or ""
        pa.field("error", pa.string(), nullable=False),  # text for logs
    ]
)


class Outcome(NamedTuple):
    """Outcome of one URL; a row of the log (columns: `FETCH_LOG`)."""

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
    title: str = ""
    render: bool = False
    outlinks: tuple[Link, ...] = ()
    lastmods: tuple[tuple[Link, datetime], ...] = ()  # last changes of pages, by a sitemap of their domain
    fetched_at: datetime | None = None
    etag: str = ""
    last_modified: str = ""
    terms: str = ""
    unread: str = ""
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
        pa.field("lastmod", pa.timestamp("ms", tz="UTC")),  # the latest that sitemaps of its domain give it
    ]
)


def to_table(outcomes: Iterable[Outcome]) -> pa.Table:
    """Returns the outcomes as a table (FETCH_LOG) sorted by URL."""
    rows = sorted(outcomes, key=lambda one: one.url)
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in FETCH_LOG]
    return pa.Table.from_arrays(columns, schema=FETCH_LOG)


class LinkRows:
    """What outcomes lead to, each target once however many of them: pages of a site share most of their links.

    Attributes:
        bytes: of memory that it takes, roughly.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._count = 0
        # Targets of links, and of redirects, with the numbers of the outcomes that lead there.
        self._links: dict[Link, list[int]] = {}
        self._redirects: dict[Link, list[int]] = {}
        self._lastmods: dict[Link, datetime] = {}

    def add(self, outcome: Outcome) -> None:
        """Takes in the links of the next outcome."""
        for to in outcome.outlinks:
            self._put(self._links, to)
        for to, lastmod in outcome.lastmods:
            self.bytes += _LASTMOD_BYTES
            self._lastmods[to] = max(lastmod, self._lastmods.get(to, lastmod))
        if outcome.redirect:
            self._put(self._redirects, link(outcome.redirect))
        self._count += 1

    def _put(self, found: dict[Link, list[int]], to: Link) -> None:
        sources = found.get(to)
        if sources is None:
            found[to] = [self._count]
            self.bytes += _LINK_BYTES + len(to.url)
        else:
            sources.append(self._count)
            self.bytes += 8

    def table(self, outcomes: Sequence[Outcome], partitions: int) -> pa.Table:
        """Returns the links as a table (LINKS), sorted by partition and key.

        So sorted, the update of one partition reads only the row groups with its links. `sources` are rows of
        `to_table(outcomes)`.

        Args:
            outcomes: those that were added, in that order; their links need not be there any more.
            partitions: of the crawl.
        """
        rows = [(to, False, sources) for to, sources in self._links.items()]
        rows += [(to, True, sources) for to, sources in self._redirects.items()]
        rows.sort(key=lambda row: (row[0].owner % partitions, row[0].key, row[1]))
        place = {number: row for row, number in enumerate(sorted(range(len(outcomes)), key=lambda n: outcomes[n].url))}
        columns: dict[str, Iterator[Any]] = {
            "partition": (to.owner % partitions for to, _, _ in rows),
            "key": (to.key for to, _, _ in rows),
            "url": (to.url for to, _, _ in rows),
            "host": (to.host for to, _, _ in rows),
            "redirect": (redirect for _, redirect, _ in rows),
            "depth": (min(_depth_of(outcomes[one], redirect) for one in sources) for _, redirect, sources in rows),
            "seen": (_first(outcomes[one].fetched_at for one in sources) for _, _, sources in rows),
            "sources": (sorted(place[one] for one in sources) for _, _, sources in rows),
            "source_hosts": (sorted({outcomes[one].host for one in sources} - {to.host}) for to, _, sources in rows),
            "lastmod": (None if redirect else self._lastmods.get(to) for to, redirect, _ in rows),
        }
        arrays = [pa.array(columns[field.name], field.type, size=len(rows)) for field in LINKS]
        return pa.Table.from_arrays(arrays, schema=LINKS)


def to_links(outcomes: Iterable[Outcome], partitions: int) -> pa.Table:
    """Returns links and redirects of the outcomes as a table; see `LinkRows.table`."""
    rows, links = list(outcomes), LinkRows()
    for outcome in rows:
        links.add(outcome)
    return links.table(rows, partitions)


def _depth_of(outcome: Outcome, redirect: bool) -> int:
    # A URL in a sitemap has the depth of the sitemap.
    return outcome.depth if redirect or outcome.kind == SITEMAP else outcome.depth + 1


def _first(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def from_tables(log: pa.Table, links: pa.Table) -> list[Outcome]:
    """Returns the outcomes from a log and its links."""
    outlinks: dict[int, list[Link]] = defaultdict(list)
    for row in links.select(["url", "sources", "redirect"]).to_pylist():
        if row["redirect"]:
            continue
        target = link(row["url"])
        for number in row["sources"]:
            outlinks[number].append(target)
    names = [name for name in Outcome._fields if name not in ("outlinks", "lastmods")]
    rows = [{**row, "key": row["key"].bytes} for row in log.select(names).to_pylist()]
    return [Outcome(**row, outlinks=tuple(outlinks[number])) for number, row in enumerate(rows)]
