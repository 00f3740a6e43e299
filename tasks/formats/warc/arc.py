"""Reader of ARC files, the predecessor of WARC; yields WARC records.

Reads one file of version 1 (the Internet Archive, Heritrix, the first crawls of Common Crawl) or 2, gzip (a member per
record, or one for all) or plain. Each record is a line, "URL IP-address Archive-date Content-type Archive-length", and
that many bytes as sent by the server. The line is converted to a WARC header; FastWARC parses the rest.
Format: https://archive.org/web/researcher/ArcFileFormat.php.
"""

import re
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import BinaryIO, NamedTuple, cast

import fastwarc
from fastwarc import WarcRecordType

from tasks.formats.warc.record import BlockReader, Damage, Digest, Reason, Record, read_record
from tasks.formats.warc.seek import GzipContent

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
# Limit on bytes read because of wrong lengths; a file above it is malicious.
_MAX_WASTED = 32 << 30


@dataclass(frozen=True)
class _Header:
    """The fields of an ARC record's header line; `length` is the length of the record."""

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
    """Returns whether a file begins like an ARC file, compressed or not."""
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
    """Yields records and damaged places; see `tasks.formats.warc.reader.read_records` for arguments and errors."""
    yield from _ArcReader(file, limit, kinds, start, "computed" if digest == "declared" else digest).read()


class _ConvertedRecord:
    """A record converted to WARC, as a file for FastWARC: header, the bytes of the record, and two line ends.

    Attributes:
        size: declared size of the record in bytes.
        left: number of these bytes that have not been read.
        alone: the record is a gzip member and ends with it, regardless of its declared size.
        cut: the member ended before the declared size.
    """

    def __init__(self, text: BinaryIO | GzipContent, head: bytes, size: int, *, alone: bool) -> None:
        self._text = text
        self._head = head
        self._tail = _END
        self._begin = text.tell()
        self._at = 0
        self.size = self.left = size
        self.alone = alone
        self.cut = False

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes, at most `size`; b"" at the end."""
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
        if not isinstance(self._text, GzipContent):
            return self._text.read(size)
        if self.alone and self._text.member()[0] > self._begin:
            self.cut = True
            return b""
        return self._text.piece(size)


class _ArcLine(NamedTuple):
    """A non-blank line: its bytes, its offset in the file (None if unknown), and whether blank lines precede it."""

    data: bytes
    offset: int | None
    after_blank: bool


class _ArcReader:
    """Reads one file from a given record on."""

    def __init__(self, file: BinaryIO, limit: int, kinds: WarcRecordType, start: int, digest: Digest) -> None:
        file.seek(start)
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(start)
        self._text: BinaryIO | GzipContent = GzipContent(file, start) if packed else file
        self._limit = limit
        self._kinds = kinds
        self._digest = digest
        self._wasted = 0
        self._certain_offset = start
        self._reported = self._any_damage = False
        self._count, self._all_alone = 0, True

    def read(self) -> Iterator[Record | Damage]:
        line = self._next_line()
        while line is not None and self._wasted <= _MAX_WASTED:
            header = _parse_header(line.data)
            if header is None:
                yield from self._damage("warc_damaged", f"not a record header: {line.data[:60]!r}")
                line = self._resync()
                continue
            self._certain_offset = line.offset if line.offset is not None else self._certain_offset
            self._count += 1
            self._all_alone = self._all_alone and line.offset is not None
            begin = self._text.tell()
            block = _ConvertedRecord(self._text, _head(header, line.data), header.length, alone=line.offset is not None)
            damaged = self._damaged()
            record = self._record(header, block, line.offset)
            line, defect = self._after_record(record, block, begin)
            # The checksum of a gzip member is at its end, so damage may be detected only now.
            if any(member <= begin for member in self._damaged()[len(damaged) :]):
                defect = defect or "its gzip member is damaged"
            yield from self._emit(record, defect)
        if isinstance(self._text, GzipContent) and not (self._text.whole or self._any_damage):
            yield from self._damage("warc_truncated", "the file ends inside a record")

    def _damaged(self) -> list[int]:
        return list(self._text.damaged) if isinstance(self._text, GzipContent) else []

    def _record(self, header: _Header, block: _ConvertedRecord, offset: int | None) -> Record | None:
        """Reads a record to its end; returns it if its kind is requested."""
        if not getattr(WarcRecordType, header.kind) & self._kinds:
            while block.read():
                pass
            return None
        try:
            record = next(iter(fastwarc.ArchiveIterator(cast(BinaryIO, block), parse_http=False)))
            # The block is not searched for other records.
            reader = cast(BlockReader, SimpleNamespace(certain=True, read=record.reader.read))
            return read_record(record, reader, offset, self._limit, self._digest)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the file system or the network; FastWARC's own errors have no errno
            return None

    def _after_record(self, record: Record | None, block: _ConvertedRecord, begin: int) -> tuple[_ArcLine | None, str]:
        """Returns the line after a record, and the defect of the record, or ""."""
        if block.left and block.cut:
            return self._next_line(), "the record declares more than its gzip member holds"
        if block.left:
            # The file is cut off, or the length is wrong and the following records were read as part of this one.
            if isinstance(self._text, GzipContent) and self._all_alone and self._count > 1:
                return None, "the file ends inside a record"
            return self._resume_inside(block, begin), "the file ends inside a record"
        line = self._next_line()
        ends = line is None or line.after_blank or _parse_header(line.data) is not None
        if (ends or _has_http_length(record)) and not _has_inner_record(record):
            return line, ""
        return self._resume_inside(block, begin), "the record declares a wrong length"

    def _resume_inside(self, block: _ConvertedRecord, begin: int) -> _ArcLine | None:
        self._wasted += block.size - block.left
        self._text.seek(begin)
        return self._resync()

    def _emit(self, record: Record | None, defect: str) -> Iterator[Record | Damage]:
        if not defect:
            self._reported = False
            if record is not None:
                yield record
        elif record is not None:
            self._reported = self._any_damage = True
            yield replace(record, short=True)
        else:
            yield from self._damage("warc_truncated" if defect.startswith("the file") else "warc_damaged", defect)

    def _damage(self, reason: Reason, detail: str) -> Iterator[Damage]:
        """Yields a damaged place, unless the previous one was reported and no intact record followed."""
        if not self._reported:
            self._reported = self._any_damage = True
            yield Damage(reason, self._certain_offset, detail)

    def _next_line(self) -> _ArcLine | None:
        """Reads and returns the next non-blank line."""
        after_blank = False
        while True:
            offset = self._offset()
            line = self._text.readline(_LONGEST_LINE)
            if not line:
                return None
            if line.strip(b"\r\n"):
                return _ArcLine(line, offset, after_blank)
            after_blank = True

    def _resync(self) -> _ArcLine | None:
        """Returns the next line that looks like a header line."""
        while (line := self._next_line()) is not None and _parse_header(line.data) is None:
            pass
        return line

    def _offset(self) -> int | None:
        """Returns the offset of the next byte in the file; None within a gzip member."""
        if not isinstance(self._text, GzipContent):
            return self._text.tell()
        begin, offset = self._text.member()
        return offset if begin == self._text.tell() else None


def _parse_header(line: bytes) -> _Header | None:
    """Parses a header line; returns None for any other line."""
    fields = line.rstrip(b"\r\n").split(b" ")
    if not _ADDRESS.match(line) or not _LENGTH.fullmatch(fields[-1]):
        return None
    # Version 2 has five more fields after the content type. URLs and content types may contain blanks.
    for index in range(len(fields) - 2, 1, -1):
        if _DATE.fullmatch(fields[index]) and _IP.fullmatch(fields[index - 1]):
            mime = fields[index + 1] if index + 1 < len(fields) - 1 else b""
            return _Header(b" ".join(fields[: index - 1]), fields[index - 1], fields[index], mime, int(fields[-1]))
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
    """Parses a date of eight to fourteen digits, ignoring further ones; returns None if it is invalid."""
    try:
        return datetime.strptime(digits[:14].decode().ljust(14, "0"), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _http_length(record: Record | None) -> int | None:
    values = [value for name, value in (record.http or () if record else ()) if name.lower() == "content-length"]
    return int(values[0]) if len(values) == 1 and _LENGTH.fullmatch(values[0].encode()) else None


def _has_http_length(record: Record | None) -> bool:
    """Returns whether the size of a record matches its HTTP Content-Length."""
    return record is not None and _http_length(record) == record.size


def _has_inner_record(record: Record | None) -> bool:
    """Returns whether another record begins inside a record, after the HTTP Content-Length."""
    length = _http_length(record)
    if record is None or length is None or length >= record.size:
        return False
    rest = record.payload[length : length + _LONGEST_LINE].lstrip(b"\r\n")
    return _parse_header(rest.partition(b"\n")[0]) is not None
