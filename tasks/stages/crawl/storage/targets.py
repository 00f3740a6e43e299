"""Targets of the links of a segment, in files of their own for each partition that owns some of them.

Written at the end of a fetch, and of rendering, from the link files of the artifact, one for each WARC file. So the
update of a partition reads one file of each segment (more if that has many), instead of the links of all WARC files.
The names of the files end with the attempt, so no two attempts write the same file.
"""

from collections.abc import Iterator

import duckdb
import pyarrow as pa

from tasks.core.queries import connect
from tasks.core.remote import concurrently
from tasks.core.stage import Output
from tasks.stages.crawl.storage import duck
from tasks.stages.crawl.storage.fetchlog import LINKS
from tasks.stages.crawl.storage.segment import LINK

TARGETS_PART = "targets"

TARGETS = pa.schema(
    [
        LINKS.field("key"),
        LINKS.field("url"),  # the smallest spelling
        LINKS.field("depth"),  # the minimum over its links, like `seen`
        LINKS.field("seen"),
        LINKS.field("lastmod"),  # the latest
    ]
)

_QUERY = """
SELECT partition, key, min(url) AS url, min(depth) AS depth, min(seen) AS seen, max(lastmod) AS lastmod
FROM links WHERE depth <= {max_depth} GROUP BY partition, key ORDER BY partition, key
"""
_ROWS, _MOST_ROWS = 1 << 16, 1 << 18
"""Rows that are read at a time, and about the most of a file."""
_IN_FLIGHT = 8
"""Files that are written at a time; up to twice as many are in memory, some 25 MB each."""


def targets_of(partition: int) -> str:
    """Returns the beginning of the paths of the targets that a partition owns (TARGETS, sorted by key)."""
    return f"targets/p{partition}-"


def write_targets(output: Output, max_depth: int) -> None:
    """Writes the part with the targets of all link files of the committed parts, unless it is committed.

    Args:
        output: the segment, or the rendered pages.
        max_depth: targets with a greater depth are left out.
    """
    folder, parts = output.folder, output.committed.values()
    links = [(folder, entry.path) for part in parts for entry in part.files if entry.path.startswith(LINK)]
    if TARGETS_PART in output.committed or not links:
        return
    with connect(output.scratch) as connection, output.part(TARGETS_PART) as part:
        duck.view(connection, "links", links, LINKS)

        def write(file: tuple[str, pa.Table]) -> None:
            stem, rows = file
            part.write_table(f"{stem}-{part.attempt}.parquet", rows)

        for _ in concurrently(write, _by_file(connection, _QUERY.format(max_depth=max_depth)), _IN_FLIGHT):
            pass


def _by_file(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[str, pa.Table]]:
    """Yields the files to write (TARGETS), by the beginning of their paths, of a query that is sorted by partition."""
    pending: list[pa.Table] = []
    owner, number = -1, 0
    for batch in connection.sql(query).to_arrow_reader(_ROWS):
        rows, at = pa.Table.from_batches([batch]), 0
        for run in rows.column("partition").value_counts().to_pylist():  # in the order of the rows, which are sorted
            full = sum(map(len, pending)) >= _MOST_ROWS
            if pending and (full or run["values"] != owner):
                yield f"{targets_of(owner)}{number:05d}", pa.concat_tables(pending).combine_chunks()
                pending, number = [], number + 1
            if run["values"] != owner:
                owner, number = run["values"], 0
            pending.append(rows.slice(at, run["counts"]).select(TARGETS.names).cast(TARGETS))
            at += run["counts"]
    if pending:
        yield f"{targets_of(owner)}{number:05d}", pa.concat_tables(pending).combine_chunks()
