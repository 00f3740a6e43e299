"""Single rows of the crawl's tables, found by key, host or origin without reading the tables into memory.

Reads Parquet files of artifacts through DuckDB, which filters while it reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from tasks.core.artifact import Artifact
from tasks.stages.crawl.db import duck

Row = dict[str, Any]


class Lookup:
    """Queries over files of artifacts.

    Args:
        connection: see `duck.connect`.
        artifacts: by kind; a missing one has no rows.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, artifacts: Mapping[str, Artifact]) -> None:
        self._connection = connection
        self._artifacts = artifacts

    def files(self, kind: str, folder: str) -> list[str]:
        """Returns the files of an artifact below a folder, or one file by its name."""
        artifact = self._artifacts.get(kind)
        return artifact.files(folder) if artifact is not None else []

    def rows(self, kind: str, paths: Sequence[str], query: str, *values: object) -> list[Row]:
        """Returns the rows of `query` over some files of an artifact, named `stored` in the query.

        Their row numbers are a column, `file_row_number`, from 0.
        """
        if not paths:
            return []
        artifact = self._artifacts[kind]
        local = ", ".join(duck.quoted(artifact.local(path)) for path in paths)
        subquery = f"(SELECT * FROM read_parquet([{local}], union_by_name = true, file_row_number = true)) stored"
        result = self._connection.execute(query.replace("stored", subquery, 1), list(values))
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def one(self, kind: str, paths: Sequence[str], query: str, *values: object) -> Row | None:
        """Returns the first of such rows, or None."""
        rows = self.rows(kind, paths, f"{query} LIMIT 1", *values)
        return rows[0] if rows else None
