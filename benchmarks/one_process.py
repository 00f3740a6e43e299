"""Memory and CPU for a row, of work that one process does over all rows of a segment, a crawl or a part.

    python -m benchmarks.one_process [links] [edges] [index_lines] [hosts] [tombstones]

Measures at two sizes, each in a fresh process: the targets of the links of a segment (`fetch`), the ranks of hosts from
edges between them (`rank`), the sorted index of captures (`publish`), the sums of the hosts of four parts
(`consolidate`), and the reading of tombstones (all that know takedowns). The inputs are made on disk first. `bytes` is
the slope of the peak of resident memory between the two sizes, so it has no libraries; `us` are microseconds of CPU for
a row of the larger size. Targets and hosts are queries with a limit of 1.2 GB. Linux only. Writes
`one_process.json`, and keeps the figures of what it does not measure.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import crawldb
from benchmarks.harness import keep, last, last_line, parser
from tasks.core.artifact import ArtifactId
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.formats.documents import tombstones
from tasks.stages.consolidate import sums
from tasks.stages.consolidate.funnel import HOSTS
from tasks.stages.crawl import rank
from tasks.stages.crawl.storage import targets
from tasks.stages.crawl.storage.crawldb import EDGES
from tasks.stages.crawl.storage.merged_index import IndexFile, write_index

SIZES = {
    "links": (700_000, 2_100_000),
    "edges": (400_000, 1_200_000),
    "index_lines": (50_000, 150_000),
    "hosts": (200_000, 600_000),
    "tombstones": (50_000, 150_000),
}
PARTS = 4
NAME = "benchmark/rows"


def make_links(output: Output, rows: int) -> None:
    """Writes the links of pages, 1,000 pages a file."""
    pages, at_a_time = rows // crawldb.LINKS_PER_PAGE, 1000
    for first in range(0, pages, at_a_time):
        name = f"links-{first:08d}"
        query = crawldb.links(first, min(first + at_a_time, pages), 20 * pages)
        with duckdb.connect() as connection, output.part(name, conserved=False) as part:
            connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
            with tempfile.NamedTemporaryFile(suffix=".parquet") as aside:
                connection.execute(f"COPY ({query}) TO '{aside.name}' (COMPRESSION zstd)")
                part.write(f"links/{name}.parquet", Path(aside.name).read_bytes())


def make_edges(output: Output, rows: int) -> None:
    """Writes edges between a tenth as many hosts, in four files."""
    hosts = rows // 10
    for number in range(PARTS):
        drawn = np.random.default_rng(number)
        ends = drawn.integers(0, hosts, rows // PARTS), drawn.zipf(1.3, rows // PARTS) % hosts
        names = [[f"host-number-{host}.example{host % 97}.org" for host in end.tolist()] for end in ends]
        with output.part(f"edges-{number}", conserved=False) as part:
            part.table("edges", pa.table(names, schema=EDGES), out=False)


def make_index_lines(output: Output, rows: int) -> None:
    """Writes the indexes of WARC files of 1,000 captures."""
    drawn = random.Random(1)
    for file in range(rows // 1000):
        name, lines = f"warc-{file:05d}", []
        for row in range(1000):
            path = f"section-{drawn.randrange(7)}/some-words-{drawn.randrange(10**6)}.html"
            fields = {"url": f"https://example.org/{path}", "mime": "text/html", "status": "200", "digest": "A" * 32}
            fields |= {"length": "34567", "offset": str(row * 34567), "filename": f"warc/{name}-7c417b83.warc.gz"}
            lines.append(f"org,example)/{path} 20261101120000 {json.dumps(fields)}\n")
        with output.part(name, conserved=False) as part:
            part.write(f"index/{name}.cdxj", "".join(sorted(lines)).encode())


def make_hosts(output: Output, rows: int) -> None:
    """Writes hosts of four parts, each of which has every second host of all."""
    for number in range(PARTS):
        drawn = np.random.default_rng(number)
        names = [f"host{host}.example.org" for host in drawn.permutation(rows // 2)[: rows // PARTS].tolist()]
        counts = [drawn.integers(1, 50, rows // PARTS) for _ in HOSTS.names[1:]]
        with output.part(f"p{number}", conserved=False) as part:
            part.table("hosts", pa.table([names, *counts], schema=HOSTS), out=False)


def make_tombstones(output: Output, rows: int) -> None:
    """Writes tombstones of URLs."""
    request = ("privacy request", "a@b.example", "2026-01-01", "form", "t/takedown@1")
    urls = (f"http://example{row % 997}.org/some/path/words-{row}.html" for row in range(rows))
    with output.part("all", conserved=False) as part, part.file(tombstones.FILE) as file:
        tombstones.write(file, [tombstones.Tombstone("url", url, *request) for url in urls])


def _write_hosts(output: Output) -> None:
    with output.part("sum", conserved=False) as part:
        sums.write_hosts(output.folder, [f"p{number}" for number in range(PARTS)], part, "hosts.parquet", 0)


def _write_index(output: Output) -> None:
    entries = [entry for record in output.committed.values() for entry in record.files]
    files = [IndexFile(output.folder, entry.path, entry.bytes) for entry in entries]
    with output.part("merged", conserved=False) as part:
        write_index(part, "index.cdxj", files, 0)


def _rank(output: Output) -> None:
    paths = [f"edges/edges-{number}.parquet" for number in range(PARTS)]
    with output.part("ranks", conserved=False) as part:
        part.write_table("ranks.parquet", rank.scores([partial(output.folder.table, path) for path in paths]))


WORK: dict[str, tuple[Callable[[Output, int], None], Callable[[Output], object]]] = {
    "links": (make_links, lambda output: targets.write_targets(output, crawldb.CONFIG.max_depth)),
    "edges": (make_edges, _rank),
    "index_lines": (make_index_lines, _write_index),
    "hosts": (make_hosts, _write_hosts),
    "tombstones": (make_tombstones, lambda output: tombstones.Tombstones.read([output.folder])),
}


def _output(root: str) -> Output:
    return Output(Store(root), ArtifactId(NAME, "1"), "1" * 64)


def make(what: str, root: str, rows: str) -> None:
    """Makes the input; runs in a process of its own."""
    WORK[what][0](_output(root), int(rows))
    print()


def measure(what: str, root: str) -> None:
    """Does the work in this process, and prints its peak of memory above what the process had, and its CPU-seconds."""
    output = _output(root)
    pq.write_table(pa.table({"a": [1]}), pa.BufferOutputStream())  # starts what Arrow needs
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, began = _status("VmRSS"), time.process_time()
    WORK[what][1](output)
    print(json.dumps({"bytes": _status("VmHWM") - before, "cpu_s": time.process_time() - began}))


def _status(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1000 * int(line.split()[1])


def main() -> None:
    """Measures all, writes the result."""
    options = parser(__doc__)
    options.add_argument("what", nargs="*", choices=[*SIZES, []], help="default: all")
    chosen, figures = options.parse_args().what or [*SIZES], last("one_process")
    program = "import sys; from benchmarks import one_process; getattr(one_process, sys.argv[1])(*sys.argv[2:])"
    for what in chosen:
        sizes, found = SIZES[what], []
        for rows in sizes:
            with tempfile.TemporaryDirectory() as root:
                last_line(sys.executable, program, "make", what, root, str(rows))
                found.append(json.loads(last_line(sys.executable, program, "measure", what, root)))
        small, large = found
        figures[what] = {
            "rows": sizes,
            "peak_mb": [round(one["bytes"] / 1e6, 1) for one in found],
            "bytes": round((large["bytes"] - small["bytes"]) / (sizes[1] - sizes[0])),
            "us": round(large["cpu_s"] / sizes[1] * 1e6, 2),
        }
        keep("one_process", figures)


if __name__ == "__main__":
    main()
