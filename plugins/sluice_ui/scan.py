"""Finds documents by their columns in the Parquet files of a version, or in those that an index names.

DuckDB reads the columns that the conditions name, and skips row groups by their statistics. Files are read in groups
that grow, until enough rows match, so that a condition that many documents meet reads few files.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.core import parquet
from tasks.core.artifact import Artifact

_FIRST_GROUP = 8
_GROWTH = 4
THREADS = 2
"""Threads of a search, so that a page leaves the API server its other cores."""


class Place(NamedTuple):
    """The place of a row: number of the file, and row in it."""

    file: int
    row: int


class Condition(NamedTuple):
    """A condition on columns, in SQL with one "?" for each value."""

    columns: tuple[str, ...]
    sql: str
    values: tuple[object, ...]


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        places: the places of the rows, in the order of the files.
        next: from where to search on; None if all files were read.
        files: number of files that were read.
    """

    places: tuple[Place, ...]
    next: Place | None
    files: int


def equals(column: str, value: str) -> Condition:
    """Returns the condition that a column has a value."""
    return Condition((column,), f"{column} = ?", (value,))


def host_of_url(host: str) -> Condition:
    """Returns the condition that the host of a URL, with its port, has a value; for files without a column of hosts."""
    return Condition(("url",), "split_part(url, '/', 3) = ?", (host,))


def between(column: str, low: float | None, high: float | None) -> Condition:
    """Returns the condition that a column is at least `low` and at most `high`; None for no limit."""
    bounds = [(sign, value) for sign, value in ((">=", low), ("<=", high)) if value is not None]
    return Condition(
        (column,), " AND ".join(f"{column} {sign} ?" for sign, _ in bounds), tuple(value for _, value in bounds)
    )


def contains(columns: Sequence[str], text: str) -> Condition:
    """Returns the condition that any of some columns contains a text, regardless of case.

    A column `url` is also searched without escapes, as people write it.
    """
    searched = [*columns, *("coalesce(try(url_decode(url)), url)" for column in columns if column == "url")]
    sql = " OR ".join(f"contains(lower({text_of}), lower(?))" for text_of in searched)
    return Condition(tuple(columns), f"({sql})", (text,) * len(searched))


def search(
    artifact: Artifact,
    folder: str,
    conditions: Sequence[Condition],
    begin: Place,
    most: int,
    budget: int | None = None,
    only: Collection[str] | None = None,
) -> Found:
    """Returns the first rows from a place on that meet all conditions; a file without a column has none.

    Args:
        artifact: the artifact.
        folder: the folder of its files ("kept/").
        conditions: the conditions.
        begin: where to begin.
        most: number of rows to find.
        budget: bytes of files to read at most, of which the first one may be larger; None for no limit.
        only: paths of the files that can have such rows, if an index says so; None for all.
    """
    sizes = {entry.path: entry.bytes for entry in artifact.entries(folder)}
    paths = artifact.files(folder)
    columns = {name for condition in conditions for name in condition.columns}
    places: list[Place] = []
    if not paths or not columns <= set(parquet.schema(artifact.local(paths[0])).names):
        return Found((), None, 0)
    left = [number for number in range(begin.file, len(paths)) if only is None or paths[number] in only]
    bytes_of = [sizes[paths[number]] for number in left]
    at, width, used = 0, _FIRST_GROUP, 0
    while at < len(left) and len(places) < most:
        end = at + 1
        used += bytes_of[at]
        while end < min(len(left), at + width) and (budget is None or used + bytes_of[end] <= budget):
            used += bytes_of[end]
            end += 1
        group = left[at:end]
        skip = begin.row if group[0] == begin.file else 0
        local = [artifact.local(paths[number]) for number in group]
        places += [Place(group[file], row) for file, row in _group(local, conditions, skip, most - len(places))]
        at, width = end, width * _GROWTH
        if (budget is not None and used >= budget) or (budget and at < len(left) and used + bytes_of[at] > budget):
            break
    if len(places) >= most:
        last = places[-1]
        return Found(tuple(places), Place(last.file, last.row + 1), last.file - begin.file + 1)
    end_file = left[at] if at < len(left) else len(paths)
    return Found(tuple(places), Place(end_file, 0) if at < len(left) else None, end_file - begin.file)


def ordered(
    artifact: Artifact,
    folder: str,
    conditions: Sequence[Condition],
    column: str,
    *,
    descending: bool,
    first: int,
    most: int,
    only: Collection[str] | None = None,
) -> tuple[Place, ...]:
    """Returns rows of all files that meet all conditions, in the order of a column; those without a value are last.

    Args:
        artifact: the artifact.
        folder: the folder of its files ("kept/").
        conditions: the conditions.
        column: the column; rows with equal values, and all rows without the column, are in the order of the files.
        descending: whether the largest value is first.
        first: number of matching rows to leave out.
        most: number of rows to return.
        only: paths of the files that can have such rows, if an index says so; None for all.
    """
    import duckdb

    paths = artifact.files(folder)
    columns = {name for condition in conditions for name in condition.columns}
    numbers = {artifact.local(path): number for number, path in enumerate(paths) if only is None or path in only}
    known = set(parquet.schema(next(iter(numbers))).names) if numbers else set()
    if not numbers or not columns <= known:
        return ()
    order = f"{column} {'DESC' if descending else 'ASC'} NULLS LAST, " if column in known else ""
    where = " AND ".join(["true", *(condition.sql for condition in conditions)])
    values: list[Any] = [list(numbers), *(value for condition in conditions for value in condition.values)]
    with duckdb.connect(config={"threads": THREADS}) as connection:
        rows = connection.execute(
            "SELECT filename, file_row_number FROM read_parquet(?, filename = true, file_row_number = true) "
            f"WHERE {where} ORDER BY {order}filename, file_row_number LIMIT ? OFFSET ?",
            [*values, most, first],
        ).fetchall()
    return tuple(Place(numbers[name], int(row)) for name, row in rows)


def _group(paths: Sequence[str], conditions: Sequence[Condition], skip: int, most: int) -> list[tuple[int, int]]:
    """Returns number of the file and row of the first matching rows of some files, without `skip` rows of the first."""
    import duckdb

    where = " AND ".join(["(filename != ? OR file_row_number >= ?)", *(condition.sql for condition in conditions)])
    asked = [value for condition in conditions for value in condition.values]
    values: list[Any] = [list(paths), paths[0], skip, *asked, most]
    with duckdb.connect(config={"threads": THREADS}) as connection:
        rows = connection.execute(
            "SELECT filename, file_row_number FROM read_parquet(?, filename = true, file_row_number = true) "
            f"WHERE {where} LIMIT ?",
            values,
        ).fetchall()
    numbers = {path: number for number, path in enumerate(paths)}
    return sorted((numbers[name], int(row)) for name, row in rows)


def rows_at(artifact: Artifact, folder: str, places: Sequence[Place], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Returns rows at some places with those of the columns that the files have, and `part`, the name of the part."""
    paths = artifact.files(folder)
    found: dict[Place, dict[str, Any]] = {}
    for number in dict.fromkeys(place.file for place in places):
        rows = [place.row for place in places if place.file == number]
        part = paths[number].removeprefix(folder).removesuffix(".parquet")
        table = _rows_of_file(artifact.local(paths[number]), rows, columns)
        found |= {
            Place(number, row): {**value, "part": part} for row, value in zip(rows, table.to_pylist(), strict=True)
        }
    return [found[place] for place in places]


def _rows_of_file(path: str, rows: Sequence[int], columns: Sequence[str]) -> pa.Table:
    """Returns some rows of a file, in their order; reads the row groups that have them, in batches."""
    with parquet.open_file(path) as file:
        names = [name for name in columns if name in file.schema_arrow.names]
        pieces, begin = [], 0
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            if mine := [row - begin for row in rows if begin <= row < end]:
                pieces.append(file.read_row_group(group, columns=names).take(pa.array(mine)))
            begin = end
        return pa.concat_tables(pieces)
