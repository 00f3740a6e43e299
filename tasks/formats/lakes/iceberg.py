"""Apache Iceberg, by the library pyiceberg (extra `iceberg`).

Reads the metadata of a table at a snapshot: its files by manifest, columns by field id, positional deletes and deletion
vectors; a snapshot with equality deletes is refused. Writes files with field ids, and snapshots that add and remove
files, by a catalog, whose swap of the metadata is atomic. Manifests have no bounds of columns, so that metadata, which
outlives the files, has nothing of a text or a URL.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core.errors import InputError, TransientError
from tasks.core.store import Store
from tasks.formats.lakes import ICEBERG, TableAddress
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

CATALOG = "catalog://"
_NUMBER, _CONTENT = "sluice.number", "sluice.content"
_METADATA = re.compile(r"v?(\d+)(?:-[0-9a-f-]+)?\.metadata\.json")
_PROPERTIES = {
    "write.metadata.metrics.default": "counts",
    # A retry would add files beside those of another writer, or files that a takedown has deleted in the meantime.
    "commit.retry.num-retries": "0",
}


def identity_of(address: TableAddress) -> str:
    """Returns the identity of a snapshot; see `TableAddress.current`."""
    with _explained(address):
        table = _load(address)
        snapshot = address.version
        if address.timestamp:
            at = datetime.fromisoformat(address.timestamp).timestamp() * 1000
            before = [(one.timestamp_ms, one.snapshot_id) for one in table.history() if one.timestamp_ms <= at]
            snapshot = max(before)[1] if before else None
        elif snapshot is None and table.current_snapshot():
            snapshot = table.current_snapshot().snapshot_id
        if snapshot is None or table.snapshot_by_id(snapshot) is None:
            raise ValueError("there is no such snapshot" if snapshot else "there is no snapshot yet")
        return f"{ICEBERG}:{table.metadata.table_uuid}:{snapshot}"


def snapshot_of(address: TableAddress, identity: str) -> Snapshot:
    """Returns the snapshot with an identity; see `TableAddress.snapshot`."""
    _, table_uuid, number = identity.split(":")
    with _explained(address):
        from pyiceberg.io.pyarrow import _read_all_delete_files

        table = _load(address)
        if str(table.metadata.table_uuid) != table_uuid:
            cause = f"the Iceberg table {address.path} of {address.setting} was made again since the snapshot {number}"
            raise InputError(cause, "give this run another version")
        if table.snapshot_by_id(int(number)) is None:
            raise ValueError(f"the snapshot {number} has expired")
        scan = table.scan(snapshot_id=int(number))
        _check_deletes(table, address, int(number))
        tasks = list(scan.plan_files())
        deletes = _read_all_delete_files(table.io, tasks)
        files = [_file(table, scan.projection(), task, deletes, address) for task in tasks]
    return Snapshot(identity, sorted(files, key=lambda file: file.name))


def _check_deletes(table: Any, address: TableAddress, number: int) -> None:
    """Raises InputError if the snapshot has equality deletes, which the library does not apply."""
    if table.snapshot_by_id(number).summary["total-equality-deletes"] not in (None, "0"):
        cause = f"the snapshot {number} of the Iceberg table {address.path} of {address.setting} has equality deletes"
        raise InputError(f"{cause}, which are not read", "rewrite its data files, and name the snapshot after that")


def _file(table: Any, schema: Any, task: Any, deletes: Any, address: TableAddress) -> TableFile:
    data = task.file
    if data.file_format != "PARQUET":
        cause = f"{data.file_path} of the Iceberg table {address.path} is {data.file_format}"
        raise InputError(f"{cause}, and {address.setting} reads Parquet alone", "write its rows again as Parquet")
    fields = table.specs()[data.spec_id].fields
    partition = {
        field.source_id: data.partition[n] for n, field in enumerate(fields) if str(field.transform) == "identity"
    }
    columns = tuple(
        Column(one.name, one.name, one.field_id, partition.get(one.field_id, one.initial_default))
        for one in schema.fields
    )
    positions = deletes.get(data.file_path, [])
    deleted = np.unique(np.concatenate([one.to_numpy() for one in positions])) if positions else np.empty(0)
    path = plain_path(data.file_path)
    name = below(table.location(), path)
    return TableFile(path, name, data.file_size_in_bytes, columns=columns, deleted=deleted.astype("<i8").tobytes())


def _load(address: TableAddress) -> Any:
    from pyiceberg.table import StaticTable

    if address.path.startswith(CATALOG):
        name, _, identifier = address.path.removeprefix(CATALOG).partition("/")
        return _catalog(name).load_table(identifier)
    path = address.path if address.path.endswith(".json") else _newest_metadata(address.path.rstrip("/"))
    return StaticTable.from_metadata(path, _io_properties())


def _newest_metadata(folder: str) -> str:
    """Returns the metadata file with the highest number of a table in a folder."""
    names = [(int(match[1]), name) for name in Store(folder).names("metadata") if (match := _METADATA.fullmatch(name))]
    if not names:
        raise ValueError(f"{folder}/metadata has no metadata file")
    return f"{folder}/metadata/{max(names)[1]}"


def _catalog(name: str) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(name, **_io_properties())


def _io_properties() -> dict[str, str]:
    return {f"s3.{key}": value for key, value in s3_environment().items()}


@contextmanager
def _explained(address: TableAddress) -> Iterator[None]:
    with needs("pyiceberg", ICEBERG):
        import pyiceberg.exceptions  # noqa: F401
    try:
        yield
    except (InputError, TransientError):
        raise
    except Exception as error:  # errors of catalogs have no common base
        which = f" at the snapshot {address.version}" if address.version is not None else ""
        raise InputError(
            f"the Iceberg table {address.path} of {address.setting} cannot be read{which} "
            f"({type(error).__name__}: {str(error).strip().partition(chr(10))[0]})",
            "correct path and snapshot; a snapshot that has expired is gone",
        ) from None


def open_table(root: str, name: str, catalog: str) -> LakeTable:
    """Opens a table to write; see `tasks.formats.lakes.open_table`.

    Raises:
        InputError: the library is not installed, or the catalog is unknown or does not respond.
    """
    with needs("pyiceberg", ICEBERG):
        from pyiceberg.catalog.sql import SqlCatalog
    try:
        if catalog:
            return IcebergLake(Store(f"{root}/{name}"), _catalog(catalog), name.replace("/", "."))
        if "://" in root:
            raise ValueError("a table in a bucket needs a catalog")
        Store(root).scratch("")  # creates the folder
        opened = SqlCatalog("sluice", uri=f"sqlite:///{root}/catalog.db", warehouse=root)
    except Exception as error:  # errors of catalogs have no common base
        cause = f"the catalog {catalog or root} of [place.lake] cannot be used ({error})"
        raise InputError(cause, "set catalog, and PYICEBERG_CATALOG__<NAME>__URI in the environment") from None
    return IcebergLake(Store(f"{root}/{name}"), opened, name.replace("/", "."))


class IcebergLake(LakeTable):
    """An Iceberg table that is written; see `LakeTable`.

    Args:
        folder: folder of the table.
        catalog: the catalog of pyiceberg that has it.
        identifier: its namespace and name.
    """

    def __init__(self, folder: Store, catalog: Any, identifier: str) -> None:
        super().__init__(folder)
        self.catalog = catalog
        self.identifier = identifier

    def schema(self) -> pa.Schema | None:
        """Returns the columns; None if there is no table yet."""
        table = self._table()
        return table.schema().as_arrow() if table else None

    def evolve(self, schema: pa.Schema) -> pa.Schema:
        """Creates the table, or adds columns that it lacks; returns the schema with which files are written."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        wanted, table = plain_schema(schema), self._table()
        if table is None:
            with self._commits():
                self.catalog.create_namespace_if_not_exists(self.identifier.partition(".")[0])
                self.catalog.create_table(self.identifier, wanted, location=self.folder.root, properties=_PROPERTIES)
        elif lacks(table.schema().as_arrow(), wanted, self.folder.root):
            with self._commits(), table.update_schema() as update:
                update.union_by_name(wanted)
        with_ids = schema_to_pyarrow(self._table().schema(), include_field_ids=True)
        return pa.schema([with_ids.field(name) for name in wanted.names])

    def head(self) -> Head | None:
        """Returns the head that the newest commit has stated; None if there was none."""
        properties = table.properties if (table := self._table()) else {}
        return Head(int(properties[_NUMBER]), int(properties[_CONTENT])) if _NUMBER in properties else None

    def files(self) -> list[str]:
        """Returns the paths of the files of the newest version, sorted, below the folder."""
        return sorted(self._data_files(table)) if (table := self._table()) else []

    def _data_files(self, table: Any) -> dict[str, Any]:
        return {self._below(task.file.file_path): task.file for task in table.scan().plan_files()}

    def _below(self, path: str) -> str:
        return below(self.folder.root, path)

    def commit(self, added: Sequence[NewFile], removed: Sequence[str], head: Head, about: Mapping[str, str]) -> None:
        """Commits a version; see `LakeTable.commit`."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        table = self._table()
        old = self._data_files(table)
        with self._commits(), table.transaction() as transaction:
            transaction.set_properties({_NUMBER: str(head.number), _CONTENT: str(head.content)})
            with transaction.update_snapshot(snapshot_properties=dict(about)).overwrite() as snapshot:
                for one in added:
                    data = DataFile.from_args(
                        content=DataFileContent.DATA,
                        file_path=self.folder.url(one.path),
                        file_format=FileFormat.PARQUET,
                        partition=Record(),
                        record_count=one.rows,
                        file_size_in_bytes=one.bytes,
                    )
                    data.spec_id = 0
                    snapshot.append_data_file(data)
                for path in removed:
                    snapshot.delete_data_file(old[path])

    def versions(self) -> list[TableVersion]:
        """Returns the snapshots that the metadata still has, oldest first."""
        table = self._table()
        snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number) if table else []
        return [TableVersion(one.snapshot_id, frozenset(self._files_of(table, one))) for one in snapshots]

    def _files_of(self, table: Any, snapshot: Any) -> Iterator[str]:
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield self._below(entry.data_file.file_path)

    def forget(self, paths: Sequence[str]) -> None:
        """Expires the snapshots that have one of some files, and removes the files."""
        table, gone = self._table(), set(paths)
        expired = [one.number for one in self.versions()[:-1] if one.files & gone]
        if expired:
            with self._commits():
                table.maintenance.expire_snapshots().by_ids(expired).commit()
        for path in paths:
            self.folder.remove(path)

    def _load(self) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.catalog.load_table(self.identifier)
        except NoSuchTableError:
            return None

    @contextmanager
    def _commits(self) -> Iterator[None]:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError, ValidationException

        try:
            yield
            self._held = None
        except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
            cause = f"another writer has committed to {self.folder.root} in the meantime ({error})"
            raise TransientError(cause, "run again") from None
