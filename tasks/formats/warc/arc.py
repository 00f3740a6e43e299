"""Reader of ARC files, the predecessor of WARC; yields WARC records.

Reads one file, versions 1 (the Internet Archive, Heritrix, the first crawls of Common Crawl) and 2: gzip (a member per
record, or one for all) or plain. Each record is a line, "URL IP-address Archive-date Content-type Archive-length", and
that many bytes as the server sent them. The line is converted to a WARC header; FastWARC parses the rest.
Format: https://archive.org/web/researcher/ArcFileFormat.php.
"""

import re
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, BinaryIO, NamedTuple, cast

import fastwarc
from fastwarc import WarcRecordType

from tasks.formats.warc.record import Damage, Digest, Reason, Record, read_record
from tasks.formats.warc.seek import Inflated

_GZIP = b"\x1f\x8b\x08"
_LONGEST_LINE = 1 << 16
_PACKED_BLOCK = 1 << 20
_ADDRESS = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]{0,30}:")
_IP = re.compile(rb"[0-9A-Fa-f.:]{2,45}")
_DATE = re.compile(rb"\d{8,20}")
_LENGTH = re.compile(rb"\d{1,15}")
_CONTROL = re.compile(rb"[\0-\x1f\x7f]")
_KINDS = {"filedesc": "warcinfo", "http": "response", "https": "response"}
_HTTP = b"application/http; msgtype=response"
_END = b"\r\n\r\n"
# A file with this many bytes of wrong lengths is constructed to be read for ever.
_MAX_WASTED = 32 << 30


@dataclass(frozen=True)
class _Header:
    """The fields of an ARC record's header line; `length` is that of the record."""

    url: bytes
    ip: bytes
    date: bytes
    mime: bytes
    length: int

    @property
    def kind(self) -> str:
        """The WARC type of the record."""
        return _KINDS.get(self.url.partition(b":")[0].lower().decode("latin-1"), "resource")


def is_arc(file: BinaryIO) -> bool:
    """Returns whether a file begins as an ARC file does, compressed or not."""
    file.seek(0)
    head = file.read(1 << 10)
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(31).decompress(head, 1 << 10)
        except zlib.error:
            return False
    # The description of the file comes first, even if its length cannot be parsed.
    return head.startswith(b"filedesc:") or _parse_header(head.partition(b"\n")[0]) is not None


def read_arc(
    file: BinaryIO, limit: int, kinds: WarcRecordType, start: int, digest: Digest
) -> Iterator[Record | Damage]:
    """Yields records and damaged places; arguments and errors are those of `warc_reader.read_records`."""
    yield from _Arc(file, limit, kinds, start, "computed" if digest == "declared" else digest).read()


class _Block:
    """A record converted to WARC, as a file for FastWARC: header, the bytes of the record, and the two line ends.

    Attributes:
        size: bytes that the record declares.
        left: those of them that have not been read.
        alone: the record has a gzip member of its own: it ends with the member, whatever it declares.
        cut: the member ended before the declared size.
    """

    def __init__(self, text: BinaryIO | Inflated, head: bytes, size: int, *, alone: bool) -> None:
        self._text = text
        self._head = head
        self._tail = _END
        self._begun = text.tell()
        self._at = 0
        self.size = self.left = size
        self.alone = alone
        self.cut = False

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes, not more than `size`; b"" at the end."""
        size = size if size > 0 else _PACKED_BLOCK
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
        elif self.left:
            data = self._piece(min(size, self.left))
            self.left -= len(data)
        else:
            data, self._tail = self._tail[:size], self._tail[size:]
        self._at += len(data)
        return data

    def tell(self) -> int:
        """Returns the number of bytes read."""
        return self._at

    def _piece(self, size: int) -> bytes:
        if not isinstance(self._text, Inflated):
            return self._text.read(size)
        if self.alone and self._text.member()[0] > self._begun:
            self.cut = True
            return b""
        return self._text.piece(size)


class _Place(NamedTuple):
    """A line that is not blank: its bytes, its offset in the file where known, and whether blank ones came before."""

    line: bytes
    offset: int | None
    behind_blank: bool


class _Arc:
    """Reader of one file from a given record on."""

    def __init__(self, file: BinaryIO, limit: int, kinds: WarcRecordType, start: int, digest: Digest) -> None:
        file.seek(start)
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(start)
        self._text: BinaryIO | Inflated = Inflated(file, start) if packed else file
        self._limit = limit
        self._kinds = kinds
        self._digest = digest
        self._wasted = 0
        self._reached = start
        self._reported = self._any_damage = False
        self._count, self._all_alone = 0, True

    def read(self) -> Iterator[Record | Damage]:
        place = self._next()
        while place is not None and self._wasted <= _MAX_WASTED:
            header = _parse_header(place.line)
            if header is None:
                yield from self._damage("warc_damaged", f"no line that stands before a record: {place.line[:60]!r}")
                place = self._resync()
                continue
            self._reached = place.offset if place.offset is not None else self._reached
            self._count += 1
            self._all_alone = self._all_alone and place.offset is not None
            begun = self._text.tell()
            block = _Block(self._text, _head(header, place.line), header.length, alone=place.offset is not None)
            damaged = self._damaged()
            record = self._record(header, block, place.offset)
            place, why = self._behind(record, block, begun)
            # The checksum of a gzip member is at its end.
            if any(member <= begun for member in self._damaged()[len(damaged) :]):
                why = why or "its gzip member is damaged"
            yield from self._emit(record, why)
        if isinstance(self._text, Inflated) and not (self._text.whole or self._any_damage):
            yield from self._damage("warc_truncated", "the file ends inside a record")

    def _damaged(self) -> list[int]:
        return list(self._text.damaged) if isinstance(self._text, Inflated) else []

    def _record(self, header: _Header, block: _Block, offset: int | None) -> Record | None:
        """Reads a record to its end; returns it if it is of a requested kind."""
        if not getattr(WarcRecordType, header.kind) & self._kinds:
            while block.read():
                pass
            return None
        try:
            record = next(iter(fastwarc.ArchiveIterator(cast(BinaryIO, block), parse_http=False)))
            return read_record(record, _Reader(record.reader), offset, self._limit, self._digest)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the file system or the network; FastWARC's own errors have no errno
            return None

    def _behind(self, record: Record | None, block: _Block, begun: int) -> tuple[_Place | None, str]:
        """Returns the next place, and the defect of the record before it, or ""."""
        if block.left and block.cut:
            return self._next(), "the record declares more than its gzip member holds"
        if block.left:
            # Cut off, or a wrong length: then the following records are inside what was read as one.
            if isinstance(self._text, Inflated) and self._all_alone and self._count > 1:
                return None, "the file ends inside a record"
            return self._again(block, begun), "the file ends inside a record"
        place = self._next()
        ends = place is None or place.behind_blank or _parse_header(place.line) is not None
        if (ends or _agrees(record)) and not _swallowed(record):
            return place, ""
        return self._again(block, begun), "the record declares a wrong length"

    def _again(self, block: _Block, begun: int) -> _Place | None:
        self._wasted += block.size - block.left
        self._text.seek(begun)
        return self._resync()

    def _emit(self, record: Record | None, why: str) -> Iterator[Record | Damage]:
        if not why:
            self._reported = False
            if record is not None:
                yield record
        elif record is not None:
            self._reported = self._any_damage = True
            yield replace(record, short=True)
        else:
            yield from self._damage("warc_truncated" if why.startswith("the file") else "warc_damaged", why)

    def _damage(self, reason: Reason, why: str) -> Iterator[Damage]:
        """Yields a damaged place; only the first of several in a row."""
        if not self._reported:
            self._reported = self._any_damage = True
            yield Damage(reason, self._reached, why)

    def _next(self) -> _Place | None:
        """Reads and returns the next line that is not blank."""
        behind_blank = False
        while True:
            offset = self._offset()
            line = self._text.readline(_LONGEST_LINE)
            if not line:
                return None
            if line.strip(b"\r\n"):
                return _Place(line, offset, behind_blank)
            behind_blank = True

    def _resync(self) -> _Place | None:
        """Returns the next line that looks like a header line."""
        while (place := self._next()) is not None and _parse_header(place.line) is None:
            pass
        return place

    def _offset(self) -> int | None:
        """Returns the offset of the next byte in the file; None within a gzip member."""
        if not isinstance(self._text, Inflated):
            return self._text.tell()
        begun, offset = self._text.member()
        return offset if begun == self._text.tell() else None


class _Reader:
    """The content of a record."""

    certain = True

    def __init__(self, reader: Any) -> None:
        self.read = reader.read


def _parse_header(line: bytes) -> _Header | None:
    """Parses a header line; returns None for any other line."""
    fields = line.rstrip(b"\r\n").split(b" ")
    if not _ADDRESS.match(line) or not _LENGTH.fullmatch(fields[-1]):
        return None
    # Version 2 has five more fields behind the content type. URLs and content types may contain blanks.
    for at in range(len(fields) - 2, 1, -1):
        if _DATE.fullmatch(fields[at]) and _IP.fullmatch(fields[at - 1]):
            mime = fields[at + 1] if at + 1 < len(fields) - 1 else b""
            return _Header(b" ".join(fields[: at - 1]), fields[at - 1], fields[at], mime, int(fields[-1]))
    return None


def _head(header: _Header, line: bytes) -> bytes:
    """Returns the equivalent WARC header; the record id is derived from the line alone."""
    record_id = uuid.uuid5(uuid.NAMESPACE_URL, f"arc:{line.rstrip().decode('latin-1')}")
    fields = [
        b"WARC/1.0",
        b"WARC-Type: " + header.kind.encode(),
        b"WARC-Target-URI: " + header.url,
        b"WARC-Record-ID: <urn:uuid:%b>" % str(record_id).encode(),
        b"WARC-IP-Address: " + header.ip,
        b"Content-Type: " + (_HTTP if header.kind == "response" else header.mime),
        b"Content-Length: %d" % header.length,
    ]
    if (date := _date(header.date)) is not None:
        fields.append(b"WARC-Date: " + date.strftime("%Y-%m-%dT%H:%M:%SZ").encode())
    return b"\r\n".join(_CONTROL.sub(b" ", field) for field in fields) + _END


def _date(digits: bytes) -> datetime | None:
    """Returns a date of eight to fourteen digits, further ones are ignored; None if it is invalid."""
    try:
        return datetime.strptime(digits[:14].decode().ljust(14, "0"), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _http_length(record: Record | None) -> int | None:
    values = [value for name, value in (record.http or () if record else ()) if name.lower() == "content-length"]
    return int(values[0]) if len(values) == 1 and _LENGTH.fullmatch(values[0].encode()) else None


def _agrees(record: Record | None) -> bool:
    """Returns whether a record is as long as its own HTTP headers declare."""
    return record is not None and _http_length(record) == record.size


def _swallowed(record: Record | None) -> bool:
    """Returns whether another record follows within a record, behind the HTTP Content-Length."""
    length = _http_length(record)
    if record is None or length is None or length >= record.size:
        return False
    behind = record.payload[length : length + _LONGEST_LINE].lstrip(b"\r\n")
    return _parse_header(behind.partition(b"\n")[0]) is not None
