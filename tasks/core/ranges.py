"""Byte ranges of the files of an artifact, verified block by block.

Files of a local store are memory-mapped; blocks of files of a remote store are cached (`tasks.core.cache`).

`checksummed_file` writes a file of a part, and with it `checksums/<stem>.npy`: the xxh3_64 (Collet, xxHash 0.8) of
every block of `BLOCK` bytes, uint64, shape (blocks,); the last block may be shorter. xxh3_64 takes 0.02 ms per block,
which is fast enough to verify every block; sha256, which records have for whole files, would take 0.2 ms.

`RangeReader` reads ranges, `RangeFile` reads one file like any binary file, `RangeArray` reads items of a `.npy` file.
Each process verifies a block the first time it reads it, on local stores too: it returns the bytes that were written or
raises an error with the name of the file. Missing blocks of remote files are fetched in threads, many at a time.
"""

import contextlib
import io
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder, FileEntry
from tasks.core.cache import BlockCache
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.core.open_files import MOST_MAPS, exhausted, load_array, map_file
from tasks.core.part import Part

CHECKSUMS = "checksums"
BLOCK = 256 * 1024
"""Bytes per block, the unit of fetching, caching and verification.

Measured with a loopback server of 10 ms latency and 32 requests in flight (`benchmarks/loader.py`), for blocks of
64 KiB, 256 KiB and 1 MiB: the first batch of 64 sequences took 0.12 s, 0.12 s and 0.19 s; a whole shard was read at 36,
136 and 363 MB/s. So 256 KiB starts as fast as 64 KiB, and fills the cache four times as fast with a quarter of the
requests.
"""
REMEDY = "restore the file; or remove its artifact, and run the stage that makes it again"
IN_FLIGHT = 32
"""Concurrent requests of one reader. A round trip to an object store takes 10 to 50 ms, the transfer of a 256 KiB block
at 100 MB/s only 3 ms."""

MOST_FILES = 12_288
"""Files whose checksums one reader keeps, the newest ones: 6 KB for a shard of 128 MB."""
_OPENING = 256
"""Locks of files that are being opened; a file has that of its number modulo this."""

_RUN, _RUNS = 256, 1024
"""Items read together when one of them is needed, and number of such runs kept in memory. Binary searches begin at the
same items and end within one run."""


@contextlib.contextmanager
def checksummed_file(part: Part, path: str, rows: int | None = None, tokens: int | None = None) -> Iterator[BinaryIO]:
    """Yields a binary file of a part, as `Part.file` does; afterwards writes the checksums of its blocks."""
    with part.file(path, rows, tokens) as raw:
        writer = ChecksumWriter(raw)
        yield cast(BinaryIO, writer)
    with part.file(checksums_path(path)) as sums:
        sums.write(writer.checksums())


class ReadRequest(NamedTuple):
    """A range to read: the `len(out)` bytes of file `number` from byte `first` on are read into `out`."""

    number: int
    first: int
    out: memoryview


class RangeEntry(NamedTuple):
    """A file to read by ranges, and its checksums."""

    folder: ArtifactFolder
    path: str
    bytes: int
    rows: int | None
    sha256: str
    sums_sha256: str
    """Of the file with the checksums of its blocks (`checksums_path`)."""


def entries_of(artifact: Artifact, paths: Sequence[str]) -> Callable[[int], RangeEntry]:
    """Returns the entries of some files of an artifact by number; reads each manifest once for any number of files.

    Raises:
        InputError: the artifact has no such file, or not its checksums.
    """
    wanted = [*paths, *map(checksums_path, paths)]
    found = {entry.path: entry for entry in artifact.parts.lookup(wanted)}
    if missing := next((path for path in wanted if path not in found), ""):
        raise InputError(
            f"{artifact.address} has no {missing}",
            "use the artifact that the others were made from; one made by an earlier Sluice must be made again",
        )
    return [_entry_of(artifact, found[path], found[checksums_path(path)]) for path in paths].__getitem__


def _entry_of(artifact: Artifact, file: FileEntry, checksums: FileEntry) -> RangeEntry:
    holder = artifact.holder(file)  # a part has a file and its checksums, so they lie in one folder
    return RangeEntry(holder, file.path, file.bytes, file.rows, file.sha256, checksums.sha256)


class RangeReader:
    """Reads ranges of some files. Thread-safe; not picklable.

    Args:
        entries: returns the file of a number, that of a `ReadRequest`. A file is opened at its first read.

    Raises:
        InputError: (when reading) a file is missing, truncated, damaged, or has no checksums.
    """

    def __init__(self, entries: Callable[[int], RangeEntry]) -> None:
        self.entry = entries
        self._open: dict[int, _BlockFile] = {}  # the oldest first
        self._changing = threading.Lock()
        self._opening = [threading.Lock() for _ in range(_OPENING)]
        self._pool = _threads()
        self._map = lru_cache(MOST_MAPS)(lambda path: memoryview(map_file(path)).cast("B"))

    def close(self) -> None:
        """Cancels requests that have not begun, and ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = _threads()

    def read(self, requests: Iterable[ReadRequest]) -> None:
        """Fills the `out` of every request."""
        missing: dict[tuple[int, int], list[tuple[int, memoryview]]] = defaultdict(list)  # by file and block
        requests = list(requests)
        files = self._opened({request.number for request in requests})
        for request in requests:
            for block, offset, out in files[request.number].read(request.first, request.out):
                missing[request.number, block].append((offset, out))
        if missing:
            list(self._pool.map(partial(_fetch, files), sorted(missing.items())))

    def _opened(self, numbers: set[int]) -> "dict[int, _BlockFile]":
        files = {number: file for number in numbers if (file := self._open.get(number))}
        new = sorted(numbers - files.keys())
        opened = self._pool.map(self._open_file, new) if len(new) > 1 else map(self._open_file, new)
        return files | dict(zip(new, opened, strict=True))

    def _open_file(self, number: int) -> "_BlockFile":
        with self._opening[number % _OPENING]:  # other threads wait instead of reading the checksums again
            if file := self._open.get(number):
                return file
            file = self._read_checksums(self.entry(number))
            with self._changing:
                self._open[number] = file
                while len(self._open) > MOST_FILES:
                    del self._open[next(iter(self._open))]
            return file

    def _read_checksums(self, entry: RangeEntry) -> "_BlockFile":
        sums_path = checksums_path(entry.path)
        url = entry.folder.store.url(entry.folder.at(sums_path))
        try:
            data = entry.folder.read(sums_path)
        except FileNotFoundError:
            raise InputError(f"{url} is missing", REMEDY) from None
        sums = parse_checksums(data, url, entry.sums_sha256, entry.bytes)
        if entry.folder.store.is_local:
            return _MappedFile(entry, sums, self._map)
        return _CachedFile(entry, sums)


class RangeFile(io.RawIOBase):
    """One file of a `RangeReader` as a binary file.

    Args:
        reader: the reader.
        number: of the file in the reader.
    """

    def __init__(self, reader: RangeReader, number: int) -> None:
        self._reader, self._number = reader, number
        self._size, self._position = reader.entry(number).bytes, 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Sets the position; returns it in bytes."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Reads bytes into a buffer up to the end of the file; returns their number.

        Raises:
            InputError: see `RangeReader`.
        """
        out = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        self._reader.read([ReadRequest(self._number, self._position, out)])
        self._position += len(out)
        return len(out)


class RangeArray:
    """A one-dimensional `.npy` file of a `RangeReader`, whose length is the number of rows in its entry. Thread-safe.

    Args:
        reader: the reader.
        number: of the file in the reader.
        dtype: of its items. Nothing is read to find out: these are the last bytes of the file.

    Raises:
        InputError: (when reading) see `RangeReader`.
        ValueError: the file has no such items.
    """

    ndim = 1

    def __init__(self, reader: RangeReader, number: int, dtype: "np.dtype[Any]") -> None:
        self.reader, self._number, self.dtype = reader, number, dtype
        entry = reader.entry(number)
        self._length = entry.rows or 0
        self._first = entry.bytes - self._length * dtype.itemsize
        if entry.rows is None or self._first <= 0:
            raise ValueError(f"it has not {entry.rows} items of {dtype} in {entry.bytes:,} bytes")
        self._run = lru_cache(_RUNS)(self._read)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Returns one item, or those of a slice without a step as an array."""
        if not isinstance(index, slice):
            position = range(self._length)[int(index)]
            first = position - position % _RUN
            return self._run(first, min(_RUN, self._length - first))[position - first]
        first, end, _ = index.indices(self._length)
        return self._read(first, max(0, end - first))

    def request(self, first: int, out: memoryview) -> ReadRequest:
        """Returns the request of the items from `first` on that fill `out`."""
        return ReadRequest(self._number, self._first + first * self.dtype.itemsize, out)

    def _read(self, first: int, count: int) -> NDArray[Any]:
        return read_together([(self, first, first + count)])[0]


def read_together(wanted: Sequence[tuple[RangeArray, int, int]]) -> list[NDArray[Any]]:
    """Returns the items (array, first, end) of arrays of one reader, fetching missing blocks at the same time.

    Raises:
        InputError: see `RangeReader`.
    """
    outs = [bytearray((end - first) * array.dtype.itemsize) for array, first, end in wanted]
    requests = [array.request(first, memoryview(out)) for (array, first, _), out in zip(wanted, outs, strict=True)]
    if wanted:
        wanted[0][0].reader.read(requests)
    return [np.frombuffer(out, array.dtype) for (array, _, _), out in zip(wanted, outs, strict=True)]


def checksum(data: bytes | memoryview) -> int:
    """Returns the checksum of one block."""
    return int(xxhash.xxh3_64_intdigest(data))


def checksums_path(path: str) -> str:
    """Returns the path of the checksums of a file, in the same artifact.

    >>> checksums_path("shards/web-train-00000-000.arrow")
    'checksums/web-train-00000-000.npy'
    """
    return f"{CHECKSUMS}/{PurePosixPath(path).stem}.npy"


def parse_checksums(data: bytes, url: str, sha256: str, size: int) -> NDArray[np.uint64]:
    """Returns the checksums of a file of `size` bytes, shape (blocks,).

    Args:
        data: content of the `.npy` file.
        url: its URL, for messages.
        sha256: its sha256 in the artifact's record.
        size: size in bytes of the file that the checksums are for.

    Raises:
        InputError: the content does not match the record.
    """
    if sha256_of(data) == sha256:
        sums: NDArray[np.uint64] = load_array(io.BytesIO(data))
        if sums.dtype == np.uint64 and sums.shape == (-(-size // BLOCK),):
            return sums
    raise InputError(f"{url} is damaged: it differs from its artifact's record", REMEDY)


class ChecksumWriter(io.BufferedIOBase):
    """Writes to `file` and computes the checksum of every block."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxhash.xxh3_64()
        self._filled = 0
        self._done: list[int] = []

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Writes all of `data`; returns its size in bytes."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        first = 0
        while first < len(view):
            chunk = view[first : first + BLOCK - self._filled]
            self._hash.update(chunk)
            self._filled += len(chunk)
            first += len(chunk)
            if self._filled == BLOCK:
                self._end_block()
        return len(view)

    def checksums(self) -> bytes:
        """Returns the content of the `.npy` file of checksums. Call it after the last write."""
        if self._filled:
            self._end_block()
        content = io.BytesIO()
        np.save(content, np.array(self._done, dtype=np.uint64))
        return content.getvalue()

    def _end_block(self) -> None:
        self._done.append(self._hash.intdigest())
        self._hash.reset()
        self._filled = 0


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="ranges")  # the pool starts threads as they are needed


def _fetch(files: "Mapping[int, _BlockFile]", missing: tuple[tuple[int, int], list[tuple[int, memoryview]]]) -> None:
    (number, block), parts = missing
    data = files[number].block(block)
    for offset, out in parts:
        out[:] = data[offset : offset + len(out)]


class _BlockFile:
    """One file, opened for reading: URL, size, checksums, and which blocks this process has verified."""

    def __init__(self, entry: RangeEntry, sums: NDArray[np.uint64]) -> None:
        self.url = entry.folder.store.url(entry.folder.at(entry.path))
        self.size, self.sums = entry.bytes, sums
        self.verified = bytearray(len(sums))

    def read(self, first: int, out: memoryview) -> Iterable[tuple[int, int, memoryview]]:
        """Fills `out` with the bytes from `first` on, except those of missing blocks.

        Returns:
            (block, offset in the block, part of `out`) for each missing block.

        Raises:
            InputError: the file has no such bytes, or they are damaged.
        """
        raise NotImplementedError

    def block(self, number: int) -> bytes:
        """Returns the bytes of a block that `read` reported as missing."""
        raise NotImplementedError

    def blocks(self, first: int, length: int) -> range:
        """Returns the numbers of the blocks that contain a range; raises InputError if it exceeds the file."""
        if not 0 <= first <= first + length <= self.size:
            raise InputError(
                f"{self.url} has no bytes {first:,} .. {first + length:,}: it has {self.size:,}",
                "use the plan that was packed from these shards",
            )
        return range(first // BLOCK, -(-(first + length) // BLOCK))

    def verify(self, number: int, data: bytes | memoryview) -> bool:
        """Returns whether the bytes of a block match its checksum, and records the block as verified if so."""
        expected = min(BLOCK, self.size - number * BLOCK)
        equal = len(data) == expected and checksum(data) == int(self.sums[number])
        self.verified[number] |= equal
        return equal

    def damage_error(self, number: int) -> InputError:
        """Returns the error to raise for a block that does not match its checksum."""
        return InputError(f"{self.url} is damaged near byte {number * BLOCK:,}", REMEDY)


class _MappedFile(_BlockFile):
    """A file of a local store, memory-mapped: no copy on the disk.

    Args:
        entry: the file.
        sums: the checksums of its blocks.
        mapped: returns the bytes of a file by its path, and raises OSError.
    """

    def __init__(self, entry: RangeEntry, sums: NDArray[np.uint64], mapped: Callable[[str], memoryview]) -> None:
        super().__init__(entry, sums)
        self._map = mapped
        try:
            self._path = entry.folder.local(entry.path)
        except FileNotFoundError:
            raise InputError(f"{self.url} is missing", REMEDY) from None
        if len(self._bytes) != self.size:
            raise InputError(f"{self.url} has {len(self._bytes):,} bytes, not {self.size:,}", REMEDY)

    @property
    def _bytes(self) -> memoryview:
        try:
            return self._map(self._path)
        except FileNotFoundError:
            raise InputError(f"{self.url} is missing", REMEDY) from None
        except OSError as error:
            raise exhausted(error) or error from None

    def read(self, first: int, out: memoryview) -> Iterable[tuple[int, int, memoryview]]:
        """See `_BlockFile.read`; no block is ever missing."""
        data = self._bytes
        for number in self.blocks(first, len(out)):
            if not self.verified[number] and not self.verify(number, data[number * BLOCK : (number + 1) * BLOCK]):
                raise self.damage_error(number)
        out[:] = data[first : first + len(out)]
        return ()


class _CachedFile(_BlockFile):
    """A file of a remote store, read by blocks through the cache."""

    def __init__(self, entry: RangeEntry, sums: NDArray[np.uint64]) -> None:
        super().__init__(entry, sums)
        self._store, self._path = entry.folder.store, entry.folder.at(entry.path)
        self._cache = BlockCache(entry.sha256)

    def read(self, first: int, out: memoryview) -> Iterable[tuple[int, int, memoryview]]:
        """See `_BlockFile.read`."""
        missing = []
        for number in self.blocks(first, len(out)):
            begin = max(first, number * BLOCK)
            part = out[begin - first : (number + 1) * BLOCK - first]
            if not self._read(number, begin % BLOCK, part):
                missing.append((number, begin % BLOCK, part))
        return missing

    def block(self, number: int) -> bytes:
        """See `_BlockFile.block`; fetches the block unless another process has just fetched it."""
        size = min(BLOCK, self.size - number * BLOCK)
        data = self._cache.fetch(number, size, lambda: self._fetch(number))
        if data is not None:
            return data
        buffer = bytearray(size)
        # The block may be removed from the cache before it is read; then it is fetched without storing it.
        return bytes(buffer) if self._read(number, 0, memoryview(buffer)) else self._fetch(number)

    def _read(self, number: int, offset: int, out: memoryview) -> bool:
        if self.verified[number]:
            return self._cache.read_into(number, offset, out)
        whole = memoryview(bytearray(min(BLOCK, self.size - number * BLOCK)))
        if not self._cache.read_into(number, 0, whole):
            return False
        if not self.verify(number, whole):
            self._cache.drop(number)
            return False
        out[:] = whole[offset : offset + len(out)]
        return True

    def _fetch(self, number: int) -> bytes:
        # Two attempts, because bytes may also be corrupted in transit.
        for _ in range(2):
            try:
                data = self._store.read_range(self._path, number * BLOCK, min((number + 1) * BLOCK, self.size))
            except FileNotFoundError:
                raise InputError(f"{self.url} is missing", REMEDY) from None
            if self.verify(number, data):
                return data
        raise self.damage_error(number)
