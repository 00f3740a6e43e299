"""The captures of a WARC file, and of a damaged one those before and behind the damage.

Reads one file (gzip, zstd or plain), used by `captures`. FastWARC ends at the first damaged record; here reading goes
on at the next byte at which a record begins, so one bad sector costs one record and not the rest of a gigabyte.
"""

import base64
import hashlib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import fastwarc

_KINDS = fastwarc.WarcRecordType.response | fastwarc.WarcRecordType.revisit
_GZIP = b"\x1f\x8b\x08"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PLAIN = b"WARC/"
_MAGIC = re.compile(b"|".join(map(re.escape, (_GZIP, _ZSTD, b"\n" + _PLAIN))))
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Captured:
    """One response or revisit record.

    Attributes:
        record: the headers of the record.
        http: status and headers of the HTTP message (FastWARC's header map), or None where none can be read.
        payload: the body without chunked transfer coding; a larger one than asked for is cut off.
        payload_digest: "sha1:" and Base32, over the whole body, as WARC writers spell it. Computed, not read from the
            record: a header can be forged or stale, and identity hangs on it.
        size: bytes of the whole body.
        short: the record holds less than it declares.
    """

    record: fastwarc.WarcRecord
    http: Any
    payload: bytes
    payload_digest: str
    size: int
    short: bool


@dataclass(frozen=True)
class Damage:
    """Bytes that hold no readable record; they lie behind the record at `after` (0: perhaps the first one itself)."""

    after: int


def read_records(file: BinaryIO, limit: int) -> Iterator[Captured | Damage]:
    """Yields captures and damaged places in file order.

    Args:
        file: a seekable file.
        limit: most bytes of a body to keep.

    Raises:
        OSError: the file cannot be read; damage inside it raises nothing.
    """
    start: int | None = 0
    reached, in_damage = 0, False
    while start is not None:
        file.seek(start)
        try:
            for record in fastwarc.ArchiveIterator(file, record_types=_KINDS, parse_http=True, auto_decode="transfer"):
                captured = _captured(record, limit)
                reached, in_damage = record.stream_pos, False
                yield captured
            return
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the file system or the network; FastWARC's own errors carry no number
            if not in_damage:
                yield Damage(reached)
            in_damage = True
            start = _next_start(file, max(start, reached) + 1)


def _captured(record: fastwarc.WarcRecord, limit: int) -> Captured:
    declared = record.content_length
    digest = hashlib.sha1(usedforsecurity=False)
    kept: list[bytes] = []
    size = 0
    while block := record.reader.read(_BLOCK):
        digest.update(block)
        if size < limit:
            kept.append(block[: limit - size])
        size += len(block)
    http = record.http_headers if record.is_http else None
    chunked = http is not None and "chunked" in (http.get("Transfer-Encoding") or "").lower()
    label = sha1_label(digest.digest())
    return Captured(record, http, b"".join(kept), label, size, short=not chunked and size < declared)


def sha1_label(digest: bytes) -> str:
    """Returns a SHA-1 digest as WARC headers spell it."""
    return "sha1:" + base64.b32encode(digest).decode()


def _next_start(file: BinaryIO, start: int) -> int | None:
    """Returns the first offset from `start` on at which a record seems to begin, or None."""
    offset, tail = start, b""
    file.seek(start)
    while block := file.read(_BLOCK):
        window = tail + block
        base = offset - len(tail)
        for magic in _MAGIC.finditer(window):
            at = base + magic.end() - len(magic[0].lstrip(b"\n"))
            if _begins_record(file, at):
                return at
        file.seek(offset + len(block))
        offset += len(block)
        tail = window[-len(_PLAIN) :]
    return None


def _begins_record(file: BinaryIO, offset: int) -> bool:
    file.seek(offset)
    head = file.read(512)
    if head.startswith(_GZIP):
        try:
            return zlib.decompressobj(31).decompress(head, len(_PLAIN)) == _PLAIN
        except zlib.error:
            return False
    # A zstd frame may need the file's dictionary; whether it holds a record shows when it is read.
    return head.startswith((_ZSTD, _PLAIN))
