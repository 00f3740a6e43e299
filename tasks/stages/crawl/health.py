"""Report of a crawl cycle: by registered domain, by reason, and takedowns.

Reads the logs of the segments, their host tables, and the new crawl DB.
"""

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from tasks.core.artifact import Artifact
from tasks.core.pages import template
from tasks.stages.crawl.db import crawldb, duck, hostlog
from tasks.stages.crawl.db.fetchlog import DUPLICATE, FETCH_LOG, NOT_MODIFIED, SUCCESS
from tasks.stages.crawl.storage.segment import LOG

DOMAINS_FILE = "domains.parquet"
TAKEDOWN_FILE = "takedown.parquet"
_SHOWN = 500

_DOMAINS = f"""
CREATE TABLE domains AS
SELECT d.domain, count(DISTINCT l.host) AS hosts, count(*) FILTER (l.requested) AS requests,
  count(*) FILTER (l.status = '{SUCCESS}') AS pages, count(*) FILTER (l.status = '{NOT_MODIFIED}') AS unchanged,
  count(*) FILTER (l.reason = 'robots_denied') AS robots_denied,
  count(*) FILTER (l.reason IN ('noindex', 'ai_optout')) AS opted_out,
  count(*) FILTER (l.status = '{DUPLICATE}') AS duplicates,
  count(*) FILTER (l.reason NOT IN ('', 'redirect', 'duplicate', 'robots_denied', 'noindex', 'ai_optout')) AS errors,
  coalesce(mode(l.reason) FILTER (l.reason NOT IN ('', 'redirect')), '') AS main_reason,
  count(*) FILTER (l.unread <> '') AS links_unread,
  CAST(sum(l.bytes) AS BIGINT) AS bytes, max(s.latency_s) AS slowest_s,
  CAST(coalesce(max(s.traps), 0) AS BIGINT) AS traps
FROM log l LEFT JOIN hosts d USING (host) LEFT JOIN seen s USING (host)
GROUP BY d.domain
"""

DOMAINS = "SELECT * FROM domains ORDER BY pages DESC, domain"

TAKEDOWN = """
SELECT url, takedown AS reason, warc_path, warc_offset, 'urn:uuid:' || record_id AS record_id, captured_at
FROM urls WHERE takedown <> '' ORDER BY url
"""

# Counts of the whole cycle, for MLflow: errors by class among them.
_REASONS = """
SELECT reason, count(*) FROM log WHERE reason NOT IN ('', 'redirect', 'duplicate') GROUP BY reason ORDER BY reason
"""
_PAGES = f"SELECT count(*) FILTER (status = '{DUPLICATE}'), count(*) FILTER (unread <> '') FROM log"


def attach(connection: duckdb.DuckDBPyConnection, segments: Sequence[Artifact], databases: Sequence[Artifact]) -> None:
    """Creates the views and the table of domains that the queries above read."""
    duck.view(connection, "log", [(one, path) for one in segments for path in one.files(LOG)], FETCH_LOG)
    seen = [(one, path) for one in segments for path in one.files(hostlog.HOSTS)]
    duck.view(connection, "seen", seen, hostlog.SEEN_HOSTS)
    duck.view(connection, "hosts", [(one, crawldb.HOSTS_FILE) for one in databases], crawldb.HOSTS)
    duck.view(connection, "urls", [(one, crawldb.URLS_FILE) for one in databases], crawldb.URLS)
    connection.execute(_DOMAINS)


def figures(connection: duckdb.DuckDBPyConnection) -> dict[str, float]:
    """Returns the cycle's numbers: duplicates, pages without links, URLs by status, and without a page by reason."""
    statuses = connection.execute("SELECT status, count(*) FROM urls GROUP BY status ORDER BY status").fetchall()
    reasons = connection.execute(_REASONS).fetchall()
    ((duplicates, unread),) = connection.execute(_PAGES).fetchall()
    return {
        "duplicates": float(duplicates),
        "links_unread": float(unread),
        **{status: float(count) for status, count in statuses},
        **{f"errors.{reason}": float(count) for reason, count in reasons},
    }


def page(domains: pa.Table) -> bytes:
    """Returns the table of domains as an HTML page, the largest domains first."""
    rows = [[_text(value) for value in row.values()] for row in domains.slice(0, _SHOWN).to_pylist()]
    names = [name.replace("_", " ") for name in domains.column_names]
    html = template(__package__, "health.html").render(names=names, rows=rows, more=domains.num_rows - _SHOWN)
    return html.encode()


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value)
