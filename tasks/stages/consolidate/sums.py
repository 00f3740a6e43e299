"""Sums of the tables of all parts: workers add up those of groups of parts, until the stage's process adds the rest.

`consolidate_part` writes six tables: counts, hosts, pairs, samples, copies and withheld clusters. The sum of sums is
that of all, so a part `sums-<level>-<number>` has the six tables of FAN parts, those of the next level of FAN of these,
and the process of the stage reads those of FAN at most, however many parts there are. The commit removes the sums.

Hosts are as many as the corpus has, so DuckDB adds and sorts them in 1.2 GB of each worker, and spills to its temporary
folder. All other tables have a bounded number of rows: by source, language and reason, by pair of languages, and
documents that pages show.
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core import parquet
from tasks.core.artifact import ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.part import Part, PartSpec
from tasks.core.queries import connect, quoted
from tasks.core.remote import concurrently
from tasks.core.stage import Output
from tasks.stages.consolidate import audit
from tasks.stages.consolidate.funnel import HOSTS, add, add_pairs

FAN = 32
"""Parts, or sums of a level, that are added up into one. A worker has all files of six tables in flight at once."""

_PREFIX = "sums-"
_ROWS = 1 << 20
"""Rows of a row group of hosts, as `pyarrow.parquet.write_table` makes them."""

_ADDED_HOSTS = f"""
CREATE TABLE added AS SELECT host, {", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in HOSTS.names[1:])}
FROM read_parquet([files]) GROUP BY host ORDER BY documents DESC, host
"""


class Tables(NamedTuple):
    """The tables of some parts whose rows are bounded, or their sums; the fields are their folders."""

    counts: pa.Table
    pairs: pa.Table
    samples: pa.Table
    copies: pa.Table
    withheld: pa.Table


def add_groups(
    most_samples: int, folder: ArtifactFolder, names: Sequence[str], output: Output, engine: Engine
) -> list[str]:
    """Adds up the tables of the parts `names` on the engine; returns the names of at most FAN parts with the sums."""
    names, level = list(names), 1
    while len(names) > FAN:
        groups = [names[first : first + FAN] for first in range(0, len(names), FAN)]
        specs = [PartSpec(f"{_PREFIX}{level}-{number:05d}", group) for number, group in enumerate(groups)]
        output.map_parts(engine, partial(_add_group, most_samples, folder), specs, conserved=False)
        names, level = [spec.name for spec in specs], level + 1
    return names


def leave_out(output: Output) -> None:
    """Excludes the sums of groups from the artifact."""
    output.leave_out([name for name in output.committed if name.startswith(_PREFIX)])


def add_tables(folder: ArtifactFolder, names: Sequence[str], most_samples: int) -> Tables:
    """Returns the sums of the tables of some parts.

    Args:
        folder: the stage's artifact.
        names: the parts, or sums, in order.
        most_samples: most samples of a reason.
    """
    paths = _local(folder, [f"{kind}/{name}.parquet" for kind in Tables._fields for name in names])
    counts, pairs, samples, copies, withheld = (
        [parquet.read(path) for path in paths[first : first + len(names)]] for first in range(0, len(paths), len(names))
    )
    clusters = pa.concat_tables(withheld)
    return Tables(
        counts=add(counts),
        pairs=add_pairs(pairs),
        samples=audit.merge(samples, most_samples),
        copies=pa.concat_tables(copies),
        withheld=pa.table([clusters.column("cluster").unique()], schema=clusters.schema),
    )


def write_hosts(folder: ArtifactFolder, names: Sequence[str], part: Part, path: str, most: int) -> pa.Table:
    """Writes the sum of the hosts of some parts (HOSTS), the largest first; returns the first rows, `most` at most."""
    files = ", ".join(map(quoted, _local(folder, [f"hosts/{name}.parquet" for name in names])))
    with tempfile.TemporaryDirectory(prefix="sluice-hosts-") as scratch, connect(scratch) as connection:
        connection.execute(_ADDED_HOSTS.replace("files", files))
        ((rows,),) = connection.execute("SELECT count(*) FROM added").fetchall()
        with (
            part.file(path, rows=rows) as file,
            pq.ParquetWriter(file, HOSTS, compression="zstd", compression_level=3) as writer,
        ):
            for batch in connection.sql("SELECT * FROM added").to_arrow_reader(_ROWS):
                writer.write_table(pa.Table.from_batches([batch]).cast(HOSTS), row_group_size=_ROWS)
            if not rows:
                writer.write_table(HOSTS.empty_table())  # which has a row group, as in any table that is written whole
        return connection.sql(f"SELECT * FROM added LIMIT {most}").to_arrow_table()


def _add_group(most_samples: int, folder: ArtifactFolder, part: Part, names: Sequence[str]) -> None:
    """Writes the sums of the tables of some parts; runs on a worker."""
    for kind, table in add_tables(folder, names, most_samples)._asdict().items():
        part.table(kind, table, out=False)
    write_hosts(folder, names, part, f"hosts/{part.name}.parquet", 0)


def _local(folder: ArtifactFolder, paths: Sequence[str]) -> list[str]:
    """Returns local files with the content of files of the artifact."""
    return list(concurrently(folder.local, paths))
