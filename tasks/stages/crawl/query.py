"""Queries over the crawl DB: URLs by filters, or their counts by host, domain, reason and so on.

Reads `urls.parquet` and `hosts.parquet` of all partitions, of the newest crawl DB of each partition or of one version.
Due times are those of the crawl DB; `why` shows how the hosts file changes them.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from tasks.core.artifact import Artifact
from tasks.core.config import parse
from tasks.core.errors import InputError
from tasks.core.ledger import at_version
from tasks.core.queries import connect
from tasks.core.store import Store
from tasks.core.terminal import table_lines
from tasks.formats.web.domain import domain_of
from tasks.stages.crawl.policy import HostsFile, Policy
from tasks.stages.crawl.storage import crawldb, duck

QueryResult = dict[str, Any]
"""See `query`."""

TOPS = ("hosts", "domains", "reasons", "statuses", "kinds", "depths")

_GROUPS = {
    "hosts": "u.host",
    "domains": "h.domain",
    "reasons": "u.reason",
    "statuses": "u.status",
    "kinds": "u.kind",
    "depths": "u.depth",
}
_COUNTS = f"""count(*) AS urls, count(*) FILTER (u.next_due <= $now) AS due,
  count(*) FILTER (u.status IN ('{crawldb.FETCHED}', '{crawldb.NOT_MODIFIED}')) AS fetched,
  count(*) FILTER (u.status = '{crawldb.UNFETCHED}') AS unfetched,
  count(*) FILTER (u.status = '{crawldb.GONE}') AS gone, count(*) FILTER (u.fails > 0) AS failing"""
_HOST_COLUMNS = """, any_value(s.requests) AS requests, any_value(s.errors) AS errors, any_value(s.traps) AS traps,
  any_value(s.latency_s) AS latency_s, any_value(s.crawl_delay_s) AS crawl_delay_s,
  any_value(s.backoff_until) AS backoff_until"""
_COLUMNS = "url, status, reason, kind, depth, last_fetch, next_due, interval_s, fails, takedown"


@dataclass(frozen=True)
class Filters:
    """Filters of URLs; () and "" match all.

    Attributes:
        statuses: such as "db_gone".
        reasons: such as "http_404".
        hosts: "host", "host:port" or "*.domain", as in the hosts file.
        kinds: page, sitemap or feed.
        url: glob pattern (* and ?) for the URL.
        due: whether only due URLs match.
    """

    statuses: Sequence[str] = ()
    reasons: Sequence[str] = ()
    hosts: Sequence[str] = ()
    kinds: Sequence[str] = ()
    url: str = ""
    due: bool = False


def query(
    store: Store,
    recipe: str,
    partitions: Sequence[str],
    filters: Filters,
    *,
    top: str = "",
    limit: int = 20,
    version: str = "",
    now: datetime | None = None,
) -> QueryResult:
    """Returns the URLs that match filters, or counts of them.

    Args:
        store: the store of the artifacts.
        recipe: name of the recipe.
        partitions: names of the partitions.
        filters: filters of the URLs.
        top: one of TOPS, to count URLs by it; "" to list them.
        limit: maximum number of rows.
        version: version of the crawl DB; "": the newest of each partition.
        now: time at which URLs are due; the current time by default.

    Returns:
        {artifacts, urls: number of matching URLs, rows}.

    Raises:
        InputError: there is no crawl DB, its files were removed, or a host is invalid.
    """
    databases = list(filter(None, (at_version(store, f"{recipe}/crawldb/{name}", version) for name in partitions)))
    if not databases:
        raise InputError(
            f"no crawl DB of {recipe}{f'@{version}' if version else ''} is in {store.root}",
            "wait until a cycle is complete, or name another version",
        )
    now = now or datetime.now(UTC)
    with tempfile.TemporaryDirectory() as scratch, connect(scratch) as connection:
        _attach(connection, databases, filters.hosts)
        where, values = _where(filters)
        values["now"] = now
        (count,) = connection.execute(f"SELECT count(*) FROM u WHERE {where}", _used(values, where)).fetchall()[0]
        sql = _rows_query(top, where, limit)
        rows = duck.rows(connection, sql, _used(values, sql))
    return {"artifacts": [str(database.address) for database in databases], "urls": count, "rows": rows}


def _attach(connection: duckdb.DuckDBPyConnection, databases: Sequence[Artifact], entries: Sequence[str]) -> None:
    """Creates the views `u` (URLs with their host), `s` (states of hosts) and `h` (hosts with their domain).

    If there are `entries`, `u` and `h` contain only hosts that match one of them.
    """
    duck.view(connection, "urls", [(database, crawldb.URLS_FILE) for database in databases], crawldb.URLS)
    duck.view(connection, "s", [(database, crawldb.HOSTS_FILE) for database in databases], crawldb.HOSTS)
    names = connection.execute(f"SELECT DISTINCT {crawldb.HOST_OF_URL} FROM urls ORDER BY 1").fetchall()
    hosts = [host for (host,) in names]
    if entries:
        policy = Policy(parse(HostsFile, {"deny": list(entries)}, "hosts of the query"))
        hosts = [host for host in hosts if policy.denies(host)]
    connection.register("h", duck.strings(host=hosts, domain=map(domain_of, hosts)))
    connection.execute(
        f"CREATE TEMP VIEW u AS SELECT *, {crawldb.HOST_OF_URL} AS host FROM urls "
        f"WHERE {crawldb.HOST_OF_URL} IN (SELECT host FROM h)"
    )


def _where(filters: Filters) -> tuple[str, dict[str, Any]]:
    """Returns the condition of a query, and the values of its parameters."""
    columns = {"statuses": "u.status", "reasons": "u.reason", "kinds": "u.kind"}
    values: dict[str, Any] = {name: list(getattr(filters, name)) for name in columns if getattr(filters, name)}
    conditions = [f"list_contains(${name}, {columns[name]})" for name in values]
    if filters.url:
        conditions.append("u.url GLOB $url")
        values["url"] = filters.url
    if filters.due:
        conditions.append("u.next_due <= $now")
    return " AND ".join(conditions) or "true", values


def _used(values: dict[str, Any], sql: str) -> dict[str, Any]:
    """Returns the parameters that a query contains; DuckDB rejects others."""
    return {name: value for name, value in values.items() if f"${name}" in sql}


def _rows_query(top: str, where: str, limit: int) -> str:
    if not top:
        return f"SELECT {_COLUMNS} FROM u WHERE {where} ORDER BY url LIMIT {limit}"
    by_host = top == "hosts"
    name = top.removesuffix("es") if top == "statuses" else top[:-1]
    return (
        f"SELECT {_GROUPS[top]} AS {name}, {_COUNTS}{_HOST_COLUMNS if by_host else ''} "
        f"FROM u JOIN h ON u.host = h.host {'LEFT JOIN s ON u.host = s.host' if by_host else ''} "
        f"WHERE {where} GROUP BY 1 ORDER BY urls DESC, 1 LIMIT {limit}"
    )


def render(result: QueryResult) -> str:
    """Returns the result of `query` as text."""
    rows = [{name: _cell(value) for name, value in row.items()} for row in result["rows"]]
    lines = [f"{result['urls']:,} URLs in {', '.join(result['artifacts'])}"]
    if rows:
        lines += ["", *table_lines([tuple(rows[0]), *(tuple(row.values()) for row in rows)])]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value)
