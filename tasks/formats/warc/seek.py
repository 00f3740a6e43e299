"""Places in WARC files: where records of a damaged file begin and end, and random access to the content of a gzip file.

Reads one file. The bounds of a record say whether it ends where its Content-Length declares, and where to search for
the next one. They are needed only for suspicious records: no record follows, or something inside looks like one.

Where all records of a file are in one gzip member, seeking back within a megabyte costs nothing, and farther back the
inflation of at most 64 MiB: the inflater's state is saved at that interval.
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
# The first read at a place: as many as there are wrong lengths, so many places are read.
FIRST = 4 << 10
_LITTLE = 64
# Behind this no file can be read, as offsets are.
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
"""The boundary between two records, searched for within one: the block of a record may contain records itself."""
_LONGEST_MAGIC = 64
# A skippable frame at the beginning of the file, with the dictionary of all others (the warc-zstd proposal of the
# IIPC).
_DICTIONARY = b"\x5d\x2a\x4d\x18"
_MAX_DICTIONARY = 16 << 20

_PACKED_BLOCK = 1 << 16
_STATES_APART = 64 << 20
_REMEMBERED = 1 << 20
_STEP = 64


@dataclass(frozen=True)
class Bounds:
    """The end of a record.

    Attributes:
        ends: its length agrees with the bytes behind it (the line ends of a record, the end of its gzip member) and
            with its content; None where that is unknown.
        behind: where to search for the next record; None: anywhere behind its beginning.
    """

    ends: bool | None
    behind: int | None = None


UNKNOWN = Bounds(None)
_WRONG = Bounds(False)


class Opening:
    """One seekable file, readable from any of its records on.

    Attributes:
        random_access: reading can begin at any record: not in a file that is one gzip member.
        file: the file that offsets refer to: the file itself, or without random access its content.
        in_members: records are gzip members of their own.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._dictionary = _dictionary(file)
        self.random_access = not _runs_on(file)
        self.file = file if self.random_access else cast(BinaryIO, Inflated(file))
        self._magic = _ANY_MAGIC if self._dictionary else _magic(self.file)
        self.in_members = self._magic is _MAGIC[_GZIP]

    def records(self, start: int) -> Iterator[tuple[int, fastwarc.WarcRecord]]:
        """Yields the records from an offset on, each with its own offset; raises FastWARC's errors."""
        source, base = self._from(start)
        for record in fastwarc.ArchiveIterator(source, parse_http=False):
            yield base + record.stream_pos, record

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Context in which other places may be read during an iteration of `records`."""
        at = self.file.tell()
        yield
        self.file.seek(at)

    def bounds(self, place: int, record_id: str) -> Bounds:
        """Returns the bounds of the record at an offset; unknown if no record with this id begins there."""
        self.file.seek(place)
        magic = self.file.read(len(_ZSTD))
        if magic.startswith(_GZIP):
            found = in_gzip(self.file, place)
        elif magic == _ZSTD:
            found = in_zstd(fastwarc.ZstdReader(self._from(place)[0]))
        else:
            found = in_text(self.file, place)
        first = next(self._read_at(place), None)
        # In a gzip member with several records all have the offset of the first.
        return found if first is not None and first.record_id == record_id else UNKNOWN

    def next_start(self, start: int) -> int | None:
        """Returns the first place from `start` on at which a record seems to begin, or None."""
        return _next_start(self.file, start, self._magic)

    def ends_whole(self, place: int) -> bool:
        """Returns whether the file ends where a record may: with a gzip member, if it consists of them.

        Args:
            place: where its last record begins, as far as is known.
        """
        return self.file.whole if isinstance(self.file, Inflated) else _ends_whole(self.file, place)

    def digest_matches(self, place: int) -> bool | None:
        """Returns whether the record at an offset matches its block digest; None for one without a digest."""
        for record in self._read_at(place):
            return bool(record.verify_block_digest()) if "WARC-Block-Digest" in record.headers else None
        return None

    def _read_at(self, place: int) -> Iterator[fastwarc.WarcRecord]:
        try:
            for _, record in self.records(place):
                yield record
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise

    def _from(self, start: int) -> tuple[BinaryIO, int]:
        """Returns the file from an offset on, and the base to add to its offsets."""
        self.file.seek(start)
        if start and self._dictionary:
            # FastWARC expects the dictionary where it begins to read.
            return cast(BinaryIO, _Reading(self.file, self._dictionary)), start - len(self._dictionary)
        return cast(BinaryIO, _Reading(self.file)), 0


class _Reading:
    """A file from where it is, perhaps with other bytes in front; its first reads are small.

    FastWARC fills a buffer at once, which would cost 64 KiB for each of many small records that are read one by one.
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


def _runs_on(file: BinaryIO) -> bool:
    """Returns whether the first gzip member of a file continues behind the first record."""
    pieces = _first_member(file)
    start = next(pieces, b"")
    head = parsed(start)
    if head is None:
        return False
    behind, left, tail = b"", head[1], b""
    for piece in chain([start[head[0] :]], pieces):
        behind += piece[left : left + _LONGEST_MAGIC - len(behind)]
        left = max(left - len(piece), 0)
        # If the length is right a record follows it; if it is wrong, a record may begin anywhere.
        if behind.lstrip(b"\r\n").startswith(_PLAIN) or BOUNDARY.search(tail + piece):
            return True
        if len(behind) == _LONGEST_MAGIC and not behind.strip(b"\r\n"):
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


def _ends_whole(file: BinaryIO, place: int) -> bool:
    # The offset of the last record may be unknown: then the file is read from its beginning.
    for start in (place, 0):
        # isal takes a fifth of the time, but detects other damage than zlib: its result is used where it finds none.
        with contextlib.suppress(zlib.error, isal_zlib.error):  # type: ignore[arg-type]  # its stub errs
            if _members_end(file, start, isal_zlib.decompressobj):
                return True
        try:
            return _members_end(file, start, zlib.decompressobj)
        except zlib.error:
            continue
    return True


def _members_end(file: BinaryIO, start: int, inflating: Callable[[int], Any]) -> bool:
    file.seek(start)
    stream, whole = inflating(31), True
    if (head := file.read(len(_GZIP))) != _GZIP:
        if not head:
            raise zlib.error("nothing is here")
        return True
    block = head
    while block:
        while block:
            if whole:
                stream = inflating(31)
            stream.decompress(block, _BLOCK)
            whole = stream.eof
            block = stream.unused_data if whole else stream.unconsumed_tail
        block = file.read(_BLOCK)
    if not whole:
        stream.flush()
    return whole or stream.eof


def _magic(file: BinaryIO) -> re.Pattern[bytes]:
    """Returns the pattern of the first bytes of records: that of the first record, or any if that is damaged."""
    file.seek(0)
    head = file.read(len(_PLAIN))
    return next((pattern for kind, pattern in _MAGIC.items() if head.startswith(kind)), _ANY_MAGIC)


def _next_start(file: BinaryIO, start: int, magic: re.Pattern[bytes]) -> int | None:
    offset, tail, step = start, b"", FIRST
    file.seek(start)
    while block := file.read(step):
        step = min(2 * step, _BLOCK)
        window = tail + block
        base = offset - len(tail)
        for found in magic.finditer(window):
            at = base + found.start()
            if at >= start and _begins_record(file, at):
                return at
        file.seek(offset + len(block))
        offset += len(block)
        tail = window[-_LONGEST_MAGIC:]
    return None


def _begins_record(file: BinaryIO, offset: int) -> bool:
    file.seek(offset)
    head = file.read(512)
    if head.startswith(_GZIP):
        try:
            return zlib.decompressobj(31).decompress(head, len(_PLAIN)) == _PLAIN
        except zlib.error:
            return False
    # A zstd frame may need the file's dictionary; whether it is a record is known only when it is read.
    return head.startswith((_ZSTD, _PLAIN))


def parsed(data: bytes) -> tuple[int, int] | None:
    """Returns the length of a record's head with its blank line and the length it declares; None without a head."""
    end = data.find(b"\r\n\r\n")
    length = _LENGTH.search(data, 0, end + 2) if end >= 0 else None
    return (end + 4, min(int(length[1]), _LONGEST)) if length else None


def in_text(file: BinaryIO, place: int) -> Bounds:
    """Returns the bounds of a record of an uncompressed file, or of decompressed content."""
    file.seek(place)
    start = file.read(FIRST)
    if not _NEXT.search(start):
        start += file.read(HEAD - len(start))
    head = parsed(start)
    if head is None:
        return UNKNOWN
    end = place + sum(head)
    inner = _inner_end(file, place + head[0], start[: head[0]], start[head[0] :])
    if inner is not None and inner < head[1]:
        file.seek(place + head[0] + inner)
        if _NEXT.match(file.read(_LITTLE)):
            return _WRONG
    # From one byte before the end on, because seeking beyond the end of a file raises nothing.
    if file.seek(end - 1) != end - 1 or not (behind := file.read(_LITTLE)):
        return _WRONG
    behind = behind[1:]
    last = len(behind) <= _LONGEST_END and not behind.strip(b"\r\n")
    if not last and not _END.match(behind):
        return _WRONG
    return Bounds(True, end)


def _inner_end(file: BinaryIO, place: int, head: bytes, block: bytes) -> int | None:
    """Returns the length of a block by its content: an HTTP head with its body, or header fields."""
    if _FIELDS in head:
        match = _NEXT.search(block)
        return match.start() if match else None
    kind, end = _TYPE.search(head), block.find(b"\r\n\r\n") + 4
    if kind is None or kind[1] not in (b"request", b"response") or end < 4:
        return None
    if kind[1] == b"request":
        return end
    if _CODED.search(block, 0, end):
        return _chunks_end(file, place + end, place)
    length = _LENGTH.search(block, 0, end - 2)
    return end + int(length[1]) if length else None


def _chunks_end(file: BinaryIO, at: int, place: int) -> int | None:
    """Returns where a body in chunks ends, counted from `place`; None where it is not chunked to its end."""
    for _ in range(_MOST_CHUNKS):
        file.seek(at)
        size = _CHUNK.match(file.read(_LONGEST_SIZE))
        if size is None:
            return None
        at += size.end()
        if not int(size[1], 16):
            file.seek(at)
            return at + len(b"\r\n") - place if file.read(2) == b"\r\n" else None
        at += int(size[1], 16) + len(b"\r\n")
    return None


def in_gzip(file: BinaryIO, place: int) -> Bounds:
    """Returns the bounds of a record that has a gzip member of its own."""
    file.seek(place)
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
    head = parsed(start)
    if head is None:
        return UNKNOWN
    more = size - sum(head)
    ends = 0 <= more <= _LONGEST_END and not last[len(last) - more :].strip(b"\r\n")
    return Bounds(ends, file.tell() - len(stream.unused_data))


def in_zstd(reader: fastwarc.ZstdReader) -> Bounds:
    """Returns the bounds of the record in the next zstd frame of `reader`."""
    start, behind = b"", b""
    try:
        while (head := parsed(start)) is None and len(start) < HEAD:
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
        while len(behind) <= _LONGEST_END and (byte := reader.read(1)) and reader.frame_start_position() == frame:
            behind += byte
    except OSError as error:
        if error.errno is not None:
            raise
        return UNKNOWN
    ends = len(behind) <= _LONGEST_END and not behind.strip(b"\r\n")
    return Bounds(ends)


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
            parts.append(self._take(size if size > 0 else _PACKED_BLOCK))
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
            parts.append(
                self._take(min(end - self._used if end else _PACKED_BLOCK, left if left > 0 else _PACKED_BLOCK))
            )
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
            if self._at - self._places[-1] >= _STATES_APART:
                self._places.append(self._at)
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
            self._remember()
        before = self._inflater.copy()
        try:
            self._out, self._used = self._inflater.decompress(self._pending, _PACKED_BLOCK), 0
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
            more = self._file.read(_PACKED_BLOCK)
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
