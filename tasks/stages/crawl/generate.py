"""Stage `generate`: writes the fetch list of one partition, in the order of its front queues.

Reads the seeds, the host ranks, the hosts file, the takedowns in force (which are not listed) and, from the second
cycle on, the partition's crawl DB. Writes the artifact `fetchlist/p<n>` (`tasks.stages.crawl.storage.fetchlist`), with
a copy of the hosts file (`policy.json`).

The hosts file may change due times. If it sets an interval for a host, pages of the host are due that long after their
last fetch, or after the interval of their seed if that is shorter; this does not apply to failures, to pages that are
gone, and to pages with another canonical URL. URLs that the file lists to be fetched again are due at once, until they
were tried after the time that the file gives.

The score of a host is its rank times its factor in the `priorities` that the recipe names, if any. The score of a due
URL is the score of its host divided by its depth + 1, increased with the days that it is overdue (so
that no URL starves), and multiplied by the score of the seed, if it is one. Per host, no more URLs are listed than the
time box allows at the host's pace. Front queues are ranges of the score between powers of two; within a queue, hosts
take turns. 10 million known URLs, half of them due, take some 15 CPU-seconds.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa

from tasks.core.engine import Engine
from tasks.core.queries import connect, quoted
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.documents.tombstones import tombstones_of
from tasks.formats.hooks import Hooks
from tasks.formats.web import priorities
from tasks.formats.web.domain import domain_of, link
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import WITHOUT_ESCAPES, authority, identity, key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.inject import file_of, number_of, scope_of
from tasks.stages.crawl.policy import Policy, snapshot
from tasks.stages.crawl.rank import RANKS_FILE
from tasks.stages.crawl.storage import crawldb, duck
from tasks.stages.crawl.storage.fetchlist import HOSTS_FILE, ROBOTS_FILE, URLS_FILE

VERSION = 5

# The score of a page doubles when it is overdue by this number of days.
_DOUBLING_DAYS = 30
# Score factor of URLs that the hosts file lists to be fetched again: ten front queues.
_ASKED_FACTOR = 1024

# Statuses of pages to which the interval of a host applies.
_FETCHED = (crawldb.FETCHED, crawldb.NOT_MODIFIED, crawldb.REDIRECT_TEMPORARY, crawldb.REDIRECT_PERMANENT)
_TIME = pa.timestamp("us", tz="UTC")
_HOST = crawldb.HOST_OF_URL.replace("url", "p.url")

# URLs that the hosts file lists to be fetched again, except those that were taken down (no due time).
_ASKED = f"""
CREATE TABLE asked AS
SELECT p.key, max(a.at) AS at FROM previous p JOIN (
  SELECT p.key, a.at FROM previous p JOIN again_hosts a ON {_HOST} = a.host
  UNION ALL SELECT p.key, a.at FROM previous p JOIN again_urls a ON p.key = CAST(a.key AS UUID)
  UNION ALL SELECT p.key, a.at FROM previous p LEFT JOIN escaped e ON p.url = e.url
    JOIN again_prefixes a ON {_HOST} = a.host AND starts_with(coalesce(e.page, p.url), a.prefix)
) a USING (key)
WHERE p.next_due IS NOT NULL AND (p.last_fetch IS NULL OR p.last_fetch < a.at) GROUP BY p.key
"""

_TIMED = f"""
CREATE TEMP VIEW timed AS
SELECT p.* REPLACE (
  CASE WHEN a.key IS NOT NULL THEN least(p.next_due, CAST($now AS TIMESTAMPTZ))
    WHEN i.interval_s IS NOT NULL AND p.next_due IS NOT NULL AND p.fails = 0
      AND p.status IN ({", ".join(map(quoted, _FETCHED))}) AND coalesce(p.canonical, '') IN ('', p.url)
      THEN p.last_fetch + to_seconds(least(i.interval_s, s.interval_s))
    ELSE p.next_due END AS next_due
), a.at AS again_since
FROM previous p LEFT JOIN asked a ON p.key = a.key LEFT JOIN paced i ON {_HOST} = i.host LEFT JOIN (
  -- The empty row adds the column if no seed has an interval.
  SELECT * FROM seeds UNION ALL BY NAME SELECT CAST(NULL AS BIGINT) AS interval_s WHERE false
) s ON p.key = s.key
"""

_DUE = f"""
CREATE TABLE due AS
SELECT key, url, host, depth, overdue_days, seed, asked FROM (
  SELECT p.key, p.url, {_HOST} AS host, p.depth, s.key IS NOT NULL AS seed,
    greatest(0, date_diff('second', p.next_due, $now) / 86400.0) AS overdue_days, p.again_since IS NOT NULL AS asked
  FROM timed p LEFT JOIN seeds s ON p.key = s.key
  WHERE p.next_due <= $now OR p.next_due IS NULL -- taken down, and out of scope unless lifted
  UNION ALL BY NAME
  SELECT s.key, s.url, s.host, 0 AS depth, true AS seed, 0.0 AS overdue_days, false AS asked
  FROM seeds s ANTI JOIN previous p USING (key)
)
"""

_DUE_ROW = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("key", "url", "host")),
        pa.field("depth", pa.int32()),
        pa.field("overdue_days", pa.float64()),
        *(pa.field(name, pa.bool_()) for name in ("seed", "asked")),
    ]
)
_REWRITTEN = """
INSERT INTO due BY NAME SELECT * FROM (SELECT * REPLACE (CAST(key AS UUID) AS key) FROM rewritten)
ANTI JOIN due USING (key) ANTI JOIN previous USING (key)
"""

# `cap` is the number of polite requests in the time box; hosts whose back-off exceeds the time box are not listed.
_HOSTS = """
CREATE TABLE listed AS
SELECT *, row_number() OVER (PARTITION BY domain ORDER BY score DESC, host) AS in_domain FROM (
  SELECT n.host, n.domain, coalesce(r.score, 1.0) * coalesce(f.factor, 1.0) AS score,
    least(n.per_host, greatest(1,
      CAST(floor($box / greatest(n.delay_s, coalesce(h.crawl_delay_s, 0), 0.001)) AS BIGINT))) AS cap,
    coalesce(h.crawl_delay_s, 0.0) AS crawl_delay_s, h.latency_s, coalesce(h.failures, 0) AS failures, h.backoff_until
  FROM named n LEFT JOIN ranks r USING (host) LEFT JOIN priorities f USING (host) LEFT JOIN hosts h USING (host)
  WHERE h.backoff_until IS NULL OR h.backoff_until <= $now + to_microseconds(CAST($box * 1e6 AS BIGINT))
)
"""

_CHOSEN = f"""
CREATE TABLE chosen AS
WITH scored AS (
  SELECT d.key, d.url, d.host, d.depth, d.seed, l.domain, l.cap,
    l.score / (1 + d.depth) * (1 + least(d.overdue_days, 365) / {_DOUBLING_DAYS})
      * CASE WHEN d.asked THEN {_ASKED_FACTOR} ELSE 1 END AS score
  FROM due d JOIN listed l USING (host) WHERE l.in_domain <= $hosts_per_domain
), weighed AS (
  SELECT a.* REPLACE (a.score * coalesce(s.score, 1.0) AS score) FROM scored a LEFT JOIN seeds s ON a.key = s.key
), in_hosts AS (
  SELECT *, row_number() OVER (PARTITION BY host ORDER BY score DESC, url) AS in_host FROM weighed
  QUALIFY in_host <= cap
), in_domains AS (
  SELECT * FROM in_hosts QUALIFY row_number() OVER (PARTITION BY domain ORDER BY in_host, host) <= $per_domain
)
SELECT key, url, host, depth, seed, score, in_host,
  row_number() OVER (ORDER BY floor(log2(score)) DESC, in_host, host) AS place
FROM in_domains ORDER BY place LIMIT $most
"""

_LIST = """
SELECT c.key, c.url, c.host, c.depth, c.score, c.seed, coalesce(p.etag, '') AS etag,
  coalesce(p.last_modified, '') AS last_modified, coalesce(p.payload_digest, '') AS payload_digest, p.record_id,
  p.captured_at
FROM chosen c LEFT JOIN previous p ON c.key = p.key ORDER BY c.place
"""

_LISTED_HOSTS = """
SELECT host, score, cap, crawl_delay_s, latency_s, failures, backoff_until
FROM listed SEMI JOIN chosen USING (host) ORDER BY host
"""

_RULES = """
SELECT r.* FROM robots r SEMI JOIN chosen USING (host)
WHERE r.fetched_at > '{since}'::TIMESTAMPTZ ORDER BY r.origin
"""


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the fetch list of the partition named by `output.member`."""
    scratch = output.scratch
    if "fetchlist" not in output.committed:
        with connect(scratch) as connection, output.part("fetchlist") as part:
            now = datetime.now(UTC)
            policy = snapshot(config, part)
            _attach(connection, inputs, number_of(output.member))
            scope = scope_of(config, inputs["seeds"], tombstones_of(inputs))
            due = _choose(connection, config, scope, now, policy)
            rows = duck.write(connection, part, URLS_FILE, _LIST)
            part.count_in(rows)
            part.count_out(rows)
            part.metric("due", due)
            part.metric("hosts", duck.write(connection, part, HOSTS_FILE, _LISTED_HOSTS))
            since = datetime.fromtimestamp(now.timestamp() - crawldb.ROBOTS_S, UTC).isoformat()
            duck.write(connection, part, ROBOTS_FILE, _RULES.format(since=since))
    record = output.committed["fetchlist"]
    due = int(record.metrics["due"])
    return Report(note=f"{record.rows_out} of {due} URLs that are due, on {record.metrics['hosts']:.0f} hosts")


def external(config: CrawlConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that the stage reads, by role."""
    return {"hosts_file": [config.hosts_file]} if config.hosts_file else {}


HOOKS = Hooks(external=external)


def _attach(connection: duckdb.DuckDBPyConnection, inputs: Inputs, number: int) -> None:
    """Creates views of the inputs; empty ones in the first cycle."""
    previous = inputs.get("previous")
    for name, file, schema in (
        ("previous", crawldb.URLS_FILE, crawldb.URLS),
        ("hosts", crawldb.HOSTS_FILE, crawldb.HOSTS),
        ("robots", crawldb.ROBOTS_FILE, crawldb.ROBOTS),
    ):
        duck.view(connection, name, [(previous, file)] if previous else [], schema)
    duck.view(connection, "seeds", [(inputs["seeds"], file_of(number))])
    duck.view(connection, "ranks", [(inputs["ranks"], RANKS_FILE)])
    accepted = [(inputs["priorities"], priorities.FILE)] if "priorities" in inputs else []
    duck.view(connection, "priorities", accepted, priorities.PRIORITIES)


def _choose(
    connection: duckdb.DuckDBPyConnection, config: CrawlConfig, scope: Scope, now: datetime, policy: Policy
) -> int:
    """Creates the tables `listed` (hosts) and `chosen` (URLs); returns the number of due URLs."""
    attach_due_times(connection, policy, now)
    connection.execute(_DUE, {"now": now})
    if policy.rewrites:
        _rewrite(connection, policy)
    _keep_scope(connection, scope, policy)
    hosts = [row[0] for row in connection.execute("SELECT DISTINCT host FROM due ORDER BY host").fetchall()]
    settings = {
        "host": pa.array(hosts, pa.string()),
        "domain": pa.array(map(domain_of, hosts), pa.string()),
        "per_host": pa.array([policy.max_pages(host, config.max_pages_per_host) for host in hosts], pa.int64()),
        "delay_s": pa.array([policy.delay_s(host, config.delay_s) for host in hosts], pa.float64()),
    }
    connection.register("named", pa.table(settings))
    connection.execute(_HOSTS, {"box": config.time_box_s, "now": now})
    caps = {
        "hosts_per_domain": config.max_hosts_per_domain,
        "per_domain": config.max_pages_per_domain,
        "most": config.max_pages,
    }
    connection.execute(_CHOSEN, caps)
    return int(connection.execute("SELECT count(*) FROM due").fetchall()[0][0])


def attach_due_times(connection: duckdb.DuckDBPyConnection, policy: Policy, now: datetime) -> None:
    """Creates the view `timed`: `previous` with the due times changed by the hosts file.

    Its column `again_since` has the time of the request for rows that the file lists to be fetched again; else null.

    Args:
        connection: has the views `previous` of URLs (crawldb.URLS) and `seeds` (inject.SEEDS).
        policy: the hosts file.
        now: due time of URLs that are listed to be fetched again.
    """
    again = {entry: at for entry, at in policy.again.items() if at <= now}
    if not again and not policy.has_intervals:
        connection.execute("CREATE TEMP VIEW timed AS SELECT *, CAST(NULL AS TIMESTAMPTZ) AS again_since FROM previous")
        return
    query = f"SELECT DISTINCT {crawldb.HOST_OF_URL} FROM previous"
    hosts = [host for (host,) in connection.execute(query).fetchall()]
    paced = [(host, interval) for host in hosts if (interval := policy.interval_s(host)) is not None]
    connection.register("paced", _typed_table({"host": pa.string(), "interval_s": pa.int64()}, paced))
    whole_hosts = [(host, at) for host in hosts if (at := policy.host_again_since(host)) and at <= now]
    urls = [(key(entry).hex(), at) for entry, at in again.items() if "://" in entry and not entry.endswith("*")]
    prefixes = [
        (authority(entry), identity(entry[:-1]), at)
        for entry, at in again.items()
        if "://" in entry and entry.endswith("*")
    ]
    query = f"SELECT url FROM previous WHERE {crawldb.HOST_OF_URL} IN ? AND NOT regexp_full_match(url, ?)"
    parameters = [sorted({host for host, *_ in prefixes}), WITHOUT_ESCAPES.pattern]
    escaped = [url for (url,) in connection.execute(query, parameters).fetchall()] if prefixes else []
    connection.register("escaped", duck.strings(url=escaped, page=map(identity, escaped)))
    connection.register("again_hosts", _typed_table({"host": pa.string(), "at": _TIME}, whole_hosts))
    connection.register("again_urls", _typed_table({"key": pa.string(), "at": _TIME}, urls))
    connection.register(
        "again_prefixes", _typed_table({"host": pa.string(), "prefix": pa.string(), "at": _TIME}, prefixes)
    )
    connection.execute(_ASKED)
    connection.execute(_TIMED.replace("$now", quoted(now.isoformat())))


def _typed_table(columns: Mapping[str, pa.DataType], rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    return pa.table(
        {name: pa.array(list(value), kind) for (name, kind), value in zip(columns.items(), values, strict=True)}
    )


def _rewrite(connection: duckdb.DuckDBPyConnection, policy: Policy) -> None:
    """Replaces URLs of the table `due` by their rewritten form, or removes them if that is already known."""
    rows = connection.execute("SELECT url, host, depth, overdue_days, seed, asked FROM due").fetchall()
    new: dict[str, tuple[object, ...]] = {}
    old, respelled = list[str](), dict[str, str]()
    for url, *fields in rows:
        original = link(url)
        target = policy.rewritten(original)
        if target.key == original.key:
            if target.url != url:
                respelled[url] = target.url
        # Another domain may belong to another partition.
        elif target.owner == original.owner:
            old.append(url)
            new.setdefault(target.url, (target.key.hex(), target.url, target.host, *fields[1:]))
    columns = zip(*new.values(), strict=True) if new else ((),) * len(_DUE_ROW)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _DUE_ROW, strict=True)]
    connection.register("rewritten", pa.Table.from_arrays(arrays, schema=_DUE_ROW))
    connection.register("replaced", duck.strings(url=old))
    connection.execute("DELETE FROM due WHERE url IN (SELECT url FROM replaced)")
    connection.execute(_REWRITTEN)
    connection.register("respelled", duck.strings(url=respelled, new=respelled.values()))
    connection.execute("UPDATE due SET url = r.new FROM respelled r WHERE due.url = r.url")


def _keep_scope(connection: duckdb.DuckDBPyConnection, scope: Scope, policy: Policy) -> None:
    """Removes URLs that are out of scope, or whose host is denied or paused, from the table `due`."""
    hosts = connection.execute("SELECT DISTINCT host FROM due").fetchall()
    outside = [host for (host,) in hosts if not scope.covers_host(host) or policy.denies(host) or policy.pauses(host)]
    if outside:
        connection.register("outside", duck.strings(host=outside))
        connection.execute("DELETE FROM due WHERE host IN (SELECT host FROM outside)")
    if scope.depends_on_url:
        urls = connection.execute("SELECT url FROM due").fetchall()
        connection.register("wrong", duck.strings(url=[url for (url,) in urls if not scope.covers(url)]))
        connection.execute("DELETE FROM due WHERE url IN (SELECT url FROM wrong)")
