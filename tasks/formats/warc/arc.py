"""The records of an ARC file, the format of the web's archives before WARC, as records of WARC.

Reads one file, versions 1 (the Internet Archive, Heritrix, the first crawls of Common Crawl) and 2: gzip (a member per
record, or one for all) or plain. Each record is a line, "URL IP-address Archive-date Content-type Archive-length", and
so many bytes as the server sent them. The line is put into WARC's words; FastWARC reads the rest as it does of WARC.
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

from tasks.formats.warc.inflated import Inflated
from tasks.formats.warc.payload import Digest
from tasks.formats.warc.record import Damage, Reason, Record, read_record

_GZIP = b"\x1f\x8b\x08"
_LONGEST_LINE = 1 << 16
_BLOCK = 1 << 20
_ADDRESS = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]{0,30}:")
_IP = re.compile(rb"[0-9A-Fa-f.:]{2,45}")
_DATE = re.compile(rb"\d{8,20}")
_LENGTH = re.compile(rb"\d{1,15}")
_CONTROL = re.compile(rb"[\0-\x1f\x7f]")
_KINDS = {"filedesc": "warcinfo", "http": "response", "https": "response"}
_HTTP = b"application/http; msgtype=response"
_END = b"\r\n\r\n"
# Whoever has lied so much about lengths wants his file to be read for ever.
_MAX_WASTED = 32 << 30


@dataclass(frozen=True)
class _Said:
    """What the line before a record says; `length` is that of the record."""

    url: bytes
    ip: bytes
    date: bytes
    mime: bytes
    length: int

    @property
    def kind(self) -> str:
        """The type that the record has as one of WARC."""
        return _KINDS.get(self.url.partition(b":")[0].lower().decode("latin-1"), "resource")


def is_arc(file: BinaryIO) -> bool:
    """Tells whether a file begins as an ARC file does, compressed or not."""
    file.seek(0)
    head = file.read(1 << 10)
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(31).decompress(head, 1 << 10)
        except zlib.error:
            return False
    # The description of the file comes first, even if its length is none that can be read.
    return head.startswith(b"filedesc:") or _said(head.partition(b"\n")[0]) is not None


def read_arc(
    file: BinaryIO, limit: int, kinds: WarcRecordType, start: int, digest: Digest
) -> Iterator[Record | Damage]:
    """Yields records and damaged places; arguments and errors are those of `warc_reader.read_records`."""
    yield from _Arc(file, limit, kinds, start, "computed" if digest == "declared" else digest).read()


class _Block:
    """A record in WARC's words, for FastWARC: a head, as much of the file as belongs to it, and the two line ends.

    Attributes:
        size: bytes that the record declares.
        left: those of them that have not come.
        alone: the record has a gzip member of its own: it ends with it, whatever it declares.
        cut: it did.
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
        size = size if size > 0 else _BLOCK
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
        """Returns how much has been read."""
        return self._at

    def _piece(self, size: int) -> bytes:
        if not isinstance(self._text, Inflated):
            return self._text.read(size)
        if self.alone and self._text.member()[0] > self._begun:
            self.cut = True
            return b""
        return self._text.piece(size)


class _Place(NamedTuple):
    """A line that is not blank: its bytes, its place in the file where known, and whether blank ones came before."""

    line: bytes
    offset: int | None
    behind_blank: bool


class _Arc:
    """One file, read from one of its records on."""

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
        self._told = self._ever = False
        self._count, self._all_alone = 0, True

    def read(self) -> Iterator[Record | Damage]:
        place = self._next()
        while place is not None and self._wasted <= _MAX_WASTED:
            said = _said(place.line)
            if said is None:
                yield from self._damage("warc_damaged", f"no line that stands before a record: {place.line[:60]!r}")
                place = self._resync()
                continue
            self._reached = place.offset if place.offset is not None else self._reached
            self._count += 1
            self._all_alone = self._all_alone and place.offset is not None
            begun = self._text.tell()
            block = _Block(self._text, _head(said, place.line), said.length, alone=place.offset is not None)
            damaged = self._damaged()
            found = self._record(said, block, place.offset)
            place, why = self._behind(found, block, begun)
            # Whether what a gzip member held is right shows at its end.
            if any(member <= begun for member in self._damaged()[len(damaged) :]):
                why = why or "its gzip member is damaged"
            yield from self._told_of(found, why)
        if isinstance(self._text, Inflated) and not (self._text.whole or self._ever):
            yield from self._damage("warc_truncated", "the file ends inside a record")

    def _damaged(self) -> list[int]:
        return list(self._text.damaged) if isinstance(self._text, Inflated) else []

    def _record(self, said: _Said, block: _Block, offset: int | None) -> Record | None:
        """Reads a record to its end; returns it if it is of a kind that is wanted."""
        if not getattr(WarcRecordType, said.kind) & self._kinds:
            while block.read():
                pass
            return None
        try:
            record = next(iter(fastwarc.ArchiveIterator(cast(BinaryIO, block), parse_http=False)))
            return read_record(record, _Reader(record.reader), offset, self._limit, self._digest)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the file system or the network; FastWARC's own errors carry no number
            return None

    def _behind(self, found: Record | None, block: _Block, begun: int) -> tuple[_Place | None, str]:
        """Returns the next place, and what is wrong with the record before it, or ""."""
        if block.left and block.cut:
            return self._next(), "the record declares more than its gzip member holds"
        if block.left:
            # Cut off, or a length that lies: then those behind it are in what was read as one.
            if isinstance(self._text, Inflated) and self._all_alone and self._count > 1:
                return None, "the file ends inside a record"
            return self._again(block, begun), "the file ends inside a record"
        place = self._next()
        ends = place is None or place.behind_blank or _said(place.line) is not None
        if (ends or _agrees(found)) and not _swallowed(found):
            return place, ""
        return self._again(block, begun), "the record declares a wrong length"

    def _again(self, block: _Block, begun: int) -> _Place | None:
        self._wasted += block.size - block.left
        self._text.seek(begun)
        return self._resync()

    def _told_of(self, found: Record | None, why: str) -> Iterator[Record | Damage]:
        if not why:
            self._told = False
            if found is not None:
                yield found
        elif found is not None:
            self._told = self._ever = True
            yield replace(found, short=True)
        else:
            yield from self._damage("warc_truncated" if why.startswith("the file") else "warc_damaged", why)

    def _damage(self, reason: Reason, why: str) -> Iterator[Damage]:
        """Tells of damage, once where several places follow one another."""
        if not self._told:
            self._told = self._ever = True
            yield Damage(reason, self._reached, why)

    def _next(self) -> _Place | None:
        """Returns the next line that is no blank one, which has been read then."""
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
        """Returns the next line that seems to stand before a record."""
        while (place := self._next()) is not None and _said(place.line) is None:
            pass
        return place

    def _offset(self) -> int | None:
        """Returns where the next byte stands in the file; None within a gzip member."""
        if not isinstance(self._text, Inflated):
            return self._text.tell()
        begun, offset = self._text.member()
        return offset if begun == self._text.tell() else None


class _Reader:
    """What a record holds."""

    certain = True

    def __init__(self, reader: Any) -> None:
        self.read = reader.read


def _said(line: bytes) -> _Said | None:
    """Returns what a line says, if it is one that stands before a record."""
    fields = line.rstrip(b"\r\n").split(b" ")
    if not _ADDRESS.match(line) or not _LENGTH.fullmatch(fields[-1]):
        return None
    # Version 2 has five fields more behind the content type. Addresses hold blanks, and content types do.
    for at in range(len(fields) - 2, 1, -1):
        if _DATE.fullmatch(fields[at]) and _IP.fullmatch(fields[at - 1]):
            mime = fields[at + 1] if at + 1 < len(fields) - 1 else b""
            return _Said(b" ".join(fields[: at - 1]), fields[at - 1], fields[at], mime, int(fields[-1]))
    return None


def _head(said: _Said, line: bytes) -> bytes:
    """Returns the head of a WARC record that says the same; its id is made from the line alone."""
    record_id = uuid.uuid5(uuid.NAMESPACE_URL, f"arc:{line.rstrip().decode('latin-1')}")
    fields = [
        b"WARC/1.0",
        b"WARC-Type: " + said.kind.encode(),
        b"WARC-Target-URI: " + said.url,
        b"WARC-Record-ID: <urn:uuid:%b>" % str(record_id).encode(),
        b"WARC-IP-Address: " + said.ip,
        b"Content-Type: " + (_HTTP if said.kind == "response" else said.mime),
        b"Content-Length: %d" % said.length,
    ]
    if (date := _date(said.date)) is not None:
        fields.append(b"WARC-Date: " + date.strftime("%Y-%m-%dT%H:%M:%SZ").encode())
    return b"\r\n".join(_CONTROL.sub(b" ", field) for field in fields) + _END


def _date(digits: bytes) -> datetime | None:
    """Returns a date of eight to fourteen digits, or more of them, which count for nothing; None if it is none."""
    try:
        return datetime.strptime(digits[:14].decode().ljust(14, "0"), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def _http_length(found: Record | None) -> int | None:
    said = [value for name, value in (found.http or () if found else ()) if name.lower() == "content-length"]
    return int(said[0]) if len(said) == 1 and _LENGTH.fullmatch(said[0].encode()) else None


def _agrees(found: Record | None) -> bool:
    """Tells whether a record is as long as its own HTTP headers say."""
    return found is not None and _http_length(found) == found.size


def _swallowed(found: Record | None) -> bool:
    """Tells whether behind what HTTP says is all of a page stands another record."""
    length = _http_length(found)
    if found is None or length is None or length >= found.size:
        return False
    behind = found.payload[length : length + _LONGEST_LINE].lstrip(b"\r\n")
    return _said(behind.partition(b"\n")[0]) is not None
