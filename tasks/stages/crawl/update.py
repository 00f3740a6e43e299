"""Stage `update`: merges fetched pages and links into one partition of the crawl DB, and sets due times.

Reads the partition's seeds, fetch list and segment, the links that all segments and rendered pages have for it, its
previous crawl DB, and the takedowns of the cycle, of which nothing is due any more. Writes the artifact `crawldb/p<n>`
(`tasks.stages.crawl.db.crawldb`), a new generation. The rules are in `tasks.stages.crawl.db.merge`; 10 million known
URLs, 500,000 fetched and 35 million links take some 20 CPU-seconds and 1.3 GB (`benchmarks/crawldb.py`).
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.tombstones import Tombstones, tombstones_of
from tasks.formats.web.domain import domain_of
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.db import crawldb, duck, fetchlist, hostlog, merge, takedown
from tasks.stages.crawl.db.fetchlog import FETCH_LOG, LINKS
from tasks.stages.crawl.db.known import Known
from tasks.stages.crawl.inject import file_of, number_of
from tasks.stages.crawl.storage.segment import LINK, LOG

VERSION = 4


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes the new generation of the partition named by `output.member`."""
    if "urls" not in output.committed:
        with duck.connect(output.scratch) as connection, output.part("urls") as part:
            previous = inputs.get("previous")
            segment = _own(inputs.many("segments"), output.member)
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


def _own(segments: Sequence[Artifact], member: str) -> Artifact:
    return next(one for one in segments if one.record.member == member)


def _attach_urls(connection: duckdb.DuckDBPyConnection, config: CrawlConfig, inputs: Inputs, member: str) -> None:
    previous, segments = inputs.get("previous"), inputs.many("segments")
    rendered = inputs.many("rendered")
    own = _own(segments, member)
    duck.view(connection, "previous", [(previous, crawldb.URLS_FILE)] if previous else [], crawldb.URLS)
    duck.view(connection, "log", [(own, path) for path in own.files(LOG)], FETCH_LOG)
    duck.view(connection, "listed", [(inputs["fetchlist"], fetchlist.URLS_FILE)])
    duck.view(connection, "seeds", [(inputs["seeds"], file_of(number_of(member)))])
    everywhere = [(one, path) for one in (*segments, *rendered) for path in one.files(LINK)]
    duck.view(connection, "all_links", everywhere, LINKS)
    # Sorted by partition: the row groups of others are skipped unread.
    connection.execute(
        f"CREATE VIEW links AS SELECT * FROM all_links "
        f"WHERE partition = {number_of(member)} AND depth <= {config.max_depth}"
    )
    mine = [
        (one, path) for one in (own, *(r for r in rendered if r.record.member == member)) for path in one.files(LINK)
    ]
    duck.view(connection, "own_links", mine, LINKS)
    connection.execute(merge.NEW)
    connection.execute(merge.SOONER)


def _attach_hosts(connection: duckdb.DuckDBPyConnection, inputs: Inputs, segment: Artifact) -> None:
    previous = inputs.get("previous")
    for name, file, schema in (
        ("previous_hosts", crawldb.HOSTS_FILE, crawldb.HOSTS),
        ("previous_robots", crawldb.ROBOTS_FILE, crawldb.ROBOTS),
        ("previous_edges", crawldb.EDGES_FILE, crawldb.EDGES),
    ):
        duck.view(connection, name, [(previous, file)] if previous else [], schema)
    seen = [(segment, path) for path in segment.files(hostlog.HOSTS)]
    duck.view(connection, "seen_hosts", seen, hostlog.SEEN_HOSTS)
    duck.view(connection, "seen_robots", [(segment, path) for path in segment.files(hostlog.RULES)], crawldb.ROBOTS)


def _write_urls(
    connection: duckdb.DuckDBPyConnection, part: Part, segment: Artifact, tombstones: Tombstones | None
) -> None:
    """Writes all URLs; `tombstones` is None in a recipe that never had a takedown."""
    now = datetime.now(UTC)
    query = merge.merged(now, f"{segment.path}/")
    if tombstones is not None:
        query = takedown.marked(connection, query, tombstones, now)

    def count(batch: pa.RecordBatch) -> None:
        part.metric("unfetched", pc.sum(pc.equal(batch.column("status"), crawldb.UNFETCHED)).as_py())
        part.metric("captured", pc.sum(pc.not_equal(batch.column("warc_path"), "")).as_py())
        part.metric("takedown", pc.sum(pc.not_equal(batch.column("takedown"), "")).as_py())

    rows = duck.write(connection, part, crawldb.URLS_FILE, query, count)
    part.count_in(rows)
    part.count_out(rows)


def _write_hosts(connection: duckdb.DuckDBPyConnection, part: Part) -> None:
    names = "SELECT host FROM log UNION SELECT host FROM seen_hosts UNION SELECT host FROM previous_hosts"
    hosts = [host for (host,) in connection.execute(f"SELECT * FROM ({names}) ORDER BY 1").fetchall()]
    connection.register("domains", duck.strings(host=hosts, domain=map(domain_of, hosts)))
    part.metric("hosts", duck.write(connection, part, crawldb.HOSTS_FILE, merge.HOSTS))
    duck.write(connection, part, crawldb.ROBOTS_FILE, merge.ROBOTS)
    duck.write(connection, part, crawldb.EDGES_FILE, merge.EDGES)


def _write_known(connection: duckdb.DuckDBPyConnection, part: Part, previous: Artifact | None) -> None:
    """Adds the new keys to the filter before; makes a larger one when it is full."""
    (before,) = connection.execute("SELECT count(*) FROM previous").fetchall()[0]
    (new,) = connection.execute("SELECT count(*) FROM new").fetchall()[0]
    known = Known.from_bytes(previous.read(crawldb.KNOWN_FILE)) if previous else Known(2 * new)
    query = "SELECT key FROM new"
    if before + new > known.capacity:
        known = Known(2 * (before + new))
        query = "SELECT key FROM previous UNION ALL SELECT key FROM new"
    for several in duck.keys(connection, query):
        known.add(several)
    with part.file(crawldb.KNOWN_FILE) as file:
        file.write(known.to_bytes())
