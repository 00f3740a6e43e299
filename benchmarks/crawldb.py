"""Cost of generate and update for one partition of the crawl DB, at three sizes.

    python -m benchmarks.crawldb --folder /some/empty/folder

Creates crawl DBs of 2.5, 5 and 10 million URLs, a hundred on each host, and a cycle that fetched one in twenty of them
and found 70 links on every page: half to the pages of its site, half to three new ones. Runs the two stages on them in
fresh processes and measures CPU-seconds and peak memory of each. Goals: below 20 CPU-seconds and 2 GB at 10 million,
cost linear in the size. Writes `crawldb.json`.
"""

import importlib
import json
import resource
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import keep, last_line, parser
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.engine import open_engine
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.stages.crawl import update
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage import crawldb
from tasks.stages.crawl.storage.crawldb import KnownUrls
from tasks.stages.crawl.storage.targets import write_targets

SIZES = (2_500_000, 5_000_000, 10_000_000)
LINKS_PER_PAGE = 70
PAGES_PER_FILE = 1000
CONFIG = CrawlConfig(
    seeds=("http://host1.example.org/",),
    contact="mailto:a@b.example",
    include_hosts=("*.example.org",),
    partitions=1,
    recrawl=True,
    max_pages=500_000,
    max_pages_per_host=20,
    max_pages_per_domain=10_000_000,
    max_hosts_per_domain=10_000_000,
)

# A URL by its number; numbers are hashed into keys, so that adjacent URLs of the list are not adjacent in the DB.
URL = "'https://host' || ({n} // 100) || '.example.org/section-' || ({n} % 7) || '/some-words-' || {n} || '.html'"
HOST = "'host' || ({n} // 100) || '.example.org'"
KEY = "CAST(md5(CAST({n} AS VARCHAR)) AS UUID)"


def sql(text: str, n: str) -> str:
    return text.format(n=n)


def urls(size: int) -> str:
    """Returns the query of rows of the DB: a third never fetched, due dates spread over two months around now."""
    n = "i"
    return f"""
    SELECT {sql(KEY, n)} AS key, {sql(URL, n)} AS url,
      CASE WHEN i % 3 = 0 THEN 'db_unfetched' ELSE 'db_fetched' END AS status, '' AS reason, 'page' AS kind,
      CAST(i % 8 AS INTEGER) AS depth, TIMESTAMPTZ '2026-01-01 00:00:00Z' AS first_seen,
      CASE WHEN i % 3 <> 0 THEN TIMESTAMPTZ '2026-02-01 00:00:00Z' END AS last_fetch,
      now() + to_hours(CAST((i * 7919) % 1440 - 720 AS INTEGER)) AS next_due, CAST(604800 AS BIGINT) AS interval_s,
      CAST(0 AS INTEGER) AS fails,
      CASE WHEN i % 3 = 0 THEN '' ELSE '"' || substr(md5('e' || i), 1, 12) || '"' END AS etag,
      '' AS last_modified, CASE WHEN i % 3 = 0 THEN '' ELSE 'sha1:' || md5('d' || i) END AS payload_digest,
      CASE WHEN i % 3 <> 0 THEN CAST(md5('r' || i) AS UUID) END AS record_id,
      CASE WHEN i % 3 = 0 THEN '' ELSE 'big/segment/p0/v' || (i % 20) || '/warc/warc-' || (i % 300) || '.warc.gz' END
        AS warc_path,
      CASE WHEN i % 3 <> 0 THEN CAST((i * 977) % 1000000000 AS BIGINT) END AS warc_offset,
      CASE WHEN i % 3 <> 0 THEN TIMESTAMPTZ '2026-02-01 00:00:00Z' END AS captured_at, '' AS canonical, '' AS redirect,
      '' AS takedown, '' AS terms
    FROM range({size}) r(i)"""


def log(fetched: int) -> str:
    n = "(i * 20)"
    return f"""
    SELECT {sql(KEY, n)} AS key, {sql(URL, n)} AS url, {sql(HOST, n)} AS host, CAST(1 AS INTEGER) AS depth,
      'fetch_success' AS status, '' AS reason, true AS requested, CAST(200 AS INTEGER) AS http_status,
      'text/html' AS mime, CAST(25000 AS BIGINT) AS bytes, 'sha1:' || md5('d' || (i % 2) || {n}) AS payload_digest,
      'urn:uuid:' || CAST(md5('s' || i) AS UUID) AS record_id, 'warc/warc-' || (i // 1000) || '.warc.gz' AS warc_file,
      CAST(i AS BIGINT) AS warc_offset, '' AS redirect, 'page' AS kind, '' AS canonical, '' AS title,
      false AS render, now() AS fetched_at, '"' || substr(md5('f' || i), 1, 12) || '"' AS etag,
      '' AS last_modified, '' AS terms, '' AS unread, '' AS error
    FROM range({fetched}) r(i)"""


def links(first: int, last: int, size: int) -> str:
    """Returns the query of links of some pages: 35 to their site's pages, 35 to three new ones, like menus and news."""
    source = "(i * 20)"
    target = f"CASE WHEN j < 35 THEN ({source} // 100) * 100 + (j * 3) ELSE {size} + i * 3 + j % 3 END"
    return f"""
    SELECT CAST(0 AS INTEGER) AS partition, {sql(KEY, "t")} AS key, {sql(URL, "t")} AS url, {sql(HOST, "t")} AS host,
      false AS redirect, CAST(3 AS INTEGER) AS depth, date_trunc('second', now()) AS seen, sources,
      CAST([] AS VARCHAR[]) AS source_hosts,
      CASE WHEN t % 50 = 0 THEN date_trunc('second', now()) END AS lastmod
    FROM (
      SELECT t, list(CAST(i - {first} AS INTEGER)) AS sources
      FROM (SELECT i, {target} AS t FROM range({first}, {last}) a(i), range({LINKS_PER_PAGE}) b(j)) GROUP BY t
    ) ORDER BY key"""


def made(store: Store, name: str, member: str, files: Mapping[str, str | bytes | pa.Table]) -> None:
    """Commits an artifact with files from queries, bytes or tables, and the targets of its links, if it has any."""
    output = Output(store, ArtifactId(f"big/{name}" + (f"/{member}" if member else ""), "1"), name, member=member)
    with duckdb.connect() as connection, output.part("all", conserved=False) as part:
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1; SET memory_limit = '4GB'")
        connection.execute("SET enable_progress_bar = false")
        for path, content in files.items():
            with part.file(path) as file:
                if isinstance(content, bytes):
                    file.write(content)
                elif isinstance(content, str):
                    with tempfile.NamedTemporaryFile(suffix=".parquet") as aside:
                        connection.execute(f"COPY ({content}) TO '{aside.name}' (COMPRESSION zstd)")
                        file.write(Path(aside.name).read_bytes())
                else:
                    pq.write_table(content, file)
    write_targets(output, CONFIG.max_depth)
    commit(output, name, update.VERSION, Config(), (), Report())


HOSTS = """
SELECT 'host' || i || '.example.org' AS host, 'example.org' AS domain, 0.0 AS crawl_delay_s, 0.2 AS latency_s,
  CAST(0 AS INTEGER) AS failures, CAST(NULL AS TIMESTAMPTZ) AS backoff_until, CAST(10 AS BIGINT) AS requests,
  CAST(9 AS BIGINT) AS pages, CAST(1 AS BIGINT) AS errors, CAST(0 AS BIGINT) AS traps
FROM range({hosts}) r(i)"""
SEEN = "SELECT host, crawl_delay_s, latency_s, failures, backoff_until, traps FROM ({hosts})"
RANKS = "SELECT 'host' || i || '.example.org' AS host, 0.1 + (i % 97) / 10.0 AS score FROM range({hosts}) r(i)"


def build(store: Store, size: int) -> None:
    """Creates the inputs of a cycle."""
    fetched, hosts = size // 20, HOSTS.format(hosts=size // 100)
    crawl_db = {
        crawldb.URLS_FILE: urls(size),
        crawldb.HOSTS_FILE: hosts,
        crawldb.KNOWN_FILE: filter_of(size),
        crawldb.ROBOTS_FILE: crawldb.ROBOTS.empty_table(),
        crawldb.EDGES_FILE: crawldb.EDGES.empty_table(),
    }
    made(store, "crawldb", "p0", crawl_db)
    seed = f"""
    SELECT {sql(KEY, "1")} AS key, {sql(URL, "1")} AS url, {sql(HOST, "1")} AS host, CAST(1 AS DOUBLE) AS score,
      CAST(NULL AS BIGINT) AS interval_s"""
    made(store, "seeds", "", {"seeds/p0.parquet": seed, "hosts.json": b"[]"})
    made(store, "ranks", "", {"ranks.parquet": RANKS.format(hosts=size // 200)})
    parts = {
        f"links/{first:08d}.parquet": links(first, min(first + PAGES_PER_FILE, fetched), size)
        for first in range(0, fetched, PAGES_PER_FILE)
    }
    segment = {"log/all.parquet": log(fetched), "hosts/all.parquet": SEEN.format(hosts=hosts), **parts}
    made(store, "segment", "p0", segment)


def filter_of(size: int) -> bytes:
    """Returns the filter of all keys of the DB, half full."""
    known = KnownUrls(2 * size)
    with duckdb.connect() as connection:
        for start in range(0, size, 1 << 20):
            query = f"SELECT md5(CAST(i AS VARCHAR)) FROM range({start}, {min(start + (1 << 20), size)}) r(i)"
            known.add(b"".join(bytes.fromhex(row[0]) for row in connection.execute(query).fetchall()))
    return known.to_bytes()


def measure(root: str, stage: str) -> None:
    """Runs one stage in this process and prints its cost."""
    store = Store(root)
    inputs: dict[str, Artifact | list[Artifact]] = {
        name: Artifact.open_at(store, ArtifactId(f"big/{name}", "1")) for name in ("seeds", "ranks")
    }
    inputs["previous"] = Artifact.open_at(store, ArtifactId("big/crawldb/p0", "1"))
    if stage == "update":
        segment = Artifact.open_at(store, ArtifactId("big/segment/p0", "1"))
        fetchlist = Artifact.open_at(store, ArtifactId("big/fetchlist/p0", "2"))
        inputs |= {"segments": [segment], "rendered": [], "fetchlist": fetchlist}
    kind = {"generate": "fetchlist", "update": "crawldb"}[stage]
    module = importlib.import_module(f"tasks.stages.crawl.{stage}")
    before = resource.getrusage(resource.RUSAGE_SELF)
    output = Output(store, ArtifactId(f"big/{kind}/p0", "2"), stage, member="p0")
    with open_engine(workers=0) as engine:
        report = module.run(CONFIG, Inputs(inputs), output, engine)
    after = resource.getrusage(resource.RUSAGE_SELF)
    rows = commit(output, stage, 1, Config(), (), report).record.rows_out
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = round(after.ru_maxrss / 1e6, 2)
    print(json.dumps({"cpu_s": round(cpu, 2), "peak_gb": peak, "rows": rows, "note": report.note}))


def main() -> None:
    """Builds missing inputs, runs the stages, writes the result."""
    options = parser(__doc__)
    options.add_argument("--folder", required=True, help="needs about 10 GB")
    chosen = options.parse_args()
    results = []
    for size in SIZES:
        root = f"{chosen.folder}/{size}"
        store = Store(root)
        if not store.exists("big/segment/p0/1/.artifact.json"):
            build(store, size)
        line: dict[str, object] = {"urls": size, "fetched": size // 20, "links": size // 20 * LINKS_PER_PAGE}
        for stage, kind in (("generate", "fetchlist"), ("update", "crawldb")):
            store.remove(f"big/{kind}/p0/2")
            program = "import sys; from benchmarks.crawldb import measure; measure(*sys.argv[1:])"
            line[stage] = json.loads(last_line(sys.executable, program, root, stage))
        print(json.dumps(line), flush=True)
        results.append(line)
    keep("crawldb", {"duckdb": duckdb.__version__, "sizes": results})


if __name__ == "__main__":
    main()
