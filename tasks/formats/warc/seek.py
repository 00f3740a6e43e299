"""Search for the records of a damaged WARC file: their beginnings and ends, and whether the file ends at a record.

Reads one file. The bounds of a record say whether it ends where its Content-Length declares, and where to search for
the next one. They are needed only for suspicious records: no record follows, or something inside looks like one.
"""

import contextlib
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, cast

import fastwarc
from isal import isal_zlib

from tasks.formats.warc.inflated import Inflated

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
