"""One part of an artifact: files and row counts, committed together or not at all.

Runs on any worker. Writes the files of the part, then its record `.parts/<name>.json` with an exclusive create. If two
attempts make the same part, one record is published.
"""

import contextlib
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import FileEntry, PartRecord
from tasks.core.errors import ConservationError, InputError
from tasks.core.store import AlreadyPublished, Store

PARTS = ".parts"
POISON = "poison"


@dataclass(frozen=True)
class PartSpec:
    """One part to make: its name, and the argument of the part function (small, picklable).

    Parts with the same `run` are made in order on one worker, because each begins where the one before it ended. A part
    with the run "" is independent of the others.
    """

    name: str
    payload: Any
    run: str = ""


def part_names(count: int) -> list[str]:
    """Returns the names of `count` parts.

    >>> part_names(2)
    ['part-00000-of-00002', 'part-00001-of-00002']
    """
    return [f"part-{index:05d}-of-{count:05d}" for index in range(count)]


class Part:
    """A part in progress, on the worker that makes it: writes files and counts rows."""

    def __init__(self, store: Store, folder: str, name: str, attempt: str) -> None:
        self.name = name
        self.attempt = attempt
        self._store = store
        self._folder = folder
        self._in = 0
        self._out = 0
        self._rejected: Counter[str] = Counter()
        self._poison: list[dict[str, str]] = []
        self._files: list[FileEntry] = []
        self._metrics: Counter[str] = Counter()

    def count_in(self, n: int = 1) -> None:
        """Counts rows read."""
        self._in += n

    @property
    def rows_in(self) -> int:
        """Rows counted as read."""
        return self._in

    def count_out(self, n: int = 1) -> None:
        """Counts rows written with `file`; `table` counts its own."""
        self._out += n

    def reject(self, reason: str, n: int = 1) -> None:
        """Counts rejected rows by reason, an identifier such as "too_short"."""
        self._rejected[reason] += n

    def quarantine(self, row_id: str, error: BaseException) -> None:
        """Records one row that cannot be processed; the part continues without it."""
        self.reject(POISON)
        self._poison.append({"id": row_id, "error": f"{type(error).__name__}: {error}"[:500]})

    def metric(self, name: str, value: float) -> None:
        """Adds to a metric; the artifact's record has the sum over parts."""
        self._metrics[name] += value  # type: ignore[assignment]

    def table(self, folder: str, table: pa.Table, *, out: bool = True) -> None:
        """Writes `<folder>/<part name>.parquet`; its rows count as rows out unless `out` is False."""
        self.write_table(f"{folder}/{self.name}.parquet", table)
        if out:
            self.count_out(table.num_rows)

    def write_table(self, path: str, table: pa.Table) -> None:
        """Writes a table as a Parquet file at `path` in the artifact; its rows are not counted."""
        with self.file(path, rows=table.num_rows) as file:
            pq.write_table(table, file, compression="zstd", compression_level=3)

    def write(self, path: str, content: bytes, rows: int | None = None) -> None:
        """Writes a file at `path` in the artifact; see `file`."""
        with self.file(path, rows) as file:
            file.write(content)

    @contextlib.contextmanager
    def file(self, path: str, rows: int | None = None, tokens: int | None = None) -> Iterator[BinaryIO]:
        """Yields a binary file to write at `path` in the artifact; it appears complete or not at all."""
        with self._store.write(f"{self._folder}/{path}") as raw:
            file = _HashingFile(raw)
            yield cast(BinaryIO, file)
            raw.flush()
        self._files.append(file.entry(path, rows, tokens))

    def record(self, *, conserved: bool) -> PartRecord:
        """Writes the quarantined rows and returns the part's record.

        Raises:
            ConservationError: rows in differ from rows out plus rejected (if `conserved`).
            InputError: a metric is not a finite number.
        """
        if conserved and self._in != self._out + self._rejected.total():
            raise ConservationError(
                f"{self._folder} {self.name}: {self._in} rows came in, {self._out} went out and "
                f"{self._rejected.total()} were rejected ({dict(self._rejected)})"
            )
        if self._poison:
            lines = "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in self._poison)
            with self.file(f"quarantine/{self.name}.jsonl", rows=len(self._poison)) as file:
                file.write(lines.encode())
        return PartRecord(
            name=self.name,
            rows_in=self._in,
            rows_out=self._out,
            rejected=dict(sorted(self._rejected.items())),
            files=tuple(sorted(self._files, key=lambda entry: entry.path)),
            metrics=finite(self._metrics, f"{self._folder} {self.name}"),
        )


def finite(metrics: Mapping[str, float], where: str) -> dict[str, float]:
    """Returns metrics for a record, sorted by name.

    Raises:
        InputError: a metric is not a finite number. JSON cannot encode it, so the record would be unreadable.
    """
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise InputError(f"{where}: the metric {name} is {value}", "check the stage's inputs and settings")
    return {name: float(value) for name, value in sorted(metrics.items())}


class _HashingFile(io.RawIOBase):
    """A binary file that hashes the bytes written to it. It cannot seek, so the hash is that of the whole file."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._sha = hashlib.sha256()
        self._bytes = 0

    def write(self, data: Any) -> int:
        self._sha.update(data)
        written = memoryview(data).nbytes
        self._raw.write(data)
        self._bytes += written
        return written

    def tell(self) -> int:
        return self._bytes

    def flush(self) -> None:
        self._raw.flush()

    def close(self) -> None:
        """Does nothing: `Store.write` closes the underlying file."""

    def writable(self) -> bool:
        return True

    def entry(self, path: str, rows: int | None, tokens: int | None) -> FileEntry:
        return FileEntry(path=path, bytes=self._bytes, sha256=self._sha.hexdigest(), rows=rows, tokens=tokens)


def make_part(
    store: Store,
    folder: str,
    fingerprint: str,
    attempt: str,
    fn: Callable[[Part, Any], None],
    conserved: bool,
    spec: PartSpec,
) -> PartRecord:
    """Makes and commits one part with `fn`; runs on a worker."""
    part = Part(store, folder, spec.name, attempt)
    try:
        fn(part, spec.payload)
    except Exception as error:
        error.add_note(f"while {folder} {spec.name} was made")
        raise
    return commit_part(store, folder, fingerprint, part.record(conserved=conserved))


def make_run(make: Callable[[PartSpec], PartRecord], specs: Sequence[PartSpec]) -> list[PartRecord]:
    """Makes and commits the parts of a run with `make`; runs on a worker."""
    return [make(spec) for spec in specs]


def commit_part(store: Store, folder: str, fingerprint: str, record: PartRecord) -> PartRecord:
    """Publishes the part's record; if another attempt has already published it, returns that record."""
    path = f"{folder}/{PARTS}/{record.name}.json"
    body = json.dumps({"fingerprint": fingerprint, "part": record.model_dump(mode="json")}, sort_keys=True)
    try:
        store.publish(path, body.encode())
    except AlreadyPublished:
        published = json.loads(store.read(path))
        if published["fingerprint"] == fingerprint:  # another attempt at the same work was faster
            return PartRecord.model_validate(published["part"])
        store.remove_files([path])
        store.publish(path, body.encode())
    return record
