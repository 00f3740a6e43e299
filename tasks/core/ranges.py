"""Ranges of the files of an artifact, verified block by block: mapped from a local store, cached from a remote one.

`checksummed_file` writes a file of a part and `checksums/<stem>.npy` beside it: xxh3_64 (Collet, xxHash 0.8) of every
block of `BLOCK` bytes, uint64, shape (blocks,); the last block may be shorter. sha256, which the records have of whole
files, would take 0.2 ms per block, xxh3_64 takes 0.02 ms: so every block can be verified.

`RangeReader` reads ranges, `RangeFile` one file like any binary file, `RangeArray` items of a `.npy` file. A block is
verified when a process reads it for the first time, also on a local store: what is returned is what was written, or an
error names the file. A missing block of a remote file is fetched in a thread, so that many are in flight at once.
"""

import contextlib
import io
import mmap
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.core import npy
from tasks.core.artifact import Artifact, FileEntry
from tasks.core.cache import BlockCache
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.core.part import Part

CHECKSUMS = "checksums"
BLOCK = 256 * 1024
"""Bytes per block: what is fetched, cached and verified at once.

From a loopback server that takes 10 ms (`benchmarks/loader.py`), 32 requests in flight, the first batch of 64 sequences
took 0.12 s with 64 and 256 KiB and 0.19 s with 1 MiB; the whole of a shard came at 36, 136 and 363 MB/s. 256 KiB begins
as fast as 64 KiB and fills the cache four times as fast, with a quarter of the requests.
"""

REMEDY = "restore the file; or remove its artifact, and run the stage that makes it again"
IN_FLIGHT = 32
"""Requests of one reader at once. A round trip to an object store takes 10 to 50 ms, a block of 256 KiB at 100 MB/s 3
ms: the time goes into waiting."""

_RUN, _RUNS = 256, 1024
"""Items that are read together for one of them, and how many such runs stay in memory: binary searches end in one run,
and begin at the same items."""


@contextlib.contextmanager
def checksummed_file(part: Part, path: str, rows: int | None = None) -> Iterator[BinaryIO]:
    """Yields a binary file of a part, as `Part.file`, and writes the checksums of its blocks."""
    with part.file(path, rows=rows) as raw:
        checked = ChecksumWriter(raw)
        yield cast(BinaryIO, checked)
    with part.file(checksums_path(path)) as sums:
        sums.write(checked.checksums())


class Piece(NamedTuple):
    """A range to read: `len(out)` bytes of file `number` from byte `first` on, into `out`."""

    number: int
    first: int
    out: memoryview


class RangeReader:
    """Reads ranges of some files of an artifact. For use by several threads; not picklable.

    Args:
        artifact: the artifact.
        paths: its files; a `Piece` counts in them. A file is opened at its first read.

    Raises:
        InputError: (here and when reading) a file is missing, cut short, damaged, or has no checksums.
    """

    def __init__(self, artifact: Artifact, paths: Sequence[str]) -> None:
        self._artifact = artifact
        self._entries = {entry.path: entry for part in artifact.parts for entry in part.files}
        self._files = [self._entry(path) for path in paths]
        self._open: dict[int, _File] = {}
        self._opening: dict[int, threading.Lock] = defaultdict(threading.Lock)
        self._pool = _threads()

    def close(self) -> None:
        """Ends the threads; requests that have not begun are not made."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = _threads()

    def read(self, pieces: Iterable[Piece]) -> None:
        """Fills the `out` of every piece."""
        missing: dict[tuple[int, int], list[tuple[int, memoryview]]] = defaultdict(list)  # by file and block
        pieces = list(pieces)
        new = {piece.number for piece in pieces} - self._open.keys()
        if len(new) > 1:
            list(self._pool.map(self._opened, sorted(new)))
        for piece in pieces:
            file = self._open.get(piece.number) or self._opened(piece.number)
            for number, offset, out in file.read(piece.first, piece.out):
                missing[piece.number, number].append((offset, out))
        if missing:
            list(self._pool.map(self._fetch, sorted(missing.items())))

    def size(self, number: int) -> int:
        """Returns the size of a file in bytes."""
        return self._files[number].bytes

    def _fetch(self, missing: tuple[tuple[int, int], list[tuple[int, memoryview]]]) -> None:
        (number, block), parts = missing
        data = self._open[number].block(block)
        for offset, out in parts:
            out[:] = data[offset : offset + len(out)]

    def _opened(self, number: int) -> "_File":
        with self._opening[number]:  # the others wait instead of reading the checksums, too
            return self._open.get(number) or self._open.setdefault(number, self._read_checksums(self._files[number]))

    def _read_checksums(self, entry: FileEntry) -> "_File":
        sums_path = checksums_path(entry.path)
        url = self._artifact.store.url(f"{self._artifact.path}/{sums_path}")
        try:
            data = self._artifact.read(sums_path)
        except FileNotFoundError:
            raise InputError(f"{url} is missing", REMEDY) from None
        sums = parse_checksums(data, url, self._entry(sums_path).sha256, entry.bytes).tolist()
        return (_Mapped if self._artifact.store.is_local else _Cached)(self._artifact, entry, sums)

    def _entry(self, path: str) -> FileEntry:
        if path not in self._entries:
            raise InputError(
                f"{self._artifact.address} has no {path}",
                "take the artifact that the others were made from; or one of an earlier Sluice has to be made again",
            )
        return self._entries[path]


class RangeFile(io.RawIOBase):
    """Reads one file by verified blocks.

    Args:
        reader: the reader.
        number: number of the file in it.
    """

    def __init__(self, reader: RangeReader, number: int) -> None:
        self._reader, self._number = reader, number
        self._size, self._position = reader.size(number), 0

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
        """Moves; returns the new position in bytes."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Fills a buffer as far as the file goes; returns the number of bytes.

        Raises:
            InputError: see `RangeReader`.
        """
        out = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        self._reader.read([Piece(self._number, self._position, out)])
        self._position += len(out)
        return len(out)


class RangeArray:
    """One `.npy` file, shape (n,). For use by several threads.

    Args:
        reader: the reader.
        number: number of the file in it.

    Raises:
        InputError: (here and when reading) see `RangeReader`.
        ValueError: the file is no NumPy file of one dimension.
    """

    def __init__(self, reader: RangeReader, number: int) -> None:
        file = cast(BinaryIO, RangeFile(reader, number))
        np.lib.format.read_magic(file)
        shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
        if len(shape) != 1:
            raise ValueError(f"it has the shape {shape}")
        self.ndim = 1
        self._reader, self._number, self._length, self._first = reader, number, int(shape[0]), file.tell()
        self._run = lru_cache(_RUNS)(self._read)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Returns one item, or those of a slice without a step as an array."""
        if not isinstance(index, slice):
            place = range(self._length)[int(index)]
            first = place - place % _RUN
            return self._run(first, min(_RUN, self._length - first))[place - first]
        first, end, _ = index.indices(self._length)
        return self._read(first, max(0, end - first))

    def _read(self, first: int, count: int) -> NDArray[Any]:
        out = bytearray(count * self.dtype.itemsize)
        self._reader.read([Piece(self._number, self._first + first * self.dtype.itemsize, memoryview(out))])
        return np.frombuffer(out, self.dtype)


def checksum(data: bytes | memoryview) -> int:
    """Returns the checksum of one block."""
    return int(xxhash.xxh3_64_intdigest(data))


def checksums_path(path: str) -> str:
    """Returns where the checksums of an artifact's file are, in the same artifact.

    >>> checksums_path("shards/web-train-00000-000.arrow")
    'checksums/web-train-00000-000.npy'
    """
    return f"{CHECKSUMS}/{PurePosixPath(path).stem}.npy"


def parse_checksums(data: bytes, where: str, sha256: str, size: int) -> NDArray[np.uint64]:
    """Returns the checksums of a file of `size` bytes, shape (blocks,).

    Args:
        data: content of the `.npy` file.
        where: its URL, for messages.
        sha256: what the record has of it.
        size: bytes of the file that it describes.

    Raises:
        InputError: it is not what the record describes.
    """
    if sha256_of(data) == sha256:
        sums: NDArray[np.uint64] = npy.load(io.BytesIO(data))
        if sums.dtype == np.uint64 and sums.shape == (-(-size // BLOCK),):
            return sums
    raise InputError(f"{where} is damaged: it differs from its artifact's record", REMEDY)


class ChecksumWriter(io.BufferedIOBase):
    """Passes what is written on to `file`, and takes the checksum of every block of it."""

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
            taken = view[first : first + BLOCK - self._filled]
            self._hash.update(taken)
            self._filled += len(taken)
            first += len(taken)
            if self._filled == BLOCK:
                self._next()
        return len(view)

    def checksums(self) -> bytes:
        """Returns the content of the `.npy` file, for all that was written; nothing may be written afterwards."""
        if self._filled:
            self._next()
        content = io.BytesIO()
        np.save(content, np.array(self._done, dtype=np.uint64))
        return content.getvalue()

    def _next(self) -> None:
        self._done.append(self._hash.intdigest())
        self._hash.reset()
        self._filled = 0


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="ranges")  # started one by one, when they are needed


class _File(Protocol):
    """One file, opened for reading."""

    def read(self, first: int, out: memoryview) -> Iterable[tuple[int, int, memoryview]]:
        """Fills `out` with the bytes from `first` on; returns (block, offset in it, part of `out`) for what is missing.

        Raises:
            InputError: the file has no such bytes, or they are damaged.
        """

    def block(self, number: int) -> bytes | memoryview:
        """Returns a block that `read` found missing."""


class _Checked:
    """What both kinds of files have: name, size, checksums, and which blocks this process has verified."""

    def __init__(self, artifact: Artifact, entry: FileEntry, sums: list[int]) -> None:
        self.url = artifact.store.url(f"{artifact.path}/{entry.path}")
        self.size, self.sums = entry.bytes, sums
        self.good = bytearray(len(sums))

    def cut(self, first: int, length: int) -> range:
        """Returns the numbers of the blocks that hold a range; raises InputError if the file does not have it."""
        if not 0 <= first <= first + length <= self.size:
            raise InputError(
                f"{self.url} has no bytes {first:,} .. {first + length:,}: it has {self.size:,}",
                "use the plan that was packed from these shards",
            )
        return range(first // BLOCK, -(-(first + length) // BLOCK))

    def verify(self, number: int, data: bytes | memoryview) -> bool:
        """Returns whether a block is what was written, and remembers that it was."""
        expected = min(BLOCK, self.size - number * BLOCK)
        equal = len(data) == expected and checksum(data) == self.sums[number]
        self.good[number] |= equal
        return equal

    def damaged(self, number: int) -> InputError:
        """Returns the error of a block that is not what was written."""
        return InputError(f"{self.url} is damaged near byte {number * BLOCK:,}", REMEDY)


class _Mapped(_Checked):
    """A file of a local store, mapped into memory: no copy on the disk."""

    def __init__(self, artifact: Artifact, entry: FileEntry, sums: list[int]) -> None:
        super().__init__(artifact, entry, sums)
        try:
            with open(artifact.local(entry.path), "rb") as file:
                found = os.fstat(file.fileno()).st_size
                if found != self.size:
                    raise InputError(f"{self.url} has {found:,} bytes, not {self.size:,}", REMEDY)
                self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if found else b"")
        except FileNotFoundError:
            raise InputError(f"{self.url} is missing", REMEDY) from None

    def read(self, first: int, out: memoryview) -> Iterable[tuple[int, int, memoryview]]:
        """See `_File`: nothing is ever missing."""
        end = first + len(out)
        for number in self.cut(first, len(out)):
            if not self.good[number] and not self.verify(number, self.block(number)):
                raise self.damaged(number)
        out[:] = self._bytes[first:end]
        return ()

    def block(self, number: int) -> memoryview:
        """See `_File`."""
        return self._bytes[number * BLOCK : (number + 1) * BLOCK]


class _Cached(_Checked):
    """A file of a remote store, read by blocks through the cache."""

    def __init__(self, artifact: Artifact, entry: FileEntry, sums: list[int]) -> None:
        super().__init__(artifact, entry, sums)
        self._store, self._path = artifact.store, f"{artifact.path}/{entry.path}"
        self._cache = BlockCache(entry.sha256)

    def read(self, first: int, out: memoryview) -> Iterable[tuple[int, int, memoryview]]:
        """See `_File`."""
        missing = []
        for number in self.cut(first, len(out)):
            begin = max(first, number * BLOCK)
            part = out[begin - first : (number + 1) * BLOCK - first]
            if not self._read(number, begin % BLOCK, part):
                missing.append((number, begin % BLOCK, part))
        return missing

    def block(self, number: int) -> bytes:
        """See `_File`; fetches the block unless another process has done so."""
        size = min(BLOCK, self.size - number * BLOCK)
        data = self._cache.fetch(number, size, lambda: self._get(number))
        if data is not None:
            return data
        found = bytearray(size)
        # It may be removed again before it is read: then it is fetched without keeping it.
        return bytes(found) if self._read(number, 0, memoryview(found)) else self._get(number)

    def _read(self, number: int, offset: int, out: memoryview) -> bool:
        if self.good[number]:
            return self._cache.read_into(number, offset, out)
        whole = memoryview(bytearray(min(BLOCK, self.size - number * BLOCK)))
        if not self._cache.read_into(number, 0, whole):
            return False
        if not self.verify(number, whole):
            self._cache.drop(number)
            return False
        out[:] = whole[offset : offset + len(out)]
        return True

    def _get(self, number: int) -> bytes:
        # A second time: bytes may be changed on their way, too.
        for _ in range(2):
            try:
                data = self._store.read_range(self._path, number * BLOCK, min((number + 1) * BLOCK, self.size))
            except FileNotFoundError:
                raise InputError(f"{self.url} is missing", REMEDY) from None
            if self.verify(number, data):
                return data
        raise self.damaged(number)
