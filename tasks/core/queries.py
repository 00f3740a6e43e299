"""DuckDB connections for queries over files that need not fit into memory.

One thread keeps rows in the order of the query, so that equal inputs give equal bytes.
"""

import contextlib
import os
from collections.abc import Iterator

import duckdb

_MEMORY = "1200MB"


@contextlib.contextmanager
def connect(scratch: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yields a connection with a memory limit of 1.2 GB, which spills to the local folder `scratch`."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1; SET preserve_insertion_order = true")
        # UUIDs are exported to Arrow as 16 bytes, not as text.
        connection.execute("SET arrow_lossless_conversion = true; SET enable_progress_bar = false")
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
