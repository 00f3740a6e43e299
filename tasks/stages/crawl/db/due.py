"""When known URLs are due by the hosts file, as SQL over the crawl DB, and for one row.

Pages of a host with an interval of its own are due so long after their last fetch, seeds with a shorter one of theirs
after that; failures, pages that are gone and
pages that name another address as their own wait as they would. What is asked for again is due at once, until it was
tried after the moment that the file names.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from tasks.formats.web.url import authority, key
from tasks.stages.crawl.db import crawldb, duck
from tasks.stages.crawl.policy import Policy

_FETCHED = (crawldb.FETCHED, crawldb.NOT_MODIFIED, crawldb.REDIRECT_TEMPORARY, crawldb.REDIRECT_PERMANENT)
_TIME = pa.timestamp("us", tz="UTC")
_HOST = crawldb.HOST_OF_URL.replace("url", "p.url")

# What was taken down (no due time) stays away.
_ASKED = f"""
CREATE TABLE asked AS
SELECT p.key FROM previous p JOIN (
  SELECT p.key, a.at FROM previous p JOIN again_hosts a ON {_HOST} = a.host
  UNION ALL SELECT p.key, a.at FROM previous p JOIN again_urls a ON p.key = CAST(a.key AS UUID)
  UNION ALL SELECT p.key, a.at FROM previous p
    JOIN again_prefixes a ON {_HOST} = a.host AND starts_with(p.url, a.prefix)
) a USING (key)
WHERE p.next_due IS NOT NULL AND (p.last_fetch IS NULL OR p.last_fetch < a.at) GROUP BY p.key
"""

_TIMED = f"""
CREATE TEMP VIEW timed AS
SELECT p.* REPLACE (
  CASE WHEN a.key IS NOT NULL THEN least(p.next_due, CAST($now AS TIMESTAMPTZ))
    WHEN i.interval_s IS NOT NULL AND p.next_due IS NOT NULL AND p.fails = 0
      AND p.status IN ({", ".join(map(duck.quoted, _FETCHED))}) AND coalesce(p.canonical, '') IN ('', p.url)
      THEN p.last_fetch + to_seconds(least(i.interval_s, s.interval_s))
    ELSE p.next_due END AS next_due
), a.key IS NOT NULL AS asked
FROM previous p LEFT JOIN asked a ON p.key = a.key LEFT JOIN paced i ON {_HOST} = i.host LEFT JOIN (
  -- The empty row adds the column where no seed has an interval.
  SELECT * FROM seeds UNION ALL BY NAME SELECT CAST(NULL AS BIGINT) AS interval_s WHERE false
) s ON p.key = s.key
"""


def attach(connection: duckdb.DuckDBPyConnection, policy: Policy, now: datetime) -> None:
    """Makes the view `timed`: `previous` with the due times by the hosts file, and whether a row is `asked` for.

    Args:
        connection: with the views `previous` of URLs (crawldb.URLS) and `seeds` (inject.SEEDS).
        policy: the hosts file.
        now: when what is asked for is due.
    """
    again = {entry: at for entry, at in policy.again.items() if at <= now}
    if not again and not policy.has_intervals:
        connection.execute("CREATE TEMP VIEW timed AS SELECT *, false AS asked FROM previous")
        return
    query = f"SELECT DISTINCT {crawldb.HOST_OF_URL} FROM previous"
    hosts = [host for (host,) in connection.execute(query).fetchall()]
    paced = [(host, interval) for host in hosts if (interval := policy.interval_s(host)) is not None]
    connection.register("paced", _table({"host": pa.string(), "interval_s": pa.int64()}, paced))
    whole = [(host, at) for host in hosts if (at := policy.host_again_since(host)) and at <= now]
    urls = [(key(entry).hex(), at) for entry, at in again.items() if "://" in entry and not entry.endswith("*")]
    begun = [(authority(entry), entry[:-1], at) for entry, at in again.items() if "://" in entry and entry[-1] == "*"]
    connection.register("again_hosts", _table({"host": pa.string(), "at": _TIME}, whole))
    connection.register("again_urls", _table({"key": pa.string(), "at": _TIME}, urls))
    connection.register("again_prefixes", _table({"host": pa.string(), "prefix": pa.string(), "at": _TIME}, begun))
    connection.execute(_ASKED)
    connection.execute(_TIMED.replace("$now", duck.quoted(now.isoformat())))


def due_of(
    row: Mapping[str, Any], policy: Policy, now: datetime, seed_interval_s: int | None = None
) -> tuple[datetime | None, bool]:
    """Returns when a row of the crawl DB is due by the hosts file, and whether it is asked for.

    Args:
        row: of crawldb.URLS.
        policy: the hosts file.
        now: when what is asked for is due.
        seed_interval_s: the interval of the URL as a seed, or None.
    """
    due: datetime | None = row["next_due"]
    last: datetime | None = row["last_fetch"]
    since = policy.again_since(row["url"])
    if due is None:
        return None, False
    if since and since <= now and (last is None or last < since):
        return min(due, now), True
    interval = policy.interval_s(authority(row["url"]))
    if interval is None or last is None or row["fails"] or row["status"] not in _FETCHED:
        return due, False
    if row["canonical"] not in (None, "", row["url"]):
        return due, False
    return last + timedelta(seconds=min(interval, seed_interval_s or interval)), False


def _table(columns: Mapping[str, pa.DataType], rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    values = list(zip(*rows, strict=True)) or [()] * len(columns)
    return pa.table(
        {name: pa.array(list(value), kind) for (name, kind), value in zip(columns.items(), values, strict=True)}
    )
