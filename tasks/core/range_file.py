"""A file of a `RangeReader` as a binary file, for libraries that read some parts of it."""

import io
import os

from tasks.core.ranges import Piece, RangeReader


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
