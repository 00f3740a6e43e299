"""Seeking in WARC files: bounds of the records of a damaged file, and random access to the content of a gzip file.

Reads one file. The bounds of a record tell whether it ends where its Content-Length declares, and where to search for
the next one. They are computed only for suspicious records: no record follows, or part of the content looks like one.

If all records of a file are in one gzip member, seeking back up to a megabyte is free; seeking farther inflates at most
64 MiB, because the inflater's state is saved at that interval.
"""

import contextlib
import io
import re
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, cast

import fastwarc
from isal import isal_zlib

HEAD = 1 << 16
_BLOCK = 1 << 20
# Size of the first read at an offset: small, because a file may have many wrong lengths.
FIRST = 4 << 10
_LITTLE = 64
# The largest offset that can be passed to seek.
_LONGEST = 1 << 62
_LENGTH = re.compile(rb"^Content-Length:[ \t]*(\d{1,19})[ \t]*\r?$", re.I | re.M)
# The end of a record; a few writers omit it.
_END = re.compile(rb"(?:\r?\n){2}")
_LONGEST_END = 4
_FIELDS = b"application/warc-fields"
_TYPE = re.compile(rb"^WARC-Type:[ \t]*(\w+)", re.I | re.M)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_LONGEST_SIZE, _MOST_CHUNKS = 64, 100_000
_CODED = re.compile(rb"^Transfer-Encoding:", re.I | re.M)
_NEXT = re.compile(rb"(?:\r?\n){2}WARC/")

_GZIP = b"\x1f\x8b\x08"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PLAIN = b"WARC/"
# Of a plain record the version line and the beginning of the next line: text about WARC often contains "WARC/".
_RECORD = rb"WARC/\d\.\d{1,2}\r?\n(?=[A-Za-z-]{1,40}:)"
_MAGIC = {kind: re.compile(re.escape(kind)) for kind in (_GZIP, _ZSTD)} | {_PLAIN: re.compile(_RECORD)}
_ANY_MAGIC = re.compile(b"|".join(pattern.pattern for pattern in _MAGIC.values()))
BOUNDARY = re.compile(b"\n" + _RECORD)
"""The boundary between two records. It may occur inside a record, because a block may itself contain records."""
_LONGEST_MAGIC = 64
# A skippable first frame with the dictionary of all other frames (the warc-zstd proposal of the IIPC).
_DICTIONARY = b"\x5d\x2a\x4d\x18"
_MAX_DICTIONARY = 16 << 20

_PACKED_BLOCK = 1 << 16
_STATES_APART = 64 << 20
_KEPT_OUTPUT = 1 << 20
_STEP = 64


@dataclass(frozen=True)
class RecordBounds:
    """The end of a record.

    Attributes:
        ends: whether the declared length agrees with the next bytes (line ends, or the end of the gzip member) and with
            the content; None if unknown.
        search_from: where to search for the next record; None for anywhere after the start of this one.
    """

    ends: bool | None
    search_from: int | None = None


UNKNOWN = RecordBounds(None)
_WRONG = RecordBounds(False)


class SeekableWarc:
    """A seekable WARC file that can be read from any record on.

    Attributes:
        random_access: whether reading can start at any record; False for a file that is one gzip member.
        file: the file that offsets refer to: the file itself, or its content if there is no random access.
        in_members: whether each record is a gzip member.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._dictionary = _dictionary(file)
        self.random_access = not _has_shared_member(file)
        self.file = file if self.random_access else cast(BinaryIO, GzipContent(file))
        self._magic = _ANY_MAGIC if self._dictionary else _magic(self.file)
        self.in_members = self._magic is _MAGIC[_GZIP]

    def records(self, start: int) -> Iterator[tuple[int, fastwarc.WarcRecord]]:
        """Yields (offset, record) for the records from an offset on; raises FastWARC's errors."""
        source, base = self._from(start)
        for record in fastwarc.ArchiveIterator(source, parse_http=False):
            yield base + record.stream_pos, record

    @contextlib.contextmanager
    def preserved_position(self) -> Iterator[None]:
        """Context in which other parts of the file may be read during an iteration of `records`."""
        at = self.file.tell()
        yield
        self.file.seek(at)

    def bounds(self, offset: int, record_id: str) -> RecordBounds:
        """Returns the bounds of the record at an offset; unknown if no record with this id begins there."""
        self.file.seek(offset)
        magic = self.file.read(len(_ZSTD))
        if magic.startswith(_GZIP):
            bounds = gzip_bounds(self.file, offset)
        elif magic == _ZSTD:
            bounds = zstd_bounds(fastwarc.ZstdReader(self._from(offset)[0]))
        else:
            bounds = text_bounds(self.file, offset)
        first = next(self._read_at(offset), None)
        # All records in one gzip member have the offset of the first.
        return bounds if first is not None and first.record_id == record_id else UNKNOWN

    def next_record_start(self, start: int) -> int | None:
        """Returns the first offset from `start` on at which a record seems to begin, or None."""
        offset, tail, step = start, b"", FIRST
        self.file.seek(start)
        while block := self.file.read(step):
            step = min(2 * step, _BLOCK)
            window = tail + block
            base = offset - len(tail)
            for match in self._magic.finditer(window):
                at = base + match.start()
                if at >= start and _begins_record(self.file, at):
                    return at
            self.file.seek(offset + len(block))
            offset += len(block)
            tail = window[-_LONGEST_MAGIC:]
        return None

    def ends_at_boundary(self, offset: int) -> bool:
        """Returns whether the file ends where a record can end; a file of gzip members, at the end of a member.

        Args:
            offset: offset of the last record, as far as it is known.
        """
        return self.file.whole if isinstance(self.file, GzipContent) else _ends_at_boundary(self.file, offset)

    def digest_matches(self, offset: int) -> bool | None:
        """Returns whether the record at an offset matches its block digest, or None if it has none."""
        for record in self._read_at(offset):
            return bool(record.verify_block_digest()) if "WARC-Block-Digest" in record.headers else None
        return None

    def _read_at(self, offset: int) -> Iterator[fastwarc.WarcRecord]:
        try:
            for _, record in self.records(offset):
                yield record
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise

    def _from(self, start: int) -> tuple[BinaryIO, int]:
        """Returns the file from an offset on, and the base to add to its offsets."""
        self.file.seek(start)
        if start and self._dictionary:
            # FastWARC expects the dictionary first.
            return cast(BinaryIO, _GrowingReader(self.file, self._dictionary)), start - len(self._dictionary)
        return cast(BinaryIO, _GrowingReader(self.file)), 0


class _GrowingReader:
    """A file from its current position, optionally with a prefix, whose reads start small and grow.

    FastWARC fills its buffer at once, which would cost 64 KiB for each of many small records.
    """

    def __init__(self, file: BinaryIO, head: bytes = b"") -> None:
        self._head = head
        self._file = file
        self._at = 0 if head else file.tell()
        self._step = FIRST

    def read(self, size: int = -1) -> bytes:
        if self._at < len(self._head):
            block = self._head[self._at : self._at + size]
        else:
            block = self._file.read(min(size, self._step) if size >= 0 else size)
            self._step *= 2
        self._at += len(block)
        return block

    def tell(self) -> int:
        return self._at


def _dictionary(file: BinaryIO) -> bytes:
    file.seek(0)
    head = file.read(8)
    size = int.from_bytes(head[4:8], "little")
    return head + file.read(size) if head.startswith(_DICTIONARY) and size <= _MAX_DICTIONARY else b""


def _has_shared_member(file: BinaryIO) -> bool:
    """Returns whether the first gzip member of a file continues after the first record."""
    pieces = _first_member(file)
    start = next(pieces, b"")
    head = parse_head(start)
    if head is None:
        return False
    following, left, tail = b"", head[1], b""
    for piece in chain([start[head[0] :]], pieces):
        following += piece[left : left + _LONGEST_MAGIC - len(following)]
        left = max(left - len(piece), 0)
        # After a correct length a record follows; after a wrong one a record may begin anywhere.
        if following.lstrip(b"\r\n").startswith(_PLAIN) or BOUNDARY.search(tail + piece):
            return True
        if len(following) == _LONGEST_MAGIC and not following.strip(b"\r\n"):
            return False
        tail = piece[-_LONGEST_MAGIC:]
    return False


def _first_member(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    stream = zlib.decompressobj(31)
    try:
        while not stream.eof and (block := stream.unconsumed_tail or file.read(HEAD)):
            yield stream.decompress(block, _BLOCK)
    except zlib.error:
        return


def _ends_at_boundary(file: BinaryIO, offset: int) -> bool:
    # If the offset of the last record is wrong, the file is read from its beginning.
    for start in (offset, 0):
        # isal is five times faster, but reports damage differently: its result is used only if it reports none.
        with contextlib.suppress(zlib.error, isal_zlib.error):  # type: ignore[arg-type]  # its stub errs
            if _members_end(file, start, isal_zlib.decompressobj):
                return True
        try:
            return _members_end(file, start, zlib.decompressobj)
        except zlib.error:
            continue
    return True


def _members_end(file: BinaryIO, start: int, new_inflater: Callable[[int], Any]) -> bool:
    file.seek(start)
    stream, whole = new_inflater(31), True
    if (head := file.read(len(_GZIP))) != _GZIP:
        if not head:
            raise zlib.error("nothing is here")
        return True
    block = head
    while block:
        while block:
            if whole:
                stream = new_inflater(31)
            stream.decompress(block, _BLOCK)
            whole = stream.eof
            block = stream.unused_data if whole else stream.unconsumed_tail
        block = file.read(_BLOCK)
    if not whole:
        stream.flush()
    return whole or stream.eof


def _magic(file: BinaryIO) -> re.Pattern[bytes]:
    """Returns the pattern of the first bytes of records: that of the first record, or of all kinds if it is damaged."""
    file.seek(0)
    head = file.read(len(_PLAIN))
    return next((pattern for kind, pattern in _MAGIC.items() if head.startswith(kind)), _ANY_MAGIC)


def _begins_record(file: BinaryIO, offset: int) -> bool:
    file.seek(offset)
    head = file.read(512)
    if head.startswith(_GZIP):
        try:
            return zlib.decompressobj(31).decompress(head, len(_PLAIN)) == _PLAIN
        except zlib.error:
            return False
    # A zstd frame may need the file's dictionary, so reading it decides whether it is a record.
    return head.startswith((_ZSTD, _PLAIN))


def parse_head(data: bytes) -> tuple[int, int] | None:
    """Returns the length of a record's head, including its blank line, and its declared length; None without a head."""
    end = data.find(b"\r\n\r\n")
    length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
    return (end + 4, min(int(length[1]), _LONGEST)) if length else None


def text_bounds(file: BinaryIO, offset: int) -> RecordBounds:
    """Returns the bounds of a record of an uncompressed file, or of decompressed content."""
    file.seek(offset)
    start = file.read(FIRST)
    if not _NEXT.search(start):
        start += file.read(HEAD - len(start))
    head = parse_head(start)
    if head is None:
        return UNKNOWN
    end = offset + sum(head)
    block_length = _block_length(file, offset + head[0], start[: head[0]], start[head[0] :])
    if block_length is not None and block_length < head[1]:
        file.seek(offset + head[0] + block_length)
        if _NEXT.match(file.read(_LITTLE)):
            return _WRONG
    # Starts one byte before the end, because seeking beyond the end of a file raises no error.
    if file.seek(end - 1) != end - 1 or not (following := file.read(_LITTLE)):
        return _WRONG
    following = following[1:]
    at_end_of_file = len(following) <= _LONGEST_END and not following.strip(b"\r\n")
    if not at_end_of_file and not _END.match(following):
        return _WRONG
    return RecordBounds(True, end)


def _block_length(file: BinaryIO, offset: int, head: bytes, block: bytes) -> int | None:
    """Returns the length of a block according to its content (an HTTP head with its body, or header fields), or None.

    Args:
        file: the file.
        offset: offset of the block.
        head: the head of the record.
        block: the first bytes of the block.
    """
    if _FIELDS in head:
        match = _NEXT.search(block)
        return match.start() if match else None
    kind, end = _TYPE.search(head), block.find(b"\r\n\r\n") + 4
    if kind is None or kind[1] not in (b"request", b"response") or end < 4:
        return None
    if kind[1] == b"request":
        return end
    if _CODED.search(block, 0, end):
        return _chunks_end(file, offset + end, offset)
    length = _LENGTH.search(block, 0, end - 2)
    return end + int(length[1]) if length else None


def _chunks_end(file: BinaryIO, at: int, base: int) -> int | None:
    """Returns the end of a chunked body relative to `base`, or None if its chunks are invalid."""
    for _ in range(_MOST_CHUNKS):
        file.seek(at)
        size = _CHUNK.match(file.read(_LONGEST_SIZE))
        if size is None:
            return None
        at += size.end()
        if not int(size[1], 16):
            file.seek(at)
            return at + len(b"\r\n") - base if file.read(2) == b"\r\n" else None
        at += int(size[1], 16) + len(b"\r\n")
    return None


def gzip_bounds(file: BinaryIO, offset: int) -> RecordBounds:
    """Returns the bounds of a record that is a gzip member."""
    file.seek(offset)
    stream, size, start, last, step = zlib.decompressobj(31), 0, b"", b"", FIRST
    try:
        while not stream.eof:
            if not (block := stream.unconsumed_tail):
                block, step = file.read(step), min(2 * step, _BLOCK)
            if not block:
                return _WRONG
            data = stream.decompress(block, _BLOCK)
            size += len(data)
            start += data[: HEAD - len(start)]
            last = (last + data)[-_LONGEST_END:]
    except zlib.error:
        return UNKNOWN
    head = parse_head(start)
    if head is None:
        return UNKNOWN
    more = size - sum(head)
    ends = 0 <= more <= _LONGEST_END and not last[len(last) - more :].strip(b"\r\n")
    return RecordBounds(ends, file.tell() - len(stream.unused_data))


def zstd_bounds(reader: fastwarc.ZstdReader) -> RecordBounds:
    """Returns the bounds of the record in the next zstd frame of `reader`."""
    start, line_ends = b"", b""
    try:
        while (head := parse_head(start)) is None and len(start) < HEAD:
            if not (byte := reader.read(1)):
                return UNKNOWN
            start += byte
        if head is None:
            return UNKNOWN
        frame, left = reader.frame_start_position(), head[1]
        while left:
            data = reader.read(min(left, _BLOCK))
            left -= len(data)
            if not data or reader.frame_start_position() != frame:
                return _WRONG
        while len(line_ends) <= _LONGEST_END and (byte := reader.read(1)) and reader.frame_start_position() == frame:
            line_ends += byte
    except OSError as error:
        if error.errno is not None:
            raise
        return UNKNOWN
    ends = len(line_ends) <= _LONGEST_END and not line_ends.strip(b"\r\n")
    return RecordBounds(ends)


class GzipContent(io.RawIOBase):
    """The content of a gzip file: all members concatenated, damaged parts omitted.

    Args:
        file: the compressed file, seekable; must not be used elsewhere at the same time.
        start: offset of the member to start at. Offsets in the content are relative to it.

    Attributes:
        whole: nothing was omitted and the last member is complete, as far as the file has been read.
        damaged: start offsets of the damaged members in the content, in the order of reading.
    """

    def __init__(self, file: BinaryIO, start: int = 0) -> None:
        self._file = file
        self.whole = True
        self.damaged: list[int] = []
        # Offsets in the content, and the state at each: offset in the file, inflater, pending input, and start of the
        # member in the content and in the file.
        self._offsets = [0]
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
        """Moves to an offset in the content, or to its end if it is shorter."""
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("seek from anywhere but the beginning")
        if offset < self._at and not self._rewind(offset):
            self._go_to(offset)
        while self._at < offset and self._ready():
            self._take(offset - self._at)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes; fewer than `size` only at the end."""
        parts: list[bytes] = []
        while size and self._ready():
            parts.append(self._take(size if size > 0 else _PACKED_BLOCK))
            size -= len(parts[-1]) if size > 0 else 0
        return b"".join(parts)

    def piece(self, size: int) -> bytes:
        """Returns some of the next bytes, all from one member; b"" only at the end."""
        return self._take(size) if self._ready() else b""

    def readline(self, size: int | None = -1, /) -> bytes:
        """Returns the bytes up to and including the next line end, at most `size`."""
        parts: list[bytes] = []
        left = size if size is not None and size >= 0 else -1
        while left and self._ready():
            end = self._out.find(b"\n", self._used) + 1
            parts.append(
                self._take(min(end - self._used if end else _PACKED_BLOCK, left if left > 0 else _PACKED_BLOCK))
            )
            left -= len(parts[-1]) if left > 0 else 0
            if parts[-1].endswith(b"\n"):
                break
        return b"".join(parts)

    def member(self) -> tuple[int, int]:
        """Returns the start of the gzip member of the next byte, in the content and in the file."""
        self._ready()
        return self._member

    def readinto(self, buffer: Any) -> int:
        """Fills `buffer` with the next bytes; returns their number."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _take(self, most: int) -> bytes:
        piece = self._out[self._used : self._used + most]
        self._used += len(piece)
        self._at += len(piece)
        return piece

    def _go_to(self, offset: int) -> None:
        index = bisect_right(self._offsets, offset) - 1
        position, inflater, self._pending, self._member = self._states[index]
        self._at, self._inflater = self._offsets[index], inflater.copy()
        self._out, self._used = b"", 0
        # Output before `_out`, of the same member.
        self._past: deque[bytes] = deque()
        self._past_bytes = 0
        self._ended = self._fresh = False
        self._file.seek(position)

    def _rewind(self, offset: int) -> bool:
        """Moves back to an offset if its output is still in memory; returns whether it is."""
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

    def _keep_output(self) -> None:
        """Keeps the consumed output for `_rewind` before it is replaced."""
        self._past.append(self._out)
        self._past_bytes += len(self._out)
        while self._past_bytes > _KEPT_OUTPUT:
            self._past_bytes -= len(self._past.popleft())

    def _ready(self) -> bool:
        """Inflates until there is output; returns False at the end."""
        while self._used == len(self._out) and not self._ended:
            if self._at - self._offsets[-1] >= _STATES_APART:
                self._offsets.append(self._at)
                self._states.append((self._file.tell(), self._inflater.copy(), self._pending, self._member))
            self._pending = self._pending or self._file.read(_PACKED_BLOCK)
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
            self._keep_output()
        before = self._inflater.copy()
        try:
            self._out, self._used = self._inflater.decompress(self._pending, _PACKED_BLOCK), 0
            self._pending = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        except zlib.error:
            self._skip_damage(before)

    def _skip_damage(self, inflater: Any) -> None:
        """Outputs the bytes before the damage, and continues at the next apparent member."""
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
            more = self._file.read(_PACKED_BLOCK)
            if not more:
                break
            data = data[1 - len(_GZIP) :] + more
        self._pending = data[start:] if start >= 0 else b""
        self._fresh = True

    def _end(self) -> None:
        if not (self._inflater.eof or self._fresh):
            self.whole = False
            self._keep_output()
            self._out, self._used = self._inflater.flush(), 0
        self._ended = True
