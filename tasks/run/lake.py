"""The lake of a recipe: writes its corpus into tables, takes documents out of them, and proves that they are gone.

Reads the artifacts of versions and the takedowns in force; writes the tables of `[place.lake]`, each with one commit
per version. A table is the corpus as of the newest version: with a dedup index a version adds its new rows and removes
the documents that it replaces, without one it replaces all. Older versions are read by the time travel of the format.

Files are written before their commit, under names that depend on their content, so a run that was killed leaves the
old version, and the next run writes the same files and commits. The commit states number and content of the version:
what the table has is not written again, and of two writers one is refused.
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.engine import Engine, open_engine
from tasks.core.errors import RecipeError, TransientError
from tasks.core.store import Store
from tasks.core.terminal import Progress
from tasks.formats.documents.tombstones import TAKEDOWN, Tombstones, in_force
from tasks.formats.lakes import open_table
from tasks.formats.lakes.files import (
    FOLDER,
    ID,
    NOTHING,
    URL,
    Found,
    LeftOut,
    NewPart,
    OldFile,
    SortedSet,
    id_array,
    search,
    url_array,
    write_part,
)
from tasks.formats.lakes.table import Head, LakeTable
from tasks.run.lake_tables import (
    HISTORY,
    VersionRows,
    document_column,
    documents_of,
    replaced_ids,
    version_rows,
    versions_in,
)
from tasks.run.place import LakePlace, expand_all
from tasks.run.recipe import Recipe

_METADATA = ("_", "metadata/")
_ABOUT = {"sluice.version": TAKEDOWN}


@dataclass
class TableReport:
    """What a run did to one table.

    Attributes:
        table: its name.
        folder: where it is.
        versions: versions that were committed.
        added: rows in new files, without those that were in the table before.
        rewritten: files that were written again without some rows.
        bytes: bytes written.
        forgotten: files removed because of a takedown.
        note: why nothing was committed, or "".
    """

    table: str
    folder: str
    versions: list[str] = field(default_factory=list)
    added: int = 0
    rewritten: int = 0
    bytes: int = 0
    forgotten: int = 0
    note: str = ""

    def text(self) -> str:
        """Returns the report as one line."""
        done = f"{', '.join(self.versions)}: {self.added:,} rows, {self.bytes / 1e6:,.1f} MB"
        done += f", {self.rewritten} files rewritten" if self.rewritten else ""
        done = done if self.versions else self.note
        gone = f"; {self.forgotten} files with taken-down rows removed" if self.forgotten else ""
        return f"{self.table:10} {self.folder}  {done}{gone}"


@dataclass(frozen=True)
class TableCheck:
    """Proof that a table has nothing that is taken down.

    Attributes:
        table: its name.
        folder: where it is.
        versions: versions that the metadata has.
        readable: those among them whose files all exist.
        files: data files that exist, of any version or of none; all were read.
        present: rows in them that are taken down.
        examples: URLs and ids of some of these rows.
    """

    table: str
    folder: str
    versions: int
    readable: int
    files: int
    present: int
    examples: list[str]


def lake_of(recipe: Recipe) -> LakePlace:
    """Returns `[place.lake]` with its environment variables expanded; raises RecipeError if there is none."""
    if recipe.place.lake is None:
        raise RecipeError(f"{recipe.name} has no [place.lake]", "add the section, with format and root")
    place = expand_all(recipe.place.lake)
    return place.model_copy(update={"root": Store(place.root).root})


def write_lake(recipe: Recipe, store: Store, version: str) -> list[TableReport]:
    """Writes a version into the tables, and takes out of them what is taken down.

    Earlier versions that the corpus consists of and a table lacks are committed before, oldest first.

    Raises:
        RecipeError: the recipe has no `[place.lake]`.
        InputError: the version has no documents, files of an earlier one were removed, or a column of a table has
            another type; nothing of this table was written.
        StoreError, TransientError: the store of the lake cannot be used, or another writer has committed.
    """
    with _opened(recipe, store) as writer:
        return [writer.write(name, version) for name in lake_of(recipe).tables]


def take_down_in_lake(recipe: Recipe, store: Store) -> list[TableReport]:
    """Takes out of all versions of the tables what is taken down; errors are those of `write_lake`."""
    with _opened(recipe, store) as writer:
        return [writer.take_down(name) for name in lake_of(recipe).tables if name not in HISTORY]


def check_lake(recipe: Recipe, store: Store) -> list[TableCheck]:
    """Reads every file of the tables, and returns what of it is taken down; errors are those of `write_lake`."""
    with _opened(recipe, store) as writer:
        return [writer.check(name) for name in lake_of(recipe).tables if name not in HISTORY]


@contextmanager
def _opened(recipe: Recipe, store: Store) -> Iterator["_Writer"]:
    """Opens the writer of a recipe's lake, with an engine and a folder for exchange between its processes."""
    takedowns = in_force(store, recipe.name)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-lake-") as scratch,
        open_engine("", recipe.place.workers) as engine,
    ):
        place = lake_of(recipe)
        try:
            yield _Writer(recipe.name, place, store, engine, Tombstones.read(takedowns), Path(scratch))
        except OSError as error:  # of the libraries' own clients of a bucket, which retry less than the store does
            if "://" not in place.root:
                raise
            cause = f"{place.root} did not answer as it should ({' '.join(str(error).split())})"
            raise TransientError(cause, "run again: what was committed stays") from error


@dataclass(frozen=True)
class _Writer:
    """Writes and checks the tables of a recipe."""

    recipe: str
    place: LakePlace
    store: Store
    engine: Engine
    tombstones: Tombstones
    scratch: Path

    def write(self, name: str, version: str) -> TableReport:
        """Brings one table to a version; see `write_lake`."""
        table, report = self._open(name)
        newest = version_rows(self.store, self.recipe, name, version)
        head = table.head()
        if newest is None:
            report.note = f"{version} has none yet"
        elif head and newest.head.number <= head.number:
            report.note = f"has {version} already" if newest.head == head else f"has a version newer than {version}"
        else:
            self._commit_missing(table, newest, head, report)
        if name not in HISTORY:
            self._take_down(table, name, report)
        return report

    def take_down(self, name: str) -> TableReport:
        """Takes out of one table what is taken down."""
        table, report = self._open(name)
        report.note = "nothing is taken down that it has"
        self._take_down(table, name, report)
        return report

    def _open(self, name: str) -> tuple[LakeTable, TableReport]:
        table = open_table(self.place.format, self.place.root, f"{self.recipe}/{name}", self.place.catalog)
        return table, TableReport(name, table.folder.root)

    def _commit_missing(self, table: LakeTable, newest: VersionRows, head: Head | None, report: TableReport) -> None:
        """Commits the versions of the corpus that the table lacks; all of it if the table has another corpus."""
        name, version = newest.reader.table, newest.reader.version
        before = versions_in(self.store, self.recipe, version)[:-1]
        earlier = [version_rows(self.store, self.recipe, name, one) for one in before]
        chain = [*(rows for rows in earlier if rows), newest]
        has = [number for number, rows in enumerate(chain) if head and rows.head.content == head.content]
        if name in HISTORY:
            missing, replaces = [rows for rows in chain if not head or rows.head.number > head.number], False
        else:
            missing, replaces = chain[has[-1] + 1 :] if has else chain, not has
        for rows in missing or [replace(newest, parts={})]:
            self._commit(table, rows, replaces, report)
            replaces = False

    def _commit(self, table: LakeTable, rows: VersionRows, replaces: bool, report: TableReport) -> None:
        """Commits one version: adds its rows, and removes those that it replaces; all others if `replaces`."""
        reader, head = rows.reader, table.head()
        if rows.parts:
            first = reader.read(next(iter(rows.parts)))
            schema = table.evolve(first.schema)
            if table.head() != head:
                raise TransientError(
                    f"another writer has committed to {table.folder.root} in the meantime", "run again"
                )
        elif table.schema() is None:
            return  # no rows, and no table yet
        old = [] if reader.table in HISTORY else table.files()
        left_out: LeftOut | None = None
        found: list[Found] = []
        if reader.table not in HISTORY:
            left_out = LeftOut(document_column(reader.table), tombstones=self.tombstones)
            if old and not replaces:
                left_out, found = self._search_old(table, rows, old, left_out)
        parts = [
            NewPart(table.folder, f"{FOLDER}/{reader.version}/{part}", identity, reader, part, schema, left_out)
            for part, identity in rows.parts.items()
        ]
        added = [one for one in self._map(write_part, parts, f"{reader.table} {reader.version}") if one]
        copies = [one.copy for one in found if one.copy]
        removed = old if replaces else [one.path for one in found if one.lost]
        again = {one.path for one in added} & set(removed)  # a corpus with some of the same versions
        added = [one for one in added if one.path not in again]
        removed = [path for path in removed if path not in again]
        table.commit([*added, *copies], removed, rows.head, rows.about)
        report.versions.append(reader.version)
        report.added += sum(one.rows for one in added)
        report.rewritten += len(copies)
        report.bytes += sum(one.bytes for one in (*added, *copies))

    def _search_old(
        self, table: LakeTable, rows: VersionRows, old: Sequence[str], left_out: LeftOut
    ) -> tuple[LeftOut, list[Found]]:
        """Searches the table for rows that it loses, and for those of the version that it has.

        Returns:
            the rows that the version does not add, and the results of the search, with copies.
        """
        version = rows.reader.version
        if not rows.parts:  # the table has these rows
            return left_out, self._search(table, old, left_out, copies=f"{FOLDER}/{version}/") if left_out else []
        documents = documents_of(self.store, self.recipe, version)
        lost = replace(
            left_out,
            documents=self._set("replaced", id_array(replaced_ids(self.store, self.recipe, version))),
            urls=self._set("urls", url_array(documents.column(URL))),
            newer=self._set("newer", id_array(documents.column(ID))),
        )
        new = np.concatenate([id_array(rows.reader.ids(part)) for part in rows.parts])
        found = self._search(table, old, lost, self._set("new", new), f"{FOLDER}/{version}/")
        return replace(left_out, rows=self._set("again", np.concatenate([one.ids for one in found]))), found

    def _search(
        self, table: LakeTable, paths: Sequence[str], lost: LeftOut, sought: SortedSet = NOTHING, copies: str = ""
    ) -> list[Found]:
        """Searches files of the table; with `copies`, a folder, those with rows to lose are copied there."""
        files = [OldFile(table.folder, path, lost, sought, copies and f"{copies}{_stem(path)}") for path in paths]
        return self._map(search, files, f"search of {table.folder.root}")

    def _take_down(self, table: LakeTable, name: str, report: TableReport) -> None:
        """Takes out of all versions of a table what is taken down."""
        head = table.head()
        # Read again: a takedown during the commit was too early for this table.
        tombstones = Tombstones.read(in_force(self.store, self.recipe))
        if head is None or not tombstones:
            return
        lost = LeftOut(document_column(name), tombstones=tombstones)
        current = table.files()
        if not report.versions or tombstones != self.tombstones:  # else the commit has left them out
            found = [one for one in self._search(table, current, lost, copies=f"{FOLDER}/{TAKEDOWN}/") if one.lost]
            if found:
                copies = [one.copy for one in found if one.copy]
                table.commit(copies, [one.path for one in found], head, {"sluice.recipe": self.recipe, **_ABOUT})
                report.versions.append(TAKEDOWN)
                report.rewritten += len(copies)
                report.bytes += sum(one.bytes for one in copies)
                current = table.files()
        old = sorted(set(self._existing(table)) - set(current))
        gone = [one.path for one in self._search(table, old, lost) if one.lost]
        if gone:
            # Some may be new files of a writer that has not committed yet: after this commit it cannot.
            table.commit([], [], head, {"sluice.recipe": self.recipe, **_ABOUT})
            table.forget(gone)
            report.forgotten = len(gone)

    def check(self, name: str) -> TableCheck:
        """Reads every file of one table; see `check_lake`."""
        table, _ = self._open(name)
        existing, versions = self._existing(table), table.versions()
        lost = LeftOut(document_column(name), tombstones=self.tombstones)
        found = self._search(table, existing, lost)
        return TableCheck(
            table=name,
            folder=table.folder.root,
            versions=len(versions),
            readable=sum(one.files <= set(existing) for one in versions),
            files=len(existing),
            present=sum(one.lost for one in found),
            examples=[example for one in found for example in one.examples][:3],
        )

    def _existing(self, table: LakeTable) -> list[str]:
        """Returns the data files that exist below the folder of a table, of any version or of none."""
        return [path for path in table.folder.list("") if path.endswith(".parquet") and not path.startswith(_METADATA)]

    def _set(self, name: str, values: NDArray[Any]) -> SortedSet:
        return SortedSet.write(str(self.scratch / f"{name}.npy"), values)

    def _map(self, function: Callable[[Any], Any], items: Sequence[Any], label: str) -> list[Any]:
        """Returns the results of a function in the order of the items, and reports progress."""
        progress, results = Progress(label), [None] * len(items)
        for done, (index, result) in enumerate(self.engine.map(function, items), start=1):
            results[index] = result
            progress.report(done, len(items))
        return results


def _stem(path: str) -> str:
    """Returns the name of a file without its hash.

    >>> _stem("data/2026.11/part-00000-of-00008-0123456789abcdef.parquet")
    'part-00000-of-00008'
    """
    return re.sub(r"-[0-9a-f]{16}$", "", path.rpartition("/")[2].removesuffix(".parquet"))
