"""What a fetch writes beside its WARC files: the outcome of every URL tried, every link found, the state of hosts.

Reads and writes `log/` (FETCH_LOG) and `links/` (LINKS) beside each WARC file of a segment; and once, in its part
`hosts`, `hosts/` (SEEN_HOSTS: pauses, speed, traps) and `robots/` (crawldb.ROBOTS: robots.txt and tdmrep.json files).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.stage import Part
from tasks.formats.web.domain import Link, link
from tasks.formats.web.url import authority
from tasks.stages.crawl.hosts.politeness import HostClock
from tasks.stages.crawl.hosts.rules import HostRobots
from tasks.stages.crawl.storage.crawldb import ROBOTS

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

CAPTURED = frozenset({SUCCESS, NOT_MODIFIED, DUPLICATE})
"""Outcomes with a record in a WARC file."""

HOSTS = "hosts/"
RULES = "robots/"
HOSTS_PART = "hosts"

# Of a link beside its text: itself, its place in a table, its sources, and its row when the table is made.
_LINK_BYTES = 500
_LASTMOD_BYTES = 200

FETCH_LOG = pa.schema(
    [
        pa.field("key", pa.uuid(), nullable=False),  # tasks.formats.web.url.key
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

SEEN_HOSTS = pa.schema(
    [
        pa.field("host", pa.string()),
        pa.field("crawl_delay_s", pa.float64()),
        pa.field("latency_s", pa.float64()),
        pa.field("failures", pa.int32()),
        pa.field("backoff_until", pa.timestamp("ms", tz="UTC")),
        pa.field("traps", pa.int64()),
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
        links = _LinkSources([sources for _, _, sources in rows], outcomes)
        redirects = np.fromiter((redirect for _, redirect, _ in rows), np.bool_, len(rows))
        columns: dict[str, Any] = {
            "partition": [to.owner % partitions for to, _, _ in rows],
            "key": [to.key for to, _, _ in rows],
            "url": [to.url for to, _, _ in rows],
            "host": [to.host for to, _, _ in rows],
            "redirect": redirects,
            "depth": links.depths(redirects),
            "seen": links.first_seen(),
            "sources": links.places(),
            "source_hosts": links.hosts([to.host for to, _, _ in rows]),
            "lastmod": [None if redirect else self._lastmods.get(to) for to, redirect, _ in rows],
        }
        made = {
            name: one if isinstance(one, pa.Array) else pa.array(one, LINKS.field(name).type)
            for name, one in columns.items()
        }
        return pa.Table.from_arrays([made[field.name] for field in LINKS], schema=LINKS)


class _LinkSources:
    """The outcomes that lead to each of some targets: pages of a site share their menu, so there are fifty to a target.

    Args:
        sources: numbers of outcomes by target, one at least.
        outcomes: all of them.
    """

    def __init__(self, sources: Sequence[Sequence[int]], outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes
        self._bounds = np.zeros(len(sources) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, sources), np.int64, len(sources)), out=self._bounds[1:])
        self._numbers = np.fromiter(chain.from_iterable(sources), np.int64, self._bounds[-1])
        self._targets = np.repeat(np.arange(len(sources)), np.diff(self._bounds))

    def depths(self, redirects: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Returns the least depth that its sources give each target."""
        # A URL in a sitemap has the depth of the sitemap.
        own = np.fromiter((one.depth for one in self._outcomes), np.int32, len(self._outcomes))
        further = np.fromiter((one.kind != SITEMAP for one in self._outcomes), np.int32, len(self._outcomes))
        given = own[self._numbers] + further[self._numbers] * ~redirects[self._targets]
        return self._least(given.astype(np.int32))

    def first_seen(self) -> pa.Array:
        """Returns when the first source of each target was tried."""
        times = pa.array([one.fetched_at for one in self._outcomes], LINKS.field("seen").type).cast(pa.int64())
        never = np.iinfo(np.int64).max
        first = self._least(times.fill_null(never).to_numpy()[self._numbers])
        return pa.array(first, pa.int64(), mask=first == never).cast(LINKS.field("seen").type)

    def places(self) -> pa.Array:
        """Returns the rows of the sources, sorted, in a log that is sorted by URL."""
        urls = [one.url for one in self._outcomes]
        place = np.empty(len(urls), np.int32)
        place[sorted(range(len(urls)), key=urls.__getitem__)] = np.arange(len(urls), dtype=np.int32)
        rows = place[self._numbers]
        return pa.ListArray.from_arrays(self._bounds.astype(np.int32), rows[np.lexsort((rows, self._targets))])

    def hosts(self, own: Sequence[str]) -> pa.Array:
        """Returns the hosts of the sources other than the target's `own`, sorted, each once."""
        names = sorted({one.host for one in self._outcomes})
        number = {name: at for at, name in enumerate(names)}
        found = np.fromiter((number[one.host] for one in self._outcomes), np.int64, len(self._outcomes))[self._numbers]
        others = found != np.fromiter((number.get(one, -1) for one in own), np.int64, len(own))[self._targets]
        pairs = np.unique(self._targets[others] * len(names) + found[others])
        bounds = np.searchsorted(pairs, np.arange(len(own) + 1) * len(names)).astype(np.int32)
        return pa.ListArray.from_arrays(bounds, pa.array(names, pa.string()).take(pa.array(pairs % max(1, len(names)))))

    def _least(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.minimum.reduceat(values, self._bounds[:-1]) if len(values) else values


def to_table(outcomes: Iterable[Outcome]) -> pa.Table:
    """Returns the outcomes as a table (FETCH_LOG) sorted by URL."""
    rows = sorted(outcomes, key=lambda one: one.url)
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in FETCH_LOG]
    return pa.Table.from_arrays(columns, schema=FETCH_LOG)


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


def clock_of(row: Mapping[str, Any]) -> HostClock:
    """Returns the pauses of a host from a row of fetchlist.LISTED_HOSTS."""
    return HostClock(row["host"], row["crawl_delay_s"], row["latency_s"], row["failures"], row["backoff_until"])


def rules_of(table: pa.Table) -> list[HostRobots]:
    """Returns the rows of a table of rules (crawldb.ROBOTS)."""
    return [HostRobots(**row) for row in table.drop_columns(["host"]).to_pylist()]


def write_hosts(part: Part, clocks: Iterable[HostClock], rules: Iterable[HostRobots], traps: Mapping[str, int]) -> None:
    """Writes both tables into `part`; leaves out rules of sites that did not answer, which must not be cached."""
    hosts = [
        {**asdict(clock), "host": clock.authority, "traps": traps.get(clock.authority, 0)}
        for clock in sorted(clocks, key=lambda one: one.authority)
    ]
    robots = [
        {**asdict(one), "host": authority(f"{one.origin}/")}
        for one in sorted(rules, key=lambda one: one.origin)
        if one.status != "unavailable"
    ]
    for folder, rows, schema in ((HOSTS, hosts, SEEN_HOSTS), (RULES, robots, ROBOTS)):
        with part.file(f"{folder}{part.attempt}.parquet", rows=len(rows)) as file:
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd", compression_level=3)
