"""Stage `publish`: completes a crawl cycle with one artifact that names all WARC files and the new crawl DB.

Reads the segments, the rendered pages and the new crawl DB. Writes `manifest.parquet` (archive.MANIFEST_SCHEMA),
`index.cdxj`, and a report: `domains.parquet`, the cycle by registered domain, and `takedown.parquet`, the captures that
may no longer be kept. The WARC files remain in the segments and are not copied. The next cycle starts from the crawl DB
that the newest of these artifacts was made from, so publishing its record switches to the new crawl DB.
"""

import contextlib
import heapq
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.pages import template
from tasks.core.queries import connect
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.warc.archive import INDEX as INDEX_FILE
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage import crawldb, duck, fetchlog
from tasks.stages.crawl.storage.fetchlog import DOMAINS_FILE, DUPLICATE, FETCH_LOG, NO_SITEMAP, NOT_MODIFIED, SUCCESS
from tasks.stages.crawl.storage.segment import INDEX, LOG, WARC

VERSION = 4

TAKEDOWN_FILE = "takedown.parquet"
_MAX_ROWS = 500

_DOMAINS = f"""
CREATE TABLE domains AS
SELECT d.domain, count(DISTINCT l.host) AS hosts, count(*) FILTER (l.requested) AS requests,
  count(*) FILTER (l.status = '{SUCCESS}') AS pages, count(*) FILTER (l.status = '{NOT_MODIFIED}') AS unchanged,
  count(*) FILTER (l.reason = 'robots_denied') AS robots_denied,
  count(*) FILTER (l.reason IN ('noindex', 'ai_optout')) AS opted_out,
  count(*) FILTER (l.status = '{DUPLICATE}') AS duplicates,
  count(*) FILTER (l.reason NOT IN ('', 'redirect', 'duplicate', 'robots_denied', 'noindex', 'ai_optout',
    '{NO_SITEMAP}')) AS errors,
  coalesce(mode(l.reason) FILTER (l.reason NOT IN ('', 'redirect', '{NO_SITEMAP}')), '') AS main_reason,
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

# Counts of the cycle for MLflow.
_REASONS = f"""
SELECT reason, count(*) FROM log WHERE reason NOT IN ('', 'redirect', 'duplicate', '{NO_SITEMAP}')
GROUP BY reason ORDER BY reason
"""
_PAGES = f"SELECT count(*) FILTER (status = '{DUPLICATE}'), count(*) FILTER (unread <> '') FROM log"


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the manifest, the index and the report.

    Raises:
        InputError: neither this cycle nor an earlier one captured a page.
    """
    segments = [*inputs.many("segments"), *inputs.many("rendered")]
    rows = [row for segment in segments for row in _files(segment)]
    captures = sum(row["records"] for row in rows)
    all_captures = sum(database.record.metrics.get("captured", 0.0) for database in inputs.many("crawldb"))
    if not captures and not all_captures:
        names = ", ".join(str(segment.address) for segment in segments)
        raise InputError(
            f"the crawl captured nothing: {names} contain no page",
            "see the reasons in their records, and correct [crawl] seeds",
        )
    if "manifest" not in output.committed:
        with output.part("manifest") as part:
            part.count_in(captures)
            part.count_out(captures)
            with part.file(MANIFEST, rows=len(rows)) as file:
                pq.write_table(pa.Table.from_pylist(rows, schema=MANIFEST_SCHEMA), file, compression="zstd")
            with part.file(INDEX_FILE, rows=captures) as file:
                for line in _index(segments):
                    file.write(line.encode())
    with connect(output.scratch) as connection:
        attach(connection, inputs.many("segments"), inputs.many("crawldb"))
        metrics = figures(connection)
        if "health" not in output.committed:
            with output.part("health") as part:
                duck.write(connection, part, DOMAINS_FILE, DOMAINS)
                takedown = duck.write(connection, part, TAKEDOWN_FILE, TAKEDOWN)
                part.metric("takedown", takedown)
        output.log_file("domains.html", page(connection.sql(DOMAINS).to_arrow_table()))
    size = sum(row["bytes"] for row in rows)
    metrics |= {"pages": float(captures), "warc_bytes": float(size)}
    return Report(metrics, note=f"{captures} pages in {len(rows)} files")


def _files(segment: Artifact) -> Iterator[dict[str, Any]]:
    for part in segment.parts:
        # A part has one WARC file with an index, or neither.
        index = next((entry.path for entry in part.files if entry.path.startswith(INDEX)), None)
        for entry in part.files:
            if entry.path.startswith(WARC):
                yield {
                    "segment": str(segment.address),
                    "path": f"{segment.path}/{entry.path}",
                    "sha256": entry.sha256,
                    "bytes": entry.bytes,
                    "records": part.rows_out,
                    "index": f"{segment.path}/{index}" if index else None,
                }


def _index(segments: list[Artifact]) -> Iterator[str]:
    """Yields the lines of all indexes, merged in order, with file names relative to the store."""
    with contextlib.ExitStack() as stack:
        files = [
            _lines(io.TextIOWrapper(stack.enter_context(segment.open(path)), "utf-8"), segment)
            for segment in segments
            for path in segment.files(INDEX)
        ]
        yield from heapq.merge(*files)


def _lines(file: io.TextIOWrapper, segment: Artifact) -> Iterator[str]:
    for line in file:
        url_key, timestamp, fields = line.split(" ", 2)
        entry = json.loads(fields)
        entry["filename"] = f"{segment.path}/{entry['filename']}"
        yield f"{url_key} {timestamp} {json.dumps(entry, ensure_ascii=True)}\n"


def attach(connection: duckdb.DuckDBPyConnection, segments: Sequence[Artifact], databases: Sequence[Artifact]) -> None:
    """Creates the views and the table of domains that the queries above read."""
    logs = [(segment, path) for segment in segments for path in segment.files(LOG)]
    hosts = [(segment, path) for segment in segments for path in segment.files(fetchlog.HOSTS)]
    duck.view(connection, "log", logs, FETCH_LOG)
    duck.view(connection, "seen", hosts, fetchlog.SEEN_HOSTS)
    duck.view(connection, "hosts", [(database, crawldb.HOSTS_FILE) for database in databases], crawldb.HOSTS)
    duck.view(connection, "urls", [(database, crawldb.URLS_FILE) for database in databases], crawldb.URLS)
    connection.execute(_DOMAINS)


def figures(connection: duckdb.DuckDBPyConnection) -> dict[str, float]:
    """Returns metrics of the cycle: duplicates, pages with unread links, URLs by status, and errors by reason."""
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
    rows = [[_text(value) for value in row.values()] for row in domains.slice(0, _MAX_ROWS).to_pylist()]
    names = [name.replace("_", " ") for name in domains.column_names]
    html = template(__package__, "health.html").render(names=names, rows=rows, more=domains.num_rows - _MAX_ROWS)
    return html.encode()


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value)
