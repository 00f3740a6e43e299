"""Tables that a fetch writes with its WARC files: outcomes of URLs, links, and the state of hosts.

Reads and writes `log/` (FETCH_LOG) and `links/` (LINKS), one file of each per WARC file of a segment. The part `hosts`
has `hosts/` (SEEN_HOSTS: pauses, latency, traps) and `robots/` (crawldb.ROBOTS: robots.txt, tdmrep.json and licenses).
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

# Apache Nutch's names for the outcomes of a fetch.
SUCCESS = "fetch_success"
NOT_MODIFIED = "fetch_notmodified"
REDIRECT_TEMPORARY = "fetch_redir_temp"
REDIRECT_PERMANENT = "fetch_redir_perm"
GONE = "fetch_gone"
RETRY = "fetch_retry"
# Not a name of Nutch, which finds duplicates later: the page has the bytes of another page of its host in this crawl.
DUPLICATE = "fetch_duplicate"

CAPTURED = frozenset({SUCCESS, NOT_MODIFIED, DUPLICATE})
"""Outcomes with a record in a WARC file."""

NO_SITEMAP = "no_sitemap"
"""The reason for a sitemap that nothing names, and that the site does not have, which is not an error."""

DOMAINS_FILE = "domains.parquet"
"""File of a published cycle: its fetch logs by registered domain."""

HOSTS = "hosts/"
RULES = "robots/"
HOSTS_PART = "hosts"

# Memory of a link without its URL: the object, its entry in the dictionary, its sources, and its row in the table.
_LINK_BYTES = 500
_LASTMOD_BYTES = 200

FETCH_LOG = pa.schema(
    [
        pa.field("key", pa.uuid(), nullable=False),  # tasks.formats.web.url.key
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),  # with the port if it is not the default of the scheme
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # the reason why there is no full capture, or ""
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
        pa.field("title", pa.string(), nullable=False),  # the first 200 characters of the page's title
        pa.field("render", pa.bool_(), nullable=False),  # the page needs a browser to show its text
        pa.field("fetched_at", pa.timestamp("ms", tz="UTC")),  # time of the attempt
        pa.field("etag", pa.string(), nullable=False),
        pa.field("last_modified", pa.string(), nullable=False),
        pa.field("terms", pa.string(), nullable=False),  # terms of use as JSON (`page.terms`), or ""
        pa.field("unread", pa.string(), nullable=False),  # the reason why the links could not be parsed, or ""
        pa.field("error", pa.string(), nullable=False),  # error message, for logs
    ]
)

LINKS = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),  # the partition that owns the target
        pa.field("key", pa.uuid(), nullable=False),  # of the target, like url and host
        pa.field("url", pa.string(), nullable=False),
        pa.field("host", pa.string(), nullable=False),
        pa.field("redirect", pa.bool_(), nullable=False),
        pa.field("depth", pa.int32(), nullable=False),  # the minimum over its sources
        pa.field("seen", pa.timestamp("ms", tz="UTC")),  # time of the first source
        pa.field("sources", pa.list_(pa.int32()), nullable=False),  # rows of the log of the same part that link to it
        pa.field("source_hosts", pa.list_(pa.string()), nullable=False),  # hosts of the sources, without its own
        pa.field("lastmod", pa.timestamp("ms", tz="UTC")),  # the latest change stated in sitemaps of its domain
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
    """Outcome of one URL, with its links; the other fields are the columns of `FETCH_LOG`."""

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
    lastmods: tuple[tuple[Link, datetime], ...] = ()  # last changes stated in a sitemap of the pages' own domain
    fetched_at: datetime | None = None
    etag: str = ""
    last_modified: str = ""
    terms: str = ""
    unread: str = ""
    error: str = ""


class LinkRows:
    """Collects the links of outcomes by target, because the pages of a site share most of their links.

    Attributes:
        bytes: approximate memory use in bytes.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._count = 0
        # Numbers of the outcomes by target, for links and for redirects.
        self._links: dict[Link, list[int]] = {}
        self._redirects: dict[Link, list[int]] = {}
        self._lastmods: dict[Link, datetime] = {}

    def add(self, outcome: Outcome) -> None:
        """Adds the links of the next outcome."""
        for to in outcome.outlinks:
            self._put(self._links, to)
        for to, lastmod in outcome.lastmods:
            self.bytes += _LASTMOD_BYTES
            self._lastmods[to] = max(lastmod, self._lastmods.get(to, lastmod))
        if outcome.redirect:
            self._put(self._redirects, link(outcome.redirect))
        self._count += 1

    def _put(self, targets: dict[Link, list[int]], to: Link) -> None:
        sources = targets.get(to)
        if sources is None:
            targets[to] = [self._count]
            self.bytes += _LINK_BYTES + len(to.url)
        else:
            sources.append(self._count)
            self.bytes += 8

    def table(self, outcomes: Sequence[Outcome], partitions: int) -> pa.Table:
        """Returns the links as a table (LINKS), sorted by partition and key.

        The values of `sources` are row numbers of `to_table(outcomes)`.

        Args:
            outcomes: the outcomes in the order in which they were added; their links are not read.
            partitions: number of partitions of the crawl.
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
            "sources": links.log_rows(),
            "source_hosts": links.hosts([to.host for to, _, _ in rows]),
            "lastmod": [None if redirect else self._lastmods.get(to) for to, redirect, _ in rows],
        }
        arrays = {
            name: column if isinstance(column, pa.Array) else pa.array(column, LINKS.field(name).type)
            for name, column in columns.items()
        }
        return pa.Table.from_arrays([arrays[field.name] for field in LINKS], schema=LINKS)


class _LinkSources:
    """The outcomes that link to each target, as arrays; pages of a site share a menu, so a target has about fifty.

    Args:
        sources: for each target, the numbers of the outcomes that link to it, at least one.
        outcomes: all outcomes.
    """

    def __init__(self, sources: Sequence[Sequence[int]], outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes
        self._bounds = np.zeros(len(sources) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, sources), np.int64, len(sources)), out=self._bounds[1:])
        self._numbers = np.fromiter(chain.from_iterable(sources), np.int64, self._bounds[-1])
        self._targets = np.repeat(np.arange(len(sources)), np.diff(self._bounds))

    def depths(self, redirects: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Returns the minimum depth of each target over its sources."""
        # A URL in a sitemap has the depth of the sitemap.
        own = np.fromiter((source.depth for source in self._outcomes), np.int32, len(self._outcomes))
        step = np.fromiter((source.kind != SITEMAP for source in self._outcomes), np.int32, len(self._outcomes))
        depths = own[self._numbers] + step[self._numbers] * ~redirects[self._targets]
        return self._minimum(depths.astype(np.int32))

    def first_seen(self) -> pa.Array:
        """Returns the time of the first source of each target."""
        times = pa.array([source.fetched_at for source in self._outcomes], LINKS.field("seen").type).cast(pa.int64())
        never = np.iinfo(np.int64).max
        first = self._minimum(times.fill_null(never).to_numpy()[self._numbers])
        return pa.array(first, pa.int64(), mask=first == never).cast(LINKS.field("seen").type)

    def log_rows(self) -> pa.Array:
        """Returns the sorted row numbers of the sources of each target, in a log sorted by URL."""
        urls = [source.url for source in self._outcomes]
        row_of = np.empty(len(urls), np.int32)
        row_of[sorted(range(len(urls)), key=urls.__getitem__)] = np.arange(len(urls), dtype=np.int32)
        rows = row_of[self._numbers]
        return pa.ListArray.from_arrays(self._bounds.astype(np.int32), rows[np.lexsort((rows, self._targets))])

    def hosts(self, own: Sequence[str]) -> pa.Array:
        """Returns the sorted distinct hosts of the sources of each target, without `own`, the hosts of the targets."""
        names = sorted({source.host for source in self._outcomes})
        index = {name: at for at, name in enumerate(names)}
        of_outcomes = np.fromiter((index[source.host] for source in self._outcomes), np.int64, len(self._outcomes))
        of_sources = of_outcomes[self._numbers]
        of_targets = np.fromiter((index.get(host, -1) for host in own), np.int64, len(own))
        others = of_sources != of_targets[self._targets]
        pairs = np.unique(self._targets[others] * len(names) + of_sources[others])
        bounds = np.searchsorted(pairs, np.arange(len(own) + 1) * len(names)).astype(np.int32)
        return pa.ListArray.from_arrays(bounds, pa.array(names, pa.string()).take(pa.array(pairs % max(1, len(names)))))

    def _minimum(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.minimum.reduceat(values, self._bounds[:-1]) if len(values) else values


def to_table(outcomes: Iterable[Outcome]) -> pa.Table:
    """Returns the outcomes as a table (FETCH_LOG) sorted by URL."""
    rows = sorted(outcomes, key=lambda outcome: outcome.url)
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in FETCH_LOG]
    return pa.Table.from_arrays(columns, schema=FETCH_LOG)


def from_tables(log: pa.Table, links: pa.Table) -> list[Outcome]:
    """Returns the outcomes of a log and its table of links."""
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
    """Returns the politeness clock of a host from a row of fetchlist.LISTED_HOSTS or SEEN_HOSTS."""
    return HostClock(row["host"], row["crawl_delay_s"], row["latency_s"], row["failures"], row["backoff_until"])


def rules_of(table: pa.Table) -> list[HostRobots]:
    """Returns the rows of a table of rules (crawldb.ROBOTS)."""
    rows = table.drop_columns(["host"]).to_pylist()
    return [HostRobots(**{**row, "files": dict(row["files"])}) for row in rows]


def write_hosts(part: Part, clocks: Iterable[HostClock], rules: Iterable[HostRobots], traps: Mapping[str, int]) -> None:
    """Writes the tables `hosts/` and `robots/` of a part.

    Rules of sites that did not respond are left out, because they must not be cached.
    """
    hosts = [
        {**asdict(clock), "host": clock.authority, "traps": traps.get(clock.authority, 0)}
        for clock in sorted(clocks, key=lambda clock: clock.authority)
    ]
    robots = [
        {**asdict(site), "host": authority(f"{site.origin}/"), "files": sorted(site.files.items())}
        for site in sorted(rules, key=lambda site: site.origin)
        if site.status != "unavailable"
    ]
    for folder, rows, schema in ((HOSTS, hosts, SEEN_HOSTS), (RULES, robots, ROBOTS)):
        with part.file(f"{folder}{part.attempt}.parquet", rows=len(rows)) as file:
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), file, compression="zstd", compression_level=3)
