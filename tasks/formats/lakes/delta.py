"""Delta Lake, by the library deltalake (extra `delta`).

Reads the log of a table at a version: its files, the values of its partitions, deletion vectors and renamed columns. A
table that needs a reader feature beyond these is refused by name. Writes commits that add and remove files; on S3 the
library commits by conditional requests. The statistics of a file have its number of rows alone, so that the log, which
outlives the files, has nothing of a text or a URL.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from tasks.core.errors import InputError, TransientError
from tasks.core.store import Store
from tasks.formats.documents.parquet_rows import plain
from tasks.formats.lakes import DELTA, TableAddress
from tasks.formats.lakes.table import (
    Column,
    Head,
    LakeTable,
    NewFile,
    Snapshot,
    TableFile,
    TableVersion,
    below,
    lacks,
    needs,
    plain_path,
    plain_schema,
    s3_environment,
)

_READ = {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features whose tables are read."""
_NUMBER, _CONTENT = "sluice/number", "sluice/content"
"""Application ids whose transactions state the head: they stay in the log when it is cleaned."""
_PHYSICAL = "delta.columnMapping.physicalName"
_OF_FILE, _PARTITION = ("path", "size_bytes"), "partition."
"""Columns of the files of a version, and the prefix of those with values of partitions."""


def identity_of(address: TableAddress) -> str:
    """Returns the identity of a snapshot; see `TableAddress.current`."""
    with _explained(address):
        table = _open(address.path, address.version)
        if address.timestamp:
            table.load_as_version(address.timestamp)
            _check_time(table, address)
        return f"{DELTA}:{table.metadata().id}:{table.version()}"


def _check_time(table: Any, address: TableAddress) -> None:
    """Raises InputError if the table did not exist yet: the library takes the oldest version then."""
    wanted, made = datetime.fromisoformat(address.timestamp or ""), table.history(1)[0]["timestamp"]
    if made > wanted.timestamp() * 1000:
        cause = f"the Delta table {address.path} of {address.setting} has no version from {address.timestamp} or before"
        raise InputError(cause, "correct timestamp")


def snapshot_of(address: TableAddress, identity: str) -> Snapshot:
    """Returns the snapshot with an identity; see `TableAddress.snapshot`."""
    _, table_id, version = identity.split(":")
    with _explained(address):
        table = _open(address.path, int(version))
        if table.metadata().id != table_id:
            cause = f"the Delta table {address.path} of {address.setting} was made again since its version {version}"
            raise InputError(cause, "give this run another version")
        if foreign := sorted(set(table.protocol().reader_features or ()) - _READ):
            cause = f"the Delta table {address.path} of {address.setting} needs {', '.join(foreign)}, which is not read"
            raise InputError(cause, "write its rows to a table without")
        columns = _columns(table, address)
        deleted = _deleted(table)
        actions = pa.table(table.get_add_actions(flatten=True))
        # Without the statistics, whose minima and maxima may be times that Python lacks.
        needed = [name for name in actions.column_names if name in _OF_FILE or name.startswith(_PARTITION)]
        rows = [{name: plain(actions.column(name)[row]) for name in needed} for row in range(actions.num_rows)]
    root = plain_path(address.path).rstrip("/")
    files = []
    for row in rows:
        path = plain_path(unquote(row["path"]))
        name = below(root, path) if "://" in path or path.startswith("/") else path
        with_values = tuple(
            Column(one.name, one.stored, None, row.get(f"{_PARTITION}{one.name}", row.get(f"{_PARTITION}{one.stored}")))
            for one in columns
        )
        full = f"{root}/{name}" if name == path else path
        files.append(TableFile(full, name, row["size_bytes"], columns=with_values, deleted=deleted.get(name, b"")))
    return Snapshot(identity, sorted(files, key=lambda file: file.name))


def _columns(table: Any, address: TableAddress) -> list[Column]:
    """Returns the columns of a table; raises InputError if fields of a column have other names in the files."""
    fields = json.loads(table.schema().to_json())["fields"]
    columns = []
    for field in fields:
        columns.append(Column(field["name"], field["metadata"].get(_PHYSICAL, field["name"])))
        if renamed := sorted(_renamed(field["type"])):
            cause = f"the Delta table {address.path} of {address.setting} maps names within its column {field['name']}"
            raise InputError(f"{cause} ({renamed[0]}), which is not read", "write its rows to a table without mapping")
    return columns


def _renamed(kind: Any) -> Iterator[str]:
    """Yields the fields within a type whose name in the files differs."""
    if isinstance(kind, dict):
        for field in kind.get("fields", ()):
            if field["metadata"].get(_PHYSICAL, field["name"]) != field["name"]:
                yield field["name"]
            yield from _renamed(field["type"])
        for part in ("elementType", "keyType", "valueType"):
            yield from _renamed(kind.get(part))


def _deleted(table: Any) -> dict[str, bytes]:
    """Returns the positions of deleted rows by the name of their file."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    vectors = pa.table(table.deletion_vectors())
    deleted = {}
    for path, kept in zip(vectors.column("filepath"), vectors.column("selection_vector"), strict=True):
        name = below(table.table_uri, unquote(plain_path(path.as_py())))
        deleted[name] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False)).astype("<i8").tobytes()
    return deleted


@contextmanager
def _explained(address: TableAddress) -> Iterator[None]:
    with needs("deltalake", DELTA):
        from deltalake.exceptions import DeltaError
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        which = f" at {'version ' + str(address.version) if address.version is not None else 'its newest version'}"
        raise InputError(
            f"the Delta table {address.path} of {address.setting} cannot be read{which} ({_first_line(error)})",
            "correct path and version; a version whose log was cleaned is gone",
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _open(path: str, version: int | None = None) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(path, version=version, storage_options=storage_options(path))


def storage_options(path: str) -> dict[str, str] | None:
    """Returns the settings of the library's client of an object store; None for those that it finds itself."""
    if not path.startswith(("s3://", "s3a://")):
        return None
    found = s3_environment()
    options = {f"aws_{key}": value for key, value in found.items()} | {"aws_conditional_put": "etag"}
    return options | ({"aws_allow_http": "true"} if found.get("endpoint", "").startswith("http://") else {})


def open_table(root: str, name: str, catalog: str) -> LakeTable:
    """Opens a table to write; see `tasks.formats.lakes.open_table`. A Delta table has no catalog."""
    with needs("deltalake", DELTA):
        import deltalake  # noqa: F401
    return DeltaLake(Store(f"{root}/{name}"))


class DeltaLake(LakeTable):
    """A Delta table that is written; see `LakeTable`."""

    def schema(self) -> pa.Schema | None:
        """Returns the columns; None if there is no table yet."""
        table = self._table()
        return pa.schema(table.schema().to_arrow()) if table else None

    def evolve(self, schema: pa.Schema) -> pa.Schema:
        """Creates the table, or adds columns that it lacks; returns the schema with which files are written."""
        from deltalake import DeltaTable, write_deltalake

        wanted, existing = plain_schema(schema), self.schema()
        if existing is None:
            with self._commits():
                options = storage_options(self.folder.root)
                DeltaTable.create(self.folder.root, wanted, mode="ignore", storage_options=options)
        elif lacks(existing, wanted, self.folder.root):
            with self._commits():
                write_deltalake(self._table(), wanted.empty_table(), mode="append", schema_mode="merge")
        return wanted

    def head(self) -> Head | None:
        """Returns the head that the newest commit has stated; None if there was none."""
        if not (table := self._table()):
            return None
        number, content = table.transaction_version(_NUMBER), table.transaction_version(_CONTENT)
        return None if number is None or content is None else Head(number, content)

    def files(self) -> list[str]:
        """Returns the paths of the files of the newest version, sorted, below the folder."""
        return sorted(self._paths(table)) if (table := self._table()) else []

    def _paths(self, table: Any) -> dict[str, str]:
        """Returns the paths below the folder of the files of a version, with their paths in the log."""
        return {unquote(path): path for path in pa.table(table.get_add_actions()).column("path").to_pylist()}

    def commit(self, added: Sequence[NewFile], removed: Sequence[str], head: Head, about: Mapping[str, str]) -> None:
        """Commits a version; see `LakeTable.commit`."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        table, now = self._table(), int(time.time() * 1000)
        paths = self._paths(table)
        actions: list[Any] = [
            AddAction(one.path, one.bytes, {}, now, True, json.dumps({"numRecords": one.rows})) for one in added
        ]
        actions += [RemoveAction(paths[path], True, now) for path in removed]
        properties = CommitProperties(
            custom_metadata=dict(about),
            app_transactions=[Transaction(_NUMBER, head.number), Transaction(_CONTENT, head.content)],
        )
        with self._commits():
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)

    def versions(self) -> list[TableVersion]:
        """Returns the versions that the log still has, oldest first."""
        table = self._table()
        numbers = sorted(entry["version"] for entry in table.history()) if table else []
        opened = ((number, _open(self.folder.root, number)) for number in numbers)
        return [TableVersion(number, frozenset(self._paths(one))) for number, one in opened]

    def forget(self, paths: Sequence[str]) -> None:
        """Removes files that are not in the newest version; a version that has one of them cannot be read any more."""
        for path in paths:
            self.folder.remove(path)

    def _load(self) -> Any:
        from deltalake import DeltaTable

        root = self.folder.root
        return _open(root) if DeltaTable.is_deltatable(root, storage_options(root)) else None

    @contextmanager
    def _commits(self) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError

        try:
            yield
            self._held = None
        except CommitFailedError as error:
            cause = f"another writer has committed to {self.folder.root} in the meantime ({_first_line(error)})"
            raise TransientError(cause, "run again") from None
