"""Checksums of the blocks of a file, so that a range of it can be verified without reading the rest.

Writes and reads `checksums/<stem>.npy` beside the files of an artifact: xxh3_64 (Collet, xxHash 0.8) of every block of
`BLOCK` bytes, uint64, shape (blocks,); the last block may be shorter. sha256, which the records have of whole files,
would take 0.2 ms per block, xxh3_64 takes 0.02 ms: every block that is read can be verified.
"""

import contextlib
import io
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import BinaryIO, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.core import npy
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


def checksum(data: bytes | memoryview) -> int:
    """Returns the checksum of one block."""
    return int(xxhash.xxh3_64_intdigest(data))


def checksums_path(path: str) -> str:
    """Returns where the checksums of an artifact's file are, in the same artifact.

    >>> checksums_path("shards/web-train-00000-000.arrow")
    'checksums/web-train-00000-000.npy'
    """
    return f"{CHECKSUMS}/{PurePosixPath(path).stem}.npy"


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


@contextlib.contextmanager
def checksummed_file(part: Part, path: str, rows: int | None = None) -> Iterator[BinaryIO]:
    """Yields a binary file of a part, as `Part.file`, and writes the checksums of its blocks."""
    with part.file(path, rows=rows) as raw:
        checked = ChecksumWriter(raw)
        yield cast(BinaryIO, checked)
    with part.file(checksums_path(path)) as sums:
        sums.write(checked.checksums())


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


REMEDY = "restore the file; or remove its artifact, and run the stage that makes it again"
