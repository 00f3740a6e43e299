"""Queries over the newest crawl DB: URLs by filters, or their counts by host, domain, reason and so on.

Reads `urls.parquet` and `hosts.parquet` of all partitions, each the newest there is, or those of one version. Due times
are those that the crawl DB holds; what the hosts file makes of them, `why` shows.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.config import parse
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.formats.web.domain import domain_of
from tasks.stages.crawl.policy import HostsFile, Policy
from tasks.stages.crawl.storage import crawldb, duck

QueryResult = dict[str, Any]

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
_OF_HOSTS = """, any_value(s.requests) AS requests, any_value(s.errors) AS errors, any_value(s.traps) AS traps,
  any_value(s.latency_s) AS latency_s, any_value(s.crawl_delay_s) AS crawl_delay_s,
  any_value(s.backoff_until) AS backoff_until"""
_COLUMNS = "url, status, reason, kind, depth, last_fetch, next_due, interval_s, fails, takedown"


@dataclass(frozen=True)
class Filters:
    """Which URLs are meant; () and "" mean all.

    Attributes:
        statuses: such as "db_gone".
        reasons: such as "http_404".
        hosts: "host", "host:port" or "*.domain", as in the hosts file.
        kinds: page, sitemap or feed.
        url: a pattern with * and ?, for the whole URL.
        due: whether only those that are due.
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
    most: int = 20,
    version: str = "",
    now: datetime | None = None,
) -> QueryResult:
    """Returns the URLs that the filters mean, or counts of them.

    Args:
        store: the store of the artifacts.
        recipe: name of the recipe.
        partitions: their names.
        filters: which URLs are meant.
        top: what they are counted by, one of TOPS; "": they are listed.
        most: rows returned at most.
        version: one cycle; "": the newest of each partition.
        now: the moment to judge for; by default this one.

    Returns:
        {artifacts, urls: how many there are, rows}.

    Raises:
        InputError: there is no crawl DB, it was removed, or a host is none.
    """
    databases = list(filter(None, (_database(store, f"{recipe}/crawldb/{name}", version) for name in partitions)))
    if not databases:
        raise InputError(
            f"no crawl DB of {recipe}{f'@{version}' if version else ''} is in {store.root}",
            "let a cycle come to its end, or name another version",
        )
    for one in databases:
        crawldb.require(one)
    now = now or datetime.now(UTC)
    with tempfile.TemporaryDirectory() as scratch, duck.connect(scratch) as connection:
        _attach(connection, databases, filters.hosts)
        where, values = _where(filters)
        values["now"] = now
        (count,) = connection.execute(f"SELECT count(*) FROM u WHERE {where}", _used(values, where)).fetchall()[0]
        rows = connection.execute(_rows(top, where, most), _used(values, _rows(top, where, most)))
        names = [column[0] for column in rows.description or ()]
        found = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
    return {"artifacts": [str(one.address) for one in databases], "urls": count, "rows": found}


def _database(store: Store, name: str, version: str) -> Artifact | None:
    return Artifact.find(store, ArtifactId(name, version)) if version else newest(store, name)


def _attach(connection: duckdb.DuckDBPyConnection, databases: Sequence[Artifact], entries: Sequence[str]) -> None:
    """Makes the views `u` (URLs with their host, of `entries` alone where there are some), `s` and `h` (hosts)."""
    duck.view(connection, "urls", [(one, crawldb.URLS_FILE) for one in databases], crawldb.URLS)
    duck.view(connection, "s", [(one, crawldb.HOSTS_FILE) for one in databases], crawldb.HOSTS)
    names = connection.execute(f"SELECT DISTINCT {crawldb.HOST_OF_URL} FROM urls ORDER BY 1").fetchall()
    hosts = [host for (host,) in names]
    if entries:
        policy = Policy(parse(HostsFile, {"deny": list(entries)}, "hosts asked for"))
        hosts = [host for host in hosts if policy.denies(host)]
    connection.register("h", duck.strings(host=hosts, domain=map(domain_of, hosts)))
    connection.execute(
        f"CREATE TEMP VIEW u AS SELECT *, {crawldb.HOST_OF_URL} AS host FROM urls "
        f"WHERE {crawldb.HOST_OF_URL} IN (SELECT host FROM h)"
    )


def _where(filters: Filters) -> tuple[str, dict[str, Any]]:
    terms = {"statuses": "u.status", "reasons": "u.reason", "kinds": "u.kind"}
    given = {name: list(getattr(filters, name)) for name in terms if getattr(filters, name)}
    conditions = [f"list_contains(${name}, {terms[name]})" for name in given]
    values: dict[str, Any] = dict(given)
    if filters.url:
        conditions.append("u.url GLOB $url")
        values["url"] = filters.url
    if filters.due:
        conditions.append("u.next_due <= $now")
    return " AND ".join(conditions) or "true", values


def _used(values: dict[str, Any], sql: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if f"${name}" in sql}


def _rows(top: str, where: str, most: int) -> str:
    if not top:
        return f"SELECT {_COLUMNS} FROM u WHERE {where} ORDER BY url LIMIT {most}"
    group, of_hosts = _GROUPS[top], top == "hosts"
    state = "LEFT JOIN s ON u.host = s.host" if of_hosts else ""
    return (
        f"SELECT {group} AS {top.removesuffix('es') if top == 'statuses' else top[:-1]}, "
        f"{_COUNTS}{_OF_HOSTS if of_hosts else ''} FROM u JOIN h ON u.host = h.host {state} "
        f"WHERE {where} GROUP BY 1 ORDER BY urls DESC, 1 LIMIT {most}"
    )


def render(found: QueryResult) -> str:
    """Returns what `query` returned as text."""
    rows = [{name: _cell(value) for name, value in row.items()} for row in found["rows"]]
    lines = [f"{found['urls']:,} URLs in {', '.join(found['artifacts'])}"]
    if rows:
        table = [tuple(rows[0]), *(tuple(row.values()) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines += [
            "",
            *("  ".join(f"{one:<{wide}}" for one, wide in zip(row, widths, strict=True)).rstrip() for row in table),
        ]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else str(value)
