"""Stage `update`: merges fetched pages and links into one partition of the crawl DB, and sets due times.

Reads the partition's seeds, fetch list and segment, the targets that it owns of the links of all segments and rendered
pages (`tasks.stages.crawl.storage.targets`), its previous crawl DB, and the takedowns of the cycle. Writes the artifact
`crawldb/p<n>` (`tasks.stages.crawl.storage.crawldb`), a new generation. 10 million known URLs, 500,000 fetched and 35
million links take some 20 CPU-seconds and 1.3 GB (`benchmarks/crawldb.py`).

Rows that were not tried are written first, then those that were, both in the previous order, then new rows by key. So
there is no sort of the whole table, and equal inputs give equal bytes. Of rows that were not tried, only the due time
may change.

Intervals: if a page is unchanged (304, or the same digest), its interval grows by half; if it has changed, the interval
halves; both within 24 hours and 30 days. A redirect counts as unchanged while it leads to the same URL. A seed with its
own interval keeps it. A page that is gone, a duplicate, or has another canonical URL is due after 30 days. A page
without a response is due on the next day, then after 2, 4 and 8 days, then it is gone; a page that was postponed with
its host, or whose host is denied, has not failed. A page that a sitemap of its domain lists as changed since it was
fetched is due at once, but at least a day after that fetch: a sitemap that always says "now" costs one request a day.

The depth of a URL is that of the shortest path in the cycle that found it. Its spelling is that of the last request:
of the page that links to it, or the one to which the site redirects. Before the first request it is the smallest one.

A capture whose permission is withdrawn (robots.txt, noindex, an AI opt-out, 451) is marked for takedown; a new capture
removes the mark. Rows that are taken down by request are gone and never due; their captures are marked, too. A row that
is never due and no longer taken down was lifted: it becomes due at once, and the mark is removed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.queries import connect, quoted
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.documents.tombstones import TAKEDOWN, Tombstones, tombstones_of
from tasks.formats.web.domain import domain_of
from tasks.formats.web.url import key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.politeness import HOST_BACKOFF
from tasks.stages.crawl.inject import file_of, number_of
from tasks.stages.crawl.policy import HOST_DENIED, HOST_DROPPED
from tasks.stages.crawl.storage import crawldb, duck, fetchlist, fetchlog
from tasks.stages.crawl.storage.crawldb import KnownUrls
from tasks.stages.crawl.storage.fetchlog import FETCH_LOG, LINKS
from tasks.stages.crawl.storage.segment import LINK, LOG
from tasks.stages.crawl.storage.targets import TARGETS, targets_of

VERSION = 6

# Reasons that do not count as failures of the page.
_POSTPONED = (HOST_BACKOFF, HOST_DENIED, HOST_DROPPED)

_REDIRECTS = (fetchlog.REDIRECT_PERMANENT, fetchlog.REDIRECT_TEMPORARY)

# The queries below read the views `previous` (crawldb.URLS), `log` (fetchlog.FETCH_LOG), `links` (targets.TARGETS of
# the partition, not too deep), `listed` (fetchlist.FETCHLIST) and `seeds` (inject.SEEDS of the partition).
NEW = """
CREATE TABLE new AS
SELECT key, min(url) AS url, min(depth) AS depth, min(seen) AS seen
FROM (
  SELECT key, url, depth, seen FROM links
  UNION ALL SELECT key, url, depth, NULL AS seen FROM listed
  UNION ALL SELECT key, url, depth, fetched_at AS seen FROM log
) ANTI JOIN previous USING (key) GROUP BY key ORDER BY key
"""

# Known pages that a sitemap lists as changed since they were fetched, except failing ones.
SOONER = """
CREATE TABLE sooner AS
SELECT key FROM previous JOIN (
  SELECT key, max(lastmod) AS lastmod FROM links WHERE lastmod IS NOT NULL GROUP BY key
) USING (key) ANTI JOIN log USING (key) WHERE lastmod > last_fetch AND fails = 0
"""

_TRIED_AND_NEW = """
  SELECT * FROM previous SEMI JOIN log USING (key)
  UNION ALL BY NAME SELECT key, url, depth, seen AS first_seen FROM new
"""


def _sql_list(words: tuple[str, ...]) -> str:
    return ", ".join(f"'{word}'" for word in words)


_MERGED = f"""
SELECT * REPLACE (
  CASE WHEN key IN (SELECT key FROM sooner)
    THEN least(next_due, greatest(last_fetch + to_seconds({crawldb.SHORTEST_INTERVAL_S}), CAST($now AS TIMESTAMPTZ)))
    ELSE next_due
  END AS next_due
) FROM previous ANTI JOIN log USING (key) UNION ALL BY NAME (
WITH joined AS (
  SELECT a.* EXCLUDE (record_id), a.record_id AS a_record_id, l.key IS NOT NULL AS tried, l.status AS l_status,
    l.reason AS l_reason, l.kind AS l_kind, l.fetched_at, l.etag AS l_etag, l.last_modified AS l_last_modified,
    l.payload_digest AS l_digest, l.record_id AS l_record_id, l.warc_file, l.warc_offset AS l_warc_offset,
    l.canonical AS l_canonical, l.terms AS l_terms, l.redirect AS l_redirect,
    coalesce(l.url, a.url) AS l_url, s.interval_s AS seed_interval,
    l.status IN ({_sql_list(_REDIRECTS)}) AS redirected,
    coalesce(l.status = '{fetchlog.SUCCESS}', false) AS captured,
    coalesce(l.status = '{fetchlog.NOT_MODIFIED}'
      OR (l.status = '{fetchlog.SUCCESS}' AND l.payload_digest = a.payload_digest), false) AS unchanged,
    CASE WHEN l.status IS NULL OR l.reason IN ({_sql_list(_POSTPONED)}) THEN coalesce(a.fails, 0)
      WHEN l.status = '{fetchlog.RETRY}' THEN coalesce(a.fails, 0) + 1 ELSE 0 END AS now_fails
  FROM ({_TRIED_AND_NEW}) a LEFT JOIN log l ON a.key = l.key LEFT JOIN seeds s ON a.key = s.key
), paced AS (
  SELECT *,
    coalesce(l_status = '{fetchlog.RETRY}' AND now_fails < {crawldb.MAX_FAILS}, false) AS patient,
    CASE
      WHEN seed_interval IS NOT NULL AND (captured OR unchanged OR redirected) THEN seed_interval
      WHEN captured AND l_canonical NOT IN ('', url) THEN {crawldb.LONGEST_INTERVAL_S}
      WHEN unchanged OR (redirected AND l_redirect = redirect) THEN
        least(CAST(interval_s * {crawldb.UNCHANGED_FACTOR} AS BIGINT), {crawldb.LONGEST_INTERVAL_S})
      WHEN (captured AND payload_digest <> '') OR (redirected AND redirect <> '') THEN
        greatest(CAST(interval_s * {crawldb.CHANGED_FACTOR} AS BIGINT), {crawldb.SHORTEST_INTERVAL_S})
      WHEN l_status IN ('{fetchlog.GONE}', '{fetchlog.DUPLICATE}') THEN {crawldb.LONGEST_INTERVAL_S}
      ELSE coalesce(interval_s, {crawldb.FIRST_INTERVAL_S})
    END AS now_interval
  FROM joined
)
SELECT key, l_url AS url,
  CASE
    WHEN NOT tried OR patient THEN coalesce(status, '{crawldb.UNFETCHED}')
    WHEN unchanged THEN '{crawldb.NOT_MODIFIED}'
    WHEN captured THEN '{crawldb.FETCHED}'
    WHEN l_status = '{fetchlog.DUPLICATE}' THEN '{crawldb.DUPLICATE}'
    WHEN l_status = '{fetchlog.REDIRECT_PERMANENT}' THEN '{crawldb.REDIRECT_PERMANENT}'
    WHEN l_status = '{fetchlog.REDIRECT_TEMPORARY}' THEN '{crawldb.REDIRECT_TEMPORARY}'
    ELSE '{crawldb.GONE}'
  END AS status,
  CASE WHEN tried THEN l_reason ELSE coalesce(reason, '') END AS reason,
  CASE WHEN captured THEN l_kind ELSE coalesce(kind, '{fetchlog.PAGE}') END AS kind,
  CAST(depth AS INTEGER) AS depth,
  coalesce(first_seen, fetched_at, CAST($now AS TIMESTAMPTZ)) AS first_seen,
  CASE WHEN tried THEN fetched_at ELSE last_fetch END AS last_fetch,
  CASE
    WHEN NOT tried THEN coalesce(next_due, first_seen, CAST($now AS TIMESTAMPTZ))
    WHEN patient THEN fetched_at
      + to_seconds({crawldb.SHORTEST_INTERVAL_S} * CAST(power(2, greatest(now_fails, 1) - 1) AS BIGINT))
    ELSE fetched_at + to_seconds(now_interval)
  END AS next_due,
  CAST(now_interval AS BIGINT) AS interval_s, CAST(now_fails AS INTEGER) AS fails,
  CASE WHEN captured OR unchanged THEN l_etag ELSE coalesce(etag, '') END AS etag,
  CASE WHEN captured OR unchanged THEN l_last_modified ELSE coalesce(last_modified, '') END AS last_modified,
  CASE WHEN captured THEN l_digest ELSE coalesce(payload_digest, '') END AS payload_digest,
  CASE WHEN captured THEN TRY_CAST(substr(l_record_id, 10) AS UUID) ELSE a_record_id END AS record_id,
  CASE WHEN captured THEN $segment || warc_file ELSE coalesce(warc_path, '') END AS warc_path,
  CASE WHEN captured THEN l_warc_offset ELSE warc_offset END AS warc_offset,
  CASE WHEN captured THEN fetched_at ELSE captured_at END AS captured_at,
  CASE WHEN captured THEN l_canonical ELSE coalesce(canonical, '') END AS canonical,
  CASE WHEN tried AND NOT patient THEN l_redirect ELSE coalesce(redirect, '') END AS redirect,
  CASE
    WHEN captured OR unchanged THEN ''
    WHEN coalesce(warc_path, '') <> '' AND l_reason IN ({_sql_list(crawldb.WITHDRAWN)}) THEN l_reason
    ELSE coalesce(takedown, '')
  END AS takedown,
  CASE WHEN captured THEN l_terms ELSE coalesce(terms, '') END AS terms
FROM paced
)
"""

_MARKED = f"""
SELECT * EXCLUDE (taken_down) REPLACE (
  CASE WHEN taken_down THEN '{crawldb.GONE}' WHEN next_due IS NOT NULL THEN status
    WHEN warc_path <> '' THEN '{crawldb.FETCHED}' ELSE '{crawldb.UNFETCHED}' END AS status,
  CASE WHEN taken_down THEN '{TAKEDOWN}' WHEN next_due IS NOT NULL THEN reason ELSE '' END AS reason,
  CASE WHEN taken_down THEN NULL ELSE coalesce(next_due, CAST($now AS TIMESTAMPTZ)) END AS next_due,
  CASE WHEN taken_down AND warc_path <> '' THEN '{TAKEDOWN}'
    WHEN NOT taken_down AND takedown = '{TAKEDOWN}' THEN '' ELSE takedown END AS takedown
) FROM (
  SELECT *, key IN (SELECT CAST(key AS UUID) FROM taken_urls)
    OR {crawldb.HOST_OF_URL} IN (SELECT host FROM taken_hosts) AS taken_down
  FROM ($merged)
)
"""

HOSTS = """
WITH tried AS (
  SELECT host, count(*) FILTER (requested) AS requests, count(*) FILTER (status IN ({captured})) AS pages,
    count(*) FILTER (status NOT IN ({captured}) AND reason NOT IN ({no_errors})) AS errors
  FROM log GROUP BY host
), named AS (SELECT DISTINCT host FROM tried UNION SELECT host FROM seen_hosts UNION SELECT host FROM previous_hosts)
SELECT n.host, d.domain, coalesce(s.crawl_delay_s, p.crawl_delay_s, 0.0) AS crawl_delay_s,
  coalesce(s.latency_s, p.latency_s) AS latency_s,
  CAST(CASE WHEN s.host IS NOT NULL THEN s.failures ELSE coalesce(p.failures, 0) END AS INTEGER) AS failures,
  CASE WHEN s.host IS NOT NULL THEN s.backoff_until ELSE p.backoff_until END AS backoff_until,
  CAST(coalesce(p.requests, 0) + coalesce(a.requests, 0) AS BIGINT) AS requests,
  CAST(coalesce(p.pages, 0) + coalesce(a.pages, 0) AS BIGINT) AS pages,
  CAST(coalesce(p.errors, 0) + coalesce(a.errors, 0) AS BIGINT) AS errors,
  CAST(coalesce(p.traps, 0) + coalesce(s.traps, 0) AS BIGINT) AS traps
FROM named n LEFT JOIN previous_hosts p USING (host) LEFT JOIN tried a USING (host) LEFT JOIN seen_hosts s USING (host)
  LEFT JOIN domains d USING (host)
ORDER BY n.host
""".format(
    captured=_sql_list(tuple(sorted(fetchlog.CAPTURED))),
    no_errors=_sql_list(("redirect", "robots_denied", fetchlog.NO_SITEMAP)),
)

# A robots.txt from the previous cycle is in both tables, and further files of its site may have been added since.
ROBOTS = """
SELECT origin, host, status, body, crawl_delay_s, fetched_at, files FROM (
  SELECT * FROM previous_robots UNION ALL BY NAME SELECT * FROM seen_robots
) QUALIFY row_number() OVER (PARTITION BY origin ORDER BY fetched_at DESC, cardinality(files) DESC) = 1
ORDER BY origin
"""

EDGES = """
SELECT source, target FROM (
  SELECT source, target FROM previous_edges
  UNION SELECT unnest(source_hosts), host FROM own_links WHERE NOT redirect
) ORDER BY source, target
"""


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the new generation of the partition named by `output.member`."""
    if "urls" not in output.committed:
        with connect(output.scratch) as connection, output.part("urls") as part:
            previous = inputs.get("previous")
            segment = _segment_of(inputs.many("segments"), output.member)
            _attach_urls(connection, config, inputs, output.member)
            _attach_hosts(connection, inputs, segment)
            _write_urls(connection, part, segment, tombstones_of(inputs) if "takedowns" in inputs else None)
            _write_hosts(connection, part)
            _write_known(connection, part, previous)
    record = output.committed["urls"]
    unfetched = record.metrics.get("unfetched", 0.0)
    withdrawn = record.metrics.get("takedown", 0.0)
    note = f"{record.rows_out} URLs known, {unfetched:.0f} of them not fetched yet"
    return Report(note=f"{note}, {withdrawn:.0f} to be taken down" if withdrawn else note)


def _segment_of(segments: Sequence[Artifact], member: str) -> Artifact:
    return next(segment for segment in segments if segment.record.member == member)


def _attach_urls(connection: duckdb.DuckDBPyConnection, config: CrawlConfig, inputs: Inputs, member: str) -> None:
    previous, segments, rendered = inputs.get("previous"), inputs.many("segments"), inputs.many("rendered")
    own = _segment_of(segments, member)
    duck.view(connection, "previous", [(previous, crawldb.URLS_FILE)] if previous else [], crawldb.URLS)
    duck.view(connection, "log", [(own, path) for path in own.files(LOG)], FETCH_LOG)
    duck.view(connection, "listed", [(inputs["fetchlist"], fetchlist.URLS_FILE)])
    duck.view(connection, "seeds", [(inputs["seeds"], file_of(number_of(member)))])
    owned = targets_of(number_of(member))
    targets = [(one, path) for one in (*segments, *rendered) for path in one.files(owned)]
    duck.view(connection, "targets", targets, TARGETS)
    connection.execute(f"CREATE VIEW links AS SELECT * FROM targets WHERE depth <= {config.max_depth}")
    own_artifacts = (own, *(artifact for artifact in rendered if artifact.record.member == member))
    own_links = [(artifact, path) for artifact in own_artifacts for path in artifact.files(LINK)]
    duck.view(connection, "own_links", own_links, LINKS)
    connection.execute(NEW)
    connection.execute(SOONER)


def _attach_hosts(connection: duckdb.DuckDBPyConnection, inputs: Inputs, segment: Artifact) -> None:
    previous = inputs.get("previous")
    for name, file, schema in (
        ("previous_hosts", crawldb.HOSTS_FILE, crawldb.HOSTS),
        ("previous_robots", crawldb.ROBOTS_FILE, crawldb.ROBOTS),
        ("previous_edges", crawldb.EDGES_FILE, crawldb.EDGES),
    ):
        duck.view(connection, name, [(previous, file)] if previous else [], schema)
    hosts = [(segment, path) for path in segment.files(fetchlog.HOSTS)]
    duck.view(connection, "seen_hosts", hosts, fetchlog.SEEN_HOSTS)
    duck.view(connection, "seen_robots", [(segment, path) for path in segment.files(fetchlog.RULES)], crawldb.ROBOTS)


def _write_urls(
    connection: duckdb.DuckDBPyConnection, part: Part, segment: Artifact, tombstones: Tombstones | None
) -> None:
    """Writes all URLs; `tombstones` is None if the recipe never had a takedown."""
    now = datetime.now(UTC)
    query = merged(now, f"{segment.path}/")
    if tombstones is not None:
        query = marked(connection, query, tombstones, now)

    def count(batch: pa.RecordBatch) -> None:
        part.metric("unfetched", pc.sum(pc.equal(batch.column("status"), crawldb.UNFETCHED)).as_py())
        part.metric("captured", pc.sum(pc.not_equal(batch.column("warc_path"), "")).as_py())
        part.metric("takedown", pc.sum(pc.not_equal(batch.column("takedown"), "")).as_py())

    rows = duck.write(connection, part, crawldb.URLS_FILE, query, count)
    part.count_in(rows)
    part.count_out(rows)


def merged(now: datetime, segment: str) -> str:
    """Returns the query for the rows of the new generation; the tables of NEW and SOONER must exist.

    Args:
        now: first-seen time of URLs without a date.
        segment: folder of the partition's segment in the store, with a trailing slash.
    """
    # With parameters instead of literals, DuckDB would materialize the whole result in memory.
    return _MERGED.replace("$now", quoted(now.isoformat(timespec="milliseconds"))).replace("$segment", quoted(segment))


def marked(connection: duckdb.DuckDBPyConnection, merged: str, tombstones: Tombstones, now: datetime) -> str:
    """Returns a query that marks the rows of `merged` that are taken down; registers the tables that it reads.

    Args:
        connection: has the views `previous` and `new` of URLs.
        merged: the query for all rows (crawldb.URLS).
        tombstones: what is taken down.
        now: due time of lifted rows.
    """
    query = f"SELECT {crawldb.HOST_OF_URL} FROM previous UNION SELECT {crawldb.HOST_OF_URL} FROM new"
    hosts = [host for (host,) in connection.execute(query).fetchall() if tombstones.covers_host(host)]
    connection.register("taken_hosts", duck.strings(host=hosts))
    connection.register("taken_urls", duck.strings(key=(key(url).hex() for url in tombstones.spellings)))
    return _MARKED.replace("$now", quoted(now.isoformat(timespec="milliseconds"))).replace("$merged", merged)


def _write_hosts(connection: duckdb.DuckDBPyConnection, part: Part) -> None:
    names = "SELECT host FROM log UNION SELECT host FROM seen_hosts UNION SELECT host FROM previous_hosts"
    hosts = [host for (host,) in connection.execute(f"SELECT * FROM ({names}) ORDER BY 1").fetchall()]
    connection.register("domains", duck.strings(host=hosts, domain=map(domain_of, hosts)))
    part.metric("hosts", duck.write(connection, part, crawldb.HOSTS_FILE, HOSTS))
    duck.write(connection, part, crawldb.ROBOTS_FILE, ROBOTS)
    duck.write(connection, part, crawldb.EDGES_FILE, EDGES)


def _write_known(connection: duckdb.DuckDBPyConnection, part: Part, previous: Artifact | None) -> None:
    """Adds the new keys to the previous filter; creates a larger filter if that one is full."""
    (before,) = connection.execute("SELECT count(*) FROM previous").fetchall()[0]
    (new,) = connection.execute("SELECT count(*) FROM new").fetchall()[0]
    known = KnownUrls.from_bytes(previous.read(crawldb.KNOWN_FILE)) if previous else KnownUrls(2 * new)
    query = "SELECT key FROM new"
    if before + new > known.capacity:
        known = KnownUrls(2 * (before + new))
        query = "SELECT key FROM previous UNION ALL SELECT key FROM new"
    for keys in duck.keys(connection, query):
        known.add(keys)
    with part.file(crawldb.KNOWN_FILE) as file:
        file.write(known.to_bytes())
