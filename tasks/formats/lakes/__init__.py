"""Tables of data lakes, Delta Lake and Apache Iceberg: snapshots of tables to read, and tables to write.

A table is a folder with Parquet files and metadata that says which of them each of its versions has. Only `delta` and
`iceberg` import the libraries of the formats, and only when they are called; files are written by this package, in
bounded memory, and enter a version of the table by one atomic commit. Recipes import this module, so it imports no
heavy library.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.core.errors import InputError

if TYPE_CHECKING:
    from tasks.formats.lakes.table import LakeTable, Snapshot

DELTA, ICEBERG = "delta", "iceberg"
FORMATS = (DELTA, ICEBERG)


def module_of(format_: str) -> Any:
    """Returns the module of a format."""
    return importlib.import_module(f"{__name__}.{format_}")


def open_table(format_: str, root: str, name: str, catalog: str = "") -> "LakeTable":
    """Opens a table to write, which need not exist.

    Args:
        format_: one of FORMATS.
        root: folder or URL of all tables.
        name: "<recipe>/<table>": its folder below the root, and in a catalog its namespace and name.
        catalog: name of an Iceberg catalog, whose settings are in the environment of pyiceberg; "" for an SQLite file
            in the folder `root`.

    Raises:
        InputError: the library is not installed, or the catalog cannot be used.
    """
    table: LakeTable = module_of(format_).open_table(root.rstrip("/"), name, catalog)
    return table


@dataclass(frozen=True)
class TableAddress:
    """A table to read, and which of its snapshots; the newest one by default.

    Attributes:
        format: one of FORMATS.
        path: folder or URL of the table; of an Iceberg table also its metadata file, or
            "catalog://<catalog>/<namespace>.<table>".
        version: version of a Delta table, or id of a snapshot of an Iceberg table.
        timestamp: ISO 8601; the snapshot is the newest at this time.
        setting: what names the table, for messages: 'the file source "wiki"'.
    """

    format: str
    path: str
    version: int | None = None
    timestamp: str | None = None
    setting: str = ""

    def current(self) -> str:
        """Returns the identity of the snapshot.

        Raises:
            InputError: the table or the snapshot does not exist, cannot be read, or its library is not installed.
        """
        return str(module_of(self.format).identity_of(self))

    def snapshot(self, identity: str) -> "Snapshot":
        """Returns the snapshot with an identity; errors are those of `current`."""
        snapshot: Snapshot = module_of(self.format).snapshot_of(self, identity)
        if not snapshot.files:
            raise InputError(f"{self.path} of {self.setting} has no rows in {identity}", "name another snapshot")
        return snapshot
