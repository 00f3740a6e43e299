"""Tables of a plan: the shards that its slices name by number, and the files of the plan itself.

Reads and writes two NumPy files, which ranks read by ranges. So a rank reads no record of shards or of parts, and its
memory does not grow with their number:

    plan/shards.npy   a row for each shard, sorted by name; `SLICE.shard` is an index into it
    plan/parts.npy    a row for each part of a source, by source and then in the order of its sequences

The columns are those of `shard_dtype` and PART; sha256 are in binary. `summary.json` has, as `tables`, what is needed
to read these files themselves, and as `parts`, by source the first row in `parts.npy` and the row after its last.
"""

import io
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder, FileEntry, PartRecord
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.core.open_files import exhausted, load_array
from tasks.core.part import Part
from tasks.core.ranges import ChecksumWriter, RangeArray, RangeEntry, RangeReader, checksums_path
from tasks.formats.tokens.shard import FOLDER as SHARDS
from tasks.formats.tokens.shard import shard_path

SHARD_TABLE, PART_TABLE = "plan/shards.npy", "plan/parts.npy"
ARRAYS: Final = ("slices", "first", "documents")
_HASH = "V32"
PART = np.dtype(
    [
        ("begin", "<u8"),
        ("sequences", "<u8"),
        ("first_shard", "<u4"),
        ("last_shard", "<u4"),
        *((f"{array}_{name}", kind) for array in ARRAYS
          for name, kind in (("rows", "<u8"), ("bytes", "<u8"), ("sha256", _HASH), ("sums", _HASH))),
    ]
)  # fmt: skip
"""One part: its first sequence in its source, number of sequences, first and last shard, and of each of its arrays
rows, bytes, sha256 and the sha256 of the checksums; zeros if it has no sequence."""

TableArray = NDArray[Any] | RangeArray


def shard_dtype(width: int) -> "np.dtype[Any]":
    """Returns the dtype of the table of shards, whose names have up to `width` bytes of UTF-8."""
    columns = [("name", f"S{width}"), ("bytes", "<u8"), ("rows", "<u8"), ("tokens", "<u8")]
    return np.dtype([*columns, ("sha256", _HASH), ("sums", _HASH)])


class Tables:
    """The tables of a plan. Safe for use by several threads; picklable.

    Args:
        folder: the files of the plan.
        summary: content of `summary.json`.
    """

    def __init__(self, folder: ArtifactFolder, summary: Mapping[str, Any]) -> None:
        self._folder, self._summary = folder, summary
        about = [summary["tables"][path] for path in (SHARD_TABLE, PART_TABLE)]
        self._width = summary["tables"]["name_bytes"]
        entries = [
            RangeEntry(folder, path, table["bytes"], table["rows"], table["sha256"], table["sums"])
            for path, table in zip((SHARD_TABLE, PART_TABLE), about, strict=True)
        ]
        self._reader = RangeReader(entries.__getitem__)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tables, (self._folder, self._summary)

    @cached_property
    def shards(self) -> TableArray:
        """The table of shards."""
        return self._open(0, SHARD_TABLE, shard_dtype(self._width))

    @cached_property
    def parts(self) -> TableArray:
        """The table of parts."""
        return self._open(1, PART_TABLE, PART)

    def close(self) -> None:
        """Ends the threads that fetch blocks."""
        self._reader.close()

    def shard(self, number: int, shards: ArtifactFolder) -> RangeEntry:
        """Returns the file of a shard, of the artifact `shards` that was packed."""
        row = self.shards[number]
        path = shard_path(row["name"].decode())
        return RangeEntry(shards, path, int(row["bytes"]), int(row["rows"]), _hex(row["sha256"]), _hex(row["sums"]))

    def array(self, number: int, array: str, path: str) -> RangeEntry:
        """Returns the file of an array of the part in a row of the table."""
        row = self.parts[number]
        rows, size = (int(row[f"{array}_{name}"]) for name in ("rows", "bytes"))
        return RangeEntry(self._folder, path, size, rows, _hex(row[f"{array}_sha256"]), _hex(row[f"{array}_sums"]))

    def _open(self, number: int, path: str, dtype: "np.dtype[Any]") -> TableArray:
        try:
            if not self._folder.store.is_local:
                return RangeArray(self._reader, number, dtype)
            table: TableArray = load_array(self._folder.local(path), mapped=True)
        except (OSError, ValueError, EOFError) as error:
            raise exhausted(error) or InputError(
                f"{path} is not readable ({error})", "run the stage pack again"
            ) from None
        if table.dtype != dtype or len(table) != self._summary["tables"][path]["rows"]:
            raise InputError(f"{path} does not fit the summary of the plan", "run the stage pack again")
        return table


class ShardNames(Sequence[str]):
    """The names of the shards of a plan, read when they are needed."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def __len__(self) -> int:
        return len(self._tables.shards)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """Returns the name of a shard."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        return str(self._tables.shards[index]["name"].decode())

    def number(self, name: str) -> int | None:
        """Returns the number of a shard, None if there is none: reads as many rows as a binary search does."""
        found = bisect_left(self._tables.shards, name.encode(), key=lambda row: bytes(row["name"]))
        return found if found < len(self) and self[found] == name else None


def shard_rows(records: Iterable[PartRecord], names: Sequence[str]) -> NDArray[Any]:
    """Returns the table of some shards of an artifact with these parts, in the order of names."""
    dtype = shard_dtype(max(len(name.encode()) for name in names))
    table = np.zeros(len(names), dtype)
    numbers = {name: number for number, name in enumerate(names)}
    for part in records:
        files = {entry.path: entry for entry in part.files}
        for name in (name for path in files if (name := _shard_of(path)) in numbers):
            entry, sums = files[shard_path(name)], files[checksums_path(shard_path(name))]
            hashes = bytes.fromhex(entry.sha256), bytes.fromhex(sums.sha256)
            table[numbers[name]] = (name.encode(), entry.bytes, entry.rows, entry.tokens, *hashes)
    return table


def part_row(
    begin: int, sequences: int, shards: tuple[int, int], entry: Callable[[str], tuple[FileEntry, FileEntry]]
) -> tuple[Any, ...]:
    """Returns a row of the table of parts.

    Args:
        begin: first sequence of the part in its source.
        sequences: number of its sequences.
        shards: its first and last shard.
        entry: returns the file of an array and the file of its checksums.
    """
    columns: list[Any] = [begin, sequences, *shards]
    for array in ARRAYS:
        if sequences:
            file, sums = entry(array)
            columns += [file.rows, file.bytes, bytes.fromhex(file.sha256), bytes.fromhex(sums.sha256)]
        else:
            columns += [0, 0, bytes(32), bytes(32)]
    return tuple(columns)


def write_table(part: Part, path: str, table: NDArray[Any]) -> dict[str, Any]:
    """Writes a table and its checksums; returns what is needed to read it: {bytes, rows, sha256, sums}."""
    content = io.BytesIO()
    np.lib.format.write_array(content, table, allow_pickle=False)
    writer = ChecksumWriter(io.BytesIO())
    writer.write(content.getvalue())
    sums = writer.checksums()
    part.write(path, content.getvalue(), rows=len(table))
    part.write(checksums_path(path), sums)
    digest = sha256_of(content.getvalue())
    return {"bytes": content.tell(), "rows": len(table), "sha256": digest, "sums": sha256_of(sums)}


def write_tables(part: Part, shards: NDArray[Any], parts: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Writes both tables; returns what `Tables` reads them with, `tables` of the summary."""
    return {
        "name_bytes": shards.dtype["name"].itemsize,
        SHARD_TABLE: write_table(part, SHARD_TABLE, shards),
        PART_TABLE: write_table(part, PART_TABLE, np.array(list(parts), PART)),
    }


def _shard_of(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return name.removesuffix(".arrow") if folder == SHARDS else ""


def _hex(hashed: Any) -> str:
    return bytes(hashed).hex()
