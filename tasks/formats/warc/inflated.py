"""Random access to the decompressed content of a gzip file.

Reads one file, needed where all records of a file are in one gzip member. Seeking back within a megabyte costs nothing,
and farther back the inflation of at most 64 MiB: the inflater's state is saved at that interval.
"""

import io
import zlib
from bisect import bisect_right
from collections import deque
from typing import Any, BinaryIO

_BLOCK = 1 << 16
_APART = 64 << 20
_REMEMBERED = 1 << 20
_STEP = 64
_GZIP = b"\x1f\x8b\x08"


class Inflated(io.RawIOBase):
    """The content of a gzip file, all members concatenated. Damaged parts are left out.

    Args:
        file: the compressed file, seekable; not used otherwise meanwhile.
        start: where in the file to begin: at a member. Offsets in the content count from there.

    Attributes:
        whole: nothing is left out, and the last member is complete, as far as the file has been read.
        damaged: where the damaged members begin in the content, in the order of reading.
    """

    def __init__(self, file: BinaryIO, start: int = 0) -> None:
        self._file = file
        self.whole = True
        self.damaged: list[int] = []
        # Offsets in the content, and the state at each: offset in the file, inflater, pending input, and where the
        # member begins, in the content and in the file.
        self._places = [0]
        self._states: list[tuple[int, Any, bytes, tuple[int, int]]] = [(start, zlib.decompressobj(31), b"", (0, start))]
        self._go_to(0)

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the offset in the content."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset in the content, or to its end if that comes before."""
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("seek from anywhere but the beginning")
        if offset < self._at and not self._went_back(offset):
            self._go_to(offset)
        while self._at < offset and self._ready():
            self._take(offset - self._at)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes; fewer than `size` only at the end."""
        parts: list[bytes] = []
        while size and self._ready():
            parts.append(self._take(size if size > 0 else _BLOCK))
            size -= len(parts[-1]) if size > 0 else 0
        return b"".join(parts)

    def piece(self, size: int) -> bytes:
        """Returns some of the next bytes, all of one member; b"" only at the end."""
        return self._take(size) if self._ready() else b""

    def readline(self, size: int | None = -1, /) -> bytes:
        """Returns the bytes up to the next line end, and with it, but not more than `size`."""
        parts: list[bytes] = []
        left = size if size is not None and size >= 0 else -1
        while left and self._ready():
            end = self._out.find(b"\n", self._used) + 1
            parts.append(self._take(min(end - self._used if end else _BLOCK, left if left > 0 else _BLOCK)))
            left -= len(parts[-1]) if left > 0 else 0
            if parts[-1].endswith(b"\n"):
                break
        return b"".join(parts)

    def member(self) -> tuple[int, int]:
        """Returns where the gzip member of the next byte begins: in the content, and in the file."""
        self._ready()
        return self._member

    def readinto(self, buffer: Any) -> int:
        """Fills `buffer` with the next bytes; returns how many there were."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _take(self, most: int) -> bytes:
        piece = self._out[self._used : self._used + most]
        self._used += len(piece)
        self._at += len(piece)
        return piece

    def _go_to(self, offset: int) -> None:
        index = bisect_right(self._places, offset) - 1
        place, inflater, self._pending, self._member = self._states[index]
        self._at, self._inflater = self._places[index], inflater.copy()
        self._out, self._used = b"", 0
        # Output before `_out`, of the same member.
        self._past: deque[bytes] = deque()
        self._past_bytes = 0
        self._ended = self._fresh = False
        self._file.seek(place)

    def _went_back(self, offset: int) -> bool:
        """Goes to an offset within what is still in memory; returns whether it is there."""
        begin = self._at - self._used
        if begin - offset > self._past_bytes:
            return False
        parts = [self._out]
        while begin > offset:
            parts.append(self._past.pop())
            self._past_bytes -= len(parts[-1])
            begin -= len(parts[-1])
        self._out, self._used, self._at = b"".join(reversed(parts)), offset - begin, offset
        return True

    def _remember(self) -> None:
        """Keeps the output that was taken, before other output takes its place."""
        self._past.append(self._out)
        self._past_bytes += len(self._out)
        while self._past_bytes > _REMEMBERED:
            self._past_bytes -= len(self._past.popleft())

    def _ready(self) -> bool:
        """Inflates until there is output; returns whether there is."""
        while self._used == len(self._out) and not self._ended:
            if self._at - self._places[-1] >= _APART:
                self._places.append(self._at)
                self._states.append((self._file.tell(), self._inflater.copy(), self._pending, self._member))
            self._pending = self._pending or self._file.read(_BLOCK)
            if self._pending:
                self._inflate()
            else:
                self._end()
        return self._used < len(self._out)

    def _inflate(self) -> None:
        if self._inflater.eof or self._fresh:
            self._inflater, self._fresh = zlib.decompressobj(31), False
            self._member = self._at, self._file.tell() - len(self._pending)
            self._past.clear()
            self._past_bytes = 0
        else:
            self._remember()
        before = self._inflater.copy()
        try:
            self._out, self._used = self._inflater.decompress(self._pending, _BLOCK), 0
            self._pending = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        except zlib.error:
            self._skip_damage(before)

    def _skip_damage(self, inflater: Any) -> None:
        """Outputs the bytes before the damage, and continues where the next member seems to begin."""
        parts, at = [], 0
        try:
            while at < len(self._pending):
                parts.append(inflater.decompress(self._pending[at : at + _STEP]))
                at += _STEP
        except zlib.error:
            pass
        self.whole = False
        self.damaged.append(self._member[0])
        self._out, self._used = b"".join(parts), 0
        data = self._pending[at + 1 :]
        while (start := data.find(_GZIP)) < 0:
            more = self._file.read(_BLOCK)
            if not more:
                break
            data = data[1 - len(_GZIP) :] + more
        self._pending = data[start:] if start >= 0 else b""
        self._fresh = True

    def _end(self) -> None:
        if not (self._inflater.eof or self._fresh):
            self.whole = False
            self._remember()
            self._out, self._used = self._inflater.flush(), 0
        self._ended = True
