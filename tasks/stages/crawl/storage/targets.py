"""Targets of the links of a segment, one file for each partition that owns some of them.

Written at the end of a fetch, and of rendering, from the link files of the artifact, one for each WARC file. So the
update of a partition reads one file of each segment, instead of the links of all WARC files.
"""

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

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
_ROWS = 1 << 16
_IN_FLIGHT = 8
"""Files that are written at a time; up to twice as many are in memory."""


def targets_file(partition: int) -> str:
    """Returns the file of the targets that a partition owns (TARGETS, sorted by key); absent if there are none."""
    return f"targets/p{partition}.parquet"


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

        def write(item: tuple[int, pa.Table]) -> None:
            part.write_table(targets_file(item[0]), item[1])

        for _ in concurrently(write, _by_partition(connection, _QUERY.format(max_depth=max_depth)), _IN_FLIGHT):
            pass


def _by_partition(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[int, pa.Table]]:
    """Yields the rows of each partition (TARGETS) of a query that is sorted by partition."""
    pending: list[pa.Table] = []
    owner = -1
    for batch in connection.sql(query).to_arrow_reader(_ROWS):
        rows = pa.Table.from_batches([batch])
        for number in rows.column("partition").unique().to_pylist():
            if pending and number != owner:
                yield owner, pa.concat_tables(pending).combine_chunks()
                pending = []
            owner = number
            pending.append(rows.filter(pc.equal(rows.column("partition"), number)).select(TARGETS.names).cast(TARGETS))
    if pending:
        yield owner, pa.concat_tables(pending).combine_chunks()
