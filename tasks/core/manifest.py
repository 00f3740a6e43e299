"""Manifests: the parts and files of an artifact in groups of a thousand parts, each a Parquet file beside the record.

The record lists the manifests with what most readers need (`Manifest`): names of the first and the last part, and
files, bytes, rows and identity of each folder. So counts, sizes and identities come from the record alone, a part or a
file from one manifest, and only who reads all parts reads all manifests. A manifest is named after the hash of its
bytes, so of two attempts at the same commit none overwrites what the other wrote. It has a row per part:

    name, rows_in, rows_out, rejected, metrics, files: list of (path, bytes, sha256, rows, tokens, home)

A file can lie in the folder of another version of the artifact, its `home`; a part that is taken over from that version
has such files. `home` is where the bytes really are: no reader follows one reference to another. The identity of files
does not depend on it.

The identity of a set of files (`digest`) is the sum of the hashes of path and content of each, modulo 2**256. Unlike a
hash of a list it does not depend on which part and manifest has a file, and those of groups and folders can be added.
"""

import hashlib
import threading
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from tasks.core import parquet
from tasks.core.config import Config
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.core.remote import concurrently
from tasks.core.store import AlreadyPublished, Store

MANIFESTS = ".manifests"
"""Folder of the manifests in that of the artifact."""

PARTS_IN_MANIFEST = 1_000
"""A manifest of parts with ten files each has about 0.5 MB."""

FILES_IN_MANIFEST = 20_000
"""Parts with many files are fewer in a manifest; one with more than these has a manifest of its own."""

KEPT = 128 << 20
"""Bytes of the manifests that a process keeps for its next reader."""

_READ_TOGETHER = 8
_FEW = 8
"""Files that are looked up one by one, each in the manifest that it is probably in, before others are read."""

_MODULUS = 1 << 256


class FileEntry(Config):
    """One file of a part: path relative to the artifact, size in bytes, sha256 (hex), and rows if the file has rows.

    `tokens` is the number of tokens in the rows of a token shard. `home` is the version whose folder has the file; ""
    for the folder that has the manifest.
    """

    path: str
    bytes: int
    sha256: str
    rows: int | None = None
    tokens: int | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    home: str = Field(default="", exclude_if=lambda home: not home)


class PartRecord(Config):
    """One committed part: its row counts, files and metrics."""

    name: str
    rows_in: int
    rows_out: int
    rejected: dict[str, int]
    files: tuple[FileEntry, ...]
    metrics: dict[str, float]


class Total(Config):
    """What some files have together: their number, bytes and rows, and the identity of paths and contents."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    digest: str = "0" * 64

    def __add__(self, other: "Total") -> "Total":
        return Total(
            files=self.files + other.files,
            bytes=self.bytes + other.bytes,
            rows=self.rows + other.rows,
            digest=f"{(int(self.digest, 16) + int(other.digest, 16)) % _MODULUS:064x}",
        )

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> "Total":
        """Returns the total of files, each given once."""
        files = size = rows = digest = 0
        for entry in entries:
            files, size, rows = files + 1, size + entry.bytes, rows + (entry.rows or 0)
            digest += int.from_bytes(hashlib.sha256(f"{entry.path}\n{entry.sha256}".encode()).digest(), "big")
        return cls(files=files, bytes=size, rows=rows, digest=f"{digest % _MODULUS:064x}")


class Manifest(Config):
    """What the record of an artifact says about one manifest.

    `path` is relative to the artifact, `sha256` and `bytes` are those of the file, `first` and `last` the names of its
    first and last part. `folders` has the total of each folder ("documents/"), and of each file outside folders by its
    name. `elsewhere` has the bytes of the files that lie in the folders of other versions, by version.
    """

    path: str
    bytes: int
    sha256: str
    first: str
    last: str
    parts: int
    folders: dict[str, Total]
    elsewhere: dict[str, int] = Field(default_factory=dict, exclude_if=lambda elsewhere: not elsewhere)

    def has(self, prefixes: tuple[str, ...]) -> bool:
        """Returns whether it may have files whose paths begin with one of `prefixes`."""
        return any(folder.startswith(prefixes) or _is_within(prefixes, folder) for folder in self.folders)


def _folder_of(path: str) -> str:
    """Returns the key of a file in `Manifest.folders`: its first folder ("documents/"), or its name."""
    name, slash, _ = path.partition("/")
    return name + slash


def _totals(parts: Iterable[PartRecord]) -> dict[str, Total]:
    """Returns the totals of parts as in `Manifest.folders`, sorted."""
    below: dict[str, list[FileEntry]] = {}
    for part in parts:
        for entry in part.files:
            below.setdefault(_folder_of(entry.path), []).append(entry)
    return {name: Total.of(below[name]) for name in sorted(below)}


def _elsewhere(parts: Iterable[PartRecord]) -> dict[str, int]:
    """Returns the bytes of the files of other folders by version, sorted."""
    found = Counter[str]()
    for entry in (entry for part in parts for entry in part.files if entry.home):
        found[entry.home] += entry.bytes
    return dict(sorted(found.items()))


def bytes_elsewhere(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Returns the bytes of the files of other folders by version, sorted, from what a record says about manifests."""
    found = Counter[str]()
    for one in manifests:
        found.update(one.elsewhere)
    return dict(sorted(found.items()))


def _is_within(prefixes: Iterable[str], folder: str) -> bool:
    """Returns whether a prefix is that of some of the files of a folder."""
    return folder.endswith("/") and any(prefix.startswith(folder) for prefix in prefixes)


_FILE = pa.struct(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("sha256", pa.binary(32), nullable=False),
        pa.field("rows", pa.int64()),
        pa.field("tokens", pa.int64()),
        pa.field("home", pa.string()),
    ]
)
_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("rows_in", pa.int64(), nullable=False),
        pa.field("rows_out", pa.int64(), nullable=False),
        pa.field("rejected", pa.map_(pa.string(), pa.int64()), nullable=False),
        pa.field("metrics", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("files", pa.list_(pa.field("element", _FILE, nullable=False)), nullable=False),
    ]
)


class Group:
    """The parts of one manifest in memory, as an Arrow table: about 110 bytes per file.

    Args:
        table: a row per part, sorted by name (`_SCHEMA`).
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @classmethod
    def of(cls, parts: Sequence[PartRecord]) -> "Group":
        """Returns the group of some parts, sorted by name."""
        files = [entry for part in parts for entry in part.files]
        columns = {
            "path": [entry.path for entry in files],
            "bytes": [entry.bytes for entry in files],
            "sha256": [bytes.fromhex(entry.sha256) for entry in files],
            "rows": [entry.rows for entry in files],
            "tokens": [entry.tokens for entry in files],
            "home": [entry.home or None for entry in files],
        }
        struct = pa.StructArray.from_arrays(
            [pa.array(columns[one.name], one.type) for one in _FILE], fields=list(_FILE)
        )
        offsets = np.cumsum([0, *(len(part.files) for part in parts)], dtype=np.int32)
        rows: list[Any] = [
            [part.name for part in parts],
            [part.rows_in for part in parts],
            [part.rows_out for part in parts],
            [list(part.rejected.items()) for part in parts],
            [list(part.metrics.items()) for part in parts],
        ]
        arrays = [pa.array(values, of.type) for values, of in zip(rows, _SCHEMA, strict=False)]
        listed = pa.ListArray.from_arrays(pa.array(offsets), struct, type=_SCHEMA.field("files").type)
        return cls(pa.Table.from_arrays([*arrays, listed], schema=_SCHEMA))

    @cached_property
    def _offsets(self) -> NDArray[np.int32]:
        offsets: NDArray[np.int32] = self._listed.offsets.to_numpy()
        first: np.int32 = offsets[0]
        return (offsets - first).astype(np.int32)

    @cached_property
    def _listed(self) -> pa.ListArray:
        column = self.table.column("files").combine_chunks()
        return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column

    @cached_property
    def _files(self) -> pa.StructArray:
        return self._listed.flatten()

    @cached_property
    def _paths(self) -> pa.StringArray:
        return self._files.field("path")

    def entries(self, prefixes: tuple[str, ...]) -> list[FileEntry]:
        """Returns the files whose paths begin with one of `prefixes`, in the order of the parts."""
        return self._at([row for row, path in enumerate(self._paths.to_pylist()) if path.startswith(prefixes)])

    def lookup(self, paths: Collection[str]) -> list[FileEntry]:
        """Returns those files that it has of a set of paths, in the order of the parts."""
        if len(paths) <= _FEW:
            rows = (pc.index(self._paths, path).as_py() for path in paths)
            return self._at(sorted(row for row in rows if row >= 0))
        return self._at([row for row, path in enumerate(self._paths.to_pylist()) if path in paths])

    def entries_at(self, home: str) -> list[FileEntry]:
        """Returns the files that lie in the folder of a version; "" for the folder that has the manifest."""
        homes = self._files.field("home")
        mask = homes.is_null() if not home else pc.fill_null(pc.equal(homes, home), False)
        return _entries(self._files.filter(mask))

    def _at(self, rows: list[int]) -> list[FileEntry]:
        return _entries(self._files if len(rows) == len(self._files) else self._files.take(pa.array(rows, pa.int64())))

    def records(self, first: int = 0, end: int | None = None) -> list[PartRecord]:
        """Returns the parts from number `first` to `end`."""
        table = self.table.slice(first, None if end is None else end - first)
        offsets = self._offsets[first : first + table.num_rows + 1].tolist()
        begin = offsets[0] if table.num_rows else 0
        entries = _entries(self._files[begin : offsets[-1] if table.num_rows else 0])
        columns = (table.column(one.name).to_pylist() for one in list(_SCHEMA)[:-1])
        return [
            PartRecord(
                name=name,
                rows_in=rows_in,
                rows_out=rows_out,
                rejected=dict(rejected),
                files=tuple(entries[offsets[row] - begin : offsets[row + 1] - begin]),
                metrics=dict(metrics),
            )
            for row, (name, rows_in, rows_out, rejected, metrics) in enumerate(zip(*columns, strict=True))
        ]

    def paths(self, prefixes: tuple[str, ...]) -> list[str]:
        """Returns the paths that begin with one of `prefixes`, in the order of the parts."""
        return [path for path in self._paths.to_pylist() if path.startswith(prefixes)]

    def part(self, name: str) -> PartRecord | None:
        """Returns a part by name, or None."""
        names = self.table.column("name")
        at = bisect_right(range(len(names)), name, key=lambda row: names[row].as_py()) - 1
        return self.records(at, at + 1)[0] if at >= 0 and names[at].as_py() == name else None

    def entry(self, path: str) -> FileEntry | None:
        """Returns a file by path, or None."""
        at = pc.index(self._paths, path).as_py()
        return _entries(self._files[at : at + 1])[0] if at >= 0 else None


def _entries(files: pa.StructArray) -> list[FileEntry]:
    path, size, sha, rows, tokens, homes = (files.field(one.name).to_pylist() for one in _FILE)
    entries = []
    for p, b, h, r, t, home in zip(path, size, sha, rows, tokens, homes, strict=True):
        # Only what there is: the set of the given fields takes 0.2 kB for four, 0.7 for five.
        more: dict[str, Any] = {} if t is None else {"tokens": t}
        if home is not None:
            more["home"] = home
        entries.append(FileEntry(path=p, bytes=b, sha256=h.hex(), rows=r, **more))
    return entries


def write(store: Store, folder: str, parts: Sequence[PartRecord]) -> Manifest:
    """Writes the manifest of some parts, sorted by name, to the folder of an artifact; returns its entry."""
    group, buffer = Group.of(parts), BytesIO()
    # No statistics and no copy of the Arrow schema: a manifest is read as a whole, and most artifacts have few parts.
    options: dict[str, Any] = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
    pq.write_table(group.table, buffer, compression="zstd", compression_level=3, **options)
    data = buffer.getvalue()
    sha256 = sha256_of(data)
    path = f"{MANIFESTS}/{sha256[:32]}.parquet"
    try:
        store.publish(f"{folder}/{path}", data)
    except AlreadyPublished:  # by an earlier attempt, or another one, with equal parts
        if not _has(store, f"{folder}/{path}", data):
            with store.write(f"{folder}/{path}") as file:
                file.write(data)
    _GROUPS.keep(sha256, group)
    return Manifest(
        path=path,
        bytes=len(data),
        sha256=sha256,
        first=parts[0].name,
        last=parts[-1].name,
        parts=len(parts),
        folders=_totals(parts),
        elsewhere=_elsewhere(parts),
    )


def read_files(data: bytes, home: str) -> list[FileEntry]:
    """Returns the files that lie in the folder of another version, from the bytes of a manifest."""
    return Group(parquet.from_bytes(data)).entries_at(home)


def _has(store: Store, path: str, data: bytes) -> bool:
    try:
        return store.read(path) == data
    except FileNotFoundError:  # removed since
        return False


class Parts:
    """The parts of an artifact, sorted by name, read when they are needed: a collection of `PartRecord`. Picklable.

    The parts that an iteration has passed are not held, so a list of all takes more memory than to go through them.

    Args:
        store: the store.
        folder: the artifact's folder, relative to its root.
        manifests: the manifests, in the order of the names of their parts.
        given: parts that are in memory, instead of `manifests`; None: there are none.
    """

    def __init__(
        self, store: Store, folder: str, manifests: tuple[Manifest, ...], given: tuple[PartRecord, ...] | None = None
    ) -> None:
        self._store, self._folder, self._manifests, self.given = store, folder, manifests, given

    def __len__(self) -> int:
        return sum(one.parts for one in self._manifests) if self.given is None else len(self.given)

    def __iter__(self) -> Iterator[PartRecord]:
        for group in self.groups():
            yield from group.records()

    def rows_out(self) -> dict[str, int]:
        """Returns the rows out of each part, by name."""
        tables = (group.table for group in self.groups())
        return {
            name: rows
            for table in tables
            for name, rows in zip(table.column("name").to_pylist(), table.column("rows_out").to_pylist(), strict=True)
        }

    def part(self, name: str) -> PartRecord | None:
        """Returns a part by name, or None; reads at most one manifest."""
        if self.given is not None:
            return next((part for part in self.given if part.name == name), None)
        at = self._number_of(name)
        return self._group(at).part(name) if at >= 0 and name <= self._manifests[at].last else None

    def entry(self, path: str) -> FileEntry | None:
        """Returns a file by path, or None.

        Reads one manifest if the file is named after its part, else those with files in its folder, until it is found:
        whoever needs many files calls `lookup`.
        """
        return next(self.lookup([path]), None)

    def lookup(self, paths: Collection[str]) -> Iterator[FileEntry]:
        """Yields those of some files that exist, in any order.

        Of few files it reads the manifests as `entry` does; of many, each manifest with files in their folders once.
        """
        missing = set(paths)
        if self.given is not None:
            yield from (entry for part in self.given for entry in part.files if entry.path in missing)
            return
        if len(missing) <= _FEW:
            for entry in filter(None, map(self._guessed, sorted(missing))):
                missing.discard(entry.path)
                yield entry
        for group in self.groups(tuple({_folder_of(path) for path in missing})):
            found = group.lookup(missing)
            missing.difference_update(entry.path for entry in found)
            yield from found
            if not missing:
                return

    def _guessed(self, path: str) -> FileEntry | None:
        """Returns a file if it is named after its part."""
        at = self._number_of(path.rpartition("/")[2])
        return self._group(at).entry(path) if at >= 0 and self._manifests[at].has((path,)) else None

    def _number_of(self, name: str) -> int:
        """Returns the number of the manifest that has a part, if there is one; -1 before the first."""
        return bisect_right(self._manifests, name, key=lambda manifest: manifest.first) - 1

    def entries(self, prefixes: tuple[str, ...] = ("",)) -> Iterator[FileEntry]:
        """Yields the files whose paths begin with one of `prefixes`, in the order of the parts."""
        for group in self.groups(prefixes):
            yield from group.entries(prefixes)

    def paths(self, prefixes: tuple[str, ...] = ("",)) -> Iterator[str]:
        """Yields the paths that begin with one of `prefixes`, in the order of the parts."""
        for group in self.groups(prefixes):
            yield from group.paths(prefixes)

    def total(self, prefixes: tuple[str, ...] = ("",)) -> Total:
        """Returns the total of the files whose paths begin with one of `prefixes`.

        Reads nothing, except for prefixes that are those of some of the files of a folder ("shards/web-").
        """
        if self.given is not None:
            return Total.of(Group.of(self.given).entries(prefixes))
        total = Total()
        for at, manifest in enumerate(self._manifests):
            for folder, below in manifest.folders.items():
                if folder.startswith(prefixes):
                    total += below
                elif _is_within(prefixes, folder):
                    found = self._group(at).entries(prefixes)
                    total += Total.of(entry for entry in found if entry.path.startswith(folder))
        return total

    def folders(self) -> dict[str, Total]:
        """Returns the total of each folder ("documents/"), and of each file outside folders by its name."""
        if self.given is not None:
            return _totals(self.given)
        totals: dict[str, Total] = {}
        for below in (one.folders for one in self._manifests):
            for folder, total in below.items():
                totals[folder] = totals.get(folder, Total()) + total
        return dict(sorted(totals.items()))

    def elsewhere(self) -> dict[str, int]:
        """Returns the bytes of the files that lie in the folders of other versions, by version."""
        if self.given is not None:
            return _elsewhere(self.given)
        return bytes_elsewhere(self._manifests)

    def entries_at(self, home: str) -> Iterator[FileEntry]:
        """Yields the files that lie in the folder of a version; "" for the artifact's own folder."""
        if self.given is not None:
            yield from (entry for part in self.given for entry in part.files if entry.home == home)
            return
        wanted = [at for at, one in enumerate(self._manifests) if not home or home in one.elsewhere]
        for group in concurrently(self._group, wanted, _READ_TOGETHER):
            yield from group.entries_at(home)

    def groups(self, prefixes: tuple[str, ...] = ("",)) -> Iterator[Group]:
        """Yields the groups that may have files below one of `prefixes`; after the first, reads several at a time."""
        if self.given is not None:
            yield Group.of(self.given)
            return
        wanted = [at for at, one in enumerate(self._manifests) if prefixes == ("",) or one.has(prefixes)]
        yield from map(self._group, wanted[:1])
        if len(wanted) > 1:
            yield from concurrently(self._group, wanted[1:], _READ_TOGETHER)

    def _group(self, number: int) -> Group:
        manifest = self._manifests[number]
        return _GROUPS.get(manifest.sha256, partial(self._read, manifest))

    def _read(self, manifest: Manifest) -> Group:
        path = f"{self._folder}/{manifest.path}"
        try:
            data = self._store.read(path)
        except FileNotFoundError:
            data = b""
        if sha256_of(data) != manifest.sha256:
            raise InputError(
                f"{self._store.url(path)} is {'damaged' if data else 'missing'}",
                "restore the file; or remove the artifact's folder, and run the stage that makes it again",
            )
        return Group(parquet.from_bytes(data))


class _Kept:
    """The groups that were used last, by the hash of their manifest, up to `KEPT` bytes. Safe for use by threads."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, Group] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def get(self, sha256: str, read: Callable[[], Group]) -> Group:
        with self._lock:
            if group := self._groups.get(sha256):
                self._groups.move_to_end(sha256)
                return group
        group = read()  # without the lock: two threads may read the same one
        self.keep(sha256, group)
        return group

    def keep(self, sha256: str, group: Group) -> None:
        with self._lock:
            if sha256 in self._groups:
                return
            self._groups[sha256] = group
            self._bytes += group.table.nbytes
            while self._bytes > KEPT and len(self._groups) > 1:
                _, oldest = self._groups.popitem(last=False)
                self._bytes -= oldest.table.nbytes


_GROUPS = _Kept()
