"""DuckDB for the crawl DB: one thread, bounded memory, Parquet in and Parquet out.

Used by rank, generate, update and publish. Work happens on local files: what is read from a remote store is fetched
into this machine's cache first, what is written goes through the stage's scratch folder. One thread keeps rows in the
order of the query, so that equal inputs give equal bytes.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.artifact import Artifact
from tasks.stage import Part

_MEMORY = "1200MB"


@contextlib.contextmanager
def connect(scratch: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yields a connection that spills to `scratch` (a local folder) what does not fit into 1.2 GB."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1; SET preserve_insertion_order = true")
        connection.execute(
            f"SET memory_limit = '{_MEMORY}'; SET temp_directory = {quoted(os.path.join(scratch, 'spill'))}"
        )
        yield connection


def quoted(text: str) -> str:
    """Returns an SQL string literal.

    >>> quoted("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def strings(**columns: Iterable[str]) -> pa.Table:
    """Returns a table of text columns."""
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    files: Sequence[tuple[Artifact, str]],
    schema: pa.Schema | None = None,
) -> None:
    """Makes the view `name` over Parquet files of artifacts; over an empty table of `schema` where there are none."""
    paths = [quoted(artifact.store.local(f"{artifact.address.path}/{path}")) for artifact, path in files]
    if paths:
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{', '.join(paths)}])")
    elif schema is not None:
        connection.register(name, schema.empty_table())


def write(
    connection: duckdb.DuckDBPyConnection,
    part: Part,
    path: str,
    query: str,
    scratch: str,
    counted: Mapping[str, str] | None = None,
) -> int:
    """Writes the rows of `query` as the Parquet file `path` of the part; returns their number.

    `counted` names metrics of the part, each the number of rows that an SQL condition holds for.
    """
    aside = os.path.join(scratch, f"{part.name}-{part.attempt}-{os.path.basename(path)}")
    copied = connection.execute(f"COPY ({query}) TO {quoted(aside)} (FORMAT parquet, COMPRESSION zstd)").fetchone()
    rows = int(copied[0]) if copied else 0
    try:
        for name, condition in (counted or {}).items():
            held = connection.execute(
                f"SELECT count(*) FROM read_parquet({quoted(aside)}) WHERE {condition}"
            ).fetchall()
            part.metric(name, held[0][0])
        with open(aside, "rb") as made, part.file(path, rows=rows) as file:
            shutil.copyfileobj(made, file, 1 << 20)
    finally:
        os.remove(aside)
    return rows


def keys(connection: duckdb.DuckDBPyConnection, query: str, scratch: str) -> Iterator[list[bytes]]:
    """Yields the one UUID column of `query` as bytes, in lists."""
    # By way of a file: handed over directly, DuckDB makes text of UUIDs.
    with tempfile.NamedTemporaryFile(dir=scratch, suffix=".parquet") as aside:
        connection.execute(f"COPY ({query}) TO {quoted(aside.name)} (FORMAT parquet)")
        for batch in pq.ParquetFile(aside.name).iter_batches(batch_size=1 << 16):
            yield batch.column(0).storage.to_pylist()
