"""Stage `publish`: completes a crawl cycle with one artifact that names all WARC files and the new crawl DB.

Reads the segments, the rendered pages and the new crawl DB. Writes `manifest.parquet` (archive.MANIFEST_SCHEMA),
`index.cdxj`, and a report: `domains.parquet`, the cycle by registered domain, and `takedown.parquet`, the captures that
may no longer be kept. If the index has more than 256 MiB, it is one file for each partition, `index/p<n>.cdxj`: readers
of CDXJ take several sorted files, and no process holds or merges those of all WARC files. The WARC files remain in the
segments and are not copied. The next cycle starts from the crawl DB that the newest of these artifacts was made from,
so publishing its record switches to the new crawl DB.

A domain belongs to one partition, so workers make the report of each partition from its fetch logs and crawl DB, and
the process of the stage joins those of all. Each worker has a query of its own (`tasks.core.queries`), which takes
1.2 GB and spills to its temporary folder.
"""

import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.pages import template
from tasks.core.queries import connect
from tasks.core.stage import Inputs, Output, Part, PartSpec, Report, total
from tasks.formats.warc.archive import INDEX as INDEX_FILE
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage import crawldb, duck, fetchlog
from tasks.stages.crawl.storage.fetchlog import DOMAINS_FILE, DUPLICATE, FETCH_LOG, NO_SITEMAP, NOT_MODIFIED, SUCCESS
from tasks.stages.crawl.storage.merged_index import RUN_BYTES, IndexFile, write_index
from tasks.stages.crawl.storage.segment import INDEX, LOG, WARC

VERSION = 5

TAKEDOWN_FILE = "takedown.parquet"
_MAX_ROWS = 500
_OF_PARTITION = "health-"

_DOMAINS = f"""
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
GROUP BY d.domain ORDER BY d.domain
"""

DOMAINS = "SELECT * FROM domains ORDER BY pages DESC, domain"

TAKEDOWN = "SELECT * FROM takedown ORDER BY url"

_TAKEDOWN = """
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
    manifest = pa.concat_tables([MANIFEST_SCHEMA.empty_table(), *map(_files, segments)]).combine_chunks()
    captures = pc.sum(manifest.column("records"), min_count=0).as_py()
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
            with part.file(MANIFEST, rows=manifest.num_rows) as file:
                pq.write_table(manifest, file, compression="zstd")
    output.map_parts(engine, _index_part, _indexes(segments), conserved=False)
    partitions = [
        PartSpec(f"{_OF_PARTITION}{member}", files)
        for member, files in _partitions(inputs.many("segments"), inputs.many("crawldb")).items()
    ]
    records = output.map_parts(engine, _partition_part, partitions, conserved=False)
    output.log_file("domains.html", _write_report(output, [spec.payload.member for spec in partitions]))
    output.leave_out([spec.name for spec in partitions])
    size = pc.sum(manifest.column("bytes"), min_count=0).as_py()
    measured = sorted({name for record in records for name in record.metrics})
    figures = {name: total(records, name) for name in measured}
    figures |= {"pages": float(captures), "warc_bytes": float(size)}
    return Report(figures, note=f"{captures} pages in {manifest.num_rows} files")


def _files(segment: Artifact) -> pa.Table:
    """Returns the WARC files of a segment (MANIFEST_SCHEMA)."""
    rows = []
    for part in segment.parts:
        # A part has one WARC file with an index, or neither.
        index = next((entry.path for entry in part.files if entry.path.startswith(INDEX)), None)
        rows += [
            {
                "segment": str(segment.address),
                "path": f"{segment.path}/{entry.path}",
                "sha256": entry.sha256,
                "bytes": entry.bytes,
                "records": part.rows_out,
                "index": f"{segment.path}/{index}" if index else None,
            }
            for entry in part.files
            if entry.path.startswith(WARC)
        ]
    return pa.Table.from_pylist(rows, schema=MANIFEST_SCHEMA)


class _Index(NamedTuple):
    """One index to write: its path, the indexes that it merges, and their lines."""

    path: str
    files: list[IndexFile]
    rows: int


def _indexes(segments: Sequence[Artifact]) -> list[PartSpec]:
    """Returns the parts of the index: one file, or one for each partition if that is too large."""
    members: dict[str, list[tuple[IndexFile, int]]] = {}
    for segment in segments:
        members.setdefault(segment.record.member, []).extend(
            (IndexFile(segment.folder, entry.path, entry.bytes), part.rows_out)
            for part in segment.parts
            for entry in part.files
            if entry.path.startswith(INDEX)
        )
    whole = [one for files in members.values() for one in files]
    if sum(file.bytes for file, _ in whole) <= RUN_BYTES:
        return [PartSpec("index", _merged(INDEX_FILE, whole))]
    return [
        PartSpec(f"index-{member}", _merged(f"index/{member}.cdxj", files))
        for member, files in members.items()
        if files
    ]


def _merged(path: str, files: Sequence[tuple[IndexFile, int]]) -> _Index:
    return _Index(path, [file for file, _ in files], sum(rows for _, rows in files))


def _index_part(part: Part, index: _Index) -> None:
    """Writes an index; runs on a worker."""
    write_index(part, index.path, index.files, index.rows)


class _Partition(NamedTuple):
    """What the report reads of one partition: files of its segment, and its crawl DB."""

    member: str
    segment: ArtifactFolder
    logs: list[str]
    hosts: list[str]
    database: ArtifactFolder


def _partitions(segments: Sequence[Artifact], databases: Sequence[Artifact]) -> dict[str, _Partition]:
    crawl_db = {database.record.member: database.folder for database in databases}
    return {
        segment.record.member: _Partition(
            segment.record.member,
            segment.folder,
            segment.files(LOG),
            segment.files(fetchlog.HOSTS),
            crawl_db[segment.record.member],
        )
        for segment in segments
    }


def _partition_part(part: Part, partition: _Partition) -> None:
    """Writes the report of one partition, which has all hosts of its domains, and counts; runs on a worker."""
    with tempfile.TemporaryDirectory(prefix="sluice-publish-") as scratch, connect(scratch) as connection:
        of_segment, database = partition.segment, partition.database
        duck.view(connection, "log", [(of_segment, path) for path in partition.logs], FETCH_LOG)
        duck.view(connection, "seen", [(of_segment, path) for path in partition.hosts], fetchlog.SEEN_HOSTS)
        duck.view(connection, "hosts", [(database, crawldb.HOSTS_FILE)], crawldb.HOSTS)
        duck.view(connection, "urls", [(database, crawldb.URLS_FILE)], crawldb.URLS)
        duck.write(connection, part, f"domains/{partition.member}.parquet", _DOMAINS)
        part.metric("takedown", duck.write(connection, part, f"takedown/{partition.member}.parquet", _TAKEDOWN))
        for name, value in _figures(connection).items():
            part.metric(name, value)


def _write_report(output: Output, members: Sequence[str]) -> bytes:
    """Writes the report from those of all partitions, unless it is committed; returns the page of domains."""
    with connect(output.scratch) as connection:
        for name in ("domains", "takedown"):
            duck.view(connection, name, [(output.folder, f"{name}/{member}.parquet") for member in members])
        if "health" not in output.committed:
            with output.part("health") as part:
                duck.write(connection, part, DOMAINS_FILE, DOMAINS)
                duck.write(connection, part, TAKEDOWN_FILE, TAKEDOWN)
        ((count,),) = connection.execute("SELECT count(*) FROM domains").fetchall()
        return page(connection.sql(f"{DOMAINS} LIMIT {_MAX_ROWS}").to_arrow_table(), count)


def _figures(connection: duckdb.DuckDBPyConnection) -> dict[str, float]:
    """Returns metrics of a partition: duplicates, pages with unread links, URLs by status, and errors by reason."""
    statuses = connection.execute("SELECT status, count(*) FROM urls GROUP BY status ORDER BY status").fetchall()
    reasons = connection.execute(_REASONS).fetchall()
    ((duplicates, unread),) = connection.execute(_PAGES).fetchall()
    return {
        "duplicates": float(duplicates),
        "links_unread": float(unread),
        **{status: float(count) for status, count in statuses},
        **{f"errors.{reason}": float(count) for reason, count in reasons},
    }


def page(domains: pa.Table, count: int) -> bytes:
    """Returns an HTML page with the first domains, the largest first, of `count`."""
    rows = [[_text(value) for value in row.values()] for row in domains.to_pylist()]
    names = [name.replace("_", " ") for name in domains.column_names]
    html = template(__package__, "health.html").render(names=names, rows=rows, more=count - domains.num_rows)
    return html.encode()


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value)
