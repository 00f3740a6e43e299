"""Bounds of a WARC record: whether it ends where its Content-Length declares, and where to search for the next one.

Reads one record of a file again. Needed only for suspicious records: no record follows, or something inside looks like
one.
"""

import re
import zlib
from dataclasses import dataclass
from typing import BinaryIO

import fastwarc

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
