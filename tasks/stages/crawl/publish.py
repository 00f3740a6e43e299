"""Stage `publish`: closes a crawl cycle with one artifact that names every WARC file and the new crawl DB.

Reads the segments, the rendered pages and the new crawl DB. Writes `manifest.parquet` (archive.MANIFEST_SCHEMA),
`index.cdxj`, and a report: `domains.parquet`, the cycle by registered domain, and `takedown.parquet`, the captures that
may no longer be kept. The WARC files stay in the segments: publishing costs no copy. The next cycle starts from the
crawl DB that the newest of these artifacts was made from: its record is the pointer that is swapped.
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
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.warc.archive import INDEX as INDEX_FILE
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage import crawldb, duck, fetchlog
from tasks.stages.crawl.storage.fetchlog import DUPLICATE, FETCH_LOG, NOT_MODIFIED, SUCCESS
from tasks.stages.crawl.storage.segment import INDEX, LOG, WARC

VERSION = 4

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


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes manifest and index.

    Raises:
        InputError: no segment has a capture, and no previous cycle had one.
    """
    segments = [*inputs.many("segments"), *inputs.many("rendered")]
    rows = [row for segment in segments for row in _files(segment)]
    captures = sum(row["records"] for row in rows)
    known = sum(one.record.metrics.get("captured", 0.0) for one in inputs.many("crawldb"))
    if not captures and not known:
        names = ", ".join(str(segment.address) for segment in segments)
        raise InputError(
            f"the crawl captured nothing: {names} hold no page",
            "read the rejected reasons in their records and correct [crawl] seeds",
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
    with duck.connect(output.scratch) as connection:
        attach(connection, inputs.many("segments"), inputs.many("crawldb"))
        numbers = figures(connection)
        if "health" not in output.committed:
            with output.part("health") as part:
                duck.write(connection, part, DOMAINS_FILE, DOMAINS)
                takedown = duck.write(connection, part, TAKEDOWN_FILE, TAKEDOWN)
                part.metric("takedown", takedown)
        output.log_file("domains.html", page(connection.sql(DOMAINS).to_arrow_table()))
    size = sum(row["bytes"] for row in rows)
    numbers |= {"pages": float(captures), "warc_bytes": float(size)}
    return Report(numbers, note=f"{captures} pages in {len(rows)} files")


def _files(segment: Artifact) -> Iterator[dict[str, Any]]:
    for part in segment.parts:
        # A part has one WARC file and its index, or neither.
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
    """Yields the lines of all indexes in one order, with file names relative to the store."""
    with contextlib.ExitStack() as stack:
        files = [
            _lines(io.TextIOWrapper(stack.enter_context(segment.open(path)), "utf-8"), segment)
            for segment in segments
            for path in segment.files(INDEX)
        ]
        yield from heapq.merge(*files)


def _lines(file: io.TextIOWrapper, segment: Artifact) -> Iterator[str]:
    for line in file:
        where, when, fields = line.split(" ", 2)
        entry = json.loads(fields)
        entry["filename"] = f"{segment.path}/{entry['filename']}"
        yield f"{where} {when} {json.dumps(entry, ensure_ascii=True)}\n"


def attach(connection: duckdb.DuckDBPyConnection, segments: Sequence[Artifact], databases: Sequence[Artifact]) -> None:
    """Creates the views and the table of domains that the queries above read."""
    duck.view(connection, "log", [(one, path) for one in segments for path in one.files(LOG)], FETCH_LOG)
    seen = [(one, path) for one in segments for path in one.files(fetchlog.HOSTS)]
    duck.view(connection, "seen", seen, fetchlog.SEEN_HOSTS)
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
